"""What every benchmark shares: its options, its table and the table's JSON.

A benchmark names its arms and its columns. The table is printed row by row; `--json FILE` writes it
in the form that docs/scripts/tables.py reads. A cell of an interval is [median, low, high], with
the bootstrapped 95 % interval of the median over rounds.
"""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from math import floor, log10
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "docs" / "scripts"))

import tables

from specqd import _native
from specqd.bench.rounds import Interval
from specqd.model.model import Machine

ROOT = Path(__file__).resolve().parents[1]
Column = Sequence[str]  # a name; of numbers a name and their format, such as `.2f`

P = ParamSpec("P")
R = TypeVar("R")

_DIGITS = 5  # of a number in the JSON
_RESULTS = (":(top)", ":(top,exclude)benchmarks/results", ":(top,exclude)docs")


def parser(
    doc: str | None, *, rounds: int | None = None, isas: Sequence[str] | None = None
) -> argparse.ArgumentParser:
    """A parser with the options that benchmarks share; --rounds only if it has a default. With
    `isas`, --isa takes several instruction sets."""
    made = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    made.add_argument("--threads", type=int)
    if isas is None:
        made.add_argument("--isa", help="instruction set; default: the fastest")
    else:
        made.add_argument("--isa", nargs="+", default=isas)
    made.add_argument("--json", type=Path, metavar="FILE", help="also write the table to this file")
    if rounds is not None:
        made.add_argument("--rounds", type=int, default=rounds)
    return made


class Report:
    """A table that is printed as it grows. Use it as a context: its end writes the JSON."""

    def __init__(
        self, options: argparse.Namespace, title: str, machine: Machine, columns: Sequence[Column]
    ) -> None:
        self._options, self._machine = options, machine
        self._columns = [
            {"name": column} if isinstance(column, str) else dict(zip(_COLUMN, column, strict=True))
            for column in columns
        ]
        self._rows: list[list[Any]] = []
        self._gb_per_s: list[float] = []
        self._title = title
        formats = [each.get("format") is not None for each in self._columns]
        self._drawn = [tables.as_column(column) for column in self._columns]
        print(f"{title}\n\n" + "\n".join(tables.heading(self._drawn, formats)), flush=True)

    def __enter__(self) -> "Report":
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is not None:
            return
        described = describe_machine(self._machine)
        machine = f"{described['cpu']}, {described['threads']} threads, {described['isa']}"
        if self._gb_per_s:
            machine += f"; {min(self._gb_per_s):.0f} to {max(self._gb_per_s):.0f} GB/s"
        print(f"\n{machine}", flush=True)
        if self._options.json is not None:
            fields = {"title": self._title, "machine": machine, **occasion()}
            write_table(self._options.json, fields | {"columns": self._columns, "rows": self._rows})

    def saw(self, gb_per_s: Iterable[float]) -> None:
        """Counts measured bandwidths towards the range that the table states."""
        self._gb_per_s += gb_per_s

    def row(self, *cells: Any) -> None:
        """Adds a row. A list of numbers becomes its median with its interval."""
        row = [_cell(cell) for cell in cells]
        self._rows.append(row)
        print(tables.line(self._drawn, row), flush=True)


_COLUMN = ("name", "format")


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        value = Interval.of(value)
    if isinstance(value, Interval):
        return [_rounded(each) for each in (value.median, value.low, value.high)]
    return _rounded(value) if isinstance(value, float) else value


def _rounded(value: float) -> float:
    return round(value, _DIGITS - 1 - floor(log10(abs(value)))) if value else 0.0


def same(run: Callable[P, R], *args: P.args, **named: P.kwargs) -> Callable[[int], R]:
    """An arm that does the same in every round."""
    return lambda _: run(*args, **named)


def describe_machine(machine: Machine) -> dict[str, Any]:
    return {
        "cpu": _native.cpu_model(),
        "isa": machine.isa,
        "threads": machine.pool.threads,
    }


def occasion() -> dict[str, str]:
    """The date, the commit and the command of this run."""
    script = Path(sys.argv[0]).resolve()
    name = str(script.relative_to(ROOT)) if script.is_relative_to(ROOT) else script.name
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "command": shlex.join(["python", name, *sys.argv[1:]]),
    }


def commit() -> str:
    """The commit that is measured. Changes of results and pages do not make it dirty."""
    head = _git("rev-parse", "--short=12", "HEAD")
    is_changed = _git("status", "--porcelain", "--untracked-files=no", "--", *_RESULTS)
    return (head or "unknown") + ("-dirty" if is_changed else "")


def _git(*words: str) -> str:
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def write_table(path: Path, table: Mapping[str, Any]) -> None:
    """Writes a table with one line per column and per row, so that diffs can be read."""
    fields = []
    for name, value in table.items():
        text = json.dumps(value, ensure_ascii=False)
        if not isinstance(value, str):
            items = ",\n".join(f"  {json.dumps(item, ensure_ascii=False)}" for item in value)
            text = f"[\n{items}\n ]"
        fields.append(f" {json.dumps(name)}: {text}")
    path.write_text("{\n" + ",\n".join(fields) + "\n}\n")
