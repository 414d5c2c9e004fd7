"""Sampling through chains of levels follows the target's distribution, and drafts are accepted as
often as common noise predicts. Uses toy models with known distributions.

Seeds are fixed, so that the statistical bounds cannot fail by chance.
"""

import random
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from functools import cache
from math import sqrt
from statistics import NormalDist

import numpy as np
import pytest
from numpy.typing import NDArray

from specqd import _native
from specqd._native import DraftRequest, Level, NgramDrafter, NoDraft, Proposal, Sequence, testing
from specqd.engine.roles import Drafter
from support.drafting import Whimsical
from support.fake_model import FakeModel
from support.slow import values

Floats = NDArray[np.float64]
Table = NDArray[np.float32]  # logits by the last two tokens, [vocabulary] * 3

VOCABULARY = 6
PROMPT = (0, 3, 1, 4, 1, 5, 2)


@dataclass(frozen=True)
class Sampling:
    temperature: float
    top_k: int = 0
    top_p: float = 1.0

    def sampler(self, seed: int) -> _native.Sampler:
        return _native.Sampler(
            temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, seed=seed
        )

    def distribution(self, logits: Table) -> Floats:
        """Probabilities of the logits on the last axis, by definition."""
        z = logits.astype(np.float64) / self.temperature
        p = np.exp(z - z.max(axis=-1, keepdims=True))
        order = np.argsort(-p, axis=-1, kind="stable")
        ranked = np.take_along_axis(p, order, axis=-1)
        if self.top_k:
            ranked[..., self.top_k :] = 0.0
        before = np.cumsum(ranked, axis=-1) - ranked
        ranked[before >= self.top_p * ranked.sum(axis=-1, keepdims=True)] = 0.0
        np.put_along_axis(p, order, ranked, axis=-1)
        return p / p.sum(axis=-1, keepdims=True)


WARM = Sampling(0.8)
CUT = Sampling(0.8, top_k=5, top_p=0.9)
each_sampling = pytest.mark.parametrize(
    "sampling", values(WARM, slow=[CUT]), ids=lambda sampling: "cut" if sampling is CUT else "warm"
)


class ToyModel(FakeModel):
    """Looks its logits up by the last two tokens; samples like any model."""

    def __init__(self, table: Table, *, exact: "ToyModel | None" = None) -> None:
        super().__init__(lambda prefix: 0, len(table), exact=exact)
        self.table = table

    def drafting(self, table: Table) -> "ToyModel":
        """The same model in another precision, with the same cache."""
        return ToyModel(table, exact=self)

    def verify(
        self, row: int, proposal: SequenceOf[int], sequence: Sequence
    ) -> tuple[list[int], list[float]]:
        tokens: list[int] = []
        confidences: list[float] = []
        for i in range(len(proposal) + 1):
            seen = [*sequence.tokens, *proposal[:i]]
            assert self._rows[row + i] == seen, "the cache holds other tokens"
            guess = proposal[i] if i < len(proposal) else None
            token, confidence = self.sample(seen, guess, sequence.sampler)
            tokens.append(token)
            confidences.append(confidence)
            if token != guess:
                break
        return tokens, confidences

    def sample(
        self, seen: SequenceOf[int], guess: int | None, sampler: _native.Sampler
    ) -> tuple[int, float]:
        return testing.sample_token(sampler, self.table[seen[-2], seen[-1]], len(seen))


class DrawsAnew(ToyModel):
    """Wrong: replaces a rejected guess by a token sampled with other noise."""

    def sample(
        self, seen: SequenceOf[int], guess: int | None, sampler: _native.Sampler
    ) -> tuple[int, float]:
        sampled = super().sample(seen, guess, sampler)
        if guess in (None, sampled[0]):
            return sampled
        return testing.sample_token(sampler, self.table[seen[-2], seen[-1]], len(seen) + 1_000_000)


class Lenient(ToyModel):
    """Wrong: accepts a guess that is likely enough but is not the token that it samples."""

    def sample(
        self, seen: SequenceOf[int], guess: int | None, sampler: _native.Sampler
    ) -> tuple[int, float]:
        token, confidence = super().sample(seen, guess, sampler)
        logits = self.table[seen[-2], seen[-1]]
        if guess is not None and logits[guess] > logits.max() - 0.5:
            return guess, confidence
        return token, confidence


def table_of(rng: np.random.Generator, vocabulary: int = VOCABULARY) -> Table:
    return (rng.standard_normal([vocabulary] * 3) * 1.5).astype(np.float32)


def near(table: Table, rng: np.random.Generator, distance: float) -> Table:
    return table + (rng.standard_normal(table.shape) * distance).astype(np.float32)


