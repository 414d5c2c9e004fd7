"""A level: a model that verifies what its drafter proposes, and is itself a drafter.

Knows tokens, rows and proposals; knows nothing of text, requests or scheduling.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from time import perf_counter

from specqd.drafters import Ask, Drafter, Proposal
from specqd.model import Model, Rows
from specqd.sequence import Sequence

# A level drafts on while the product of its picks' probabilities stays above this. Measured costs
# will take its place (design, 9).
_LEAST_CONFIDENCE = 0.4
_LONGEST_PROPOSAL = 16


@dataclass(slots=True)
class LevelStats:
    """What a level did since it was made."""

    forwards: int = 0
    rows: int = 0
    seconds: float = 0.0  # within forwards
    pick_seconds: float = 0.0
    drafted: int = 0  # tokens that its drafter proposed
    accepted: int = 0
    accepted_at: list[int] = field(default_factory=list)  # by place in the proposal
    drafted_at: list[int] = field(default_factory=list)

    def count(self, drafted: int, accepted: int) -> None:
        self.drafted += drafted
        self.accepted += accepted
        missing = drafted - len(self.drafted_at)
        self.drafted_at.extend([0] * missing)
        self.accepted_at.extend([0] * missing)
        for place in range(drafted):
            self.drafted_at[place] += 1
        for place in range(accepted):
            self.accepted_at[place] += 1


class Level:
    """A verifier over a drafter. With NoDraft it decodes plainly.

    `length` fixes how many tokens it proposes when it is asked as a drafter; None lets its own
    confidence decide.
    """

    def __init__(
        self, model: Model, drafter: Drafter, *, length: int | None = None, name: str | None = None
    ) -> None:
        self.model = model
        self.drafter = drafter
        self.length = length
        self.name = name or model.reading.value
        self.stats = LevelStats()

    @property
    def levels(self) -> tuple[Drafter, ...]:
        return (self, *self.drafter.levels)

    def release(self, sequence: Sequence) -> None:
        self.drafter.release(sequence)
        self.model.release(sequence)

    def propose(self, asks: SequenceOf[Ask]) -> list[Proposal]:
        """Continues each sequence by what this level would say, as far as that is worth while."""
        longest = _LONGEST_PROPOSAL if self.length is None else self.length
        goals = [min(ask.at_most, longest) for ask in asks]
        proposals = [Proposal() for _ in asks]
        for ask in asks:
            self.model.context(ask.sequence).begin(len(ask.sequence.tokens))
        active = [i for i, goal in enumerate(goals) if goal > 0]
        try:
            while active:
                steps = self.advance(
                    [Ask(asks[i].sequence, goals[i] - len(proposals[i].tokens)) for i in active]
                )
                for i, step in zip(active, steps, strict=True):
                    kept = _through_stop(step.tokens, asks[i].sequence.stop_ids)
                    proposals[i].tokens.extend(step.tokens[:kept])
                    proposals[i].confidences.extend(step.confidences[:kept])
                    asks[i].sequence.guess(step.tokens[:kept])
                active = [
                    i
                    for i, step in zip(active, steps, strict=True)
                    if self._goes_on(asks[i].sequence, step, proposals[i], goals[i])
                ]
        finally:
            for ask, proposal in zip(asks, proposals, strict=True):
                ask.sequence.forget_guesses(len(proposal.tokens))
        return proposals

    def _goes_on(self, sequence: Sequence, step: Proposal, proposal: Proposal, goal: int) -> bool:
        if not step.tokens or len(proposal.tokens) >= goal:
            return False
        if proposal.tokens[-1] in sequence.stop_ids:
            return False
        if self.length is not None:
            return True
        product = 1.0
        for confidence in proposal.confidences:
            product *= confidence
        return product >= _LEAST_CONFIDENCE

    def advance(self, asks: SequenceOf[Ask]) -> list[Proposal]:
        """At least one token of this level's own for each ask, in one forward.

        The tokens are the longest prefix of the drafter's proposal that this model would have
        picked itself, and then its own next pick. None are returned where nothing is allowed.
        """
        proposals = self._draft(asks)
        batch = []
        for ask, proposal in zip(asks, proposals, strict=True):
            tokens, context = ask.sequence.tokens, self.model.context(ask.sequence)
            start = min(context.match(tokens, ask.sequence.num_accepted), len(tokens) - 1)
            unread = [*tokens[start:], *proposal.tokens]
            batch.append(Rows(context, start, unread, len(proposal.tokens) + 1))
        begun = perf_counter()
        self.model.forward(batch)
        forwarded = perf_counter()
        verified = self._verify(asks, proposals)
        for ask, rows, proposal, result in zip(asks, batch, proposals, verified, strict=True):
            held = len(ask.sequence.tokens) + max(len(result.tokens) - 1, 0)
            rows.context.record(held, [])
            self.stats.count(len(proposal.tokens), max(len(result.tokens) - 1, 0))
        self.stats.forwards += 1
        self.stats.rows += sum(len(rows.tokens) for rows in batch)
        self.stats.seconds += forwarded - begun
        self.stats.pick_seconds += perf_counter() - forwarded
        return verified

    def _draft(self, asks: SequenceOf[Ask]) -> list[Proposal]:
        """Proposals of the drafter; none for a prompt that is still to be read."""
        wanted = []
        for ask in asks:
            sequence = ask.sequence
            held = self.model.context(sequence).match(sequence.tokens, sequence.num_accepted)
            has_prompt = held >= sequence.prompt_length - 1 and held > 0
            wanted.append(Ask(sequence, ask.at_most - 1 if has_prompt else 0))
        return self.drafter.propose(wanted)

    def _verify(self, asks: SequenceOf[Ask], proposals: SequenceOf[Proposal]) -> list[Proposal]:
        results = []
        row = 0
        for ask, proposal in zip(asks, proposals, strict=True):
            tokens, confidences = self.model.verify(row, proposal.tokens, ask.sequence)
            results.append(Proposal(tokens, confidences, row))
            row += len(proposal.tokens) + 1
        return results


def _through_stop(tokens: SequenceOf[int], stop_ids: frozenset[int]) -> int:
    """How many tokens there are up to the first that ends the text, itself included."""
    return next((i for i, token in enumerate(tokens, 1) if token in stop_ids), len(tokens))
