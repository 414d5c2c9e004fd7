"""SpecQD's native core."""

from collections.abc import (
    Callable,
    Iterator,
    Mapping,
    Sequence as _Sequence,
    Set
)
from typing import Annotated, Any, overload

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
    """Seconds of each of `repeats` reads of `bytes` bytes by all threads."""

PEAK_PRODUCTS: int = 33554432

def product_seconds(pool: Pool, isa: str, repeats: int) -> list[float]:
    """
    Seconds of each of `repeats` times that each thread makes PEAK_PRODUCTS exact products, in
    registers alone.
    """

class RopeSpec:
    def __init__(self, kind: str, dims: int, theta: float, factor: float, original_max_positions: float, low_freq_factor: float, high_freq_factor: float, beta_fast: float, beta_slow: float, attention_factor: float, mscale: float, mscale_all_dim: float, truncate: bool, factors: _Sequence[float]) -> None: ...

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

def pack(pool: Pool, isa: str, sources: _Sequence[Annotated[NDArray[numpy.uint16], dict(shape=(None, None), device='cpu', writable=False)]], interleaved: bool, rule: int) -> PackedWeight | tuple[int, int, int]: ...

def take_mxfp4(sources: _Sequence[tuple[Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', writable=False)], Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', writable=False)]]]) -> PackedWeight | tuple[int, int, int]: ...

def map_planes(pool: Pool, codes: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], scales: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], residuals: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, patch_starts: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, patches: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, plain: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, *, source_rows: _Sequence[int], columns: int, interleaved: bool) -> PackedWeight | str:
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

    def attach_prefix(self, sequence: int, tokens: _Sequence[int], salt: int = 0) -> int: ...

    def publish(self, sequence: int, tokens: _Sequence[int], salt: int = 0) -> None: ...

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
    def __init__(self, *, attention_norm: Norm | None, attention_post_norm: Norm | None, feed_forward_norm: Norm | None, feed_forward_post_norm: Norm | None, query_norm: Norm | None, key_norm: Norm | None, query_key_value: PackedWeight, output: PackedWeight, query_key_value_bias: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', writable=False)] | None, output_bias: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', writable=False)] | None, sinks: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', writable=False)] | None, feed_forwards: _Sequence[FeedForward], router: PackedWeight | None, router_bias: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', writable=False)] | None, window: int, rope: int) -> None: ...

class DecoderSpec:
    def __init__(self, *, hidden: int, heads: int, kv_heads: int, head_dim: int, vocabulary: int, ropes: _Sequence[RopeSpec], norm_epsilon: float, norm: str, norm_offset: float, norms_whole_rows: bool, activation: str, is_gated: bool, is_parallel: bool, attention_scale: float, attention_cap: float, logit_cap: float, embedding_scale: float, residual_scale: float, logit_scale: float, experts_per_token: int, shares_of_chosen: bool) -> None: ...

class PartialHead:
    """Which rows of the head a draft reads, and whether that pays."""

    def __init__(self, vocabulary: int) -> None: ...

    def keep(self, tokens: _Sequence[int]) -> None:
        """Holds these ids always."""

    def read(self, tokens: _Sequence[int]) -> None:
        """The target has read these tokens."""

    def picked(self, picks: _Sequence[int], proposal: _Sequence[int]) -> None:
        """The target has picked these tokens at a proposal's places."""

    def ids_that_pay(self, *, rest_bytes: float, panel_bytes: float, panels: int, verify_bytes: float) -> int: ...

    @property
    def num_picks(self) -> int: ...

    def share_left_out(self, ids: int) -> float:
        """Of the picks, by one of the sizes that it chooses from."""

    def panels(self, ids: int, panels: int) -> list[int]:
        """Those of the first `ids`, and what is held besides."""

ALL_IDS: int = 9223372036854775807