@dataclass
class Toy:
    """A target, two models that draft for it with growing distance, and a random corpus."""

    target: Table = field(default_factory=lambda: table_of(np.random.default_rng(1)))

    def __post_init__(self) -> None:
        rng = np.random.default_rng(2)
        self.draft = near(self.target, rng, 0.6)
        self.small = near(self.draft, rng, 1.0)
        self.corpus = rng.integers(0, VOCABULARY, (4, 50)).tolist()

    def ngram(self, length: int = 3) -> NgramDrafter:
        return NgramDrafter(corpus=self.corpus, length=length)


TOY = Toy()


def sequences(
    level: Level, sampling: Sampling, seeds: range, least: int, most: int, batch: int = 25
) -> Iterator[list[int]]:
    """At least `least` new tokens per seed, while asking for `most`."""
    for first in range(seeds.start, seeds.stop, batch):
        group = range(first, min(first + batch, seeds.stop))
        samplers = [sampling.sampler(seed) for seed in group]
        started = [Sequence(list(PROMPT), sampler, len(PROMPT)) for sampler in samplers]
        end = len(PROMPT) + most
        while active := [s for s in started if len(s.tokens) < len(PROMPT) + least]:
            requests = [DraftRequest(s, end - len(s.tokens)) for s in active]
            for request, step in zip(requests, level.advance(requests), strict=True):
                request.sequence.tokens.extend(step.tokens)
        for sequence in started:
            yield sequence.tokens[len(PROMPT) :]
            level.release(sequence)


# --- Sampled tokens ----------------------------------------------------------------------------

FALSE_ALARMS = 1e-4  # probability in each case, if seeds were not fixed
SKIPPED, COUNTED, ASKED = 2, 3, 8  # tokens: the first are not drafted at all lengths
SEQUENCES = 3_000
LEAST_EXPECTED = 8.0  # in a cell; rarer cells are pooled


@cache
def expected_window(sampling: Sampling) -> Floats:
    """The joint probabilities of the counted tokens, by enumeration: [vocabulary] * 3."""
    p = sampling.distribution(TOY.target)
    state = np.zeros((VOCABULARY, VOCABULARY))
    state[PROMPT[-2], PROMPT[-1]] = 1.0
    for _ in range(SKIPPED):
        state = np.einsum("ab,abc->bc", state, p)
    return np.einsum("ab,abx,bxy,xyz->xyz", state, p, p, p)


def excess(level: Level, sampling: Sampling, seeds: range) -> float:
    """Pearson's chi-square of the counted tokens over its critical value at FALSE_ALARMS (Wilson
    and Hilferty 1931)."""
    counts = np.zeros([VOCABULARY] * COUNTED)
    for tokens in sequences(level, sampling, seeds, SKIPPED + COUNTED, ASKED):
        counts[tuple(tokens[SKIPPED : SKIPPED + COUNTED])] += 1
    expected = expected_window(sampling) * len(seeds)
    if counts[expected == 0.0].any():
        return np.inf
    is_rare = expected < LEAST_EXPECTED
    observed = np.append(counts[~is_rare], counts[is_rare].sum())
    pooled = np.append(expected[~is_rare], expected[is_rare].sum())
    assert observed.sum() == pytest.approx(pooled.sum())
    chi_square = ((observed - pooled) ** 2 / pooled).sum()
    freedom = len(pooled) - 1
    spread = 2.0 / (9.0 * freedom)
    normal = NormalDist().inv_cdf(1.0 - FALSE_ALARMS)
    bound = freedom * (1.0 - spread + normal * sqrt(spread)) ** 3
    print(f"chi-square {chi_square:.0f}, {freedom} degrees of freedom, bound {bound:.0f}")
    return float(chi_square / bound)


def self_draft(target: ToyModel) -> Drafter:
    return Level(target.drafting(TOY.draft), NoDraft(), length=3)


def small_model(target: ToyModel) -> Drafter:
    return Level(ToyModel(TOY.small), NoDraft(), length=4)


def ngram(target: ToyModel) -> Drafter:
    return TOY.ngram()


def draft_over_ngram(target: ToyModel) -> Drafter:
    return Level(target.drafting(TOY.draft), TOY.ngram(2), length=5)


def three_deep(target: ToyModel) -> Drafter:
    small = Level(ToyModel(TOY.small), TOY.ngram(1), length=2)
    return Level(target.drafting(TOY.draft), small, length=4)


def three_deep_of_random_lengths(target: ToyModel) -> Drafter:
    rng = random.Random(3)
    small = Level(ToyModel(TOY.small), Whimsical(TOY.ngram(), rng), length=4)
    draft = Level(target.drafting(TOY.draft), Whimsical(small, rng), length=6)
    return Whimsical(draft, rng)


CHAINS = (
    self_draft,
    small_model,
    ngram,
    draft_over_ngram,
    three_deep,
    three_deep_of_random_lengths,
)


@each_sampling
@pytest.mark.parametrize("below", CHAINS, ids=lambda f: f.__name__)
def test_sequences_of_a_chain_follow_the_targets_distribution(
    below: Callable[[ToyModel], Drafter], sampling: Sampling
) -> None:
    target = ToyModel(TOY.target)
    level = Level(target, below(target))
    place = CHAINS.index(below) + len(CHAINS) * (sampling is CUT)
    assert excess(level, sampling, range(place * 10_000, place * 10_000 + SEQUENCES)) < 1.0
    assert SEQUENCES // 2 < level.stats.accepted < level.stats.drafted - SEQUENCES // 2


