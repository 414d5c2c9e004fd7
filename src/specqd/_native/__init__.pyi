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

from specqd._native import testing as testing


def available_isas() -> list[str]: ...

def amx_refusal() -> str: ...

def usable_threads() -> int: ...

def usable_memory() -> int: ...

def cpu_model() -> str: ...

class NumaNode:
    """CPUs and memory that this process may use."""

    @property
    def id(self) -> int: ...

    @property
    def cpus(self) -> set[int]: ...

    @property
    def cores(self) -> int:
        """Hyperthreads of one core count once."""

    @property
    def memory_bytes(self) -> int:
        """Negative if unknown."""

    @property
    def free_bytes(self) -> int:
        """Negative if unknown."""

class Topology:
    """The NUMA nodes of this machine; at least one is usable."""

    @property
    def nodes(self) -> list[NumaNode]: ...

    @property
    def unused(self) -> list[int]:
        """Ids of nodes without CPUs or memory for this process."""

def topology() -> Topology:
    """Reads the NUMA nodes that the affinity mask and the cgroup allow."""

def may_put_on(node: int) -> bool:
    """Returns whether the system lets this process put pages on a NUMA node."""

class Pool:
    @overload
    def __init__(self, threads: int) -> None: ...

    @overload
    def __init__(self, nodes: _Sequence[tuple[int, int, Set[int]]], *, replicates: bool = False, copies_mapped: bool = False) -> None:
        """
        Starts threads on NUMA nodes: (id of the node, number of threads, CPUs that they are
        bound to). Without CPUs, the threads are not bound.
        """

    @property
    def threads(self) -> int: ...

    @property
    def nodes(self) -> list[tuple[int, int]]:
        """The id and number of threads of each NUMA node."""

    @property
    def replicates(self) -> bool: ...

    @property
    def copies_mapped(self) -> bool: ...

    @property
    def unbound(self) -> int:
        """Threads that the system did not bind to their node's CPUs."""

    def start_trace(self) -> None:
        """Starts to record the stages of all forwards."""

    def stop_trace(self) -> list[tuple[int, str, int, int]]:
        """
        Returns (thread, stage, begin, end) of each recorded stage, in nanoseconds. The stage
        "wait" is a wait at a barrier.
        """

class PlainReads:
    """Memory that all threads of a pool read."""

    def __init__(self, pool: Pool, isa: str, bytes: int) -> None: ...

    def read_seconds(self) -> float:
        """Reads all bytes once; returns the seconds."""

class RopeSpec:
    """How positions rotate queries and keys."""

    def __init__(self, *, kind: str, dims: int, theta: float, factor: float, original_max_positions: float, low_freq_factor: float, high_freq_factor: float, beta_fast: float, beta_slow: float, attention_factor: float, mscale: float, mscale_all_dim: float, truncate: bool, factors: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', writable=False)], query_growth: float, turning_pairs: int) -> None: ...

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

    @property
    def copies(self) -> int:
        """
        The number of copies of all planes: one for each NUMA node that has its own.
        """

    def plane_nodes(self) -> dict[str, dict[int, int]]:
        """
        Estimates from a sample of pages how many bytes of each plane, of all copies, are on
        each NUMA node; -1 stands for pages that are not in memory. A plane's dict is empty if
        the system does not provide this.
        """

    def planes(self) -> dict[str, NDArray[numpy.generic]]:
        """Returns the planes by name, as flat, read-only views."""

FEEDBACK_INPUTS: int = 256

def pack(pool: Pool, isa: str, sources: _Sequence[Annotated[NDArray[numpy.uint16], dict(shape=(None, None), device='cpu', writable=False)]], interleaved: bool, format: str, importance: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, products: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)] | None = None) -> PackedWeight | tuple[int, int, int]: ...

def take_mxfp4(pool: Pool, sources: _Sequence[tuple[Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', writable=False)], Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', writable=False)]]]) -> PackedWeight | tuple[int, int, int]: ...