class Decoder:
    def __init__(self, *, pool: Pool, isa: str, spec: DecoderSpec, layers: _Sequence[LayerWeights], final_norm: Norm, head: PackedWeight, embedding: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), device='cpu', writable=False)] | None, max_rows: int) -> None: ...

    @property
    def max_rows(self) -> int: ...

    @property
    def moved_bytes(self) -> int: ...

    def weight_bytes(self, is_draft: bool) -> int: ...

    def forward(self, is_draft: bool, cache: KvCache, tokens: _Sequence[int], sequences: _Sequence[int], starts: _Sequence[int], counts: _Sequence[int], logits: _Sequence[int]) -> None: ...

    @property
    def partial_head(self) -> PartialHead:
        """What drafts for this model read of their heads."""

    def draft_for(self, target: Decoder, is_draft: bool, verify_bytes: int) -> None:
        """
        Shares the partial_head of the model that it drafts for in that precision; `verify_bytes` are those of a forward that verifies it.
        """

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

    def append(self, tokens: _Sequence[int]) -> None: ...

    def end_text(self) -> None:
        """What comes next belongs to another text."""

    def propose(self, guesses: _Sequence[int], most: int, corpus: NgramIndex | None = None) -> tuple[list[int], list[float]]:
        """
        At most `most` tokens that may follow the text and `guesses`, and their confidences.
        """

class Picker:
    """What the token at a position is, under given parameters."""

    def __init__(self, *, temperature: float = 0.0, top_p: float = 1.0, min_p: float = 0.0, repetition_penalty: float = 1.0, presence_penalty: float = 0.0, frequency_penalty: float = 0.0, top_k: int = 0, seed: int = 0, sample: int = 0, bias_ids: _Sequence[int] = [], bias: _Sequence[float] = []) -> None: ...

    def pick(self, logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], position: int, history: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, prompt_length: int = 0, mask: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, isa: str | None = None) -> tuple[int, float]:
        """
        The token at `position` and its probability; (-1, 0) if nothing is allowed. `mask` holds a bit a token, set where it is allowed.
        """

    def noise_bits(self, position: int, token: int) -> int:
        """The 64 random bits behind a token's Gumbel noise."""

def verify(decoder: Decoder, row: int, proposal: _Sequence[int], picker: Picker, position: int, prompt_length: int, history: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, masks: Annotated[NDArray[numpy.uint32], dict(shape=(None, None), order='C', device='cpu', writable=False)] | None = None) -> tuple[list[int], list[float]]:
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

class Calibration:
    """Stated confidence -> observed acceptance."""

    def __init__(self, floor: float = 0.0, memory: float = 300.0) -> None: ...

    def probability(self, confidence: float) -> float: ...

    def observe(self, confidence: float, is_accepted: bool) -> None: ...

class RowCosts:
    """Seconds of a forward by its number of rows."""

    def __init__(self) -> None: ...

    def begin(self, measured: Mapping[int, float]) -> None:
        """Starts from seconds by rows."""

    def add(self, rows: int, seconds: float) -> None: ...

    def seconds(self, rows: float) -> float:
        """Estimated; 0 where nothing was measured yet."""

    def price(self, rows: float) -> float:
        """The same along the lower convex hull."""

class TokenRate:
    """Tokens a second of a level, over its recent rounds."""

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

class Tokens:
    """A sequence's tokens: a list that grows at its end."""

    def __len__(self) -> int: ...

    @overload
    def __getitem__(self, arg: int, /) -> int: ...

    @overload
    def __getitem__(self, arg: slice, /) -> list[int]: ...

    def __iter__(self) -> Iterator[int]: ...

    def __eq__(self, arg: object, /) -> bool: ...

    def append(self, token: int) -> None: ...

    def extend(self, tokens: _Sequence[int]) -> None: ...

