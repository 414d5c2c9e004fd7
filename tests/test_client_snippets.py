"""The Python snippets of docs/clients.md run unchanged, if their packages are installed."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.fixtures import a_server
from support.served import Served

PAGE = Path(__file__).parent.parent / "docs" / "clients.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
PACKAGES = [re.search(r"^from (\w+)", snippet, re.MULTILINE)[1] for snippet in SNIPPETS]

served = a_server("chat_model", "--served-model-name", "my-model")


PAIRS = list(zip(PACKAGES, SNIPPETS, strict=True))


@pytest.mark.parametrize(("package", "snippet"), PAIRS, ids=PACKAGES)
def test_a_snippet_prints_an_answer(served: Served, package: str, snippet: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"needs {package}")
    assert snippet.count("http://127.0.0.1:8000") == 1
    script = snippet.replace("http://127.0.0.1:8000", served.url)
    before = served.metric("vllm:generation_tokens_total")
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n")
    assert 0 < served.metric("vllm:generation_tokens_total") - before <= 32