def map_planes(pool: Pool, codes: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], scales: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], scale_code: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], residuals: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, patch_starts: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, patches: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, plain: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, *, source_rows: _Sequence[int], columns: int, interleaved: bool) -> PackedWeight | str:
    """
    Makes a weight of planes that were packed before; returns it or an error message.
    """

def release_free_memory() -> None:
    """Returns free pages of the heap to the system."""

def find_not_finite(pool: Pool, bits: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), device='cpu', writable=False)]) -> tuple[int, int] | None:
    """
    Returns (row, column) of the first BF16 number that is not finite, or None.
    """

PAGE_POSITIONS: int = 64

class KvCache:
    def __init__(self, decoder: Decoder, pages: int, states: int = 0, slots: int = 0) -> None: ...

    @property
    def has_states(self) -> bool:
        """Whether any layer is recurrent."""

    @property
    def total_states(self) -> int:
        """How many sequences can have states of recurrent layers at once."""

    @property
    def free_states(self) -> int: ...

    @property
    def state_bytes(self) -> int:
        """The most bytes that the states of one sequence take."""

    @property
    def slot_bytes(self) -> int:
        """Bytes of the states at one position."""

    @property
    def total_slots(self) -> int:
        """How many states can be cached for later sequences."""

    @property
    def cached_slots(self) -> int: ...

    @property
    def used_slots(self) -> int:
        """The number of states that sequences or the cache hold."""

    def has_states_of(self, sequence: int) -> bool: ...

    def can_continue(self, sequence: int, position: int) -> bool:
        """Whether the states allow a forward to begin at `position`."""

    @property
    def total_pages(self) -> int: ...

    @property
    def free_pages(self) -> int: ...

    @property
    def page_bytes(self) -> int: ...

    def create(self) -> int: ...

    def release(self, sequence: int) -> None: ...

    def fork(self, sequence: int, length: int) -> int: ...

    def attach_prefix(self, sequence: int, tokens: _Sequence[int], salt: int = 0) -> int: ...

    def publish(self, sequence: int, tokens: _Sequence[int], salt: int = 0) -> None: ...

    def release_behind(self, sequence: int, position: int) -> None: ...

    def has_page(self, sequence: int, page: int) -> bool: ...

    def page_bits(self, sequence: int, page: int) -> NDArray[numpy.uint16]:
        """Returns a copy of a page's words."""

    def append_page(self, sequence: int, bits: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', writable=False)]) -> bool:
        """
        Adds a page with these words to a sequence. Returns False if no page is free.
        """

    def state_bits(self, sequence: int, page: int) -> NDArray[numpy.uint8] | None:
        """
        Returns a copy of the states of recurrent layers that are cached for the end of a
        sequence's page; None if there are none.
        """

    def restore_state(self, sequence: int, bits: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> bool:
        """
        Lets a sequence without rows of its own continue after its pages from these states of
        recurrent layers. Returns False if no states are free.
        """

class Norm:
    """The weight and bias of a norm, in BF16."""

    def __init__(self, *, weight: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', writable=False)], bias: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', writable=False)] | None) -> None: ...

class FeedForward:
    """Two products with an activation between them."""

    def __init__(self, *, gate_up: PackedWeight, down: PackedWeight, gate_bias: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', writable=False)] | None, up_bias: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', writable=False)] | None, down_bias: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', writable=False)] | None, curve: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', writable=False)] | None) -> None: ...

class DeltaWeights:
    """
    The delta rule of a recurrent layer. The rows of `rates` are those of betas,
    then those of decays.
    """

    def __init__(self, *, rates: PackedWeight, log_rate: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', writable=False)], step_bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', writable=False)], norm: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', writable=False)]) -> None: ...

class LatentWeights:
    """
    The weights of latent attention except its first product and its output.
    """

    def __init__(self, *, queries: PackedWeight | None, query_norm: Norm | None, norm: Norm, keys: PackedWeight, values: PackedWeight) -> None: ...