@each_sampling
@pytest.mark.parametrize("wrong", [DrawsAnew, Lenient])
def test_a_verifier_that_favours_drafts_is_detected(
    wrong: type[ToyModel], sampling: Sampling
) -> None:
    target = wrong(TOY.target)
    assert excess(Level(target, self_draft(target)), sampling, range(SEQUENCES)) > 1.2


# --- Accepted tokens ---------------------------------------------------------------------------


def agreement(p: Floats, q: Floats) -> float:
    """Probability that samples from p and from q with the same noise are equal."""
    return sum(
        1.0 / float(np.maximum(p / p[i], q / q[i]).sum())
        for i in range(len(p))
        if p[i] > 0.0 and q[i] > 0.0
    )


def best_agreement(p: Floats, q: Floats) -> float:
    """1 - TV(p, q), the upper limit of any coupling, rejection sampling included."""
    return float(np.minimum(p, q).sum())


def deviation(successes: int, probabilities: Floats) -> float:
    """Distance of the successes of independent trials from their mean, in standard deviations."""
    variance = (probabilities * (1.0 - probabilities)).sum()
    return float((successes - probabilities.sum()) / sqrt(variance))


WITHIN_99, WITHIN_999 = (NormalDist().inv_cdf(1.0 - (1.0 - s) / 2.0) for s in (0.99, 0.999))
DISTANCES = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0)  # between logits, whose standard deviation is 3
PAIRS, SAMPLES = 20, 1_000  # per distance, per pair


@each_sampling
def test_tokens_sampled_with_common_noise_agree_as_often_as_predicted(sampling: Sampling) -> None:
    rng = np.random.default_rng(4)
    equal = np.zeros((len(DISTANCES), PAIRS), int)
    expected, best = np.zeros(equal.shape), np.zeros(equal.shape)
    for i, j in np.ndindex(*equal.shape):
        target = (rng.standard_normal(64) * 3.0).astype(np.float32)
        draft = near(target, rng, DISTANCES[i])
        sampler = sampling.sampler(int(rng.integers(2**63)))
        equal[i, j] = sum(
            testing.sample_token(sampler, target, t)[0]
            == testing.sample_token(sampler, draft, t)[0]
            for t in range(SAMPLES)
        )
        p, q = sampling.distribution(target), sampling.distribution(draft)
        expected[i, j], best[i, j] = agreement(p, q), best_agreement(p, q)
    assert (expected < best + 1e-12).all()
    assert (expected > best / (2.0 - best) - 1e-12).all()
    trials = expected.repeat(SAMPLES, axis=1)
    for i, distance in enumerate(DISTANCES):
        found = equal[i].mean() / SAMPLES
        means = f"predicted {expected[i].mean():.3f}, optimum {best[i].mean():.3f}"
        print(f"distance {distance}: {found:.3f}, {means}")
        assert abs(deviation(equal[i].sum(), trials[i])) < WITHIN_999
    assert abs(deviation(equal.sum(), trials)) < WITHIN_99


class Witness:
    """Records the context of each guess after accepted ones, and counts accepted guesses."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.levels = drafter.levels
        self.propose = drafter.propose
        self.release = drafter.release
        self.contexts: list[tuple[int, int]] = []
        self.accepted = 0

    def observe(self, request: DraftRequest, proposal: Proposal, accepted: int) -> None:
        tokens = [*request.sequence.tokens[-2:], *proposal.tokens]
        for i in range(min(accepted + 1, len(proposal.tokens))):
            self.contexts.append((tokens[i], tokens[i + 1]))
        self.accepted += accepted
        self._drafter.observe(request, proposal, accepted)


@each_sampling
@pytest.mark.parametrize("below", [self_draft, three_deep], ids=lambda f: f.__name__)
def test_a_draft_is_accepted_as_often_as_common_noise_predicts(
    below: Callable[[ToyModel], Drafter], sampling: Sampling
) -> None:
    """Also with drafters below the draft: it proposes the tokens that it samples itself."""
    target = ToyModel(TOY.target)
    witness = Witness(below(target))
    for _ in sequences(Level(target, witness), sampling, range(300), 40, 44):
        pass
    p, q = sampling.distribution(TOY.target), sampling.distribution(TOY.draft)
    expected = np.array([agreement(p[context], q[context]) for context in witness.contexts])
    best = np.mean([best_agreement(p[context], q[context]) for context in witness.contexts])
    found = witness.accepted / len(expected)
    print(f"{found:.3f} of {len(expected)}, predicted {expected.mean():.3f}, optimum {best:.3f}")
    assert len(expected) > 5_000
    assert abs(deviation(witness.accepted, expected)) < WITHIN_99
