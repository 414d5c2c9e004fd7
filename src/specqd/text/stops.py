"""Finds stop strings in a text that comes in pieces. Knows no tokens.

Each stop is searched as Knuth, Morris and Pratt do: a character costs constant amortised time,
whatever the stop's length.
"""

from collections.abc import Iterable


class StopFinder:
    """Searches one text for several stop strings."""

    def __init__(self, stops: Iterable[str]) -> None:
        self._readers = [_Reader(stop) for stop in stops]
        self._length = 0  # of the text so far
        self.found: str | None = None

    def feed(self, text: str) -> int | None:
        """Where the first stop string begins that ends in this piece, counted from the text's
        begin; None: there is none."""
        ends = ((reader, reader.end_in(text)) for reader in self._readers)
        length, self._length = self._length, self._length + len(text)
        found = [(length + end - len(r.stop), r.stop) for r, end in ends if end is not None]
        if not found:
            return None
        begin, self.found = min(found)
        return begin

    @property
    def held(self) -> int:
        """Characters at the text's end that may begin a stop string."""
        return max((reader.length for reader in self._readers), default=0)


class _Reader:
    """Searches for one stop string, up to its first occurrence."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = 0  # of the longest begin of `stop` with which the text ends
        # Entry i is the length of the longest proper end of stop[:i + 1] that begins `stop`.
        # The list grows as far as the search comes, so a stop that never begins costs nothing.
        self._borders = [0]

    def end_in(self, text: str) -> int | None:
        stop, length = self.stop, self.length
        for place, character in enumerate(text, 1):
            while length and stop[length] != character:
                length = self._border(length)
            length += stop[length] == character
            if length == len(stop):
                return place
        self.length = length
        return None

    def _border(self, length: int) -> int:
        stop, borders = self.stop, self._borders
        while len(borders) < length:
            border = borders[-1]
            while border and stop[border] != stop[len(borders)]:
                border = borders[border - 1]
            borders.append(border + (stop[border] == stop[len(borders)]))
        return borders[length - 1]