class PerLayerInput:
    """A layer's addition of its part of the per-layer embedding."""

    def __init__(self, *, gate: PackedWeight, projection: PackedWeight, post_norm: Norm) -> None: ...

class DynamicConvolution:
    """
    Convolutions of the inputs and of the outputs of a part of a layer over the rows of a
    forward. `base` is [2, taps, hidden]; `projection` is [2 * taps * groups, hidden].
    """

    def __init__(self, *, projection: PackedWeight, base: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', writable=False)], taps: int, groups: int) -> None: ...

class PerLayerEmbedding:
    """The per-layer embeddings of tokens; `table` is read in place."""

    def __init__(self, *, table: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), device='cpu', writable=False)], projection: PackedWeight, norm: Norm) -> None: ...

class Mixture:
    """
    The weights and traits of a layer with experts, except the experts themselves. The router
    has one row per expert, and one more for the gate of a gated shared feed forward.
    """

    def __init__(self, *, router: PackedWeight, router_bias: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', writable=False)] | None, shared: FeedForward | None, experts_norm: Norm | None, router_norm: Norm | None, experts_post_norm: Norm | None, shared_post_norm: Norm | None, score_scale: float, expert_scales: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', writable=False)] | None, correction_bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', writable=False)] | None, groups: int, chosen_groups: int, weight_sum_epsilon: float) -> None: ...

class LayerWeights:
    """The weights and traits of one layer."""

    def __init__(self, *, attention_norm: Norm | None, attention_post_norm: Norm | None, feed_forward_norm: Norm | None, feed_forward_post_norm: Norm | None, query_norm: Norm | None, key_norm: Norm | None, value_norm: Norm | None, query_key_value: PackedWeight, output: PackedWeight, query_key_value_bias: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', writable=False)] | None, output_bias: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', writable=False)] | None, sinks: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', writable=False)] | None, feed_forwards: _Sequence[FeedForward], mixture: Mixture | None, window: int, is_causal: bool, rope: int, attention: int, kv_layer: int, values_are_keys: bool, per_layer: PerLayerInput | None, output_scale: float, convolution: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', writable=False)] | None, convolution_bias: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order='C', writable=False)] | None, delta: DeltaWeights | None, latent: LatentWeights | None, attention_convolution: DynamicConvolution | None, feed_forward_convolution: DynamicConvolution | None) -> None: ...

class AttentionShape:
    """The heads of attention, and the scale and soft cap of their scores."""

    def __init__(self, *, heads: int, kv_heads: int, head_dim: int, value_dim: int, scale: float, cap: float) -> None: ...

class StateShape:
    """
    The convolution of recurrent layers, and the heads of their delta rule: 0 without one.
    """

    def __init__(self, *, channels: int, kernel_width: int, key_heads: int, value_heads: int, key_dim: int, value_dim: int) -> None: ...

class DecoderSpec:
    """The shape and traits of a decoder."""

    def __init__(self, *, hidden: int, vocabulary: int, attentions: _Sequence[AttentionShape], ropes: _Sequence[RopeSpec], norm_epsilon: float, norm: str, norm_offset: float, norms_whole_rows: bool, norms_after_rotation: bool, activation: str, is_gated: bool, is_parallel: bool, logit_cap: float, embedding_scale: float, residual_scale: float, logit_scale: float, experts_per_token: int, normalizes_routing_weights: bool, attention_gates: str, states: StateShape | None) -> None: ...

class PartialHead:
    """Chooses the rows of the output head that a draft reads."""

    def __init__(self, vocabulary: int) -> None: ...

    def set_first_ids(self, ids: int) -> None:
        """Sets how many of the first ids are always read."""

    def keep(self, tokens: _Sequence[int]) -> None:
        """Always reads these ids."""

    def record(self, tokens: _Sequence[int]) -> None:
        """Records tokens that the target has read or sampled."""

    def panels(self, panels: int) -> list[int]:
        """Returns the panels to read of an output head that has `panels`."""

