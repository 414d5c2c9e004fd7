"""Breaks a stream of text between words. Knows nothing of terminals but their width."""

from collections.abc import Callable

_TAB = 8


class WordWrap:
    """Begins a new line before a word that would not fit into the current one.

    The last word is held back until its end is known, or until it is longer than a line: then the
    terminal breaks it. Lines may break on both sides of a character of double width.
    """

    def __init__(self, columns: Callable[[], int]) -> None:
        self._columns = columns
        self._column = 0  # cells of the current line that are taken
        self._word = ""
        self._is_long = False  # the current word is longer than a line, so it is shown at once

    def feed(self, text: str) -> str:
        """The text that may be shown now."""
        return "".join(map(self._take, text))

    def finish(self) -> str:
        """The word that was held back."""
        word, self._word = self._word, ""
        return self._placed(word)

    def _take(self, character: str) -> str:
        self._is_long = self._is_long and not character.isspace()
        if character == "\n":
            shown = self.finish() + character
            self._column = 0
            return shown
        if character in " \t":
            return self.finish() + self._gap(character)
        if cells(character) > 1:
            return self.finish() + self._placed(character)
        self._word += character
        if not self._is_long and len(self._word) <= self._columns():
            return ""
        self._is_long = True
        return self.finish()

    def _gap(self, space: str) -> str:
        """The space, or nothing at the end of a full line."""
        size = _TAB - self._column % _TAB if space == "\t" else 1
        if self._column + size > self._columns():
            return ""
        self._column += size
        return space

    def _placed(self, word: str) -> str:
        size, columns = cells(word), self._columns()
        begins_line = not self._is_long and self._column > 0 and self._column + size > columns
        start = 0 if begins_line else self._column
        self._column = start + size
        if self._column > columns:  # the terminal breaks it
            self._column = (self._column - 1) % columns + 1
        return f"\n{word}" if begins_line else word


def cells(text: str) -> int:
    """The columns that a text takes."""
    from prompt_toolkit.utils import get_cwidth  # loaded with the editor

    return get_cwidth(text)
