"""SpecQD's native core."""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray


def available_isas() -> list[str]: ...

def amx_refusal() -> str: ...

def usable_threads() -> int: ...

def usable_memory() -> int: ...

def cpu_model() -> str: ...

class Pool:
    def __init__(self, threads: int) -> None: ...

    @property
    def threads(self) -> int: ...

def read_seconds(pool: Pool, isa: str, bytes: int, repeats: int) -> list[float]:
    """Seconds of each of `repeats` readings of `bytes` bytes by all threads."""

PEAK_PRODUCTS: int = 33554432

def product_seconds(pool: Pool, isa: str, repeats: int) -> list[float]:
    """
    Seconds of each of `repeats` times that each thread makes PEAK_PRODUCTS exact products, in
    registers alone.
    """

class RopeSpec:
    def __init__(self, kind: str, dims: int, theta: float, factor: float, original_max_positions: float, low_freq_factor: float, high_freq_factor: float, beta_fast: float, beta_slow: float, attention_factor: float, mscale: float, mscale_all_dim: float, truncate: bool, factors: Sequence[float]) -> None: ...

def rope_tables(spec: RopeSpec, first: int, count: int) -> tuple[NDArray[numpy.float32], float, NDArray[numpy.float32], NDArray[numpy.float32]]:
    """
    (inverse frequencies [d/2], attention factor, cosines [count, d/2], sines [count, d/2]).
    """

class PackedWeight:
    @property
    def rows(self) -> int: ...

    @property
    def columns(self) -> int: ...

    @property
    def is_nested(self) -> bool: ...

    @property
    def is_mxfp4(self) -> bool: ...

    @property
    def patch_count(self) -> int: ...

    def plane_bytes(self) -> dict[str, int]: ...

    def planes(self) -> dict[str, NDArray[numpy.generic]]:
        """
        The planes as they lie in memory, by name: flat, read-only, not copied.
        """

    def unpack(self, isa: str) -> NDArray[numpy.uint16]: ...

def pack(pool: Pool, isa: str, sources: Sequence[Annotated[NDArray[numpy.uint16], dict(shape=(None, None), device='cpu', writable=False)]], interleaved: bool, rule: int) -> PackedWeight | tuple[int, int, int]: ...

def take_mxfp4(sources: Sequence[tuple[Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', writable=False)], Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', writable=False)]]]) -> PackedWeight | tuple[int, int, int]: ...

def map_planes(pool: Pool, codes: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], scales: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], residuals: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, patch_starts: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, patches: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, plain: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, *, source_rows: Sequence[int], columns: int, interleaved: bool) -> PackedWeight | str:
    """
    A weight over planes that were packed before, or what is wrong with them.
    """

def release_free_memory() -> None:
    """Gives the pages that the heap holds free back to the system."""

def find_not_finite(pool: Pool, bits: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), device='cpu', writable=False)]) -> tuple[int, int] | None:
    """(row, column) of the first BF16 that is not finite, or None."""

PAGE_POSITIONS: int = 64

CHUNK_POSITIONS: int = 512

class KvCache:
    def __init__(self, decoder: Decoder, pages: int) -> None: ...

    @property
    def total_pages(self) -> int: ...

    @property
    def free_pages(self) -> int: ...

    @property
    def page_bytes(self) -> int: ...

    def create(self) -> int: ...

    def release(self, sequence: int) -> None: ...

    def fork(self, sequence: int, length: int) -> int: ...

    def make_writable(self, sequence: int, first: int, last: int) -> bool: ...

    def attach_prefix(self, sequence: int, tokens: Sequence[int], salt: int = 0) -> int: ...

    def publish(self, sequence: int, tokens: Sequence[int], salt: int = 0) -> None: ...

    def release_behind(self, sequence: int, position: int) -> None: ...

    def has_page(self, sequence: int, page: int) -> bool: ...

    def page_bits(self, sequence: int, page: int) -> NDArray[numpy.uint16]:
        """A copy of a page's words, for tests."""

    def write_page_bits(self, sequence: int, page: int, bits: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', writable=False)]) -> None:
        """Replaces a page's words, for tests."""

    def poison(self, sequence: int, page: int, bits: int) -> None:
        """Fills a page, for tests."""

class Norm:
    def __init__(self, weight: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', writable=False)], bias: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', writable=False)] | None = None) -> None: ...