class HeadEntry:
    """The entry of a draft head: pairs of a feature and a token."""

    def __init__(self, *, fc: PackedWeight | None, features_norm: Norm | None, tap_norms: _Sequence[Norm], embedding_norm: Norm, hidden_norm: Norm, embedding: PackedWeight | None, keeps_normed: bool, recycles_normed: bool, projection: PackedWeight | None, hidden_first: bool, blanks_first: bool) -> None: ...

class ContextEntry:
    """The entry of a block drafter's context: features of positions."""

    def __init__(self, *, fc: PackedWeight, norm: Norm, embedding: PackedWeight | None) -> None: ...

class SelectorWeights:
    """
    The weights that rank the candidates of a row again; the codebooks, [vocabulary,
    rank], are read in place.
    """

    def __init__(self, *, projection: PackedWeight, predecessors: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), device='cpu', writable=False)], successors: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), device='cpu', writable=False)], candidates: int) -> None: ...

class Decoder:
    def __init__(self, *, pool: Pool, isa: str, spec: DecoderSpec, layers: _Sequence[LayerWeights], final_norm: Norm, head: PackedWeight, embedding: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), device='cpu', writable=False)] | None, per_layer: PerLayerEmbedding | None = None, max_rows: int, entry: HeadEntry | None = None, context: ContextEntry | None = None, selector: SelectorWeights | None = None) -> None: ...

    @property
    def max_rows(self) -> int: ...

    @property
    def moved_bytes(self) -> int: ...

    def forward(self, is_draft: bool, cache: KvCache, tokens: _Sequence[int], sequences: _Sequence[int], starts: _Sequence[int], counts: _Sequence[int], logits: _Sequence[int]) -> None: ...

    def tap(self, boundaries: _Sequence[int]) -> None:
        """
        Makes later forwards copy the residual stream at these boundaries, which ascend.
        Boundary b is the input of layer b; the number of layers is the input of the final
        norm. Without boundaries, nothing is copied.
        """

    @property
    def tapped(self) -> list[int]:
        """The boundaries that forwards copy."""

    def taps(self) -> NDArray[numpy.uint16]:
        """
        Returns copies of the last forward's residual stream as BF16 bits,
        [rows, boundaries, hidden].
        """

    def watch_inputs(self) -> None:
        """
        Starts to sum the products of pairs of inputs of each matrix, over exact forwards.
        """

    def take_input_products(self) -> list[dict[str, NDArray[numpy.float32]]]:
        """
        Ends what watch_inputs() started. Returns the summed products of each input with the
        inputs of its group, [columns, group], by the name of the matrix's inputs: a dictionary
        for each layer, then one for the other matrices. Products with earlier inputs of the
        group are unspecified.
        """

    def record_bits(self) -> None:
        """
        Starts to record a hash of every row after every stage of later forwards.
        """

    def take_bits(self) -> list[tuple[int, str, NDArray[numpy.uint64]]]:
        """
        Ends what record_bits() started. Returns (layer, stage, uint64 hashes [rows]) of each
        stage, in order. Layer -1 is before the layers; their number is the output head.
        """

    @property
    def partial_head(self) -> PartialHead:
        """The part of the output head that drafts for this model read."""

    def logits(self, first: int = 0, last: int | None = None) -> NDArray[numpy.float32]:
        """
        Returns a copy of the last forward's logits from row `first` to before row `last`,
        [rows, vocabulary] float32.
        """

    def hidden(self) -> NDArray[numpy.float32]:
        """
        Returns a copy of the outputs of the final norm, [rows, hidden] float32, that the last
        forward kept in place of logits; no rows if it kept none.
        """

