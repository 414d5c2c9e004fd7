"""The map of docs/design.md, section 3, as the import graph has it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "specqd"

# A module imports from lower rows only.
RANKS = (
    {"errors", "bf16", "backends"},
    {"mapped"},
    {"json_fields", "gguf", "sentencepiece_model", "mxfp4"},
    {"rope", "gguf_config", "gguf_tokenizer"},
    {"tensors", "config"},
    {"gguf_tensors"},
    {"_native"},
    {"packed", "mxfp4_experts", "decoder_spec", "tensor_names"},
    {"loader"},
    {"layers"},
    {"roles", "sampling", "weights", "hub", "body_fields", "openai_refusals"},
    {"model"},
    {"scoring"},
    {"template_budget", "text_stream", "token_texts"},
    {"template_sandbox"},
    {"chat_template"},
    {"tokenizer"},
    {"chains", "tool_calls", "token_spelling", "generation", "channels"},
    {"engine", "openai_tools", "tool_reader"},
    {"reports", "openai_requests"},
    {"openai_answers", "json_grammar"},
    {"llm"},
    {"batch", "lm_eval"},
    {""},  # the package itself, which names what its users import
    {"bench"},
    {"server"},
    {"cli"},
    {"__main__"},
)
RANK = {name: rank for rank, names in enumerate(RANKS) for name in names}
EDGES = ("cli", "server")
TERMINAL_LIBRARIES = {"click", "typer", "rich", "argparse"}
VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "base", "manager", "misc"}

LONGEST_FILE = 450  # lines; 400 is the aim
LONGEST_FUNCTION = 60  # lines; 40 is the aim

# What a file built for one instruction set may include: an inline function of anything else could
# be compiled for it, and then be the copy that every machine runs.
ISA_SYSTEM_HEADERS = {"cstdint", "cstring", "cstddef", "immintrin.h", "arm_neon.h"}
PLAIN_HEADERS = {"kernels.h", "pick_kernels.h", "bf16.h"}

MODULES = sorted(PACKAGE.rglob("*.py"))
each_module = pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))


def name_of(path: Path) -> str:
    """The module's name within the package; that of a subpackage for all that lies in it."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py").replace("__init__", "")


def is_module(name: str) -> bool:
    return name in RANK or (PACKAGE / f"{name}.py").is_file() or (PACKAGE / name).is_dir()


def imported_modules(path: Path) -> Iterator[str]:
    """Modules of the package that `path` imports anywhere, by name; types only count too."""
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
                module = rest.split(".")[0]
                yield module if is_module(module) else ""


@each_module
def test_imports_point_downwards(path: Path) -> None:
    own = name_of(path)
    assert own in RANK, f"{own}: give it a rank in tests/test_architecture.py"
    for module in imported_modules(path):
        if module != own:
            assert RANK[module] < RANK[own], f"{own} imports {module}, which is not below it"


@each_module
def test_only_the_edge_prints_and_reads_the_environment(path: Path) -> None:
    if name_of(path) in EDGES:
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
def test_modules_have_names_that_say_something(path: Path) -> None:
    assert not VAGUE_NAMES & set(path.stem.split("_"))
    assert ast.get_docstring(ast.parse(path.read_text())) or not path.read_text()


def test_no_file_is_longer_than_it_may_be() -> None:
    files = [
        *PACKAGE.rglob("*.py"),
        *(ROOT / "tests").rglob("*.py"),
        *(path for path in (ROOT / "csrc").rglob("*") if path.suffix in {".h", ".cpp"}),
    ]
    lengths = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in files}
    assert lengths
    assert {p: n for p, n in lengths.items() if n > LONGEST_FILE} == {}


def test_no_function_is_longer_than_it_may_be() -> None:
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


@pytest.mark.parametrize("path", sorted((ROOT / "csrc/isa").iterdir()), ids=lambda path: path.name)
def test_files_of_an_instruction_set_include_only_intrinsics_and_our_own(path: Path) -> None:
    for header in included(path):
        is_own = header in PLAIN_HEADERS or re.fullmatch(r"isa/[\w]+-inl\.h", header)
        assert is_own or header in ISA_SYSTEM_HEADERS, header
    code = path.read_text()
    if path.suffix == ".h":
        assert re.search(r"^namespace specqd \{\nnamespace \{", code, re.MULTILINE), (
            "an instruction set's functions need internal linkage"
        )


@pytest.mark.parametrize("name", sorted(PLAIN_HEADERS))
def test_headers_that_instruction_sets_share_include_no_library(name: str) -> None:
    allowed = ISA_SYSTEM_HEADERS | PLAIN_HEADERS
    assert set(included(ROOT / "csrc" / name)) <= allowed
