"""A level: a model that verifies what its drafter proposes, and is itself a drafter.

Knows tokens, rows and proposals; knows nothing of text, requests or scheduling.
"""

from collections import defaultdict
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from math import inf
from time import perf_counter

from specqd import _native
from specqd.context import Context, Rows
from specqd.drafters import NOTHING, Ask, Drafter, Proposal
from specqd.economics import BatchCosts, Pace
from specqd.errors import CacheFullError
from specqd.model import Model
from specqd.proposing import Draft, Prospects
from specqd.sequence import Sequence

_FIRST_PROPOSAL = 4
_LONGEST_PROPOSAL = 32
_MEASURED_ROWS = (1, 2, 4, 9, 16)
_MOST_MEASURED_ROWS = 48  # once: a batch drafts at many rows, and is to know what it left
_LEAST_MEASUREMENTS, _MOST_MEASUREMENTS = 2, 5
_MEASURING_SECONDS = 0.3  # after which no further one is begun


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
    asked: int = 0  # times that it was asked for a proposal, as a drafter
    gain_seconds: float = 0.0  # of those, the worth of an accepted token to whoever asked

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

    `length` fixes how many tokens it proposes when it is asked as a drafter; None lets what they
    cost and bring decide (design, "When another draft token pays").
    """

    is_free = False

    def __init__(
        self,
        model: Model,
        drafter: Drafter,
        *,
        length: int | None = None,
        name: str | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.model = model
        self.drafter = drafter
        self.length = length
        self.name = name or model.reading.value
        self.stats = LevelStats()
        self._clock = clock
        self.costs = BatchCosts()  # of this level's forwards, and of picking from what they leave
        self._paces: defaultdict[int, Pace] = defaultdict(Pace)  # by the size of the batch
        self._prospects = Prospects(self.costs, drafter)  # of rounds as a drafter
        self._reach = _FIRST_PROPOSAL  # doubles with success: a stranger is not trusted for long

    @property
    def levels(self) -> tuple[Drafter, ...]:
        return (self, *self.drafter.levels)

    def release(self, sequence: Sequence) -> None:
        self.drafter.release(sequence)
        self.model.release(sequence)

    def measure(self) -> None:
        """Learns what forwards cost, here and below, so that the first request is drafted well."""
        text = Sequence([0], _native.Picker(), 1)
        context = self.model.context(text)
        context.begin(0)
        most = min(self.model.max_positions, self.model.max_rows)
        measured = [rows for rows in _MEASURED_ROWS if rows <= most]
        seconds: dict[int, list[float]] = {rows: [] for rows in measured}
        started = self._clock()
        for i in range(_MOST_MEASUREMENTS):  # interleaved: what slows one slows all
            if i >= _LEAST_MEASUREMENTS and self._clock() - started > _MEASURING_SECONDS:
                break
            if i == 1 and most >= _MOST_MEASURED_ROWS:
                seconds[_MOST_MEASURED_ROWS] = [self._forward_seconds(context, _MOST_MEASURED_ROWS)]
            for rows in measured:
                seconds[rows].append(self._forward_seconds(context, rows))
        self.costs.begin({rows: min(samples) for rows, samples in seconds.items()})
        self.model.release(text)
        for level in self.levels[1:2]:
            if isinstance(level, Level):
                level.measure()

    def _forward_seconds(self, context: Context, rows: int) -> float:
        begun = self._clock()
        # Different tokens, for they may choose different experts.
        tokens = [token % self.model.vocabulary for token in range(rows)]
        self.model.forward([Rows(context, 0, tokens, rows)])
        return self._clock() - begun

    # --- As a drafter -------------------------------------------------------------------------

    def propose(self, asks: SequenceOf[Ask]) -> list[Proposal]:
        """Continues each sequence by what this level would say, as far as that is worth while, and
        by what its drafter says where a look at it is not worth its time."""
        gains = [ask.gain for ask in asks if ask.at_most > 0 and ask.gain < inf]
        self.stats.asked += len(gains)
        self.stats.gain_seconds += sum(gains)
        if self.length is None:
            self._prospects.begin(asks)
            if self._prospects.is_pause(len(asks)):
                return [NOTHING] * len(asks)
            if self.drafter.is_free and self._prospects.are_hopeless(asks):
                return self._passed_on(asks)
        drafts = [Draft(ask, self._longest(ask)) for ask in asks]
        for ask in asks:
            self.model.context(ask.sequence).begin(len(ask.sequence.tokens))
        try:
            while going := [draft for draft in drafts if draft.may_go_on()]:
                if self.length is None:
                    self._extend(going)
                else:
                    self._go_round(going)
        except CacheFullError:
            pass  # a draft needs no room: what was proposed so far stands
        finally:
            for draft in drafts:
                draft.ask.sequence.forget_guesses(len(draft.proposal.tokens))
        return [draft.proposal for draft in drafts]

    def _longest(self, ask: Ask) -> int:
        longest = self._reach if self.length is None else self.length
        room = self.model.max_positions - len(ask.sequence.tokens)
        return min(ask.at_most, longest, room)

    def _passed_on(self, asks: SequenceOf[Ask]) -> list[Proposal]:
        """What the drafter says, as it is."""
        proposals = []
        for said in self.drafter.propose(asks):
            if said.tokens:
                self._keep_known(said)
            proposals.append(said.passed_on() if said.tokens else said)
        return proposals

    def _extend(self, drafts: list[Draft]) -> None:
        begun, stats = self._clock(), self.stats
        inside, rows = stats.seconds + stats.pick_seconds, stats.rows
        foreseen = [NOTHING] * len(drafts)
        if self.drafter.is_free and self.drafter.levels:
            foreseen = self._unverified(drafts)
        own = self._prospects.worthwhile(drafts, foreseen)
        others = [i for i, draft in enumerate(drafts) if draft not in own]
        if others and not self.drafter.is_free:
            for i, said in zip(others, self._unverified([drafts[i] for i in others]), strict=True):
                foreseen[i] = said
        for i in others:
            drafts[i].pass_on(foreseen[i], self.drafter.chances(drafts[i].ask, foreseen[i]))
        if own:
            made = self._go_round(own)
            took = self._clock() - begun  # deciding is a part of what a round costs
            for draft in own:
                if draft.proposal.tried < inf:
                    self._prospects.probes.cost(took / len(own) + draft.ask.added_seconds(1))
            inside, rows = stats.seconds + stats.pick_seconds - inside, stats.rows - rows
            if rows <= len(own) * (_LONGEST_PROPOSAL + 1):  # else it read a prompt
                self._prospects.learn(len(own), made, rows, took - inside)

    def _unverified(self, drafts: list[Draft]) -> list[Proposal]:
        """What the drafter says for the one who asked this level."""
        for draft in drafts:
            draft.is_alone = False
        said = self.drafter.propose([draft.to_ask() for draft in drafts])
        for draft, proposal in zip(drafts, said, strict=True):
            if proposal.tokens:
                self._keep_known(proposal)
            draft.is_alone = self.drafter.is_free and not proposal.tokens
        return said

    def _go_round(self, drafts: list[Draft]) -> int:
        """Extends each by what this level makes in one forward; returns the tokens of all."""
        made = 0
        steps = self.advance([draft.to_ask() for draft in drafts])
        for draft, step in zip(drafts, steps, strict=True):
            draft.add(step, self.chances(draft.ask, step))
            made += len(step.tokens)
        return made

    def chances(self, ask: Ask, proposal: Proposal) -> list[float]:
        probability = self._prospects.trust(ask.sequence).own.probability
        return [probability(confidence) for confidence in proposal.confidences]

    def observe(self, ask: Ask, proposal: Proposal, accepted: int) -> None:
        if accepted > proposal.tried:
            self._prospects.probes.bring((accepted - proposal.tried) * ask.gain)
        if accepted == len(proposal.tokens) >= self._reach:
            self._reach = min(2 * self._reach, _LONGEST_PROPOSAL)
        passed: set[int] = set()
        for start, part in proposal.passed:
            passed.update(range(start, start + len(part.tokens)))
            if accepted >= start:
                self.drafter.observe(ask, part, min(accepted - start, len(part.tokens)))
        before, trust = ask.confidence, self._prospects.trust(ask.sequence)
        for i, confidence in enumerate(proposal.confidences[: accepted + 1]):
            if i not in passed:
                trust.own.observe(confidence, i < accepted)
                trust.next.observe(before, i < accepted)
            before = confidence

    # --- As a verifier ------------------------------------------------------------------------

    def advance(self, asks: SequenceOf[Ask]) -> list[Proposal]:
        """At least one token of this level's own for each ask, in one forward.

        The tokens are the longest prefix of the drafter's proposal that this model would have
        picked itself, and then its own next pick. None are returned where nothing is allowed.
        """
        begun = self._clock()
        contexts, starts = [], []
        for ask in asks:
            context, tokens = self.model.context(ask.sequence), ask.sequence.tokens
            contexts.append(context)  # the last token is forwarded again: its logits are needed
            starts.append(min(context.match(tokens, ask.sequence.num_accepted), len(tokens) - 1))
        wanted, proposals = asks, [NOTHING] * len(asks)
        if self.drafter.levels and max([ask.at_most for ask in asks]) > 1:
            wanted = self._wanted(asks, starts)
            proposals = self.drafter.propose(wanted)
        batch, num_rows, is_prompt = [], 0, False
        for ask, context, start, said in zip(asks, contexts, starts, proposals, strict=True):
            if said.tokens:
                self._keep_known(said)
            unread, logits = ask.sequence.tokens[start:], len(said.tokens) + 1
            is_prompt = is_prompt or start < ask.sequence.prompt_length - 1
            num_rows += len(unread) + logits - 1
            batch.append(Rows(context, start, unread + said.tokens, logits))
        drafted = self._clock()
        self.model.forward(batch)
        forwarded = self._clock()
        answers, row = [], 0
        for ask, said in zip(asks, proposals, strict=True):
            answers.append(self.model.verify(row, said.tokens, ask.sequence))
            row += len(said.tokens) + 1
        picked = self._clock()
        verified = self._concluded(wanted, batch, proposals, answers)
        stats = self.stats
        stats.forwards += 1
        stats.rows += num_rows
        stats.seconds += forwarded - drafted
        stats.pick_seconds += picked - forwarded
        if not is_prompt or num_rows <= _LONGEST_PROPOSAL:
            self.costs.of(len(asks)).add(num_rows, self._clock() - drafted)
        if not is_prompt:
            made = sum([len(tokens) for tokens, _ in answers])
            self._paces[len(asks)].add(made, self._clock() - begun)
        return verified

    def _wanted(self, asks: SequenceOf[Ask], starts: SequenceOf[int]) -> list[Ask]:
        """What the drafter is asked: nothing for a prompt that is still to be read."""
        count, costs = len(asks), self.costs.of(len(asks))
        # Plain decoding can always be had: drafts that lose time must not make tokens look dearer.
        pace = self._paces[count].seconds_per_token
        gain = min(pace or inf, costs.seconds(count) / count or inf)
        rows_each = self.model.max_rows // count
        wanted = []
        for ask, start in zip(asks, starts, strict=True):
            has_prompt = start >= ask.sequence.prompt_length - 1 and start > 0
            most = min(ask.at_most, rows_each) - 1 if has_prompt else 0
            worth = min(gain, ask.gain)
            wanted.append(Ask(ask.sequence, most, worth, ask.confidence, costs, count, count))
        return wanted

    def _keep_known(self, proposal: Proposal) -> None:
        """Cuts a proposal before the first token that this model does not have: vocabularies of
        one tokenizer may be padded to different sizes."""
        vocabulary = self.model.vocabulary
        if max(proposal.tokens) >= vocabulary:
            proposal.cut(next(i for i, t in enumerate(proposal.tokens) if t >= vocabulary))

    def _concluded(
        self,
        asks: SequenceOf[Ask],
        batch: SequenceOf[Rows],
        proposals: SequenceOf[Proposal],
        answers: SequenceOf[tuple[list[int], list[float]]],
    ) -> list[Proposal]:
        """What was verified, as proposals of this level; its own drafter hears of it."""
        results = []
        row = 0
        for ask, rows, proposal, answer in zip(asks, batch, proposals, answers, strict=True):
            tokens, drafted = answer[0], len(proposal.tokens)
            results.append(Proposal(*answer, row, proposal.depths_of(tokens)))
            row += drafted + 1
            if drafted:
                accepted = max(len(tokens) - 1, 0)
                rows.context.record(len(ask.sequence.tokens) + accepted, [])
                self.stats.count(drafted, accepted)
                self.drafter.observe(ask, proposal, accepted)
        return results