class Sampler:
    """Samples the token at a position, with fixed parameters."""

    def __init__(self, *, temperature: float = 0.0, top_p: float = 1.0, min_p: float = 0.0, repetition_penalty: float = 1.0, presence_penalty: float = 0.0, frequency_penalty: float = 0.0, top_k: int = 0, seed: int = 0, sample: int = 0, bias_ids: _Sequence[int] = [], bias: _Sequence[float] = []) -> None: ...

def log_softmax(logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], isa: str | None = None) -> NDArray[numpy.float32]: ...

def logprob_of(logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], token: int, isa: str | None = None) -> float: ...

def top_logprobs(logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], count: int, isa: str | None = None) -> list[tuple[int, float]]:
    """
    Returns the `count` likeliest tokens and their log-probabilities, ties by lowest id.
    """

class RowCosts:
    """Seconds of a forward by its number of rows."""

    def __init__(self) -> None: ...

    def begin(self, measured: Mapping[int, float], first: int = 1) -> None:
        """Starts from seconds by rows. No forward has fewer rows than `first`."""

    def add(self, rows: int, seconds: float) -> None: ...

    def seconds(self, rows: float) -> float:
        """Returns the estimate; 0 before anything was measured."""

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
    The tokens of one of the n samples of a request. While a level drafts, its guesses are at
    the end.
    """

    def __init__(self, tokens: _Sequence[int], sampler: Sampler, prompt_length: int, *, is_sampled: bool = False, needs_history: bool = False, grammar: Any = None, stop_ids: Set[int] = frozenset()) -> None: ...

    @property
    def tokens(self) -> Tokens: ...

    @property
    def sampler(self) -> Sampler: ...

    @property
    def prompt_length(self) -> int: ...

    @property
    def stop_ids(self) -> set[int]: ...

    @stop_ids.setter
    def stop_ids(self, arg: Set[int], /) -> None: ...

    @property
    def cache_salt(self) -> int: ...

    @cache_salt.setter
    def cache_salt(self, arg: int, /) -> None: ...

    @property
    def reuses_prefixes(self) -> bool: ...

    @reuses_prefixes.setter
    def reuses_prefixes(self, arg: bool, /) -> None: ...

    @property
    def is_preempted(self) -> bool: ...

    @is_preempted.setter
    def is_preempted(self, arg: bool, /) -> None: ...

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
        """Removes the last `count` guesses."""

    def masks(self, proposal: _Sequence[int]) -> NDArray[numpy.uint32] | None:
        """
        Returns bit masks, [proposal + 1, words], of the tokens that the grammar allows as the
        first token of the proposal and after each of its tokens; None without a grammar.
        """

class Context:
    """Tracks the tokens of one sequence that a model's cache holds."""

    def __init__(self, slot: int, exact: Context | None = None) -> None: ...

    @property
    def slot(self) -> int: ...

    @property
    def length(self) -> int:
        """Number of positions in the cache."""

    def begin(self, length: int) -> None:
        """Starts a proposal after `length` tokens."""

    def match(self, tokens: _Sequence[int], accepted: int) -> int:
        """
        Forgets everything after the common prefix with `tokens`, and returns the number of
        positions that are left. The first `accepted` tokens never change, so later calls do
        not compare them.
        """

    def record(self, start: int, tokens: _Sequence[int]) -> None:
        """
        Records that the cache holds `tokens` from position `start`, and nothing after them.
        """

    def copy_logs(self, other: Context) -> None:
        """
        Copies the logged features and the weights of pages of a context that begins with the
        same tokens.
        """

