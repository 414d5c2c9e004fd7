"""Writes docs/reference/cli.md from the help of the commands themselves.

    python docs/scripts/cli.py            # writes the page
    python docs/scripts/cli.py --check    # writes nothing; fails where the page differs

Imports the package: run it where specqd is installed.
"""

import argparse
import inspect
import sys
from collections.abc import Iterable, Iterator
from difflib import unified_diff
from pathlib import Path

import click

from specqd.cli.app import app

PAGE = Path(__file__).resolve().parents[1] / "reference" / "cli.md"
INTRODUCTION = """\
<!-- Written by docs/scripts/cli.py from the commands' help; edit that. -->

# Command line

Each command prints its part with `--help`. Exit status: 0 done, 1 an error that the user can mend
(one line on standard error), 2 wrong usage, 130 stopped by Ctrl-C.
"""


def page() -> str:
    """The whole page as the installed commands have it."""
    sections = [section(context) for context in commands(_context(app, "specqd"))]
    return "\n".join([INTRODUCTION, *sections])


def commands(context: click.Context) -> Iterator[click.Context]:
    """A command and all below it, each before its own."""
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            assert command is not None
            yield from commands(_context(command, name, context))


def _context(
    command: click.Command, name: str, parent: click.Context | None = None
) -> click.Context:
    return click.Context(command, parent, info_name=name, **command.context_settings)


def section(context: click.Context) -> str:
    """A command's heading, usage, description, options and examples."""
    command, path = context.command, context.command_path
    parts = [f"## {path}"]
    parts.append(f"```\n{' '.join([path, *command.collect_usage_pieces(context)])}\n```")
    paragraphs = _paragraphs(command.help) + _paragraphs(command.epilog)
    parts += [text for text in paragraphs if not text.startswith("```")]
    if isinstance(command, click.Group):
        parts.append(table(("command", ""), _summaries(context, command)))
    if options := list(_options(context)):
        parts.append(table(("option", ""), options))
    parts += [text for text in paragraphs if text.startswith("```")]
    return "\n\n".join(parts) + "\n"


def table(heading: tuple[str, str], rows: Iterable[tuple[str, str]]) -> str:
    """Markdown: code on the left, its meaning on the right."""
    lines = [f"| {heading[0]} | {heading[1]} |", "|---|---|"]
    lines += [f"| {name} | {_cell(text)} |" for name, text in rows]
    return "\n".join(lines)


def _paragraphs(text: str | None) -> list[str]:
    """Paragraphs as Markdown; one that keeps its lines is a block of commands."""
    blocks = inspect.cleandoc(text or "").replace("\b\n", "\b").split("\n\n")
    return [_block(block) if block.startswith("\b") else _safe(block) for block in blocks if block]


def _block(block: str) -> str:
    lines = block.removeprefix("\b").splitlines()[1:]  # without `Examples:`
    return "\n".join(["```sh", *map(str.strip, lines), "```"])


def _summaries(context: click.Context, group: click.Group) -> Iterator[tuple[str, str]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        anchor = f"{context.command_path} {name}".replace(" ", "-")
        yield f"[`{name}`](#{anchor})", command.get_short_help_str(limit=200)


def _options(context: click.Context) -> Iterator[tuple[str, str]]:
    """Names and meanings, without --help and arguments, which the usage names."""
    for parameter in context.command.params:
        record = parameter.get_help_record(context)
        if record is not None and isinstance(parameter, click.Option):
            yield _code(record[0]), record[1]


def _code(text: str) -> str:
    """Code in a cell: no way to write a bar between backticks is read alike everywhere."""
    return f"<code>{text.replace('|', '&#124;')}</code>" if "|" in text else f"`{text}`"


def _cell(text: str) -> str:
    return _safe(" ".join(text.split())).replace("|", "\\|")


def _safe(text: str) -> str:
    """The text with nothing in it that Markdown would take for markup."""
    for mark in ("\\", "*", "_", "`", "["):
        text = text.replace(mark, f"\\{mark}")
    return text.replace("<", "&lt;")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; show what differs")
    options = parser.parse_args()
    now, new = PAGE.read_text() if PAGE.exists() else "", page()
    if not options.check:
        PAGE.write_text(new)
        return 0
    names = (f"{PAGE}", f"{PAGE}, from the commands")
    sys.stdout.writelines(unified_diff(now.splitlines(True), new.splitlines(True), *names))
    return 0 if now == new else 1


if __name__ == "__main__":
    sys.exit(main())
