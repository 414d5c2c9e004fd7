"""A model: packed weights, the native decoder, and the KV cache that its two precisions share.

Knows tokens and positions; knows nothing of text, drafts or requests.
"""

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specqd import _native
from specqd._native import Context, Rows, Sequence
from specqd.config import DecoderConfig, read_config
from specqd.errors import MachineError, RequestError, shown
from specqd.formats.fp4 import DraftFormat
from specqd.model import cache_size
from specqd.model.decoder_spec import decoder_spec
from specqd.model.identity import model_identity
from specqd.model.importance import MeasuredInputs
from specqd.model.loader import Progress
from specqd.model.numa import make_pool
from specqd.model.prompt_store import PromptStore
from specqd.model.prompt_writer import PromptWriter
from specqd.model.weights import DecoderWeights, load_weights

MAX_ROWS = 512  # of one forward, by default; longer prompts take several forwards
_WHOLE_TEXT_ROWS = 2048  # of a model that must read each text in one forward
_MOST_LOGITS = 1 << 24  # of the scored rows of a forward: 64 MiB, and 64 MiB for a copy


def most_scored(vocabulary: int) -> int:
    """The most rows of a prompt that one forward scores, which limits memory."""
    return max(1, _MOST_LOGITS // vocabulary)


class Precision(Enum):
    """Which part of the weights a forward reads: all bits, or only those of the 4-bit weights."""

    EXACT = "bf16"
    FP4 = "fp4"

    @classmethod
    def named(cls, name: "str | Precision") -> "Precision":
        """`exact` or `fp4`. Raises RequestError for other names."""
        if isinstance(name, cls):
            return name
        known = {"exact": cls.EXACT, "fp4": cls.FP4}
        if not isinstance(name, str) or name not in known:
            raise RequestError("not known; choose exact or fp4", "precision", shown(name))
        return known[name]


@dataclass(frozen=True, slots=True)
class Machine:
    """The threads and kernels that models run on."""

    pool: _native.Pool
    isa: str

    @classmethod
    def choose(
        cls, threads: int | None = None, isa: str | None = None, numa: str = "auto"
    ) -> "Machine":
        """Takes all usable cores and the fastest instruction set by default.

        `make_pool` describes `threads` and `numa`.

        Raises MachineError for anything that this machine does not have.
        """
        available = _native.available_isas()
        if isa is not None and isa not in available:
            known = ", ".join(available)
            raise MachineError(f"not available here; choose one of {known}", "isa", isa)
        return cls(make_pool(threads, numa), isa or available[0])

    def __str__(self) -> str:
        """Names the processor, the number of threads and the instruction set."""
        return f"{_native.cpu_model()}, {self.pool.threads} threads, {self.isa}"


class Model(_native.ModelForward):
    """A model in one precision, as levels use it; both precisions share weights and cache."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        decoder: _native.Decoder,
        machine: Machine,
        cache: _native.KvCache,
        precision: Precision = Precision.EXACT,
        exact: "Model | None" = None,
    ) -> None:
        is_draft = precision is Precision.FP4
        super().__init__(decoder, cache, is_draft, config.max_positions, exact)
        self.config = config
        self.weights = weights
        self.decoder = decoder
        self.machine = machine
        self.cache = cache
        self.precision = precision
        self.prompt_store: PromptStore | None = None
        self._read_in_place = [weights]

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        machine: Machine | None = None,
        precision: Precision = Precision.EXACT,
        draft: DraftFormat | None = None,
        inputs: MeasuredInputs | None = None,
        cache_positions: int | None = None,
        cache_bytes: int | None = None,
        promised_bytes: int = 0,
        max_rows: int = MAX_ROWS,
        context: int | None = None,
        progress: Progress | None = None,
    ) -> "Model":
        """Loads and packs a Hugging Face directory or GGUF file, or maps a packed one.

        `cache_positions` is the number of positions that the cache holds over all sequences; the
        default is four full contexts, but at most half of the free memory and at most
        `cache_bytes`. With `promised_bytes` it has at most half of what is left once others take
        theirs. `max_rows` limits the
        rows of one forward, and so the sequences and draft tokens that are verified at once.
        `context` lowers the model's limit on the length of sequences. A model that attends in both
        directions reads each text in one forward, so its forwards have more rows.
        """
        config = read_config(directory, context)
        machine = machine or Machine.choose()
        if not all(config.causal):
            max_rows = max(max_rows, min(_WHOLE_TEXT_ROWS, config.max_positions))
        weights = load_weights(
            directory,
            config,
            machine.pool,
            machine.isa,
            draft=draft,
            inputs=inputs,
            progress=progress,
        )
        decoder = _native.Decoder(
            pool=machine.pool,
            isa=machine.isa,
            spec=decoder_spec(config),
            layers=weights.layers,
            final_norm=weights.final_norm,
            head=weights.head,
            embedding=weights.embedding,
            per_layer=weights.per_layer,
            max_rows=max_rows,
        )
        longest = config.max_positions
        pages = cache_size.pages(decoder, longest, cache_positions, cache_bytes, promised_bytes)
        cache = cache_size.cache(decoder, pages)
        return cls(config, weights, decoder, machine, cache, precision)

    def reopened(
        self, directory: Path, draft: DraftFormat | None, progress: Progress | None = None
    ) -> "Model":
        """Loads the same files once more, with another format of the draft weights, for the same
        threads and with a cache as large. Prompts are not kept in files."""
        return Model.open(
            directory,
            machine=self.machine,
            precision=self.precision,
            draft=draft,
            cache_positions=self.cache_positions,
            context=self.max_positions,
            progress=progress,
        )

    def as_draft(self) -> "Model":
        """The same model in fp4 precision, with the same weights and cache."""
        draft = self._over(self.cache, Precision.FP4, exact=self)
        draft.prompt_store = self.prompt_store  # heads below it need its identity
        return draft

    def for_chain(self) -> "Model":
        """The same model with the same weights and cache, for one more chain of levels: its
        sequences and its settings as a draft are its own."""
        other = self._over(self.cache, self.precision)
        other.prompt_store = self.prompt_store
        if self.prompt_store is not None:
            other.keep_pages(self.prompt_store)
        return other

    def with_own_cache(self, precision: Precision, most_pages: int, promised_bytes: int) -> "Model":
        """The same weights in this precision, with a cache of their own: of at most so many pages,
        as far as memory suffices once others take theirs."""
        pages = cache_size.affordable_pages(self.decoder, most_pages, promised_bytes)
        return self._over(cache_size.cache(self.decoder, pages), precision)

    def _over(
        self, cache: _native.KvCache, precision: Precision, exact: "Model | None" = None
    ) -> "Model":
        parts = self.config, self.weights, self.decoder, self.machine
        return Model(*parts, cache, precision, exact)

    @property
    def cache_positions(self) -> int:
        """Positions that the KV cache holds over all sequences."""
        return self.cache.total_pages * _native.PAGE_POSITIONS

    @property
    def bf16_bytes_per_forward(self) -> int:
        """Bytes of weights that a BF16 implementation would read for one row."""
        return round(
            2
            * sum(
                packed.weight.rows * packed.weight.columns * packed.read_share
                for packed in self.weights.matrices
            )
        )

    def keep_prompts(self, writer: PromptWriter) -> None:
        """Keeps published pages in files from now on, and adopts prefixes from them."""
        threads, precision = self.machine.pool.threads, self.precision.value
        identity = model_identity(self.config, self.weights, precision, threads)
        self.prompt_store = PromptStore(writer, self.cache, identity)
        self.keep_pages(self.prompt_store)

    def adopt_prefix(self, sequence: Sequence) -> int:
        """Attaches cached pages of a new sequence's prompt; returns their number of positions."""
        held = super().adopt_prefix(sequence)
        self.decoder.partial_head.record(sequence.tokens[:held])
        return held

    def fork(self, sequence: Sequence, other: Sequence) -> None:
        """Shares the cached pages of `sequence` with `other`, which begins with the same tokens.

        Does nothing if pages left a window and were freed, or if states of recurrent layers are
        past that point; `other` then needs a prefill of its own.
        """
        context = self.context(sequence)
        if not self.cache.can_continue(context.slot, len(other.tokens) - 1):
            return
        held = min(context.length, len(other.tokens))
        first = self._first_seen(len(other.tokens) - 1) // _native.PAGE_POSITIONS
        last = -(-held // _native.PAGE_POSITIONS)
        if all(self.cache.has_page(context.slot, page) for page in range(first, last)):
            copy = Context(self.cache.fork(context.slot, held))
            copy.record(0, sequence.tokens[:held])
            copy.match(other.tokens[:], other.num_accepted)
            copy.copy_logs(context)
            self.adopt(other, copy)

    def missing_pages(self, sequence: Sequence, end: int) -> int:
        """The number of pages that the sequence lacks for its positions up to `end`. A page that a
        fork shares counts if it is written next, because it is copied first."""
        context, page = self.context(sequence), _native.PAGE_POSITIONS
        first = min(context.length, len(sequence.tokens) - 1) // page
        pages = range(first, -(-end // page))
        return sum(not self.cache.has_page(context.slot, each) for each in pages)

    def lacks_states(self, sequence: Sequence) -> bool:
        """Whether the sequence still needs states of recurrent layers."""
        cache = self.cache
        return cache.has_states and not cache.has_states_of(self.context(sequence).slot)

    def forget_unseen(self, sequence: Sequence) -> None:
        """Frees pages to which no later row attends, if every layer has a window."""
        slot = self.context(sequence).slot
        self.cache.release_behind(slot, self._first_seen(len(sequence.tokens) - 1))

    def _first_seen(self, position: int) -> int:
        """The first position that any layer's row at `position` attends to."""
        windows = self.config.windows
        return max(0, position + 1 - max(windows)) if windows and min(windows) > 0 else 0

    def logits(self, token_ids: SequenceOf[int]) -> NDArray[np.float32]:
        """Logits after each token: [n, vocab] float32.

        Raises RequestError for no tokens, more than the context holds, or unknown ids.
        """
        self.check_generates()
        self.check_tokens(token_ids)
        slot = self.cache.create()
        try:
            return np.stack(list(self.prefill(Context(slot), token_ids, len(token_ids))))
        finally:
            self.cache.release(slot)

    def prefill(
        self, context: Context, tokens: SequenceOf[int], num_scored: int
    ) -> Iterator[NDArray[np.float32]]:
        """Forwards `tokens` after those of the context; yields the logits [vocab] after each of
        the last `num_scored` tokens.

        No forward has more than `max_rows` rows: this function splits the rows with logits, and
        the core splits those before them. With a large vocabulary, fewer rows of a forward have
        logits, to limit memory. Runs only as far as it is iterated.
        """
        done, first = 0, len(tokens) - num_scored
        most = min(self.max_rows, most_scored(self.vocabulary))
        while done < len(tokens):
            scored = max(done, first)
            end = min(len(tokens), scored + most)
            self.forward([Rows(context, context.length, list(tokens[done:end]), end - scored)])
            if end > scored:
                yield from self.decoder.logits()
            done = end

    def features(
        self, token_ids: SequenceOf[int], boundaries: SequenceOf[int]
    ) -> NDArray[np.uint16]:
        """The residual stream after each token: BF16 bits [n, boundaries, hidden].

        Boundary b is the input of layer b, 0 the embeddings; the number of layers is the input of
        the final norm. Raises RequestError for bad tokens or boundaries that do not ascend.
        """
        self.check_tokens(token_ids)
        layers = self.config.num_layers
        if sorted(set(boundaries)) != list(boundaries) or not {*boundaries} <= {*range(layers + 1)}:
            raise RequestError(
                f"boundaries {shown(list(boundaries))}: give ascending numbers from 0 to {layers}"
            )
        before, slot = self.decoder.tapped, self.cache.create()
        self.decoder.tap(list(boundaries))
        try:
            context, parts = Context(slot), []
            for first in range(0, len(token_ids), self.max_rows):
                part = list(token_ids[first : first + self.max_rows])
                self.forward([Rows(context, first, part, 0)])
                parts.append(self.decoder.taps())
        finally:
            self.decoder.tap(before)
            self.cache.release(slot)
        return np.concatenate(parts)

    def rely_on(self, draft: "Model") -> None:
        """Makes `check_tokens` refuse requests after the draft's files have changed, too."""
        self._read_in_place.append(draft.weights)

    def check_generates(self) -> None:
        """Raises RequestError if the model can only embed texts."""
        if not self.weights.has_head:
            raise RequestError(
                "the model's files have no output head, so it cannot generate, only embed texts; "
                "use LLM.embed or /v1/embeddings"
            )
        if not all(self.config.causal):
            raise RequestError(
                "the model attends in both directions (is_causal is false), so it cannot generate, "
                "only embed texts; use LLM.embed or /v1/embeddings"
            )

    def check_tokens(self, token_ids: SequenceOf[int]) -> None:
        """Raises RequestError for bad tokens, TensorError for files that have changed."""
        for weights in self._read_in_place:
            weights.check_unchanged()
        if not token_ids:
            raise RequestError("the prompt is empty; give at least one token")
        if len(token_ids) > self.config.max_positions:
            raise RequestError(
                f"the prompt has {len(token_ids)} tokens and the model's context ends at "
                f"{self.config.max_positions}; shorten the prompt"
            )
        for token in token_ids:
            if not 0 <= token < self.config.vocab_size:
                raise RequestError(
                    f"token id {token} is outside the model's vocabulary of "
                    f"{self.config.vocab_size}; give ids below that, or the tokenizer of this model"
                )
