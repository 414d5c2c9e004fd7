"""Fills the tables of Markdown pages from committed JSON, between marks in the page.

    python docs/scripts/tables.py            # README.md and all pages of docs/
    python docs/scripts/tables.py --check    # writes nothing; fails where a page differs
    python docs/scripts/tables.py docs/levels.md

A mark begins a line. Its path is relative to the repository:

    <!-- table: benchmarks/results/levels.json -->
    <!-- end -->

The JSON file holds one table:

    {"title": "Greedy, pycode-28m", "machine": "AMD EPYC (Zen 4), 2 threads",
     "date": "2026-11-21", "commit": "68736bb62b15", "command": "specqd bench levels ...",
     "columns": ["chain", {"name": "tokens/s", "format": ".0f"}, {"name": "x", "format": ".2f"}],
     "rows": [["mxfp4", 1421, [2.14, 1.90, 2.34]], ["auto", 2051, null]]}

A cell is a text (Markdown), a number, null (empty), [low, high] or [value, low, high].
"""

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OPENING = re.compile(r"<!-- table: (?P<path>\S+) -->\n?")
CLOSING = re.compile(r"<!-- end -->\n?")


class TableError(Exception):
    """A mark or a table's JSON is wrong. The message is one line."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    format: str | None = None  # of its numbers, such as `.2f`


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    machine: str
    date: str
    commit: str
    command: str
    columns: list[Column]
    rows: list[list[Any]]


def read_table(path: Path) -> Table:
    """Reads the table of a JSON file. Raises TableError if a field is missing or does not fit."""
    try:
        fields = json.loads(path.read_text())
    except OSError as error:
        raise TableError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise TableError(f"{path}: not JSON: {error}") from None
    wanted = ("title", "machine", "date", "commit", "command", "columns", "rows")
    if missing := [field for field in wanted if not fields.get(field)]:
        raise TableError(f"{path}: {', '.join(missing)} missing")
    columns = [as_column(column) for column in fields["columns"]]
    for number, row in enumerate(fields["rows"], 1):
        if len(row) != len(columns):
            raise TableError(f"{path}: row {number} has {len(row)} of {len(columns)} cells")
    return Table(*(str(fields[key]) for key in wanted[:5]), columns, fields["rows"])


def as_column(column: str | Mapping[str, str]) -> Column:
    """A column of the JSON: its name, or an object with its name and its numbers' format."""
    return Column(column) if isinstance(column, str) else Column(**column)


def markdown(table: Table) -> str:
    """The table with its title above it; machine, date, commit and command below it."""
    are_numbers = [
        all(_is_number(cell) for cell in cells) for cells in zip(*table.rows, strict=True)
    ]
    lines = [*heading(table.columns, are_numbers), *(line(table.columns, r) for r in table.rows)]
    rows = "\n".join(lines)
    note = f"{table.machine}; {table.date}, commit `{table.commit}`: `{table.command}`"
    return f"**{table.title}**\n\n{rows}\n\n{note}\n"


def heading(columns: Sequence[Column], are_numbers: Sequence[bool]) -> list[str]:
    """The first two lines of a table; numbers are aligned to the right."""
    return [
        _line(column.name.replace("|", "\\|") for column in columns),
        _line("---:" if is_number else "---" for is_number in are_numbers),
    ]


def line(columns: Sequence[Column], row: Sequence[Any]) -> str:
    """One row of a table."""
    return _line(_cell(value, column.format) for value, column in zip(row, columns, strict=True))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, (int, float, list))


def _cell(value: Any, form: str | None) -> str:
    if value is None:
        return ""
    if isinstance(value, (int, float)):
        return format(value, form) if form else f"{value}"
    if isinstance(value, list):
        parts = [_cell(part, form) for part in value]
        if len(parts) == 2:
            return f"{parts[0]} .. {parts[1]}"
        if len(parts) == 3:
            return f"{parts[0]} [{parts[1]}, {parts[2]}]"
        raise TableError(f"a cell of {len(parts)} numbers; [low, high] or [value, low, high]")
    return str(value).replace("|", "\\|")


def filled(page: str, root: Path = ROOT) -> str:
    """Returns the page with new text between its marks."""
    lines = page.splitlines(keepends=True)
    new: list[str] = []
    ending: Iterator[str] = iter(lines)
    for line in ending:
        new.append(line)
        opening = OPENING.fullmatch(line)
        if opening is None:
            continue
        table = read_table(root / opening["path"])
        closing = next((later for later in ending if later.startswith(("<!--", "#"))), "")
        if not CLOSING.fullmatch(closing):
            raise TableError(f"{line.strip()} has no <!-- end --> after it")
        new += ["\n", markdown(table), "\n", closing]
    return "".join(new)


def pages(root: Path = ROOT) -> list[Path]:
    """All pages that may hold marks."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def difference(path: Path, root: Path = ROOT) -> str:
    """Returns a diff from the page to its filled form; it is empty if they agree."""
    now, new = path.read_text(), filled(path.read_text(), root)
    names = (f"{path}", f"{path}, from its JSON")
    return "".join(unified_diff(now.splitlines(True), new.splitlines(True), *names))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", type=Path, nargs="*")
    parser.add_argument("--check", action="store_true", help="write nothing; show what differs")
    options = parser.parse_args()
    differs = False
    for path in options.pages or pages():
        try:
            change = difference(path)
            if change and not options.check:
                path.write_text(filled(path.read_text()))
                print(f"{path}: filled")
        except TableError as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 1
        if change and options.check:
            print(change, end="")
            differs = True
    return 1 if differs else 0


if __name__ == "__main__":
    sys.exit(main())
