"""Functions of the core that only tests and benchmarks call."""

from collections.abc import Mapping, Sequence, Set
from typing import Annotated

import numpy
from numpy.typing import NDArray

import specqd._native


def mappings_of_blocks(blocks: int, bytes: int, parts: int) -> int:
    """
    Returns the number of mappings of this process while it has blocks of memory, each of
    `parts` parts that alternate between nodes 0 and 1.
    """

def topology(root: str, cpus: Set[int], memory_nodes: Set[int]) -> specqd._native.Topology:
    """Reads a topology from `root` instead of /sys/devices/system."""

def arm_core_name(midr: int) -> str:
    """Returns the name of the ARM core with this main ID register."""

def nodes_of(bytes: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', writable=False)]) -> dict[int, int]:
    """
    Returns the bytes on each NUMA node, from a sample of pages; -1 stands for pages that are
    not in memory.
    """

def tally(pool: specqd._native.Pool) -> list[list[int]]:
    """
    Returns the bytes of panels read since the last call, [threads' node][panels' node].
    """

class Calibration:
    """Stated confidence -> observed acceptance rate."""

    def __init__(self, floor: float = 0.0) -> None: ...

    def probability(self, confidence: float) -> float: ...

    def observe(self, confidence: float, is_accepted: bool) -> None: ...

class ReadingCosts:
    """Seconds of a forward that reads parts of prompts."""

    def __init__(self) -> None: ...

    def begin(self, measured: Mapping[int, float]) -> None:
        """Starts from seconds by rows."""

    def add(self, rows: float, positions: float, seconds: float) -> None: ...

    def rows_within(self, seconds: float, position: float) -> float | None: ...

class TokenRate:
    """Tokens per second of a level, over its recent rounds."""

    def __init__(self) -> None: ...

    def add(self, tokens: float, seconds: float) -> None: ...

    @property
    def seconds_per_token(self) -> float | None: ...

class ProbeBudget:
    """
    Allows rounds that do not seem to pay, for a bounded share of the time.
    """

    def __init__(self, share: float = 0.01) -> None: ...

    def begin(self, seconds: float) -> None: ...

    def refund(self, seconds: float) -> None: ...

    @property
    def is_open(self) -> bool: ...

    def charge(self, seconds: float) -> None: ...

CHUNK_POSITIONS: int = 512

def make_writable(cache: specqd._native.KvCache, sequence: int, first: int, last: int) -> bool: ...

def page_distance(cache: specqd._native.KvCache, sequence: int, page: int) -> int:
    """
    Returns the distance, in words, from the first keys of a sequence to the keys of a page.
    """

def write_page_bits(cache: specqd._native.KvCache, sequence: int, page: int, bits: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', writable=False)]) -> None:
    """Replaces a page's words."""

def poison(cache: specqd._native.KvCache, sequence: int, page: int, bits: int) -> None:
    """Fills a page with copies of one word."""

def page_weights(decoder: specqd._native.Decoder, first: int, last: int) -> NDArray[numpy.float32]:
    """
    Returns the softmax weights of rows [first, last) of the last forward's logits by page,
    summed over rows and heads: [strips, pages]. The rows must have weighed
    pages.
    """

def weigh_pages(context: specqd._native.Context, weights: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', writable=False)]) -> None:
    """Replaces the weights of a context's pages, [strips, pages]."""

def draft_pages(context: specqd._native.Context, strips: int, start: int, most: int) -> list[list[int]] | None:
    """
    Returns, by strip, the pages that a draft from position `start` reads; None: all.
    """

def attention_waves(starts_counts: Sequence[tuple[int, int]], reach: tuple[int, bool], rows_at_once: int, most_parts: int) -> tuple[list[tuple[list[tuple[int, int, int]], list[tuple[int, int, int, int, bool, bool]]]], int]:
    """
    Returns, for each wave of attention, the parts of its passes (row, chunk, index) and
    by row (first, stride, count, end chunk, is first, is last); and the most parts of a
    wave. `reach` is (window, is causal).
    """

def saved_state(cache: specqd._native.KvCache, sequence: int) -> tuple[int, NDArray[numpy.uint8]]:
    """
    Returns the position of the latest saved state of recurrent layers, and its bytes.
    """

def num_slots(cache: specqd._native.KvCache) -> int:
    """Returns the number of slots that have memory."""

def state_slot(cache: specqd._native.KvCache, sequence: int) -> int:
    """
    Returns a number that identifies the slot of a sequence's committed state among those in
    use; 0 if the state is all zeros and has no slot.
    """

def state_rows(cache: specqd._native.KvCache, sequence: int, first: int, last: int) -> NDArray[numpy.uint8]:
    """
    Returns the stored inputs of recurrent layers, as bytes, for positions of one chunk.
    """

def sample_token(sampler: specqd._native.Sampler, logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], position: int, history: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, prompt_length: int = 0, mask: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, isa: str | None = None) -> tuple[int, float]:
    """
    Returns the token at `position` and its probability; (-1, 0) if no token is allowed.
    `mask` holds one bit per token, set if the token is allowed.
    """

def noise_bits(sampler: specqd._native.Sampler, position: int, token: int) -> int:
    """Returns the 64 random bits of a token's Gumbel noise."""

def gumbel(bits: int) -> float:
    """Returns -log(-log(1 - v)) for v = (bits + 1/2) / 2**64."""

def run_and_throw(pool: specqd._native.Pool, thread: int, barriers: int) -> None:
    """
    Runs a body with four barriers on all threads; the body of `thread` throws bad_alloc after
    `barriers` of them.
    """

def shrinking_ranges(count: int, least: int, threads: int) -> list[tuple[int, int]]:
    """
    Returns the ranges in which threads claim `count` panels of a product, in order.
    """

def memory_left_in(directory: str) -> int:
    """
    Returns how many bytes the memory limit of a cgroup leaves, given its directory.
    """

def planes(packed: specqd._native.Packed) -> tuple[NDArray[numpy.uint8], NDArray[numpy.uint8], NDArray[numpy.uint8], NDArray[numpy.uint32], NDArray[numpy.uint16], tuple[int, int]]:
    """
    Returns copies of (codes, scales, residuals, patch_starts, patches, (shift, base)).
    """

class KernelTable(specqd._native.KernelTable):
    def unpack(self, arg: specqd._native.Packed, /) -> NDArray[numpy.uint16]: ...

    def prepare(self, arg0: str, arg1: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], arg2: int, /) -> NDArray[numpy.uint8]: ...

    def product(self, precision: str, packed: specqd._native.Packed, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], first: int = 0, last: int = -1) -> NDArray[numpy.float32]: ...

    def score_keys(self, arg0: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), order='C', device='cpu', writable=False)], arg1: int, arg2: int, arg3: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], /) -> NDArray[numpy.float32]: ...

    def sum_values(self, arg0: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), order='C', device='cpu', writable=False)], arg1: int, arg2: int, arg3: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], /) -> NDArray[numpy.float32]: ...

    def rms_norm(self, arg0: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], arg1: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', device='cpu', writable=False)], arg2: float, arg3: float, /) -> NDArray[numpy.float32]: ...

    def layer_norm(self, arg0: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], arg1: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', device='cpu', writable=False)], arg2: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', device='cpu', writable=False)], arg3: float, /) -> NDArray[numpy.float32]: ...

    def add(self, arg0: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], arg1: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], /) -> NDArray[numpy.float32]: ...

    def add_bf16(self, arg0: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], arg1: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', device='cpu', writable=False)], /) -> NDArray[numpy.float32]: ...

    def scale(self, arg0: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], arg1: float, /) -> NDArray[numpy.float32]: ...

    def gated(self, arg0: str, arg1: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], arg2: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], /) -> NDArray[numpy.float32]: ...

    def xielu(self, arg0: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], arg1: float, arg2: float, arg3: float, arg4: float, /) -> NDArray[numpy.float32]: ...

    def soft_cap(self, arg0: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], arg1: float, arg2: float, /) -> NDArray[numpy.float32]: ...

    def rotate(self, arg0: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], arg1: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], arg2: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], /) -> NDArray[numpy.float32]: ...

    def round_bf16(self, x: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], finite: bool = False) -> NDArray[numpy.uint16]: ...

    def softmax_part(self, arg0: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], arg1: int, arg2: int, arg3: float, /) -> tuple[NDArray[numpy.float32], float, float, NDArray[numpy.float32]]: ...

    def merge_part(self, arg0: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], arg1: float, arg2: float, arg3: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], arg4: float, arg5: float, /) -> tuple[NDArray[numpy.float32], float, float]: ...

