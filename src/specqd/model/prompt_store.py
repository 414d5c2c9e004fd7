"""Keeps published pages of a KV cache in files, so that prompts begin with them after a restart.

A file is a page, or the states of recurrent layers at its end. Its name is a keyed digest of the
model, the salt and all tokens up to the page's end. Knows tokens; knows no requests.
"""

import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specqd import _native
from specqd.errors import MachineError
from specqd.model.prompt_writer import PromptWriter

_PAGE = _native.PAGE_POSITIONS
_Copy = Callable[[int, int], NDArray[Any] | None]  # of a slot's page, or of the states at its end
_REMEMBERED = 1024  # sequences that were looked up


class PromptStore:
    """The kept pages of one cache, which the forwards over it call.

    writer: of the directory, which other caches and processes may share.
    cache: the KV cache whose pages are kept. All methods use it, so its user calls them.
    identity: a digest of the model; pages of another one are never found.
    """

    def __init__(self, writer: PromptWriter, cache: _native.KvCache, identity: bytes) -> None:
        """Raises MachineError if the directory's bound is below the size of two pages."""
        files, least = writer.files, 2 * max(cache.page_bytes, cache.slot_bytes)
        if files.most_bytes < least:
            raise MachineError(
                f"is too small for two pages of this model; give at least {least / 1e6:.1f} MB",
                "prompt_cache_size",
                str(files.most_bytes),
            )
        self.writer, self.identity = writer, identity
        self._files, self._cache = files, cache
        self._root = blake2b(identity, key=files.key, person=b"prompts").digest()
        self._copies: dict[str, _Copy] = {"page": cache.page_bits}
        if cache.has_states:
            self._copies["state"] = cache.state_bits
        self._looked_up: dict[int, int] = {}  # full pages by sequence, the latest last

    @property
    def salting_key(self) -> bytes:
        """The key with which salts become numbers, the same after a restart."""
        return blake2b(key=self._files.key, person=b"salts", digest_size=16).digest()

    def keep(self, slot: int, tokens: NDArray[np.int32], salt: int) -> None:
        """Copies the published pages of a sequence that are not kept yet; a thread writes them.

        tokens: [n], those whose entries the slot holds. Leaves out the last pages if too many
        copies wait; they are offered again when the sequence is published again.
        """
        writer, now = self.writer, time.time_ns()
        writer.begin_in_child()
        known: list[tuple[str, int]] = []
        new: list[tuple[str, int, _Copy, int]] = []
        for page, name in enumerate(self._names(tokens, salt)):
            if not self._cache.has_page(slot, page):  # it left a window
                break
            when = now - page  # so that the last page is removed first: it needs those before it
            for kind, copy in self._copies.items():
                file = f"{name}.{kind}"
                # A file leaves the writer after it exists, so the writer is asked first.
                if file in writer or self._files.holds(file):
                    known.append((file, when))
                else:
                    new.append((file, when, copy, page))
        writer.mark_used(known)
        for file, when, copy, page in new:
            if writer.is_full:
                return
            content = copy(slot, page)
            if content is not None:
                writer.write(file, content, when)

    def restore(self, key: int, tokens: NDArray[np.int32], salt: int) -> None:
        """Puts kept pages of these tokens, [n], into the cache, as published pages that no sequence
        holds. Looks up the same pages once: a sequence that waits asks in each round.

        key: the sequence's that is about to begin with them.
        """
        full = (len(tokens) - 1) // _PAGE  # the last token is always read
        if full <= 0 or self._is_looked_up(key, full):
            return
        names, known = list(self._names(tokens[: full * _PAGE], salt)), tokens.tolist()
        slot = self._cache.create()
        try:
            held = self._cache.attach_prefix(slot, known, salt) // _PAGE
            end, had_room = self._load(slot, names, held)
            self._cache.publish(slot, known[: end * _PAGE], salt)
            if not had_room:
                del self._looked_up[key]  # it asks again once it has waited
        finally:
            self._cache.release(slot)

    def _is_looked_up(self, key: int, pages: int) -> bool:
        """Whether so many pages of this sequence were looked up before."""
        is_looked_up = self._looked_up.pop(key, None) == pages
        self._looked_up[key] = pages
        if len(self._looked_up) > _REMEMBERED:
            del self._looked_up[next(iter(self._looked_up))]
        return is_looked_up

    def _load(self, slot: int, names: SequenceOf[str], first: int) -> tuple[int, bool]:
        """Loads pages from `first` on into a sequence; returns their end, and whether the cache had
        room for all. With recurrent layers, the end is where their states are kept, or else 0."""
        cache = self._cache
        end = self._last_state(names, first) if cache.has_states else len(names)
        content = np.empty(cache.page_bytes // 2, np.uint16)
        had_room = True
        for page in range(first, end):
            is_read = self._read(f"{names[page]}.page", content)
            had_room = not is_read or cache.append_page(slot, content)
            if not is_read or not had_room:
                end = page
                break
        if end > first and cache.has_states:
            state = np.empty(cache.slot_bytes, np.uint8)
            is_read = self._read(f"{names[end - 1]}.state", state)
            had_state = is_read and cache.restore_state(slot, state)
            return (end, had_room) if had_state else (0, had_room and not is_read)
        return end, had_room

    def _last_state(self, names: SequenceOf[str], first: int) -> int:
        """The end of the last page after `first` whose states are kept; 0: none."""
        for page in range(len(names) - 1, first - 1, -1):
            if self._files.holds(f"{names[page]}.state"):
                return page + 1
        return 0

    def _read(self, name: str, content: NDArray[Any]) -> bool:
        return self._files.read(name, content.data.cast("B"))

    def _names(self, tokens: NDArray[np.int32], salt: int) -> Iterator[str]:
        """The name of each full page of the tokens."""
        ids = tokens[: len(tokens) // _PAGE * _PAGE].astype("<i4").reshape(-1, _PAGE)
        digest = blake2b(salt.to_bytes(8, "little"), key=self._root, digest_size=32).digest()
        for page in ids:
            digest = blake2b(digest + page.tobytes(), key=self._root, digest_size=32).digest()
            yield digest.hex()