class Rows:
    """
    Tokens to forward from position `start` on; the last `logits` get logits.
    """

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
    """The interface of a model that a level uses."""

    @property
    def vocabulary(self) -> int: ...

    @property
    def max_positions(self) -> int: ...

    @property
    def max_rows(self) -> int:
        """Most rows of logits per forward."""

    def context(self, sequence: Sequence) -> Context:
        """Returns this model's context for a sequence; it is made on first use."""

    def forward(self, batch: _Sequence[Rows]) -> None:
        """
        Computes all rows and caches their keys and values. Keeps the requested logits, in the
        order of the batch.
        """

    def verify(self, row: int, proposal: _Sequence[int], sequence: Sequence) -> tuple[list[int], list[float]]:
        """
        Verifies a proposal with the logits of the last forward from `row` on.

        Returns (tokens, probabilities) of the longest prefix of the proposal that equals the
        tokens which the model samples itself, and of the next token that it samples.
        """

    def release(self, sequence: Sequence) -> None: ...

    def adopt_prefix(self, sequence: Sequence) -> int:
        """
        Lets a new sequence begin with pages that others have published. Returns the number of
        positions.
        """

    def publish(self, sequence: Sequence) -> None:
        """
        Offers the full pages of accepted tokens to later sequences of the same salt.
        """

class DecoderForward(LevelModel):
    """Forwards of one precision of a decoder over a cache."""

    @property
    def bytes_read(self) -> int:
        """Bytes of weights that all forwards so far have read."""

    @property
    def cache_bytes_read(self) -> int:
        """Bytes of keys and values that all forwards so far have read."""

    @property
    def whole_cache_bytes(self) -> int:
        """What `cache_bytes_read` would be if drafts read their whole context."""

    @property
    def bytes_per_forward(self) -> int:
        """
        Bytes of weights that a forward of one row reads. More rows may use more experts.
        """

    def read_partial_head(self) -> None:
        """
        From now on, forwards read only the partial output head; by default, the whole one.
        """

    def keep_pages(self, store: object) -> None:
        """
        From now on, `store` also keeps the published pages of the cache, and sequences begin
        with those that it has kept. It has two methods, restore(key, tokens, salt) and
        keep(slot, tokens, salt); the tokens are int32 [n].
        """

    def draft_for(self, target: Decoder) -> None:
        """
        Drafts for `target` from now on, from the part of the output head that its text suggests.
        A draft head with ids of its own reads its whole output head.
        """

class ModelForward(DecoderForward):
    """
    Forwards a whole model.

    Splits the rows into several forwards if one cannot take them; those with logits must fit
    into the last forward. Releases a sequence in the exact precision too.
    """

    def __init__(self, decoder: Decoder, cache: KvCache, is_draft: bool, max_positions: int, exact: ModelForward | None = None) -> None: ...

    def forward_hidden(self, batch: _Sequence[Rows]) -> None:
        """
        Like forward(), without the output head: the rows that would get logits leave the
        outputs of the final norm, Decoder.hidden().
        """

    def set_draft_context(self, positions: int | None) -> None:
        """
        Limits the positions of a context that drafts read, in both precisions; 0: no limit.
        By default, 1,536 or so many that the weights remain most of what a draft reads.
        """

    def adopt(self, sequence: Sequence, context: Context) -> None:
        """Sets the context from which a sequence continues."""

class HeadForward(DecoderForward):
    """
    Forwards a trained draft head, which reads features of the model `above`. It verifies no
    drafts, so a proposal must be empty.

    `boundaries` are the layer boundaries that make a feature. The model logs them from now on.
    `ids` are the target's ids of the head's tokens, ascending; empty if they are the same. A
    head with its own ids reads its whole output head.
    """

    def __init__(self, decoder: Decoder, cache: KvCache, is_draft: bool, above: ModelForward, boundaries: _Sequence[int], ids: _Sequence[int]) -> None: ...

    def logits(self) -> NDArray[numpy.float32]:
        """
        Returns a copy of the last forward's logits, [rows, vocabulary], ordered by the target's ids.
        """

LONGEST_PROPOSAL: int = 32