class Sequence:
    """
    The tokens of one request's sample. While a level drafts, its guesses stand at the end.
    """

    def __init__(self, tokens: _Sequence[int], picker: Picker, prompt_length: int, *, is_sampled: bool = False, needs_history: bool = False, grammar: Any = None, stop_ids: Set[int] = frozenset()) -> None: ...

    @property
    def tokens(self) -> Tokens: ...

    @property
    def picker(self) -> Picker: ...

    @property
    def prompt_length(self) -> int: ...

    @property
    def is_sampled(self) -> bool: ...

    @property
    def num_guesses(self) -> int: ...

    @property
    def stop_ids(self) -> set[int]: ...

    @stop_ids.setter
    def stop_ids(self, arg: Set[int], /) -> None: ...

    @property
    def cache_salt(self) -> int: ...

    @cache_salt.setter
    def cache_salt(self, arg: int, /) -> None: ...

    @property
    def key(self) -> int: ...

    @key.setter
    def key(self, arg: int, /) -> None: ...

    @property
    def num_accepted(self) -> int: ...

    @property
    def grammar(self) -> Any: ...

    @grammar.setter
    def grammar(self, arg: Any, /) -> None: ...

    def is_stop(self, token: int) -> bool: ...

    def guess(self, tokens: _Sequence[int]) -> None: ...

    def forget_guesses(self, count: int) -> None:
        """Takes the last `count` guesses back."""

    def masks(self, proposal: _Sequence[int]) -> NDArray[numpy.uint32] | None:
        """
        What the grammar allows after each of the proposal's tokens, and before the first.
        """

class Context:
    """What a model's cache holds of one sequence."""

    def __init__(self, slot: int, exact: Context | None = None) -> None: ...

    @property
    def slot(self) -> int: ...

    @property
    def length(self) -> int:
        """Positions held."""

    def begin(self, length: int) -> None:
        """Starts a proposal after `length` tokens."""

    def match(self, tokens: _Sequence[int], accepted: int) -> int:
        """Forgets what is not a prefix of `tokens`; returns the positions left."""

    def record(self, start: int, tokens: _Sequence[int]) -> None:
        """
        The cache now holds `tokens` from position `start` on, and nothing after them.
        """

class Rows:
    """Tokens to forward from a position on; logits of the last `logits`."""

    def __init__(self, context: Context, start: int, tokens: _Sequence[int], logits: int) -> None: ...

    @property
    def context(self) -> Context: ...

    @property
    def start(self) -> int: ...

    @property
    def tokens(self) -> list[int]: ...

    @property
    def logits(self) -> int: ...

class LevelModel:
    """What a level needs of a model."""

class ModelForward(LevelModel):
    """Forwards of a decoder in one precision, over a cache, by sequence."""

    def __init__(self, decoder: Decoder, cache: KvCache, is_draft: bool, max_positions: int, exact: ModelForward | None = None) -> None: ...

    @property
    def vocabulary(self) -> int: ...

    @property
    def max_positions(self) -> int: ...

    @property
    def max_rows(self) -> int:
        """Rows of logits that one forward can leave."""

    @property
    def bytes_read(self) -> int:
        """Of weights, by all forwards so far."""

    @property
    def cache_bytes_read(self) -> int:
        """Of keys and values."""

    def set_head(self, ids: int | None, is_exact: bool = False) -> None:
        """
        What forwards read of the head: the first `ids` beside those that the partial_head holds, or as
        many as pay (None); in the precision, or exactly.
        """

    def context(self, sequence: Sequence) -> Context:
        """This precision's view of the cache for a sequence, made on first use."""

    def adopt(self, sequence: Sequence, context: Context) -> None:
        """Lets a sequence go on from a context that was made for it."""

    def forward(self, batch: _Sequence[Rows]) -> None:
        """
        Caches all rows and leaves the asked logits in the decoder, in the batch's order.

        More rows than one forward takes are forwarded in parts; those with logits must fit into
        the last.
        """

    def verify(self, row: int, proposal: _Sequence[int], sequence: Sequence) -> tuple[list[int], list[float]]:
        """
        What the last forward's logits from `row` on say to a proposal: (tokens, probabilities).
        """

    def release(self, sequence: Sequence) -> None:
        """
        Forgets a sequence; its exact precision too, which need not be a level of its own.
        """

