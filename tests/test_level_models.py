"""Levels over real models: a smaller model drafts, in either precision, and nothing changes."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from specqd import _native
from specqd._native import DraftRequest, Level, NoDraft, Proposal, Rows, Sequence, testing
from specqd.engine.roles import Drafter
from specqd.model.model import Machine, Model, Precision
from support.fake_model import FakeDrafter, Knowing
from support.random_models import Shape, make_model
from support.trained_models import SHARED_MODELS

MACHINE = Machine.choose(1)
NEW_TOKENS = 48

Chain = Callable[[Model, Model, Model], Drafter]  # target, small and its fp4 precision


class Repeating(FakeDrafter):
    """Proposes what followed the last token when it stood before: a crude n-gram level."""

    def answer(self, request: DraftRequest) -> Proposal:
        tokens = request.sequence.tokens
        found = [i for i, token in enumerate(tokens[:-1]) if token == tokens[-1]]
        follow = tokens[found[-1] + 1 :][: request.at_most] if found else []
        return Proposal(follow, [0.5] * len(follow))


CHAINS: dict[str, Chain] = {
    "small": lambda _, small, __: Level(small, NoDraft(), length=3),
    "small:fp4": lambda _, __, draft: Level(draft, NoDraft(), length=3),
    "small's own draft": lambda _, small, __: Level(small.as_draft(), NoDraft(), length=3),
    "fp4, small:fp4": lambda target, _, draft: Level(
        target.as_draft(), Level(draft, NoDraft(), length=2), length=5
    ),
    "fp4, small, small's own draft, repeating": lambda target, small, _: Level(
        target.as_draft(),
        Level(small, Level(small.as_draft(), Repeating(), length=2), length=3),
        length=6,
    ),
    "fp4 over itself": lambda target, _, __: Level(
        target.as_draft(), Level(target.as_draft(), NoDraft(), length=3), length=6
    ),
    "repeating": lambda _, __, ___: Repeating(),
}


@pytest.fixture(scope="module", params=["random", "tiny1m and stories260k"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Model]:
    """A model, a smaller one of the same vocabulary, and that one's fp4 precision."""
    if request.param == "random":
        shapes = [Shape(is_peaked=True, layers=3), Shape("qwen3", hidden=48, ffn=90, layers=1)]
        directory = tmp_path_factory.mktemp("pair")
        paths = [make_model(directory / str(i), shape, seed=i) for i, shape in enumerate(shapes)]
    else:
        paths = [SHARED_MODELS / name for name in ("tiny1m", "stories260k")]
        if not all(path.is_dir() for path in paths):
            pytest.skip(f"no models in {SHARED_MODELS}; the random ones serve")
    return [
        Model.open(paths[0], machine=MACHINE),
        Model.open(paths[1], machine=MACHINE),
        Model.open(paths[1], machine=MACHINE, precision=Precision.FP4),
    ]


def decode(
    level: Level, prompts: list[list[int]], temperature: float
) -> tuple[list[list[int]], list[np.ndarray]]:
    """New tokens of each prompt in one batch, and the logits that each was sampled from."""
    sequences = [
        Sequence(list(prompt), _native.Sampler(temperature=temperature, seed=i), len(prompt))
        for i, prompt in enumerate(prompts)
    ]
    logits: list[list[np.ndarray]] = [[] for _ in sequences]
    while active := [
        i for i, t in enumerate(sequences) if len(t.tokens) < len(prompts[i]) + NEW_TOKENS
    ]:
        requests = [
            DraftRequest(t, t.prompt_length + NEW_TOKENS - len(t.tokens))
            for t in map(sequences.__getitem__, active)
        ]
        for i, step in zip(active, level.advance(requests), strict=True):
            assert step.tokens
            logits[i] += list(level.model.decoder.logits(step.row, step.row + len(step.tokens)))
            sequences[i].tokens.extend(step.tokens)
    for sequence in sequences:
        level.release(sequence)
    return [t.tokens[t.prompt_length :] for t in sequences], [np.array(each) for each in logits]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", CHAINS)