class DraftRequest:
    """
    A request for tokens that continue a sequence, with their value to the verifier.
    """

    def __init__(self, sequence: Sequence, at_most: int, token_value_s: float = float('inf'), confidence: float = 1.0, costs: RowCosts | None = None, rows: int = 1, sharing: int = 1, reads: int = 9223372036854775807, scores: int = 0) -> None: ...

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

    @property
    def reads(self) -> int:
        """
        The most tokens to read before the last one. If some are left, nothing is sampled.
        """

    @property
    def scores(self) -> int:
        """The last so many of the tokens read get logits."""

    def changed(self, *, at_most: int | None = None, token_value_s: float | None = None) -> DraftRequest:
        """Returns a copy with these fields replaced."""

    def added_seconds(self, count: float) -> float:
        """
        Returns the seconds that a proposal of `count` tokens adds to verification, if those of
        the other sequences are as long.
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
        """The row of the drafter's last logits for the first token."""

    @property
    def depths(self) -> list[int]:
        """
        By token: the number of members of the chain above the one that made it; or empty.
        """

    @property
    def drafted(self) -> int:
        """
        From a verifier: the number of tokens of the proposal that it verified, whether they
        were accepted or rejected.
        """

    @property
    def accepted(self) -> int:
        """From a verifier: those of them it accepted."""

    def depths_of(self, verified: _Sequence[int]) -> list[int]:
        """
        Returns the depths of the tokens that a verifier makes of this proposal, counted from the
        verifier.
        """

class Drafter:
    """A drafter of the core."""

    def propose(self, requests: _Sequence[DraftRequest]) -> list[Proposal]:
        """Returns one proposal for each request, of at most `at_most` tokens."""

    def values(self, requests: _Sequence[DraftRequest]) -> list[tuple[float, float]]:
        """
        Returns for each request the seconds that `propose` is expected to save, net of all
        costs, and the tokens of it that are expected to be accepted.
        """

    def observe(self, request: DraftRequest, proposal: Proposal, accepted: int) -> None:
        """
        Learns that verification accepted the first `accepted` tokens of its proposal.
        """

    def release(self, sequence: Sequence) -> None:
        """Forgets a sequence that has ended."""

class NoDraft(Drafter):
    """Plain decoding: nothing is ever proposed."""

    def __init__(self) -> None: ...

    @property
    def levels(self) -> tuple[Any, ...]: ...

class NgramDrafter(Drafter):
    """
    Drafts from a sequence's own accepted tokens, and from a corpus that all sequences share.

    The texts of the corpus are token ids. They are used if they contain a longer match than the
    sequence itself. `length` fixes the number of tokens, as far as that many are known; None
    proposes those that are worth their rows.
    """

    def __init__(self, *, corpus: _Sequence[_Sequence[int]] = [], length: int | None = None) -> None: ...

    @property
    def name(self) -> str: ...

    @property
    def length(self) -> int | None: ...

    @property
    def levels(self) -> tuple[Any, ...]: ...

class DraftChoice(Drafter):
    """
    Alternative drafters. At each place of a proposal, the one that is worth most continues.
    """

    def __init__(self, drafters: _Sequence[object]) -> None: ...

    @property
    def drafters(self) -> tuple[Any, ...]: ...

    @property
    def levels(self) -> tuple[Any, ...]: ...

class LevelStats:
    """Running counts of a level since it was made."""

    def __init__(self) -> None: ...

    @property
    def forwards(self) -> int: ...

    @property
    def rows(self) -> int: ...

    @property
    def seconds(self) -> float:
        """Seconds spent in this level's forwards."""

    @property
    def pick_seconds(self) -> float: ...

    @property
    def bytes_read(self) -> int:
        """Bytes of weights that its forwards read."""

    @property
    def cache_bytes_read(self) -> int:
        """Bytes of keys and values that its forwards read."""

    @property
    def whole_cache_bytes(self) -> int:
        """What `cache_bytes_read` would be if drafts read their whole context."""

    @property
    def drafted(self) -> int:
        """Tokens that its drafter proposed."""

    @property
    def accepted(self) -> int: ...

    @property
    def accepted_at(self) -> list[int]:
        """Accepted tokens by place in the proposal."""

    @property
    def drafted_at(self) -> list[int]: ...

    @property
    def asked(self) -> int:
        """Requests to it as a drafter."""

    @property
    def token_value_seconds(self) -> float:
        """Sum of the token values of these requests."""

    def count(self, drafted: int, accepted: int) -> None: ...

