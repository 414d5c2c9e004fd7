"""Compares the accuracies of one model in lm-eval through `hf` and `specqd`.

Needs an environment with specqd[eval], and with torch, transformers and accelerate:

    pip install ".[eval]" -r parity/requirements.txt accelerate
    python parity/lm_eval_accuracy.py [MODEL] [--limit N]

The tasks are made from the source of Python's library, so that nothing is downloaded: which of four
lines comes next (log-likelihoods), how likely is a module (rolling), and the rest of a line
(generated). The reference is transformers in float32 on the same BF16 weights. Our answers may
differ from it as often as those of transformers' own BF16 run, or in 1 % of all.
"""

import argparse
import json
import random
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import transformers
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

import specqd.lm_eval  # noqa: F401  # registers the model
from specqd.hub import shipped_model

SEED = 20260
SOURCES = ("argparse", "ast", "configparser", "csv", "datetime", "difflib", "inspect", "pathlib",
           "shutil", "statistics", "tarfile", "textwrap", "threading", "zipfile")  # fmt: skip

COMMON = """\
task: NAME
dataset_path: json
dataset_kwargs: {data_files: FOLDER/NAME.jsonl}
test_split: train
target_delimiter: ""
"""
TASKS = {
    "next_line": """\
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_choice: "{{choices}}"
doc_to_target: label
metric_list: [{metric: acc}]
""",
    "module": """\
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: byte_perplexity}]
""",
    "rest_of_line": """\
output_type: generate_until
doc_to_text: "{{text}}"
doc_to_target: "{{rest}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 24, do_sample: false}
metric_list: [{metric: exact_match}]
""",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default=str(shipped_model()))
    parser.add_argument("--limit", type=int, default=200, help="questions of each kind")
    arguments = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        write_tasks(Path(folder), arguments.limit)
        truth = evaluate(folder, "hf", pretrained=arguments.model, dtype="float32", device="cpu")
        theirs = evaluate(folder, "hf", pretrained=arguments.model, dtype="bfloat16", device="cpu")
        ours = evaluate(folder, "specqd", pretrained=arguments.model)
    ok = True
    print(
        f"{'':14}{'float32':>10}{'their BF16':>12}{'ours':>10}   answers that differ: theirs, ours"
    )
    for name in TASKS:
        values = [metric(each, name) for each in (truth, theirs, ours)]
        expected = answers(truth, name)
        theirs_differ, ours_differ = (
            sum(a != b for a, b in zip(answers(each, name), expected, strict=True))
            for each in (theirs, ours)
        )
        if name == "module":  # a perplexity, no answers
            is_right = abs(values[2] / values[0] - 1) <= max(abs(values[1] / values[0] - 1), 1e-3)
            differ = ""
        else:
            is_right = ours_differ <= max(theirs_differ, len(expected) // 100)
            differ = f"   {theirs_differ} and {ours_differ} of {len(expected)}"
        print(f"{name:14}{values[0]:10.4f}{values[1]:12.4f}{values[2]:10.4f}{differ}"
              f"{'' if is_right else '  WRONG'}")  # fmt: skip
        ok = ok and is_right
    return 0 if ok else 1


def evaluate(folder: str, model: str, **model_args: Any) -> dict[str, Any]:
    results = simple_evaluate(
        model=model,
        model_args=model_args,
        tasks=list(TASKS),
        task_manager=TaskManager(include_path=folder, include_defaults=False),
        bootstrap_iters=0,
        log_samples=True,
    )
    assert results is not None
    return results


def metric(results: dict[str, Any], task: str) -> float:
    [value] = [
        value
        for name, value in results["results"][task].items()
        if name.endswith(",none") and "stderr" not in name
    ]
    return float(value)


def answers(results: dict[str, Any], task: str) -> list[Any]:
    """The chosen or generated answer to each question."""
    samples = sorted(results["samples"][task], key=lambda sample: sample["doc_id"])
    if task == "next_line":
        scores = [[float(score) for score, _ in each["filtered_resps"]] for each in samples]
        return [each.index(max(each)) for each in scores]
    return [each["filtered_resps"] for each in samples]


def write_tasks(folder: Path, limit: int) -> None:
    rng = random.Random(SEED)
    library = Path(sysconfig.get_path("stdlib"))
    modules = [(library / f"{name}.py").read_text(encoding="utf-8") for name in SOURCES]
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in TASKS}
    rows["module"] = [{"text": module[:6000]} for module in modules[: max(1, limit // 10)]]
    while len(rows["next_line"]) < limit:
        lines = rng.choice(modules).splitlines(keepends=True)
        at = rng.randrange(8, len(lines))
        text, line = "".join(lines[at - 8 : at]), lines[at]
        others = [other for other in rng.sample(lines, 12) if other.strip() and other != line][:3]
        if len(line.strip()) < 8 or len(others) < 3:
            continue
        choices = [line, *others]
        rng.shuffle(choices)
        rows["next_line"].append({"text": text, "choices": choices, "label": choices.index(line)})
        cut = len(line.rstrip()) - 3
        rows["rest_of_line"].append({"text": text + line[:cut], "rest": line[cut:].rstrip("\n")})
    for name, body in TASKS.items():
        content = "".join(json.dumps(row) + "\n" for row in rows[name])
        (folder / f"{name}.jsonl").write_text(content)
        task = COMMON.replace("NAME", name).replace("FOLDER", str(folder)) + body
        (folder / f"{name}.yaml").write_text(task)


if __name__ == "__main__":
    sys.exit(main())
