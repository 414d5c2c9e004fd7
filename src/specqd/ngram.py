"""The drafter without a model: proposes what followed where a text read like its end does now.

Knows tokens and how such proposals fared; knows no models and no text.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from itertools import product
from math import inf

from specqd import _native
from specqd.drafters import NOTHING, Ask, Drafter, Proposal
from specqd.economics import Calibration
from specqd.sequence import Sequence

_LONGEST_PROPOSAL = 32
_LEAST_PROBABILITY = 0.05  # that all of a proposal is right: past it, no token is worth its row
_PATIENCE = 4  # with what does not pay: tokens before one that may, and times to be asked
_LONGEST_REST = 8
_CAUTION = 1.4  # what is chosen for looking good looks better than it is


class NgramDrafter:
    """Drafts from a sequence's own accepted tokens, and from a corpus that all sequences share.

    The corpus's texts are token ids; they are asked where they hold a longer match than the
    sequence itself. `length` fixes how many tokens are proposed where that many are known; None
    proposes as long as a token is likely enough to be worth its row.
    """

    name = "ngram"
    is_free = True

    def __init__(
        self, *, corpus: SequenceOf[SequenceOf[int]] = (), length: int | None = None
    ) -> None:
        self.length = length
        self._corpus = _index_of(corpus)
        self._texts: dict[int, _Text] = {}
        # By whether the text is sampled, and whether the token is the first of its proposal.
        self._calibrations = {key: Calibration() for key in product((False, True), (False, True))}

    @property
    def levels(self) -> tuple[Drafter, ...]:
        return (self,)

    def propose(self, asks: SequenceOf[Ask]) -> list[Proposal]:
        return [self._continue(ask) for ask in asks]

    def observe(self, ask: Ask, proposal: Proposal, accepted: int) -> None:
        for i, confidence in enumerate(proposal.confidences[: accepted + 1]):
            self._calibrations[ask.sequence.is_sampled, i == 0].observe(confidence, i < accepted)

    def release(self, sequence: Sequence) -> None:
        self._texts.pop(sequence.key, None)

    def _continue(self, ask: Ask) -> Proposal:
        longest = _LONGEST_PROPOSAL if self.length is None else self.length
        most = min(ask.at_most, longest)
        if most <= 0:
            return NOTHING
        sequence = ask.sequence
        text = self._texts.get(sequence.key)
        if text is not None and text.rest > 0 and self.length is None:
            text.rest -= 1
            return NOTHING
        text = self._text(sequence)
        guesses = sequence.tokens[text.length :]
        tokens, confidences = text.index.propose(guesses, most, self._corpus)
        count = len(tokens) if self.length is not None else self._worthwhile(ask, confidences)
        if count < len(tokens) and text.withheld is None:
            said = [*guesses, *tokens[: count + 1]]
            text.withheld = _Withheld(said, confidences[count], is_first=count == 0)
        # Asking takes time too: where nothing was worth saying, the next few times are not asked.
        text.silence = 0 if count else text.silence + 1
        text.rest = min(max(text.silence - _PATIENCE, 0), _LONGEST_REST)
        if not count:
            return NOTHING
        if sequence.stop_ids:
            count = next(
                (i for i, t in enumerate(tokens[:count], 1) if t in sequence.stop_ids), count
            )
        return Proposal(tokens[:count], confidences[:count])

    def _text(self, sequence: Sequence) -> "_Text":
        """The sequence's index with all of its accepted tokens."""
        text = self._texts.get(sequence.key)
        accepted = sequence.num_accepted
        if text is None or text.sequence is not sequence or text.length > accepted:
            text = self._texts[sequence.key] = _Text(sequence)
        if text.length < accepted:
            new = sequence.tokens[text.length : accepted]
            if text.withheld is not None:
                self._learn(sequence, text.withheld, new)
                text.withheld = None
            text.index.append(new)
            text.length = accepted
        return text

    def _learn(self, sequence: Sequence, withheld: "_Withheld", new: list[int]) -> None:
        """What was not worth its row is checked all the same, once the text has come that far:
        whoever stopped proposing finds out when to begin again."""
        *before, token = withheld.tokens
        at = len(before)
        if len(new) > at and new[:at] == before:
            calibration = self._calibrations[sequence.is_sampled, withheld.is_first]
            calibration.observe(withheld.confidence, new[at] == token)

    def chances(self, ask: Ask, proposal: Proposal) -> list[float]:
        is_sampled = ask.sequence.is_sampled
        first, next_ones = (
            self._calibrations[is_sampled, True],
            self._calibrations[is_sampled, False],
        )
        return [
            (next_ones if i else first).probability(confidence)
            for i, confidence in enumerate(proposal.confidences)
        ]

    def _worthwhile(self, ask: Ask, confidences: list[float]) -> int:
        """How many tokens bring most: making them costs nothing, verifying them costs rows."""
        is_sampled, gain = ask.sequence.is_sampled, ask.gain
        likely, brought = 1.0, 0.0
        best, most = 0, 0.0
        for count, confidence in enumerate(confidences, 1):
            likely *= self._calibrations[is_sampled, count == 1].probability(confidence)
            if likely <= _LEAST_PROBABILITY or gain <= 0.0 or count - best > _PATIENCE:
                break
            brought += likely * gain
            if gain == inf or brought - _CAUTION * ask.added_seconds(count) > most:
                best, most = count, brought - _CAUTION * ask.added_seconds(count)
        return best


@dataclass(frozen=True, slots=True)
class _Withheld:
    """Guesses and a proposal as far as it was made, and then the token that was held back."""

    tokens: list[int]
    confidence: float
    is_first: bool  # of its proposal


@dataclass(slots=True)
class _Text:
    """What is indexed of a sequence: accepted tokens, which never change."""

    sequence: Sequence
    index: _native.NgramIndex = field(default_factory=_native.NgramIndex)
    length: int = 0
    withheld: _Withheld | None = None  # since the last accepted token
    silence: int = 0  # times in a row that nothing was worth saying
    rest: int = 0  # times to say nothing from now on


def _index_of(corpus: SequenceOf[SequenceOf[int]]) -> _native.NgramIndex | None:
    if not corpus:
        return None
    index = _native.NgramIndex()
    for text in corpus:
        index.append(text)
        index.end_text()
    return index
