"""Pages that scripts write agree with what they are written from."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "docs" / "scripts"
TABLE = {
    "title": "Greedy",
    "machine": "AMD EPYC, avx512bf16, 2 threads",
    "date": "2026-11-21",
    "commit": "68736bb",
    "command": "specqd bench levels",
    "columns": ["chain", {"name": "x plain", "format": ".2f"}, "equal"],
    "rows": [["plain", 1, None], ["a|b", [2.138, 1.9, 2.34], "yes"]],
}
FILLED = """\
<!-- table: table.json -->

**Greedy**

| chain | x plain | equal |
| --- | ---: | --- |
| plain | 1.00 |  |
| a\\|b | 2.14 [1.90, 2.34] | yes |

AMD EPYC, avx512bf16, 2 threads; 2026-11-21, commit `68736bb`: `specqd bench levels`

<!-- end -->
"""


def run(script: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A page with an empty table, beside the table's JSON."""
    (tmp_path / "table.json").write_text(json.dumps(TABLE))
    page = tmp_path / "page.md"
    mark = f"<!-- table: {tmp_path / 'table.json'} -->"
    page.write_text(f"Before.\n\n{mark}\n<!-- end -->\n\nAfter.\n")
    return page


def test_every_table_of_the_docs_is_the_one_of_its_json() -> None:
    checked = run(SCRIPTS / "tables.py", "--check")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_tables_of_peers_are_those_of_their_results(tmp_path: Path) -> None:
    results = ROOT / "benchmarks" / "results"
    script = ROOT / "benchmarks" / "peers" / "page.py"
    written = run(script, results, tmp_path)
    assert written.returncode == 0, written.stderr
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted(path.name for path in (results / "tables").glob("peers-*.json"))
    assert len(names) >= 4
    for name in names:
        assert (tmp_path / name).read_text() == (results / "tables" / name).read_text()


def test_the_reference_of_the_command_line_is_what_the_commands_say() -> None:
    checked = run(SCRIPTS / "cli.py", "--check")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_table_has_its_machine_date_commit_and_command_below_it(page: Path) -> None:
    assert run(SCRIPTS / "tables.py", page).returncode == 0
    expected = FILLED.replace("table.json", str(page.parent / "table.json"))
    assert page.read_text() == f"Before.\n\n{expected}\nAfter.\n"
    assert run(SCRIPTS / "tables.py", "--check", page).returncode == 0


def test_a_page_that_differs_from_its_json_fails_the_check_and_is_not_written(page: Path) -> None:
    before = page.read_text()
    checked = run(SCRIPTS / "tables.py", "--check", page)
    assert checked.returncode == 1
    assert "+| plain | 1.00 |  |" in checked.stdout
    assert page.read_text() == before


@pytest.mark.parametrize(
    "field", ["title", "machine", "date", "commit", "command", "columns", "rows"]
)
def test_a_table_without_its_origin_is_refused(page: Path, field: str) -> None:
    table = {name: value for name, value in TABLE.items() if name != field}
    (page.parent / "table.json").write_text(json.dumps(table))
    refused = run(SCRIPTS / "tables.py", page)
    assert refused.returncode == 1
    assert f"{field} missing" in refused.stderr


def test_a_mark_without_an_end_takes_nothing_of_the_page(page: Path) -> None:
    page.write_text(page.read_text().replace("<!-- end -->", "## A heading"))
    before = page.read_text()
    refused = run(SCRIPTS / "tables.py", page)
    assert refused.returncode == 1
    assert "has no <!-- end --> after it" in refused.stderr
    assert page.read_text() == before


def test_every_message_of_the_troubleshooting_page_is_in_the_source() -> None:
    parsed = [ast.parse(path.read_text()) for path in (ROOT / "src").rglob("*.py")]
    nodes = (node for tree in parsed for node in ast.walk(tree) if isinstance(node, ast.Constant))
    source = "\n".join(node.value for node in nodes if isinstance(node.value, str))
    rows = re.findall(r"^\| (.+?) \| ", (ROOT / "docs" / "troubleshooting.md").read_text(), re.M)
    messages = [message for row in rows for message in re.findall("`(.+?)`", row)]
    parts = [part.strip(" ;:,'") for message in messages for part in message.split("...")]
    assert len(parts) > 30
    assert [part for part in parts if part not in source] == []
