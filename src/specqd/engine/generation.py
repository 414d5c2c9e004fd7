"""A request to the engine, and one sample of it: its tokens, their origins, its text.

Owns the decision where stop strings end a text. Knows nothing of models or of scheduling.
"""

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from specqd._native import Sequence
from specqd.engine.roles import Grammar
from specqd.errors import SpecqdError
from specqd.sampling import SamplingParams
from specqd.text.channels import HeaderTokens
from specqd.text.stops import StopFinder
from specqd.text.stream import TextStream

FinishReason = Literal["stop", "length", "cancelled", "error"]
MakeGrammar = Callable[[], Grammar]


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Prompts as token ids, and how each is to be continued.

    make_grammar: called once for each sample.
    cache_salt: only requests with the same salt share cached prompts, so response times reveal
        nothing about other prompts. Changes no bit.
    is_plain: drafts nothing, which is slower. Changes no bit.
    is_answer: the prompts are those of chats, so each new text is one of its own, and no stop
        string ends it within the marks of channels. Otherwise it continues the prompt's.
    """

    prompts: SequenceOf[SequenceOf[int]]
    params: SamplingParams
    make_grammar: MakeGrammar | None = None
    cache_salt: str = ""
    is_plain: bool = False
    is_answer: bool = False

    @property
    def num_samples(self) -> int:
        return len(self.prompts) * self.params.n


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's log-probability by the raw logits, and the likeliest tokens at its place."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Origin(NamedTuple):
    """The level that first proposed a token, counted from the outermost (0: no draft proposed it),
    and the probability that the outermost level gave to it."""

    depth: int
    probability: float


@dataclass(slots=True)
class Acceptance:
    """Counts the drafted tokens of one sample, and those that the target accepted."""

    drafted: int = 0  # tokens in all proposals
    accepted_counts: list[int] = field(default_factory=list)  # [j]: proposals that had j accepted

    def add(self, drafted: int, accepted: int) -> None:
        """Counts a proposal after verification."""
        self.drafted += drafted
        missing = accepted + 1 - len(self.accepted_counts)
        self.accepted_counts += [0] * missing
        self.accepted_counts[accepted] += 1


@dataclass(slots=True, eq=False)
class Generation:
    """One sample of one request."""

    sequence: Sequence
    params: SamplingParams
    seed: int
    sample: int
    most_tokens: int
    stream: TextStream
    text: str = ""
    confidence: float = 1.0  # probability of the last token
    cached_prompt_tokens: int = 0  # that another request had prefilled
    prompt_read: int = 0  # tokens of the prompt that were read or cached so far
    preemptions: int = 0
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(
        default_factory=list
    )  # of all prompt tokens but the first
    origins: list[Origin] = field(default_factory=list)
    acceptance: Acceptance = field(default_factory=Acceptance)
    finish_reason: FinishReason | None = None
    error: SpecqdError | None = None  # why it ended with the reason "error"
    is_plain: bool = False  # nothing is drafted for it
    leader: "Generation | None" = None  # whose prompt this sample shares
    headers: HeaderTokens | None = None  # tokens in which stop strings are not searched for
    _held_back: str = ""  # text that may turn out to begin a stop string
    _stops: StopFinder = field(init=False)

    def __post_init__(self) -> None:
        self._stops = StopFinder(self.params.stop)

    @property
    def tokens(self) -> list[int]:
        """The new tokens, without the prompt's."""
        return self.sequence.tokens[self.sequence.prompt_length :]

    @property
    def count(self) -> int:
        return len(self.sequence.tokens) - self.sequence.prompt_length

    @property
    def stop_text(self) -> str | None:
        """The stop string that ended the text."""
        return self._stops.found

    @property
    def is_prompt_scored(self) -> bool:
        """Whether all requested log-probabilities of the prompt are known."""
        is_requested = self.params.prompt_logprobs is not None
        return not is_requested or len(self.prompt_logprobs) == self.sequence.prompt_length - 1

    def take(
        self, tokens: list[int], probabilities: list[float], depths: list[int]
    ) -> FinishReason | None:
        """Adds tokens and their text, up to the one that ends the sequence; returns the reason if
        one does."""
        sequence, room = self.sequence, self.most_tokens - self.count
        stops = (i for i, token in enumerate(tokens, 1) if sequence.is_stop(token))
        reason: FinishReason | None = "length" if len(tokens) >= room else None
        kept = min(len(tokens), room)
        shown = kept
        if (stop := next(stops, kept + 1)) <= kept:
            kept, shown, reason = stop, stop - 1, "stop"
        if self.params.stop:
            for count, token in enumerate(tokens[:shown], 1):
                new = self.stream.feed([token])
                if self.headers is not None and self.headers.has_next(token):
                    self._release_header(new)
                elif self._release(new, is_last=False):
                    kept, reason = count, "stop"
                    break
        else:
            self.text += self.stream.feed(tokens[:shown])
        sequence.tokens.extend(tokens[:kept])
        self.confidence = probabilities[kept - 1]
        self.origins += map(Origin, depths[:kept], probabilities[:kept])
        return reason

    def finish(self, reason: FinishReason) -> None:
        """Adds the text that was held back, unless a stop string cut it off. If the tokenizer
        fails, the reason becomes "error"."""
        is_cut = reason == "stop" and not self.sequence.is_stop(self.sequence.tokens[-1])
        try:
            if not is_cut and self._release(self.stream.finish(), is_last=True):
                reason = "stop"  # in text that the tokenizer had held back
        except SpecqdError as error:
            reason, self.error = "error", self.error or error
        self.finish_reason = reason

    def _release_header(self, new: str) -> None:
        """Adds text in which no stop string is searched for, and all text before it."""
        self._stops.skip(new)
        self.text += self._held_back + new
        self._held_back = ""

    def _release(self, new: str, *, is_last: bool) -> bool:
        """Adds the text that no stop string can cut off any more; returns whether one was found."""
        begin = self._stops.feed(new)
        pending = self._held_back + new
        if begin is not None:
            pending = pending[: begin - len(self.text)]
        certain = len(pending) if is_last or begin is not None else len(pending) - self._stops.held
        self.text += pending[:certain]
        self._held_back = pending[certain:]
        return begin is not None