class DraftRequest:
    """
    A wish for tokens that continue a sequence, and what they are worth to whoever requests.
    """

    def __init__(self, sequence: Sequence, at_most: int, token_value_s: float = float('inf'), confidence: float = 1.0, costs: RowCosts | None = None, rows: int = 1, sharing: int = 1) -> None: ...

    @property
    def sequence(self) -> Sequence: ...

    @property
    def at_most(self) -> int: ...

    @property
    def token_value_s(self) -> float:
        """Seconds that one more accepted token saves."""

    @property
    def confidence(self) -> float: ...

    @property
    def costs(self) -> RowCosts: ...

    @property
    def rows(self) -> int: ...

    @property
    def sharing(self) -> int: ...

    def changed(self, *, at_most: int | None = None, token_value_s: float | None = None) -> DraftRequest:
        """The same, but for these."""

    def added_seconds(self, count: float) -> float:
        """
        What a proposal of so many tokens adds to verification, if the others are as long.
        """

class Proposal:
    """
    Tokens that may come next, each with the probability its proposer gave it.
    """

    def __init__(self, tokens: _Sequence[int] = [], confidences: _Sequence[float] = [], row: int = 0, depths: _Sequence[int] = []) -> None: ...

    @property
    def tokens(self) -> list[int]: ...

    @property
    def confidences(self) -> list[float]: ...

    @property
    def row(self) -> int:
        """Of the proposer's last logits, for the first token."""

    @property
    def depths(self) -> list[int]:
        """By token: levels below its proposer; or none."""

    def depths_of(self, verified: _Sequence[int]) -> list[int]:
        """
        Of the tokens that a verifier makes of this proposal, as seen from there.
        """

class Drafter:
    """Who proposes tokens, where that is a part of the core."""

class NoDraft(Drafter):
    """Plain decoding: nothing is ever proposed."""

    def __init__(self) -> None: ...

    @property
    def levels(self) -> tuple[Any, ...]: ...

    def propose(self, requests: _Sequence[DraftRequest]) -> list[Proposal]:
        """One proposal for each request, of at most `at_most` tokens."""

    def values(self, requests: _Sequence[DraftRequest]) -> list[float]:
        """
        Seconds that `propose` is expected to save each request, net of all costs.
        """

    def observe(self, request: DraftRequest, proposal: Proposal, accepted: int) -> None:
        """
        Learns that verification accepted the first `accepted` tokens of its proposal.
        """

    def release(self, sequence: Sequence) -> None:
        """Forgets a sequence that has ended."""

class NgramDrafter(Drafter):
    """
    Drafts from a sequence's own accepted tokens, and from a corpus that all sequences share.

    The corpus's texts are token ids; they are asked where they hold a longer match than the
    sequence itself. `length` fixes how many tokens are proposed where that many are known; None
    proposes as long as a token is likely enough to be worth its row.
    """

    def __init__(self, *, corpus: _Sequence[_Sequence[int]] = [], length: int | None = None) -> None: ...

    @property
    def name(self) -> str: ...

    @property
    def length(self) -> int | None: ...

    @property
    def levels(self) -> tuple[Any, ...]: ...

    def propose(self, requests: _Sequence[DraftRequest]) -> list[Proposal]:
        """One proposal for each request, of at most `at_most` tokens."""

    def values(self, requests: _Sequence[DraftRequest]) -> list[float]:
        """
        Seconds that `propose` is expected to save each request, net of all costs.
        """

    def observe(self, request: DraftRequest, proposal: Proposal, accepted: int) -> None:
        """
        Learns that verification accepted the first `accepted` tokens of its proposal.
        """

    def release(self, sequence: Sequence) -> None:
        """Forgets a sequence that has ended."""

