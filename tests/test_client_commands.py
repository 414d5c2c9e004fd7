"""Agents and load generators, started as in docs/clients.md, if they are installed."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from support.fixtures import a_server
from support.scripted_models import make_scripted_model
from support.served import Served, serving

PAGE = (Path(__file__).parent.parent / "docs" / "clients.md").read_text()
SERVER = "http://127.0.0.1:8000"
NAMED = ("--served-model-name", "my-model")

served = a_server("chat_model", *NAMED)


def snippet(section: str, kind: str, served: Served) -> str:
    """Returns the section's block of that kind, with this server's address."""
    section = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    [block] = re.findall(rf"^```{kind}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert block.count(SERVER) == 1
    return block.replace(SERVER, served.url).strip()


def run(command: str, home: Path, more: Mapping[str, str] | None = None) -> str:
    """Runs a shell command with an empty home directory, and returns its output."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        ["bash", "-c", command],
        env={"HOME": str(home), "PATH": path, "LANG": "C.UTF-8", **(more or {})},
        cwd=home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=300,
        check=False,
    )
    output = ended.stdout.decode()
    assert ended.returncode == 0, output
    return output


# --- Agents -------------------------------------------------------------------------------------


def make_agents_model(directory: Path, call: str, mark: str, seed: int) -> Path:
    """A model that writes the call, then, if the tool's result holds the mark, that it has come.

    Its template shows the last message alone, since a byte is a token here.
    """
    template = (
        "{% set last = messages[-1] %}[{{ last.role }}]{{ (last.content or '')[-200:] }}"
        "{% for c in last.tool_calls or [] %}"
        '<tool_call>{{ "\\n" }}{"name": "{{ c.function.name }}", "arguments": '
        '{{ c.function.arguments | tojson }}}{{ "\\n" }}</tool_call>{% endfor %}'
        "{% if add_generation_prompt %}[assistant]"
        f"{{% if last.role != 'tool' %}}A{{% elif '{mark}' in last.content %}}B{{% else %}}C"
        "{% endif %}{% endif %}"
    )
    scripts = {
        "A": f"Let me look.\n<tool_call>\n{call}\n</tool_call>",
        "B": "It has come.",
        "C": "Nothing was there.",
    }
    return make_scripted_model(directory, scripts, template, seed)


def test_codex_runs_a_tool_and_reads_its_result(
    tmp_path: Path, seed: int, rng: np.random.Generator
) -> None:
    if shutil.which("codex") is None:
        pytest.skip("needs Codex: npm install -g @openai/codex")
    a, b = rng.integers(1000, 9999, 2).tolist()
    call = f'{{"name": "exec_command", "arguments": {{"cmd": "expr {a} + {b}"}}}}'
    model = make_agents_model(tmp_path / "model", call, str(a + b), seed)
    with serving(str(model), *NAMED) as served:
        home = tmp_path / "home"
        (home / ".codex").mkdir(parents=True)
        (home / ".codex" / "config.toml").write_text(snippet("Codex", "toml", served))
        options = "--skip-git-repo-check --sandbox danger-full-access"
        said = run(f"codex exec {options} 'Add the numbers.'", home)
    assert said.splitlines()[-1] == "It has come."


def test_claude_code_runs_a_tool_and_reads_its_result(
    tmp_path: Path, seed: int, rng: np.random.Generator
) -> None:
    if shutil.which("claude") is None:
        pytest.skip("needs Claude Code: npm install -g @anthropic-ai/claude-code")
    home, mark = tmp_path / "home", f"mark {rng.integers(10**6)}."
    home.mkdir()
    (home / "notes.txt").write_text(f"{mark}\n")
    call = f'{{"name": "Read", "arguments": {{"file_path": "{home / "notes.txt"}"}}}}'
    model = make_agents_model(tmp_path / "model", call, mark, seed)
    with serving(str(model), *NAMED) as served:
        said = run(snippet("Claude Code", "sh", served) + " -p 'What do the notes say?'", home)
    assert said.strip() == "It has come."


# --- Measurements -------------------------------------------------------------------------------

TASK = """
task: toy
dataset_path: json
dataset_kwargs:
  data_files: {directory}/toy.jsonl
test_split: train
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list:
  - metric: acc
"""
QUESTIONS = '{"question": "abc", "choices": ["d", "x"], "answer": 0}\n' * 2


def test_the_evaluation_harness_scores_over_http(
    served: Served, chat_model: Path, tmp_path: Path
) -> None:
    if find_spec("lm_eval") is None or find_spec("transformers") is None:
        pytest.skip("needs lm-eval[api] and transformers")
    (tmp_path / "toy.jsonl").write_text(QUESTIONS)
    (tmp_path / "toy.yaml").write_text(TASK.format(directory=tmp_path))
    command = snippet("lm-evaluation-harness", "sh", served)
    command = command.replace("--tasks arc_easy", f"--tasks toy --include_path {tmp_path}")
    command = command.replace("tokenizer=./my-model", f"tokenizer={chat_model}")
    before = served.metric("vllm:prompt_tokens_total")
    said = run(command, tmp_path, {"HF_HUB_OFFLINE": "1"})
    assert re.search(r"^\|toy *\|.*\|acc *\|", said, re.MULTILINE), said
    assert served.metric("vllm:prompt_tokens_total") - before >= 4 * len("abcd")


def test_aiperf_measures_streams(served: Served, chat_model: Path, tmp_path: Path) -> None:
    if shutil.which("aiperf") is None:
        pytest.skip("needs aiperf")
    command = snippet("aiperf", "sh", served).replace("./my-model", str(chat_model))
    command = command.replace("--request-count 64", "--request-count 4 --isl 20 --osl 8")
    before = served.metric("vllm:generation_tokens_total")
    said = run(command, tmp_path)
    assert "Time to First Token" in said
    assert served.metric("vllm:generation_tokens_total") - before >= 4
