"""Finds stop strings in a text that arrives in pieces. Knows nothing of tokens.

Uses the search of Knuth, Morris and Pratt for each stop string: a character takes constant
amortised time, whatever the stop string's length.
"""

from collections.abc import Iterable


class StopFinder:
    """Searches one text for several stop strings, up to the first one found."""

    def __init__(self, stops: Iterable[str]) -> None:
        self._readers = [_Reader(stop) for stop in stops]
        self._length = 0  # of the text so far
        self.found: str | None = None

    def feed(self, text: str) -> int | None:
        """Returns where the first stop string that ends in this piece begins, or None.

        The place counts characters from the start of the text.
        """
        ends = ((reader, reader.end_in(text)) for reader in self._readers)
        length, self._length = self._length, self._length + len(text)
        found = [(length + end - len(r.stop), r.stop) for r, end in ends if end is not None]
        if not found:
            return None
        begin, self.found = min(found)
        return begin

    def skip(self, text: str) -> None:
        """Passes over text in which no stop string begins, continues or ends."""
        self._length += len(text)
        for reader in self._readers:
            reader.length = 0

    @property
    def held(self) -> int:
        """The number of characters at the text's end that may begin a stop string."""
        return max((reader.length for reader in self._readers), default=0)


class _Reader:
    """Searches for one stop string, up to its first occurrence."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = 0  # of the longest prefix of `stop` with which the text ends
        # Entry i is the length of the longest proper suffix of stop[:i + 1] that is a prefix of
        # `stop`. The list grows as the search advances, so an absent stop string costs nothing.
        self._borders = [0]

    def end_in(self, text: str) -> int | None:
        """Returns where in this piece the stop string ends, or None."""
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
