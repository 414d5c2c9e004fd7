"""The keyboard of a terminal during a conversation: keeps what is typed while no editor reads it.

Knows nothing of models. A terminal itself would hold 4,096 bytes: a longer paste would block
Ctrl-C, or be cut into lines that look like messages. The console of Windows holds any number.
"""

import os
import select
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import groupby
from threading import Thread
from typing import TYPE_CHECKING, Protocol, Self

from specqd.cli.terminal import SHOWS_UNREAD, hide_typing, no_echo

if TYPE_CHECKING:
    from prompt_toolkit.input import Input
    from prompt_toolkit.key_binding import KeyPress


class Keyboard(Protocol):
    """What `held_keyboard` gives."""

    input: "Input"

    def lent(self) -> AbstractContextManager[None]:
        """For the time that an editor reads `input`."""


class Console:
    """The console of Windows. An editor gets what has been typed; it takes lines that were typed
    or pasted at once for a paste."""

    def __init__(self) -> None:
        from prompt_toolkit.input import create_input  # imported here: it takes a tenth of a second

        self.input: Input = create_input(sys.stdin)

    def lent(self) -> AbstractContextManager[None]:
        return nullcontext()


class WatchedKeyboard:
    """Reads the keyboard on a thread, except while it is lent to an editor, which then gets what
    has been typed: as one text, so that Enter sends none of it."""

    def __init__(self) -> None:
        from prompt_toolkit.input import create_input  # imported here: it takes a tenth of a second

        self.input: Input = create_input(sys.stdin)
        self._typed: list[KeyPress] = []

    def __enter__(self) -> Self:
        self._watch()
        return self

    def __exit__(self, *error: object) -> None:
        self._end_watch()

    @contextmanager
    def lent(self) -> Iterator[None]:
        from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead

        self._end_watch()
        store_typeahead(self.input, as_one_text(self._typed))
        try:
            yield
        finally:
            hide_typing()
            _mark_pastes(True)  # the editor has turned it off
            self._typed = get_typeahead(self.input)
            self._watch()

    def _watch(self) -> None:
        self._end, self._is_end = os.pipe()
        self._thread = Thread(target=self._keep, daemon=True)
        self._thread.start()

    def _end_watch(self) -> None:
        os.write(self._is_end, b".")
        self._thread.join()
        os.close(self._end)
        os.close(self._is_end)

    def _keep(self) -> None:
        while not self.input.closed:
            ready, _, _ = select.select([self.input.fileno(), self._end], [], [])
            if self._end in ready:
                break
            self._typed += self.input.read_keys()


@contextmanager
def held_keyboard() -> Iterator[Keyboard]:
    """The keyboard of standard input. What is typed is not shown, and pastes are marked as such."""
    if not SHOWS_UNREAD:
        yield Console()
        return
    with no_echo():
        _mark_pastes(True)
        try:
            with WatchedKeyboard() as keyboard:
                yield keyboard
        finally:
            _mark_pastes(False)


def as_one_text(keys: "Sequence[KeyPress]") -> "list[KeyPress]":
    """The same keys, with each run of characters, pastes and Enter as one paste. Enter at the very
    end is left out."""
    from prompt_toolkit.key_binding import KeyPress
    from prompt_toolkit.keys import Keys

    texts = (Keys.BracketedPaste, Keys.ControlM, Keys.ControlJ)
    kept: list[KeyPress] = []
    for is_text, run in groupby(keys, lambda each: each.key in texts or len(each.key) == 1):
        if is_text:
            kept.append(KeyPress(Keys.BracketedPaste, "".join(each.data for each in run)))
        else:
            kept += run
    if kept and kept[-1].key is Keys.BracketedPaste:
        kept[-1] = KeyPress(Keys.BracketedPaste, kept[-1].data.rstrip("\r\n"))
    return kept


def _mark_pastes(is_on: bool) -> None:
    """Lets the terminal mark what is pasted (bracketed paste), or not."""
    sys.stderr.write("\x1b[?2004h" if is_on else "\x1b[?2004l")
    sys.stderr.flush()