def test_tokens_and_logits_are_plain_decoding_s_in_all_bits(
    name: str, temperature: float, pair: list[Model], seed: int
) -> None:
    target = pair[0]
    rng = random.Random(seed)
    vocabulary = min(model.config.vocab_size for model in pair)
    prompts = [[rng.randrange(3, vocabulary) for _ in range(n)] for n in (1, 9, 66)]
    expected, expected_logits = decode(Level(target, NoDraft()), prompts, temperature)
    level = Level(target, CHAINS[name](*pair))
    found, logits = decode(level, prompts, temperature)
    assert found == expected
    for ours, plain in zip(logits, expected_logits, strict=True):
        np.testing.assert_array_equal(ours, plain)
    assert level.stats.drafted > 0
    for model in pair:
        assert model.cache.free_pages == model.cache.total_pages


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_proposal_that_the_model_samples_itself_is_accepted_whole(
    temperature: float, pair: list[Model]
) -> None:
    [said], _ = decode(Level(pair[0], NoDraft()), [[5, 6, 7]], temperature)
    level = Level(pair[0], Knowing([5, 6, 7, *said]))
    assert decode(level, [[5, 6, 7]], temperature)[0] == [said]
    assert level.stats.accepted == level.stats.drafted > NEW_TOKENS // 2


@dataclass(frozen=True, slots=True)
class Ending:
    """A grammar that allows every token at the first places, then none."""

    places: int
    vocabulary: int

    def masks(self, proposal: list[int]) -> NDArray[np.uint32]:
        allowed = np.zeros((len(proposal) + 1, -(-self.vocabulary // 32) * 32), bool)
        allowed[: self.places, : self.vocabulary] = True
        return np.packbits(allowed, axis=1, bitorder="little").view(np.uint32)


@pytest.mark.parametrize("places", [None, 2])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_verified_tokens_have_their_probabilities_and_end_where_nothing_is_allowed(
    temperature: float, places: int | None, pair: list[Model]
) -> None:
    model, prompt = pair[0], [5, 6, 7]
    [said], _ = decode(Level(model, NoDraft()), [prompt], temperature)
    proposal, sampler = said[:4], _native.Sampler(temperature=temperature, seed=0)
    grammar = None if places is None else Ending(places, model.config.vocab_size)
    sequence = Sequence(prompt, sampler, len(prompt), grammar=grammar)
    model.forward([Rows(model.context(sequence), 0, [*prompt, *proposal], 5)])
    tokens, probabilities = model.verify(0, proposal, sequence)
    assert tokens == said[: places or 5]
    rows = model.decoder.logits()[: len(tokens)]
    expected = [testing.sample_token(sampler, row, i) for i, row in enumerate(rows, len(prompt))]
    assert list(zip(tokens, probabilities, strict=True)) == expected
    model.release(sequence)


def test_these_models_accept_and_reject(pair: list[Model]) -> None:
    """Else the tests above would show little."""
    level = Level(pair[0], Level(pair[0].as_draft(), NoDraft(), length=4))
    decode(level, [[5, 6, 7], [20, 30, 40, 50]], 0.8)
    assert 0 < level.stats.accepted < level.stats.drafted


def test_levels_over_one_model_count_their_own_bytes(pair: list[Model]) -> None:
    model = pair[0]
    before = model.bytes_read, model.cache_bytes_read
    once, twice = Level(model, NoDraft()), Level(model, NoDraft())
    for level, count in ((once, 1), (twice, 2)):
        sequence = Sequence([5, 6, 7], _native.Sampler(), 3)
        for _ in range(count):
            [step] = level.advance([DraftRequest(sequence, 1)])
            sequence.tokens.extend(step.tokens)
        level.release(sequence)
    assert once.stats.bytes_read == model.bytes_per_forward
    assert twice.stats.bytes_read == 2 * model.bytes_per_forward
    assert 0 < once.stats.cache_bytes_read < twice.stats.cache_bytes_read
    total = once.stats.bytes_read + twice.stats.bytes_read
    cached = once.stats.cache_bytes_read + twice.stats.cache_bytes_read
    assert (model.bytes_read - before[0], model.cache_bytes_read - before[1]) == (total, cached)
