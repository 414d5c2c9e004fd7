"""Imports and includes follow the floors that docs/design.md lists."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "specqd"
CORE = ROOT / "csrc"


def floors(place: str) -> dict[str, set[str]]:
    """Each floor of `place` in docs/design.md, lowest first, with the floors it may import."""
    page = (ROOT / "docs" / "design.md").read_text()
    found = re.search(rf"<!-- floors: {place} -->\n(.*?)<!-- end -->", page, re.DOTALL)
    assert found, f"docs/design.md lists no floors of {place}"
    lines = re.findall(r"^- \*\*(\w+)\*\*: imports ([\w, ]+)\.", found[1], re.MULTILINE)
    return {name: set(re.findall(r"\w+", below)) - {"nothing"} for name, below in lines}


PACKAGE_FLOORS = floors("src/specqd")
CORE_FLOORS = floors("csrc")

EDGES = ("cli", "server", "ray", "llm_plugin")
TERMINAL_LIBRARIES = {"click", "typer", "rich", "argparse"}
VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "base", "manager", "misc"}

LONGEST_FILE = 450  # lines; 400 is the aim
LONGEST_FUNCTION = 60  # lines; 40 is the aim

# Headers that a file built for one instruction set may include. An inline function of any other
# header could be compiled for that set, and the linker could keep this copy for all machines.
ISA_SYSTEM_HEADERS = {"cstdint", "cstring", "cstddef", "immintrin.h", "arm_neon.h"}
PLAIN_HEADERS = {"kernels/kernels.h", "kernels/sampling_kernels.h", "kernels/bf16.h"}

MODULES = sorted(PACKAGE.rglob("*.py"))
each_module = pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))


def floor_of(path: Path) -> str:
    """The subpackage of a module, or the module itself at the top level."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(path.suffix)


def imported_floors(path: Path) -> Iterator[str]:
    """Floors that `path` imports anywhere; imports under TYPE_CHECKING count too."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            package, _, rest = name.partition(".")
            if package == "specqd":
                floor = rest.split(".")[0]
                yield floor if floor in PACKAGE_FLOORS else "__init__"


def included_floors(path: Path) -> Iterator[str]:
    for header in re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE):
        assert (CORE / header).is_file(), f"{path}: {header}: write the path from csrc on"
        yield header.split("/")[0]


def package_arrows() -> dict[str, set[str]]:
    arrows: dict[str, set[str]] = {}
    for path in (*MODULES, *PACKAGE.rglob("*.pyi")):
        own = floor_of(path)
        arrows.setdefault(own, set()).update(set(imported_floors(path)) - {own})
    return arrows


def core_arrows() -> dict[str, set[str]]:
    arrows: dict[str, set[str]] = {}
    for path in CORE.rglob("*"):
        if path.suffix in {".h", ".cpp"}:
            own = path.relative_to(CORE).parts[0]
            arrows.setdefault(own, set()).update(set(included_floors(path)) - {own})
    return arrows


@pytest.mark.parametrize(
    ("listed", "found"),
    [(PACKAGE_FLOORS, package_arrows()), (CORE_FLOORS, core_arrows())],
    ids=["src/specqd", "csrc"],
)
def test_imports_are_those_that_the_page_lists(
    listed: dict[str, set[str]], found: dict[str, set[str]]
) -> None:
    assert {name: sorted(below) for name, below in found.items()} == {
        name: sorted(below) for name, below in listed.items()
    }


@pytest.mark.parametrize("listed", [PACKAGE_FLOORS, CORE_FLOORS], ids=["src/specqd", "csrc"])
def test_imports_point_downwards(listed: dict[str, set[str]]) -> None:
    order = list(listed)
    for floor, below in listed.items():
        for other in below:
            assert order.index(other) < order.index(floor), f"{floor} imports {other}"


@each_module
def test_only_the_edge_prints_and_reads_the_environment(path: Path) -> None:
    if floor_of(path) in EDGES:
        return
    for node in ast.walk(ast.parse(path.read_text())):
        where = f"{path.name}:{getattr(node, 'lineno', '')}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"print", "input"}, where
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            assert not re.match(r"os\.(environ|getenv|putenv)|sys\.(stdout|stderr|argv)", name), (
                f"{where}: {name}"
            )
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            names = {alias.name for alias in node.names}
            roots = {(module or name).split(".")[0] for name in names}
            assert not roots & TERMINAL_LIBRARIES, where
            assert module not in {"os", "sys"} or not names & {"environ", "getenv", "stdout"}, where


@each_module
def test_only_the_edge_names_options_of_the_command_line(path: Path) -> None:
    """Errors name parameters, which the command line replaces by its options."""
    if floor_of(path) in EDGES:
        return
    tree = ast.parse(path.read_text())
    expressions = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = re.sub("`.*?`", "", node.value)  # commands of other programs
            is_docstring = node in expressions
            assert is_docstring or not re.search("--[a-z]", text), f"{path.name}:{node.lineno}"


@each_module
def test_modules_have_specific_names_and_docstrings(path: Path) -> None:
    assert not VAGUE_NAMES & set(path.stem.split("_"))
    assert ast.get_docstring(ast.parse(path.read_text())) or not path.read_text()


def test_no_file_exceeds_the_line_limit() -> None:
    files = [
        *PACKAGE.rglob("*.py"),
        *(ROOT / "tests").rglob("*.py"),
        *(path for path in (ROOT / "csrc").rglob("*") if path.suffix in {".h", ".cpp"}),
    ]
    lengths = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in files}
    assert lengths
    assert {p: n for p, n in lengths.items() if n > LONGEST_FILE} == {}


def test_no_function_exceeds_the_line_limit() -> None:
    long = {
        f"{path.relative_to(ROOT)}:{node.name}": length
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        and (length := (node.end_lineno or 0) - node.lineno + 1) > LONGEST_FUNCTION
    }
    assert long == {}


def included(path: Path) -> list[str]:
    return re.findall(r'^#include [<"]([^>"]+)[>"]', path.read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    "path", sorted((CORE / "kernels/isa").iterdir()), ids=lambda path: path.name
)
def test_files_of_an_instruction_set_include_only_intrinsics_and_our_own(path: Path) -> None:
    for header in included(path):
        is_own = header in PLAIN_HEADERS or re.fullmatch(r"kernels/isa/[\w]+-inl\.h", header)
        assert is_own or header in ISA_SYSTEM_HEADERS, header
    code = path.read_text()
    if path.suffix == ".h":
        assert re.search(r"^namespace specqd \{\nnamespace \{", code, re.MULTILINE), (
            "an instruction set's functions need internal linkage"
        )


@pytest.mark.parametrize("name", sorted(PLAIN_HEADERS))
def test_headers_that_instruction_sets_share_include_no_library(name: str) -> None:
    allowed = ISA_SYSTEM_HEADERS | PLAIN_HEADERS
    assert set(included(CORE / name)) <= allowed
