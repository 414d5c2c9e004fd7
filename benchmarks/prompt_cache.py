"""Times the first token of a long prompt: read anew, from memory, and after a restart from disk.

    python benchmarks/prompt_cache.py MODEL [--prompt-tokens 7000] [--directory DIR]

Each arm runs in a new process, without drafts, and all must make the same tokens. `load` is the
time to open the model, `next` the speed of the tokens after the first one, while copies of a new
prompt are written. Kept files are in the system's page cache, so the disk's own time is not
measured.
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
from harness import Report, parser, same

from specqd import LLM, SamplingParams
from specqd.bench.rounds import Rounds, interleaved
from specqd.config import read_config
from specqd.model.model import Machine

Figures = dict[str, float | list[int]]

NEXT_TOKENS = 32
VOCABULARY_FROM = 300  # smaller ids may be special tokens
NEW, AGAIN = "read anew", "from memory, same process"
KEPT, RESTARTED = "read anew and kept", "from disk, after a restart"


def answer(model: Path, prompt: list[int], kept: str | None, is_repeated: bool) -> Figures:
    """Answers once in this process, or twice; the figures are those of the last answer."""
    begun = perf_counter()
    llm = LLM(model, "none", prompt_cache=kept, cache_positions=2 * len(prompt))
    load = perf_counter() - begun
    params = SamplingParams(max_tokens=NEXT_TOKENS + 1, temperature=0, ignore_eos=True)
    for _ in range(2 if is_repeated else 1):
        times = [perf_counter()]
        stream = llm.stream(prompt, params)
        times += [perf_counter() for _ in stream]
    assert stream.result is not None
    tokens = stream.result.completions[0].token_ids
    speed = NEXT_TOKENS / (times[-1] - times[1])
    return {"load": load, "first": times[1] - times[0], "next": speed, "tokens": tokens}


def main() -> None:
    arguments = parser(__doc__, rounds=5)
    arguments.add_argument("model", type=Path)
    arguments.add_argument("--prompt-tokens", type=int, default=7000)
    arguments.add_argument("--directory", type=Path, help="where to keep prompts")
    arguments.add_argument("--once", action="store_true", help="answer what standard input says")
    options = arguments.parse_args()
    if options.once:
        print(json.dumps(answer(options.model, **json.load(sys.stdin))))
        return
    machine = Machine.choose(options.threads, options.isa)
    vocabulary = read_config(options.model).vocab_size
    ids = np.random.default_rng().integers(VOCABULARY_FROM, vocabulary, options.prompt_tokens)
    prompt = ids.tolist()

    def run(kept: str | None, *, is_repeated: bool = False) -> Figures:
        settings = json.dumps({"prompt": prompt, "kept": kept, "is_repeated": is_repeated})
        command = [sys.executable, "-W", "ignore", __file__, options.model, "--once"]
        made: Figures = json.loads(subprocess.check_output(command, input=settings, text=True))
        return made

    def run_new() -> Figures:
        with TemporaryDirectory(dir=options.directory) as empty:
            return run(empty)

    columns = ["prompt", ("load, s", ".2f"), ("first token, s", ".2f"), ("next, tokens/s", ".1f")]
    title = f"The first token of {options.model.name} after {options.prompt_tokens} tokens"
    with (
        TemporaryDirectory(dir=options.directory) as full,
        Report(options, title, machine, columns) as report,
    ):
        run(full)
        arms = {
            NEW: same(run, None),
            AGAIN: same(run, None, is_repeated=True),
            KEPT: same(run_new),
            RESTARTED: same(run, full),
        }
        done: Rounds[Figures, str] = interleaved(arms, options.rounds)
        tokens = [each["tokens"] for runs in done.runs.values() for each in runs]
        assert all(each == tokens[0] for each in tokens), "the tokens differ"
        for arm, runs in done.runs.items():
            report.row(arm, *([each[key] for each in runs] for key in ("load", "first", "next")))
        size = sum(each.stat().st_size for each in Path(full).iterdir()) / 1e6
        print(f"\nkept: {size:.0f} MB")


if __name__ == "__main__":
    main()
