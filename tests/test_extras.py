"""The commands that install extras work before SpecQD is on a package index."""

import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from specqd.extras import install_command

ROOT = Path(__file__).parents[1]
# `pip install specqd`, `pipx run specqd`, `uvx specqd[serve]`, `llm install 'specqd[llm]'`.
_FROM_AN_INDEX = re.compile(
    r"\b(?:(?:pip|pipx|tool|llm) (?:install|run)|uvx)(?: -\S+)* ['\"]?specqd(?:[\[\s'\"=@`]|$)",
    re.M,
)


def parts_of(requirement: str) -> frozenset[str]:
    """The package, its extras and its bound; their order and spaces may differ."""
    return frozenset(re.findall(r"[\w.-]+|[<>=]+", requirement))


@pytest.mark.parametrize(
    ("extra", "contained"),
    [
        ("structured", []),
        ("serve", ["structured"]),
        ("llm", ["structured"]),
        ("ray", ["structured", "serve"]),
        ("bench", []),
    ],
)
def test_the_command_installs_the_packages_of_the_extra_in_this_environment(
    extra: str, contained: list[str]
) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    expected = {parts_of(each) for name in (extra, *contained) for each in extras[name]}
    python, *command = shlex.split(install_command(extra))
    assert python == sys.executable
    assert command[:3] == ["-m", "pip", "install"]
    own = {parts_of(f"specqd[{name}]") for name in contained}
    assert set(map(parts_of, command[3:])) == expected - own


def test_no_printed_command_installs_specqd_from_an_index() -> None:
    folders = ("docs", "src", "deploy", "examples", "benchmarks", "parity", "tests")
    paths = [path for name in folders for path in (ROOT / name).rglob("*") if path.is_file()]
    paths += [*ROOT.glob("*.md"), *ROOT.glob("*.toml")]
    suffixes = {".md", ".py", ".toml", ".yaml", ".yml", ".txt", ".html", ".ipynb", ".service", ""}
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in paths
        if path.suffix in suffixes and path != Path(__file__)
        for match in _FROM_AN_INDEX.finditer(path.read_text(errors="replace"))
    ]
    assert found == []
