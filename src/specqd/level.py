"""A level: a model that verifies what its drafter proposes, and is itself a drafter.

Knows tokens, rows and proposals; knows nothing of text, requests or scheduling.
"""

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace
from math import inf
from time import perf_counter

from specqd import _native
from specqd.context import Rows
from specqd.drafters import Ask, Drafter, Proposal
from specqd.economics import Calibration, Mean, Pace, ProbeBudget, RowCosts
from specqd.errors import CacheFullError
from specqd.model import Model
from specqd.sequence import Sequence

_FIRST_PROPOSAL = 4
_LONGEST_PROPOSAL = 32
_FREE_PROBES = 4  # what was measured at load may be wrong: the machine was busy
_MEASURED_ROWS = (1, 2, 4, 9)
_MEASUREMENTS = 5


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

    `length` fixes how many tokens it proposes when it is asked as a drafter; None lets what they
    cost and bring decide (design, "When another draft token pays").
    """

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
        self.costs = RowCosts()  # of this level's forwards
        self.pace = Pace()
        self._greedy, self._sampled = _Trust(), _Trust()
        self._rounds = RowCosts()  # of advancing so many sequences as a drafter
        self._made = Mean()  # tokens of such a round for each sequence
        self._probes = ProbeBudget(free=_FREE_PROBES)
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
        seconds: dict[int, list[float]] = {rows: [] for rows in _MEASURED_ROWS}
        for _ in range(_MEASUREMENTS):  # interleaved: what slows one slows all
            for rows in _MEASURED_ROWS:
                begun = self._clock()
                self.model.forward([Rows(context, 0, [0] * rows, rows)])
                seconds[rows].append(self._clock() - begun)
        for rows in _MEASURED_ROWS:
            self.costs.add(rows, min(seconds[rows]))
        self._rounds.add(1, self.costs.seconds(1))  # else the first round, a slow one, would tell
        self.model.release(text)
        for level in self.levels[1:2]:
            if isinstance(level, Level):
                level.measure()

    def propose(self, asks: SequenceOf[Ask]) -> list[Proposal]:
        """Continues each sequence by what this level would say, as far as that is worth while."""
        drafts = [_Draft(ask, self._longest(ask)) for ask in asks]
        for ask in asks:
            self.model.context(ask.sequence).begin(len(ask.sequence.tokens))
        is_first = True
        try:
            while going := self._worthwhile([d for d in drafts if d.may_go_on()], is_first):
                is_first = False
                self._extend(going)
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

    def _worthwhile(self, drafts: list["_Draft"], is_first: bool) -> list["_Draft"]:
        """Those of the drafts for which another round of this level pays; all or none of a batch,
        but for single ones whose tokens would cost verification more than they bring."""
        if self.length is not None or not drafts:
            return drafts
        made = self._made.value or 1.0
        worth = []
        for draft in drafts:
            follows = self._trust(draft.ask.sequence).next.probability(draft.confidence)
            tokens = follows * (1.0 - follows**made) / (1.0 - follows) if follows < 1.0 else made
            brings = draft.product * tokens * draft.ask.gain - made * draft.ask.row_seconds
            worth.append((brings, draft))
        going = [draft for brings, draft in worth if brings > 0.0]
        cost = self._rounds.seconds(len(going)) or self.costs.seconds(len(going))
        if going and sum(brings for brings, _ in worth if brings > 0.0) > cost:
            return going
        if is_first:
            spent = sum(draft.ask.gain for draft in drafts)
            cost = self._rounds.seconds(len(drafts)) + sum(d.ask.row_seconds for d in drafts)
            if self._probes.allows(spent, cost):
                return drafts
        return []

    def _extend(self, drafts: list["_Draft"]) -> None:
        begun = self._clock()
        steps = self.advance([draft.to_ask() for draft in drafts])
        for draft, step in zip(drafts, steps, strict=True):
            draft.take(step, self._trust(draft.ask.sequence).own)
        self._rounds.add(len(drafts), self._clock() - begun)
        self._made.add(sum(len(step.tokens) for step in steps) / len(steps))

    def _trust(self, sequence: Sequence) -> "_Trust":
        return self._sampled if sequence.is_sampled else self._greedy

    def observe(self, ask: Ask, proposal: Proposal, accepted: int) -> None:
        if accepted:
            self._probes.refund()
        if accepted == len(proposal.tokens) >= self._reach:
            self._reach = min(2 * self._reach, _LONGEST_PROPOSAL)
        before, trust = ask.confidence, self._trust(ask.sequence)
        for i, confidence in enumerate(proposal.confidences[: accepted + 1]):
            trust.own.observe(confidence, i < accepted)
            trust.next.observe(before, i < accepted)
            before = confidence

    def advance(self, asks: SequenceOf[Ask]) -> list[Proposal]:
        """At least one token of this level's own for each ask, in one forward.

        The tokens are the longest prefix of the drafter's proposal that this model would have
        picked itself, and then its own next pick. None are returned where nothing is allowed.
        """
        begun = self._clock()
        wanted = self._wanted(asks)
        proposals = [self._known(p) for p in self.drafter.propose(wanted)]
        batch = []
        for ask, proposal in zip(asks, proposals, strict=True):
            tokens, context = ask.sequence.tokens, self.model.context(ask.sequence)
            start = min(context.match(tokens, ask.sequence.num_accepted), len(tokens) - 1)
            unread = [*tokens[start:], *proposal.tokens]
            batch.append(Rows(context, start, unread, len(proposal.tokens) + 1))
        drafted = self._clock()
        self.model.forward(batch)
        forwarded = self._clock()
        verified = self._verify(asks, proposals)
        for ask, rows, proposal, result in zip(wanted, batch, proposals, verified, strict=True):
            accepted = max(len(result.tokens) - 1, 0)
            rows.context.record(len(ask.sequence.tokens) + accepted, [])
            self.stats.count(len(proposal.tokens), accepted)
            if proposal.tokens:
                self.drafter.observe(ask, proposal, accepted)
        ended = self._clock()
        num_rows = sum(len(rows.tokens) for rows in batch)
        self.stats.forwards += 1
        self.stats.rows += num_rows
        self.stats.seconds += forwarded - drafted
        self.stats.pick_seconds += ended - forwarded
        if all(len(rows.tokens) - rows.logits <= _LONGEST_PROPOSAL for rows in batch):
            # Not a prompt.
            self.costs.add(num_rows, forwarded - drafted)
            self.pace.add(sum(len(result.tokens) for result in verified), ended - begun)
        return verified

    def _wanted(self, asks: SequenceOf[Ask]) -> list[Ask]:
        """What the drafter is asked: nothing for a prompt that is still to be read."""
        gain = self.pace.seconds_per_token(self.costs.seconds(len(asks)) / len(asks) or inf)
        row_seconds = self.costs.row_seconds
        rows_each = self.model.max_rows // len(asks)
        wanted = []
        for ask in asks:
            sequence = ask.sequence
            held = self.model.context(sequence).match(sequence.tokens, sequence.num_accepted)
            has_prompt = held >= sequence.prompt_length - 1 and held > 0
            most = min(ask.at_most, rows_each) - 1 if has_prompt else 0
            worth = min(gain, ask.gain)
            wanted.append(
                Ask(sequence, most, worth, row_seconds, ask.confidence, self.costs, len(asks))
            )
        return wanted

    def _known(self, proposal: Proposal) -> Proposal:
        """The proposal up to the first token that this model does not have: vocabularies of one
        tokenizer may be padded to different sizes."""
        for i, token in enumerate(proposal.tokens):
            if token >= self.model.vocabulary:
                kept, confidences = proposal.tokens[:i], proposal.confidences[:i]
                return Proposal(kept, confidences, depths=proposal.depths[:i])
        return proposal

    def _verify(self, asks: SequenceOf[Ask], proposals: SequenceOf[Proposal]) -> list[Proposal]:
        results = []
        row = 0
        for ask, proposal in zip(asks, proposals, strict=True):
            tokens, confidences = self.model.verify(row, proposal.tokens, ask.sequence)
            depths = proposal.depths_of(tokens)
            results.append(Proposal(tokens, confidences, row, depths))
            row += len(proposal.tokens) + 1
        return results


class _Trust:
    """How often what a level says is confirmed, by its confidence. Greedy and sampled texts differ:
    at a temperature above 0, common noise makes the confidence of a token say less."""

    __slots__ = ("next", "own")

    def __init__(self) -> None:
        self.own = Calibration(floor=0.5, memory=200.0)  # in a token -> it is confirmed
        self.next = Calibration(floor=0.85, memory=100.0)  # in a token -> the next one is


@dataclass(slots=True)
class _Draft:
    """A proposal being made."""

    ask: Ask
    longest: int
    proposal: Proposal = field(default_factory=Proposal)
    product: float = 1.0  # how likely all tokens so far are confirmed
    confidence: float = field(init=False)  # in the last token
    is_done: bool = False

    def __post_init__(self) -> None:
        self.confidence = self.ask.confidence

    def may_go_on(self) -> bool:
        return not self.is_done and len(self.proposal.tokens) < self.longest

    def to_ask(self) -> Ask:
        left = self.longest - len(self.proposal.tokens)
        return replace(
            self.ask,
            at_most=left,
            gain=self.product * self.ask.gain,
            confidence=self.confidence,
        )

    def take(self, step: Proposal, calibration: Calibration) -> None:
        """Adds a round's tokens, up to the first that ends the text."""
        sequence = self.ask.sequence
        kept = _through_stop(step.tokens, sequence.stop_ids)
        self.proposal.tokens.extend(step.tokens[:kept])
        self.proposal.confidences.extend(step.confidences[:kept])
        self.proposal.depths.extend(step.depths[:kept])
        sequence.guess(step.tokens[:kept])
        for confidence in step.confidences[:kept]:
            self.product *= calibration.probability(confidence)
            self.confidence = confidence
        self.is_done = not step.tokens or step.tokens[kept - 1] in sequence.stop_ids


def _through_stop(tokens: SequenceOf[int], stop_ids: frozenset[int]) -> int:
    """How many tokens there are up to the first that ends the text, itself included."""
    return next((i for i, token in enumerate(tokens, 1) if token in stop_ids), len(tokens))
