"""Keeps published pages of a KV cache in files, so that prompts begin with them after a restart.

A file is a page, or the states of recurrent layers at its end. Its name is a keyed digest of the
model, the salt and all tokens up to the page's end. Knows tokens; knows no requests.
"""

import os
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specqd import _native
from specqd.errors import MachineError
from specqd.model.prompt_files import PromptFiles

_PAGE = _native.PAGE_POSITIONS
_Copy = Callable[[int, int], NDArray[Any] | None]  # of a slot's page, or of the states at its end
_MOST_WAITING = 1 << 30  # bytes of copies that wait to be written
_REMEMBERED = 1024  # sequences that were looked up


class PromptStore:
    """The kept pages of one model's cache.

    files: the directory, which other models and processes may share.
    cache: the KV cache whose pages are kept. All methods use it, so its user calls them.
    identity: a digest of the model; pages of another one are never found.
    """

    def __init__(self, files: PromptFiles, cache: _native.KvCache, identity: bytes) -> None:
        """Raises MachineError if the directory's bound is below the size of two pages."""
        least = 2 * max(cache.page_bytes, cache.slot_bytes)
        if files.most_bytes < least:
            raise MachineError(
                f"is too small for two pages of this model; give at least {least / 1e6:.1f} MB",
                "prompt_cache_size",
                str(files.most_bytes),
            )
        self._files, self._cache = files, cache
        self._root = blake2b(identity, key=files.key, person=b"prompts").digest()
        self._copies: dict[str, _Copy] = {"page": cache.page_bits}
        if cache.has_states:
            self._copies["state"] = cache.state_bits
        free = _native.usable_memory()
        self._most_waiting = _MOST_WAITING if free < 0 else min(_MOST_WAITING, free // 8)
        self._writer = _Writer(files)
        self._looked_up: dict[int, int] = {}  # lengths by sequence, the latest last

    @property
    def salting_key(self) -> bytes:
        """The key with which salts become numbers, the same after a restart."""
        return blake2b(key=self._files.key, person=b"salts", digest_size=16).digest()

    def keep(self, slot: int, tokens: SequenceOf[int], salt: int) -> None:
        """Copies the published pages of a sequence that are not kept yet; a thread writes them.

        tokens: those whose exact keys and values the sequence holds. Leaves out the last pages if
        too many copies wait; they are offered again when the sequence is published again.
        """
        writer, now = self._writer_here(), time.time_ns()
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
            if writer.waiting_bytes > self._most_waiting:
                return
            content = copy(slot, page)
            if content is not None:
                writer.write(file, content, when)

    def restore(self, sequence: _native.Sequence) -> None:
        """Puts kept pages of a sequence's tokens into the cache, as published pages that no
        sequence holds. Looks up the same tokens once: a sequence that waits asks in each round."""
        tokens, salt = sequence.tokens[:], sequence.cache_salt
        if self._is_looked_up(sequence.key, len(tokens)):
            return
        names = list(self._names(tokens[: len(tokens) - 1], salt))
        slot = self._cache.create()
        try:
            held = self._cache.attach_prefix(slot, tokens, salt) // _PAGE
            end = self._load(slot, names, held)
            self._cache.publish(slot, tokens[: end * _PAGE], salt)
        finally:
            self._cache.release(slot)

    def _is_looked_up(self, key: int, length: int) -> bool:
        """Whether this sequence was looked up at this length before."""
        is_looked_up = self._looked_up.pop(key, None) == length
        self._looked_up[key] = length
        if len(self._looked_up) > _REMEMBERED:
            del self._looked_up[next(iter(self._looked_up))]
        return is_looked_up

    def flush(self) -> None:
        """Waits until all copies are written."""
        self._writer_here().flush()

    def _load(self, slot: int, names: SequenceOf[str], first: int) -> int:
        """Loads pages from `first` on into a sequence; returns their end. With recurrent layers,
        that is where their states are kept, or else 0."""
        cache = self._cache
        end = self._last_state(names, first) if cache.has_states else len(names)
        content = np.empty(cache.page_bytes // 2, np.uint16)
        for page in range(first, end):
            name = f"{names[page]}.page"
            if not self._read(name, content) or not cache.append_page(slot, content):
                end = page
                break
        if end > first and cache.has_states:
            state = np.empty(cache.slot_bytes, np.uint8)
            is_read = self._read(f"{names[end - 1]}.state", state)
            return end if is_read and cache.restore_state(slot, state) else 0
        return end

    def _last_state(self, names: SequenceOf[str], first: int) -> int:
        """The end of the last page after `first` whose states are kept; 0: none."""
        for page in range(len(names) - 1, first - 1, -1):
            if self._files.holds(f"{names[page]}.state"):
                return page + 1
        return 0

    def _read(self, name: str, content: NDArray[Any]) -> bool:
        return self._files.read(name, content.data.cast("B"))

    def _writer_here(self) -> "_Writer":
        """The writer of this process. A fork copies no threads, and not what waited for them."""
        if self._writer.process != os.getpid():
            self._writer = _Writer(self._files)
        return self._writer

    def _names(self, tokens: SequenceOf[int], salt: int) -> Iterator[str]:
        """The name of each full page of the tokens."""
        ids = np.asarray(tokens[: len(tokens) // _PAGE * _PAGE], "<i4").reshape(-1, _PAGE)
        digest = blake2b(salt.to_bytes(8, "little"), key=self._root, digest_size=32).digest()
        for page in ids:
            digest = blake2b(digest + page.tobytes(), key=self._root, digest_size=32).digest()
            yield digest.hex()


class _Writer:
    """A thread that writes files in order; the interpreter waits for it at exit."""

    def __init__(self, files: PromptFiles) -> None:
        self.process = os.getpid()
        self._files = files
        self._thread = ThreadPoolExecutor(1, "prompt-cache")
        self._lock = Lock()
        self._waiting: set[str] = set()
        self.waiting_bytes = 0

    def __contains__(self, name: str) -> bool:
        return name in self._waiting

    def write(self, name: str, content: NDArray[Any], when: int) -> None:
        self._add(name, content.nbytes)
        self._submit(self._write, name, content, when)

    def mark_used(self, names: SequenceOf[tuple[str, int]]) -> None:
        """Marks files as used at these times, in nanoseconds."""
        self._submit(self._files.mark_used, names)

    def flush(self) -> None:
        self._thread.submit(lambda: None).result()

    def _write(self, name: str, content: NDArray[Any], when: int) -> None:
        try:
            self._files.write(name, content.data.cast("B"), when)
        finally:
            self._add(name, -content.nbytes)

    def _add(self, name: str, size: int) -> None:
        with self._lock:
            self.waiting_bytes += size
            (self._waiting.add if size > 0 else self._waiting.discard)(name)

    def _submit(self, work: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the interpreter is exiting
            self._thread.submit(work, *arguments)
