"""Counts the instructions of the aarch64 kernels, and computes their cycles, on any machine.

    python benchmarks/aarch64/count.py [--check] [--json FOLDER]

Needs Debian's g++-aarch64-linux-gnu and qemu-user, and llvm-19 for the cycles. Each kernel runs
emulated, on some work and on twice as much; a plugin of QEMU writes down the instructions of both.
The difference, divided by the added work, is the count: what really runs, with loops, calls and
patches. llvm-mca computes the cycles of the same instructions with all data in the first-level
cache and all branches predicted. Nothing here is measured on hardware. --check fails if a product
with `neondot` needs more instructions or cycles than are stated below.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from harness import occasion, tables, write_table

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build-aarch64" / "counts"
RULES = ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
RULES += ["-fno-exceptions", "-fno-rtti"]
OPTIONS = {
    "portable": [],
    "neon": ["-march=armv8-a"],
    "neondot": ["-march=armv8.2-a+dotprod"],
}
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
CORES = {"neoverse-n1": "N1", "neoverse-v1": "V1", "neoverse-v2": "V2"}
ROWS = (1, 4, 8)
TILES, BLOCKS = 12, 8  # of the first run; the second one has twice as many
TILE_WEIGHTS, BLOCK = 512, 32
OPERATIONS = (
    "softmax",
    "SiLU",
    "RMSNorm",
    "rotation",
    "rounding",
    "exact inputs",
    "draft inputs",
    "noise",
)

# By precision: most instructions per tile, by rows, and most cycles of one row on Neoverse N1.
MOST_INSTRUCTIONS = {
    "exact": {1: 1050, 4: 1600, 8: 2550},
    "fp4": {1: 180, 4: 390, 8: 750},
}
MOST_CYCLES = {"exact": 380, "fp4": 80}


@dataclass(frozen=True, slots=True)
class Machine:
    """Assumptions about a machine, from its vendor's pages; `core` is llvm-mca's model for it."""

    name: str
    core: str
    cores: int
    ghz: float
    gb_per_s: float


MACHINES = (
    Machine("Raspberry Pi 5", "neoverse-n1", 4, 2.4, 10),
    Machine("Graviton3", "neoverse-v1", 64, 2.6, 300),
    Machine("Apple M-series, 8 fast cores", "neoverse-v2", 8, 3.2, 100),
    Machine("Snapdragon X Elite", "neoverse-v2", 12, 3.4, 135),
)
BYTES_PER_WEIGHT = {"exact": 1.62, "fp4": 0.53}


class ToolError(Exception):
    """A program is missing or fails. The message is one line."""


def run(*command: str | Path, data: str | None = None) -> str:
    """The standard output of a command. Raises ToolError if it fails."""
    words = [str(word) for word in command]
    if which(words[0]) is None:
        raise ToolError(f"{words[0]} is missing: see the packages that {Path(__file__).name} names")
    done = subprocess.run(words, input=data, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ToolError(f"{words[0]}: {(done.stderr.strip() or 'failed').splitlines()[-1]}")
    return done.stdout


def build(isas: Sequence[str] = tuple(OPTIONS)) -> None:
    """Compiles kernels, the program that runs them, and the plugin, into BUILD."""
    BUILD.mkdir(parents=True, exist_ok=True)
    common = ["-std=gnu++20", "-O3", "-Wno-psabi", "-I", str(ROOT / "csrc")]
    objects = []
    for isa in isas:
        objects.append(BUILD / f"{isa}.o")
        source = ROOT / "csrc" / "kernels" / "isa" / f"{isa}.cpp"
        run(COMPILER, *common, *RULES, *OPTIONS[isa], "-c", source, "-o", objects[-1])
    run(COMPILER, *common, "-static", HERE / "work.cpp", *objects, "-o", BUILD / "work")
    run("gcc", "-O2", "-Wall", "-shared", "-fPIC", HERE / "trace.c", "-o", BUILD / "trace.so")


def traces(isa: str, kernel: str, rows: int, amount: int) -> tuple[list[str], list[str]]:
    """The instructions, as bytes in hexadecimal, on `amount` of work and on twice as much."""
    file = BUILD / "trace"
    work = (BUILD / "work", isa, kernel, str(rows), str(amount))
    run(EMULATOR, "-cpu", "max", "-plugin", f"{BUILD / 'trace.so'},to={file}", *work)
    data = file.read_bytes()
    words = [data[at : at + 4] for at in range(0, len(data), 4)]
    first = words.index(bytes(4))
    return _hexadecimal(words[:first]), _hexadecimal(words[first + 1 : -1])


def _hexadecimal(words: Sequence[bytes]) -> list[str]:
    return [" ".join(f"0x{each:02x}" for each in word) for word in words]


def newest(tool: str) -> str:
    """The name of LLVM's newest installed version of a tool. Raises ToolError if there is none."""
    for version in range(30, 16, -1):  # the model of Neoverse N1 came with 17
        if which(f"{tool}-{version}"):
            return f"{tool}-{version}"
    raise ToolError(f"{tool} of LLVM 17 or later is missing: install llvm-19")