class DraftChoice(Drafter):
    """
    Drafters side by side: each sequence gets the proposal that is worth most.
    """

    def __init__(self, drafters: _Sequence[object]) -> None: ...

    @property
    def drafters(self) -> tuple[Any, ...]: ...

    @property
    def levels(self) -> tuple[Any, ...]: ...

    def propose(self, requests: _Sequence[DraftRequest]) -> list[Proposal]:
        """One proposal for each request, of at most `at_most` tokens."""

    def values(self, requests: _Sequence[DraftRequest]) -> list[float]:
        """
        Seconds that `propose` is expected to save each request, net of all costs.
        """

    def observe(self, request: DraftRequest, proposal: Proposal, accepted: int) -> None:
        """
        Learns that verification accepted the first `accepted` tokens of its proposal.
        """

    def release(self, sequence: Sequence) -> None:
        """Forgets a sequence that has ended."""

class LevelStats:
    """What a level did since it was made."""

    def __init__(self) -> None: ...

    @property
    def forwards(self) -> int: ...

    @property
    def rows(self) -> int: ...

    @property
    def seconds(self) -> float:
        """Within forwards."""

    @property
    def pick_seconds(self) -> float: ...

    @property
    def drafted(self) -> int:
        """Tokens that its drafter proposed."""

    @property
    def accepted(self) -> int: ...

    @property
    def accepted_at(self) -> list[int]:
        """By place in the proposal."""

    @property
    def drafted_at(self) -> list[int]: ...

    @property
    def asked(self) -> int:
        """Times that it was asked for a proposal, as a drafter."""

    @property
    def token_value_seconds(self) -> float:
        """Of those times, the worth of an accepted token to whoever asked."""

    def count(self, drafted: int, accepted: int) -> None: ...

class Level(Drafter):
    """
    A verifier over a drafter, and itself a drafter. With NoDraft it decodes plainly.

    `length` fixes how many tokens it proposes when it is asked as a drafter; None lets what they
    cost and bring decide (docs/design.md, "When another draft token pays").
    """

    def __init__(self, model: Any, drafter: Any, *, length: int | None = None, name: str | None = None, clock: Callable[[], float] | None = None) -> None: ...

    @property
    def model(self) -> Any: ...

    @property
    def drafter(self) -> Any: ...

    @drafter.setter
    def drafter(self, arg: Any, /) -> None: ...

    @property
    def length(self) -> int | None: ...

    @property
    def name(self) -> str: ...

    @property
    def stats(self) -> LevelStats: ...

    @property
    def levels(self) -> tuple[Any, ...]:
        """This drafter and those below it, outermost first."""

    def measure(self) -> None:
        """
        Learns what forwards cost, here and below, so that the first request is drafted well.
        """

    def advance(self, requests: _Sequence[DraftRequest]) -> list[Proposal]:
        """
        At least one token of this level's own for each request, in one forward.

        The tokens are the longest prefix of the drafter's proposal that this model would have
        picked itself, and then its own next pick. None are returned where nothing is allowed.
        """

    def seconds_per_token(self, count: int) -> float:
        """What a token takes where so many texts are advanced together."""

    def propose(self, requests: _Sequence[DraftRequest]) -> list[Proposal]:
        """One proposal for each request, of at most `at_most` tokens."""

    def values(self, requests: _Sequence[DraftRequest]) -> list[float]:
        """
        Seconds that `propose` is expected to save each request, net of all costs.
        """

    def observe(self, request: DraftRequest, proposal: Proposal, accepted: int) -> None:
        """
        Learns that verification accepted the first `accepted` tokens of its proposal.
        """

    def release(self, sequence: Sequence) -> None:
        """Forgets a sequence that has ended."""

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

    def product(self, precision: str, packed: Packed, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], first: int = 0, last: int = -1) -> NDArray[numpy.float32]: ...

    def accumulate_plain(self, arg0: Annotated[NDArray[numpy.uint16], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], arg1: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], arg2: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], /) -> NDArray[numpy.float32]: ...

    def time_product(self, precision: str, packed: Packed, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], pool: Pool, repeats: int = 5, rounds: int = 1) -> list[float]: ...

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
