"""Decides how many pages and states a KV cache has room for. Knows no weights and no sequences."""

from specqd import _native
from specqd.errors import MachineError

_LEAST_STATES, _MOST_STATES = 2, 64  # sequences with states of recurrent layers
_MOST_POSITIONS = 1 << 36  # whose pages have 32-bit numbers
_LISTED_BYTES = 128  # of the lists that a cache keeps, per page
_MOST_SLOTS = 256  # states that are cached for later sequences


def cache(decoder: _native.Decoder, pages: int) -> _native.KvCache:
    """A cache with so many pages, and with as many states of recurrent layers as are affordable."""
    return _native.KvCache(decoder, pages, _states(decoder), _slots(decoder))


def _states(decoder: _native.Decoder) -> int:
    """The number of sequences with recurrent states, which take a quarter of free memory."""
    cache = _native.KvCache(decoder, 1)
    if not cache.has_states:
        return 0
    available = _native.usable_memory()
    if available < 0:
        return _MOST_STATES
    return max(_LEAST_STATES, min(_MOST_STATES, available // 4 // cache.state_bytes))


def _slots(decoder: _native.Decoder) -> int:
    """The number of states cached for later sequences, which take an eighth of free memory."""
    cache = _native.KvCache(decoder, 1)
    available = _native.usable_memory()
    if not cache.has_states or available < 0:
        return _MOST_SLOTS if cache.has_states else 0
    return min(_MOST_SLOTS, available // 8 // cache.slot_bytes)


def pages(
    decoder: _native.Decoder,
    longest: int,
    cache_positions: int | None,
    cache_bytes: int | None,
    promised_bytes: int,
) -> int:
    """The number of pages of a model's cache: those of the positions that are asked for, by default
    four sequences of the longest kind, if others take no memory; else as many as are affordable.

    longest: positions of the longest sequence. promised_bytes: those that others will take.
    Raises MachineError for fewer than one position, and for more than could even be listed.
    """
    page = _native.PAGE_POSITIONS
    wanted = 4 * (-(-longest // page) + 1)
    if cache_positions is not None:
        if not 1 <= cache_positions <= _MOST_POSITIONS:
            problem = f"choose a number from 1 to {_MOST_POSITIONS}"
            raise MachineError(problem, "cache_positions", str(cache_positions))
        wanted = -(-cache_positions // page)
        available = _native.usable_memory()
        if 0 <= available < wanted * _LISTED_BYTES:
            problem = f"the list of its pages alone does not fit into {available / 1e9:.1f} GB"
            raise MachineError(problem, "cache_positions", str(cache_positions))
    if cache_positions is not None and not promised_bytes:
        return wanted
    return affordable_pages(decoder, wanted, promised_bytes, cache_bytes)


def affordable_pages(
    decoder: _native.Decoder, wanted: int, promised_bytes: int, cache_bytes: int | None = None
) -> int:
    """The number of pages that a cache gets: at most those in half of the memory that is left once
    others take theirs, and in `cache_bytes`, but at least one."""
    available = _native.usable_memory()
    limits = [] if cache_bytes is None else [cache_bytes]
    limits += [(available - promised_bytes) // 2] if available >= 0 else []
    page_bytes = _native.KvCache(decoder, 1).page_bytes
    return max(1, min([wanted, *(limit // page_bytes for limit in limits)]))
