"""The files that deploy the server start it with options that it has, and agree with pyproject."""

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from specqd.cli.serve import serve

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONTAINERFILE = (DEPLOY / "Containerfile").read_text()
SERVICE = (DEPLOY / "specqd.service").read_text()


def parsed(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def parameters(command: list[str]) -> dict[str, Any]:
    """The options that `serve` would get; the command is only parsed."""
    name, *arguments = command[command.index("serve") :]
    return serve.make_context(name, arguments).params


def test_the_container_and_its_composition_start_the_server() -> None:
    [entry] = re.findall(r"^ENTRYPOINT (\[.*\])$", CONTAINERFILE, re.MULTILINE)
    service = parsed(DEPLOY / "compose.yaml")["services"]["specqd"]
    found = parameters([*yaml.safe_load(entry), *service["command"]])
    assert (found["host"], found["port"]) == ("0.0.0.0", 8000)
    [mount] = [each for each in service["volumes"] if each.startswith("../models")]
    assert found["model"].startswith(mount.split(":")[1])
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


def test_the_container_copies_what_the_build_needs_and_is_not_root() -> None:
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", CONTAINERFILE, re.MULTILINE)
    for path in " ".join(copied).split():
        assert (ROOT / path).exists(), path
    assert set(PROJECT["license-files"][:1]) <= set(" ".join(copied).split())
    assert int(re.findall(r"^USER (\d+)$", CONTAINERFILE, re.MULTILINE)[-1]) > 0


def test_the_service_starts_the_server() -> None:
    [command] = re.findall(r"^ExecStart=(.*)$", SERVICE, re.MULTILINE)
    assert parameters(shlex.split(command))["port"] == 8000


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_the_service_passes_systemds_own_check(tmp_path: Path) -> None:
    program = shutil.which("true")
    assert program is not None
    unit = tmp_path / "specqd.service"
    unit.write_text(SERVICE.replace("/opt/specqd/bin/specqd", program))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "specqd.service" not in done.stderr


def test_the_recipe_and_the_citation_agree_with_the_project() -> None:
    recipe = parsed(DEPLOY / "conda" / "recipe.yaml")
    names = {re.split("[<>=]", each)[0] for each in PROJECT["dependencies"]}
    python, *others = recipe["requirements"]["run"]
    assert (python, set(others)) == (f"python {PROJECT['requires-python']}", names)
    citation = parsed(ROOT / "CITATION.cff")
    versions = [PROJECT["version"], recipe["package"]["version"], citation["version"]]
    assert len(set(versions)) == 1
    assert recipe["about"]["license"] == PROJECT["license"]
    for path in recipe["about"]["license_file"]:
        assert (ROOT / path).is_file()