class FeedForward:
    def __init__(self, *, gate_up: PackedWeight, down: PackedWeight, gate_bias: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', writable=False)] | None = None, up_bias: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', writable=False)] | None = None, down_bias: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', writable=False)] | None = None) -> None: ...

class LayerWeights:
    def __init__(self, *, attention_norm: Norm | None, attention_post_norm: Norm | None, feed_forward_norm: Norm | None, feed_forward_post_norm: Norm | None, query_norm: Norm | None, key_norm: Norm | None, query_key_value: PackedWeight, output: PackedWeight, query_key_value_bias: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', writable=False)] | None, output_bias: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', writable=False)] | None, sinks: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', writable=False)] | None, feed_forwards: Sequence[FeedForward], router: PackedWeight | None, router_bias: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', writable=False)] | None, window: int, rope: int) -> None: ...

class DecoderSpec:
    def __init__(self, *, hidden: int, heads: int, kv_heads: int, head_dim: int, vocabulary: int, ropes: Sequence[RopeSpec], norm_epsilon: float, norm: str, norm_offset: float, norms_whole_rows: bool, activation: str, is_gated: bool, is_parallel: bool, attention_scale: float, attention_cap: float, logit_cap: float, embedding_scale: float, residual_scale: float, logit_scale: float, experts_per_token: int, shares_of_chosen: bool) -> None: ...

class Decoder:
    def __init__(self, *, pool: Pool, isa: str, spec: DecoderSpec, layers: Sequence[LayerWeights], final_norm: Norm, head: PackedWeight, embedding: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), device='cpu', writable=False)] | None, max_rows: int) -> None: ...

    @property
    def max_rows(self) -> int: ...

    @property
    def moved_bytes(self) -> int: ...

    def weight_bytes(self, is_draft: bool) -> int: ...

    def forward(self, is_draft: bool, cache: KvCache, tokens: Sequence[int], sequences: Sequence[int], starts: Sequence[int], counts: Sequence[int], logits: Sequence[int]) -> None: ...

    @property
    def logit_rows(self) -> int: ...

    def logits(self) -> NDArray[numpy.float32]:
        """A copy of the last forward's logits, [rows, vocabulary] float32."""

LONGEST_MATCH: int = 32

MOST_PLACES: int = 8

class NgramIndex:
    """What followed where a text read like its end does now."""

    def __init__(self) -> None: ...

    def __len__(self) -> int: ...

    @property
    def bytes(self) -> int:
        """Memory reserved."""

    def append(self, tokens: Sequence[int]) -> None: ...

    def end_text(self) -> None:
        """What comes next belongs to another text."""

    def propose(self, guesses: Sequence[int], most: int, corpus: NgramIndex | None = None) -> tuple[list[int], list[float]]:
        """
        At most `most` tokens that may follow the text and `guesses`, and their confidences.
        """

class Picker:
    """What the token at a position is, under given parameters."""

    def __init__(self, *, temperature: float = 0.0, top_p: float = 1.0, min_p: float = 0.0, repetition_penalty: float = 1.0, presence_penalty: float = 0.0, frequency_penalty: float = 0.0, top_k: int = 0, seed: int = 0, sample: int = 0, bias_ids: Sequence[int] = [], bias: Sequence[float] = []) -> None: ...

    def pick(self, logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], position: int, history: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, prompt_length: int = 0, mask: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, isa: str | None = None) -> tuple[int, float]:
        """
        The token at `position` and its probability; (-1, 0) if nothing is allowed. `mask` holds a bit a token, set where it is allowed.
        """

    def noise_bits(self, position: int, token: int) -> int:
        """The 64 random bits behind a token's Gumbel noise."""