class Level(Drafter):
    """
    A verifier over a drafter, and itself a drafter. With NoDraft it decodes plainly.

    `length` fixes the length of its proposals as a drafter; None lets costs and acceptance
    decide (docs/design.md, "When another draft token pays").
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
        Measures forwards, here and below, so that the first request is drafted well.
        """

    def advance(self, requests: _Sequence[DraftRequest]) -> list[Proposal]:
        """
        Makes at least one token for each request, in one forward.

        The tokens are the longest prefix of the drafter's proposal that this model would have
        sampled itself, and then its own next token. There are none if a grammar allows no
        token, or if the request leaves a part of the prompt unread.
        """

    def num_unread(self, sequence: Sequence) -> int:
        """
        Returns the number of tokens before the last one that the model's cache does not hold.
        """

    def tokens_within(self, seconds: float, position: int) -> int:
        """
        Returns the number of tokens from `position` on that a forward reads in so many seconds,
        but at least 16, and at most the model's rows.
        """

    def seconds_per_token(self, count: int) -> float:
        """
        Returns the seconds that a token takes in a batch of `count` sequences.
        """

class BlockForward(DecoderForward):
    """
    Forwards a block drafter, which reads features of the model `above`. The first row of a
    block is the newest token, the others are the token `mask`; there are at most `block`.

    `boundaries` and `ids` are those of HeadForward.
    """

    def __init__(self, decoder: Decoder, cache: KvCache, is_draft: bool, above: ModelForward, boundaries: _Sequence[int], ids: _Sequence[int], block: int, mask: int) -> None: ...

    @property
    def block(self) -> int:
        """The most rows of a block."""

    def readiness(self, sequence: Sequence) -> tuple[bool, int, int, int]:
        """
        Returns (is_ready, first, length, pending) of a sequence's context, as context() found
        it: whether it reaches the newest token, the positions [first, length) that it holds,
        and the number of known features that it lacks.
        """

    def block_rows(self, sequence: Sequence, count: int) -> Rows:
        """Returns a block of `count` rows; all but the first get logits."""

    def logits(self) -> NDArray[numpy.float32]:
        """
        Returns a copy of the last forward's logits, [rows, vocabulary], ordered by the target's
        ids.
        """

class BlockDrafter(Drafter):
    """
    Drafts blocks of tokens, each in one forward of a BlockForward.

    `length` fixes the length of its proposals; None lets costs and acceptance decide.
    """

    def __init__(self, model: BlockForward, *, length: int | None = None, name: str, clock: Callable[[], float] | None = None) -> None: ...

    @property
    def model(self) -> Any: ...

    @property
    def length(self) -> int | None: ...

    @property
    def name(self) -> str: ...

    @property
    def stats(self) -> LevelStats: ...

    @property
    def levels(self) -> tuple[Any, ...]: ...

    def measure(self) -> None:
        """Measures forwards, so that the first request is drafted well."""

class Packed:
    @property
    def weights(self) -> int: ...

    def bytes(self, arg: str, /) -> int: ...

class KernelTable:
    @property
    def name(self) -> str: ...

    def pack(self, tiles: Annotated[NDArray[numpy.uint16], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], format: str = 'fp4', plain: bool = False, importance: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, factors: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)] | None = None) -> Packed: ...

    def time_product(self, precision: str, packed: Packed, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], pool: Pool, repeats: int = 5, rounds: int = 1) -> list[float]: ...

def kernels(arg: str, /) -> KernelTable: ...
