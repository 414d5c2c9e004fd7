"""Proposals while they are made, and whether another token of them pays.

Knows what a level costs, how often it is right and what its tokens are worth to whoever asked;
runs no model.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from math import inf

from specqd.drafters import Ask, Drafter, Proposal
from specqd.economics import BatchCosts, Estimate, Mean, ProbeBudget, Trust
from specqd.sequence import Sequence

_ROUNDS_AHEAD = (1, 2, 4, 8)
_FREE_PROBES = 4  # what was measured at load may be wrong: the machine was busy
_FIRST_PAUSE, _PAUSE_EVERY = 8, 64  # rounds of a batch
_LEAST_LOSS = 0.1  # of what a round costs: what trying one is taken to cost at least
_LONGEST_ROUND = 1.0  # seconds of the outer level's, for what may be spent on trying
_LEAST_BESIDES = 1e-6  # seconds; an estimate grows by shares of itself


@dataclass(slots=True, eq=False)
class Draft:
    """A proposal being made."""

    ask: Ask
    longest: int
    proposal: Proposal = field(default_factory=Proposal)
    product: float = 1.0  # how likely all tokens so far are confirmed
    confidence: float = field(init=False)  # in the last token
    is_done: bool = False
    is_alone: bool = False  # the drafter has nothing to say, and need not be asked again

    def __post_init__(self) -> None:
        self.confidence = self.ask.confidence

    def may_go_on(self) -> bool:
        return not self.is_done and len(self.proposal.tokens) < self.longest

    def to_ask(self) -> Ask:
        """For what is left, at the chance that it will be reached at all."""
        ask, count = self.ask, len(self.proposal.tokens)
        gain = self.product * ask.gain
        most = 1 if self.is_alone else self.longest - count
        rows, sharing = ask.rows + ask.sharing * count, ask.sharing
        return Ask(ask.sequence, most, gain, self.confidence, ask.costs, rows, sharing)

    def pass_on(self, said: Proposal, chances: list[float]) -> None:
        """Adds what the drafter said as it is; the proposal ends where that is nothing."""
        if said.tokens:
            self.proposal.passed.append((len(self.proposal.tokens), said))
            said.depths = [depth + 1 for depth in said.depths or [0] * len(said.tokens)]
        self.add(said, chances)

    def add(self, step: Proposal, chances: list[float]) -> None:
        """Adds tokens up to the first that ends the text; the proposal ends there, or where there
        are none."""
        sequence, proposal = self.ask.sequence, self.proposal
        stops = sequence.stop_ids
        self.is_done = not step.tokens
        if not stops.isdisjoint(step.tokens):
            step.cut(next(i for i, token in enumerate(step.tokens, 1) if token in stops))
            self.is_done = True
        for _, chance in zip(step.tokens, chances, strict=False):
            self.product *= chance
        if step.tokens:
            self.confidence = step.confidences[-1]
        proposal.tokens += step.tokens
        proposal.confidences += step.confidences
        proposal.depths += step.depths
        sequence.guess(step.tokens)


class Prospects:
    """What further rounds of a level are worth to whoever asked it, and what they cost.

    A level over a free drafter can weigh its own look at what that says against passing it on.
    """

    def __init__(self, costs: BatchCosts, drafter: Drafter) -> None:
        self._costs = costs  # of the level's forwards, and of picking from what they leave
        self._drafter = drafter
        # At a temperature above 0, common noise makes the confidence of a token say less.
        self._greedy, self._sampled = Trust(), Trust()
        # Of a round:
        # Seconds besides the level's own forward and picks, by the size of the batch.
        self._besides: defaultdict[int, Estimate] = defaultdict(Estimate)
        self._rows = Mean()  # forwarded for each sequence
        self._made = Mean()  # tokens made for each sequence
        self.probes = ProbeBudget(free=_FREE_PROBES)
        self._asked: Counter[int] = Counter()  # times, by the size of the batch

    def trust(self, sequence: Sequence) -> Trust:
        return self._sampled if sequence.is_sampled else self._greedy

    def begin(self, asks: SequenceOf[Ask]) -> None:
        """A round of the outer level has gone by: a share of it may go into trying."""
        self.probes.earn(sum([min(ask.gain, _LONGEST_ROUND) for ask in asks]))

    def is_pause(self, count: int) -> bool:
        """Whether a batch goes without drafts, so that whoever asks knows what that costs: what a
        token is worth depends on it, and a batch that always drafts never finds out."""
        if count == 1:
            return False
        self._asked[count.bit_length()] += 1
        return self._asked[count.bit_length()] % _PAUSE_EVERY == _FIRST_PAUSE

    def learn(self, count: int, made: int, rows: int, besides: float) -> None:
        """What a round for `count` sequences took and made."""
        self._besides[count.bit_length()].add(max(besides, _LEAST_BESIDES))
        self._rows.add(rows / count)
        self._made.add(made / count)

    def are_hopeless(self, asks: SequenceOf[Ask]) -> bool:
        """Whether no round would pay if all of its tokens were right, and none is to be tried."""
        count, best = len(asks), max([ask.gain for ask in asks])
        if best == inf:
            return False
        cost = self._round_seconds(count, self._rows_each * count)
        loss = cost - count * (best - asks[0].added_seconds(1))
        return loss > 0.0 and not self.probes.has(max(loss, _LEAST_LOSS * cost))

    def worthwhile(self, drafts: list[Draft], foreseen: list[Proposal]) -> list[Draft]:
        """Those of the drafts for which a round pays; all or none of a batch, but for single ones
        that bring less than they cost whoever asked. Or all, to try it."""
        if any(draft.ask.gain == inf for draft in drafts):
            return drafts
        going, brought, rows = [], 0.0, 0.0
        lost, all_rows = 0.0, 0.0
        count = len(drafts)
        cost_each = self._round_seconds(count, self._rows_each * count) / count
        for draft, proposal in zip(drafts, foreseen, strict=True):
            brings = self._brings(draft, proposal, cost_each)
            own_rows = 1 + len(proposal.tokens) if self._drafter.is_free else self._rows_each
            lost -= brings
            all_rows += own_rows
            if brings > 0.0:
                going.append(draft)
                brought += brings
                rows += own_rows
        if going and brought > self._round_seconds(len(going), rows):
            return going
        cost = self._round_seconds(count, all_rows)
        if self.probes.allows(max(cost + lost, _LEAST_LOSS * cost)):
            for draft in drafts:
                draft.proposal.tried = min(draft.proposal.tried, len(draft.proposal.tokens))
            return drafts
        return []

    def _brings(self, draft: Draft, foreseen: Proposal, cost: float) -> float:
        """Seconds that a round of this level is worth to whoever asked, before its own cost, and
        beyond what the drafter's word is worth when it is passed on. `cost` is this draft's share
        of each round to come."""
        ask, at, count = draft.ask, len(draft.proposal.tokens), len(foreseen.tokens)
        worth = draft.product * ask.gain
        follows = self.trust(ask.sequence).next.probability(draft.confidence)
        if not count:
            return self._ahead(draft, at, worth, follows, cost) + cost
        through, right = 1.0, 0.0
        for chance in self._drafter.chances(ask, foreseen):
            through *= chance
            right += through
        made, added = 1.0 + right, ask.added_seconds(at)
        looked_at = worth * follows * made - (ask.added_seconds(at + made) - added)
        passed_on = worth * right - (ask.added_seconds(at + count) - added)
        then = self._ahead(draft, at + made, worth * follows**made, follows, cost)
        else_then = self._ahead(draft, at + count, worth * through, follows, cost)
        return looked_at + max(then, 0.0) - max(passed_on + max(else_then, 0.0), 0.0)

    def _ahead(self, draft: Draft, at: float, worth: float, follows: float, cost: float) -> float:
        """What the best number of rounds from place `at` on is worth, less what they cost. Some
        pay only with those after them: rows do not all cost the same."""
        ask = draft.ask
        made = 1.0 if self._drafter.is_free else self._made.value or 1.0
        added = ask.added_seconds(at)
        most = -inf
        for rounds in _ROUNDS_AHEAD:
            tokens = made * rounds
            if rounds > 1 and at + tokens > draft.longest:
                break
            right = (
                tokens if follows >= 1.0 else follows * (1.0 - follows**tokens) / (1.0 - follows)
            )
            net = worth * right - (ask.added_seconds(at + tokens) - added) - rounds * cost
            most = max(most, net)
        return most

    @property
    def _rows_each(self) -> float:
        return self._rows.value or 1.0

    def _round_seconds(self, count: int, rows: float) -> float:
        besides = self._besides[count.bit_length()].value or 0.0
        return self._costs.of(count).seconds(rows) + besides