def verify(decoder: Decoder, row: int, proposal: Sequence[int], picker: Picker, position: int, prompt_length: int, history: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, masks: Annotated[NDArray[numpy.uint32], dict(shape=(None, None), order='C', device='cpu', writable=False)] | None = None) -> tuple[list[int], list[float]]:
    """
    (tokens, probabilities): the proposal's prefix that the logits from `row` on confirm, and the next pick.
    """

def gumbel(bits: int) -> float:
    """-log(-log(1 - v)), v = (bits + 1/2) / 2**64."""

def log_softmax(logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], isa: str | None = None) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))]: ...

def logprob_of(logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], token: int, isa: str | None = None) -> float: ...

def top_logprobs(logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], count: int, isa: str | None = None) -> list[tuple[int, float]]:
    """
    The `count` likeliest tokens and their log-probabilities, ties by lowest id.
    """

class Packed:
    @property
    def weights(self) -> int: ...

    def bytes(self, arg: str, /) -> int: ...

    @property
    def planes(self) -> tuple[NDArray[numpy.uint8], NDArray[numpy.uint8], NDArray[numpy.uint8], NDArray[numpy.uint32], NDArray[numpy.uint32]]: ...

class KernelTable:
    @property
    def name(self) -> str: ...

    def pack(self, tiles: Annotated[NDArray[numpy.uint16], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], rule: str = 'floor', plain: bool = False) -> Packed: ...

    def unpack(self, arg: Packed, /) -> NDArray[numpy.uint16]: ...

    def prepare(self, arg0: str, arg1: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], arg2: int, /) -> NDArray[numpy.uint8]: ...

    def product(self, reading: str, packed: Packed, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], first: int = 0, last: int = -1) -> NDArray[numpy.float32]: ...

    def accumulate_plain(self, arg0: Annotated[NDArray[numpy.uint16], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], arg1: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], arg2: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], /) -> NDArray[numpy.float32]: ...

    def time_product(self, reading: str, packed: Packed, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], pool: Pool, repeats: int = 5, rounds: int = 1) -> list[float]: ...

    def rms_norm(self, arg0: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], arg1: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', device='cpu', writable=False)], arg2: float, arg3: float, /) -> NDArray[numpy.float32]: ...

    def layer_norm(self, arg0: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], arg1: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', device='cpu', writable=False)], arg2: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', device='cpu', writable=False)], arg3: float, /) -> NDArray[numpy.float32]: ...

    def add(self, arg0: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], arg1: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], /) -> NDArray[numpy.float32]: ...

    def add_bf16(self, arg0: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], arg1: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', device='cpu', writable=False)], /) -> NDArray[numpy.float32]: ...

    def scale(self, arg0: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], arg1: float, /) -> NDArray[numpy.float32]: ...

    def gated(self, arg0: str, arg1: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], arg2: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], /) -> NDArray[numpy.float32]: ...

    def soft_cap(self, arg0: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], arg1: float, arg2: float, /) -> NDArray[numpy.float32]: ...

    def rotate(self, arg0: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], arg1: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], arg2: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], /) -> NDArray[numpy.float32]: ...

    def round_bf16(self, x: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], finite: bool = False) -> NDArray[numpy.uint16]: ...

    def softmax_part(self, arg0: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], arg1: int, arg2: int, arg3: float, /) -> tuple[NDArray[numpy.float32], float, float]: ...

    def merge_part(self, arg0: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], arg1: float, arg2: float, arg3: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], arg4: float, arg5: float, /) -> tuple[NDArray[numpy.float32], float, float]: ...

def kernels(arg: str, /) -> KernelTable: ...

def kernel_names() -> list[str]: ...