def cycles(core: str, instructions: Sequence[str]) -> int:
    """The cycles that llvm-mca computes for a sequence of instructions on a core."""
    target = ("-triple=aarch64", "-mattr=+v8.2a,+dotprod")
    text = run(newest("llvm-mc"), "--disassemble", *target, data="\n".join(instructions))
    lines = [line for line in text.splitlines() if not line.strip().startswith(".")]
    report = run(
        *(newest("llvm-mca"), "-mtriple=aarch64", f"-mcpu={core}", "-iterations=1"),
        *("-instruction-info=0", "-resource-pressure=0"),
        data="\n".join(lines),
    )
    found = re.search(r"^Total Cycles:\s+(\d+)", report, re.MULTILINE)
    assert found is not None
    return int(found[1])


@dataclass(frozen=True, slots=True)
class Count:
    """The cost of one tile, or of one block of 32 values."""

    instructions: float
    cycles: dict[str, float]  # by core; empty without llvm-mca


Product = tuple[str, str, int, Count]  # precision, instruction set, rows


def count(isa: str, kernel: str, rows: int, amount: int, cores: Sequence[str]) -> Count:
    once, twice = traces(isa, kernel, rows, amount)
    by_core = {core: (cycles(core, twice) - cycles(core, once)) / amount for core in cores}
    return Count((len(twice) - len(once)) / amount, by_core)


def product_counts(cores: Sequence[str], isas: Sequence[str] = tuple(OPTIONS)) -> Iterator[Product]:
    """Precision, instruction set, rows and count of each product; portable ones without cycles."""
    for precision in ("exact", "fp4"):
        for isa in isas:
            for rows in ROWS:
                known = () if isa == "portable" else cores
                yield precision, isa, rows, count(isa, precision, rows, TILES, known)


def show(title: str, columns: list[Any], rows: list[list[Any]], file: Path | None) -> None:
    """Prints a table and, with `file`, writes it as JSON."""
    drawn = [tables.as_column(column) for column in columns]
    print(f"\n{title}\n\n" + "\n".join(tables.heading(drawn, [False] * len(drawn))))
    print("\n".join(tables.line(drawn, row) for row in rows), flush=True)
    if file is not None:
        machine = "Counted under QEMU, cycles computed by llvm-mca; not measured on hardware"
        fields = {"title": title, "machine": machine, **occasion()}
        write_table(file, fields | {"columns": columns, "rows": rows})


def capacities(products: Sequence[Product]) -> Iterator[list[Any]]:
    """Rows of the table of machines, from the cycles of the kernels for dot products."""
    for machine in MACHINES:
        for precision, isa, rows, counted in products:
            if isa != "neondot":
                continue
            speed = TILE_WEIGHTS * machine.ghz / counted.cycles[machine.core]  # G weights/s
            limit = machine.gb_per_s / BYTES_PER_WEIGHT[precision]
            assumed = f"{machine.cores} x {machine.ghz} GHz, {machine.gb_per_s:.0f} GB/s"
            yield [machine.name, assumed, precision, rows, speed, machine.cores * speed / limit]


def excesses(products: Sequence[Product]) -> Iterator[str]:
    for precision, isa, rows, counted in products:
        if isa != "neondot":
            continue
        most, cycles = MOST_INSTRUCTIONS[precision][rows], counted.cycles.get("neoverse-n1", 0)
        if counted.instructions > most:
            yield f"{precision}, {rows} rows: {counted.instructions:.0f} instructions, not {most}"
        if rows == 1 and cycles > MOST_CYCLES[precision]:
            yield f"{precision}, 1 row: {cycles:.0f} cycles, not {MOST_CYCLES[precision]}"


def show_products(products: Sequence[Product], cores: Sequence[str], file: Path | None) -> None:
    columns = ["precision", "kernels", "rows", _number("instructions", ".0f")]
    columns += [_number(f"cycles, {CORES[core]}", ".0f") for core in cores]
    rows = [
        [precision, isa, n, each.instructions, *(each.cycles.get(core) for core in cores)]
        for precision, isa, n, each in products
    ]
    show("Instructions and computed cycles per tile of 512 weights", columns, rows, file)


def show_operations(file: Path | None) -> None:
    isas = ("portable", "neon")
    rows = [
        [name, *(count(isa, name, 1, BLOCKS, ()).instructions for isa in isas)]
        for name in OPERATIONS
    ]
    columns: list[Any] = ["operation", *(_number(isa, ".0f") for isa in isas)]
    show("Instructions per 32 values, counted", columns, rows, file)


def show_capacities(products: Sequence[Product], file: Path | None) -> None:
    columns: list[Any] = ["machine", "assumed", "precision", "rows"]
    columns += [_number("Gweights/s, one core", ".1f"), _number("share of bandwidth", ".2f")]
    show("Capacity with `neondot`, computed", columns, list(capacities(products)), file)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if a limit is exceeded")
    parser.add_argument("--json", type=Path, metavar="FOLDER", help="also write the tables there")
    options = parser.parse_args()
    build()
    try:
        cores = list(CORES) if newest("llvm-mca") else []
    except ToolError as error:
        cores = []
        print(f"no cycles: {error}", file=sys.stderr)

    def file(name: str) -> Path | None:
        return options.json / f"aarch64-{name}.json" if options.json else None

    products = list(product_counts(cores))
    show_products(products, cores, file("tiles"))
    show_operations(file("operations"))
    if cores:
        show_capacities(products, file("machines"))
    problems = list(excesses(products))
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if options.check and problems else 0


def _number(name: str, form: str) -> dict[str, str]:
    return {"name": name, "format": form}


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ToolError as problem:
        sys.exit(f"{problem}")