def kernels(arg: str, /) -> KernelTable: ...

def kernel_names() -> list[str]:
    """
    Returns the names of all tables that run on this machine, the portable one first. Two at
    the end are for tests only: AVX-512 BF16 for the other width of vector units, and AMX on
    emulated tiles.
    """

def feedback_factors(pool: specqd._native.Pool, products: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', writable=False)]) -> NDArray[numpy.float32]: ...

def unpack(weight: specqd._native.PackedWeight, isa: str) -> NDArray[numpy.uint16]:
    """Returns the BF16 bits of a weight, [rows, columns]."""

def logit_rows(decoder: specqd._native.Decoder) -> int:
    """Returns the number of rows of logits of the last forward."""

def rope_tables(spec: specqd._native.RopeSpec, first: int, count: int) -> tuple[NDArray[numpy.float32], float, NDArray[numpy.float32], NDArray[numpy.float32]]:
    """
    Returns (inverse frequencies [d/2], attention factor, cosines [count, d/2], sines
    [count, d/2]) of the positions from `first`; d is spec.dims.
    """

def rope_query_scale(spec: specqd._native.RopeSpec, position: int) -> float:
    """
    Returns the factor by which the rotated queries of a position are multiplied.
    """

LONGEST_MATCH: int = 32

MOST_PLACES: int = 8

class NgramIndex:
    """An index of grams: tokens that followed the same tokens earlier."""

    def __init__(self) -> None: ...

    def __len__(self) -> int: ...

    @property
    def bytes(self) -> int:
        """Memory reserved."""

    def append(self, tokens: Sequence[int]) -> None: ...

    def end_text(self) -> None:
        """Ends the sequence: the next tokens belong to another one."""

    def propose(self, guesses: Sequence[int], most: int, corpus: NgramIndex | None = None) -> tuple[list[int], list[float]]:
        """
        Returns at most `most` tokens that may follow the sequence and `guesses`, and their
        confidences.
        """
