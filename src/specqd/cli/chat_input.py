"""Reads a user's messages from an editor on a terminal, or from a pipe. Knows nothing of models.

A line that ends in a backslash continues in the next one, in both.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from specqd.cli.chat_files import state_directory
from specqd.cli.keyboard import Keyboard
from specqd.errors import RequestError

if TYPE_CHECKING:
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings


class ChatInput(Protocol):
    """A source of the user's messages."""

    def read(self) -> str | None:
        """The next message; None at the end. KeyboardInterrupt: the user discarded a line."""


class PipedInput:
    """Lines of a file or pipe."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._line_number = 0

    def read(self) -> str | None:
        lines: list[str] = []
        while data := self._stream.readline():
            line = self._decoded(data)
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line[:-1])
        return "\n".join(lines) if lines else None

    def _decoded(self, data: bytes) -> str:
        self._line_number += 1
        try:
            encoding = "utf-8-sig" if self._line_number == 1 else "utf-8"
            return data.decode(encoding).removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise RequestError(
                f"standard input: line {self._line_number} is not UTF-8; convert it first"
            ) from error


class TerminalInput:
    """An editor with a history, drawn on standard error: Enter sends; Alt-Enter, Ctrl-J or a
    backslash before Enter start a new line; Tab completes commands; Ctrl-R searches; Ctrl-Z
    suspends the program."""

    def __init__(
        self, keyboard: Keyboard, commands: Mapping[str, Sequence[str]], history_file: Path
    ) -> None:
        from prompt_toolkit import PromptSession  # imported here: it takes a sixth of a second
        from prompt_toolkit.completion import NestedCompleter
        from prompt_toolkit.output import create_output
        from prompt_toolkit.shortcuts import CompleteStyle

        self._keyboard = keyboard
        self._session: PromptSession[str] = PromptSession(
            "> ",
            multiline=True,
            prompt_continuation="  ",
            history=_history(history_file),
            key_bindings=_keys(),
            completer=NestedCompleter.from_nested_dict(
                {command: dict.fromkeys(words) or None for command, words in commands.items()}
            ),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            reserve_space_for_menu=0,
            enable_suspend=True,
            input=keyboard.input,
            output=create_output(sys.stderr),
        )

    def read(self) -> str | None:
        try:
            with self._keyboard.lent():
                return str(self._session.prompt())
        except EOFError:
            return None


def history_file() -> Path:
    """The path of the history."""
    return state_directory() / "chat_history"


def _history(path: Path) -> "History":
    """Messages of earlier conversations, which only the user can read. If the file cannot be made,
    they are kept in memory."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))


def _keys() -> "KeyBindings":
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.char_before_cursor == "\\":
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    @keys.add("c-j")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys
