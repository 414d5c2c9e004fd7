"""Training a head on a tiny model: the loss, resuming, the command. Needs torch."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install specqd[train]")
pytest.importorskip("safetensors", reason="safetensors is not installed: pip install specqd[train]")

import torch

from specqd import LLM, SamplingParams
from specqd.cli import main
from specqd.errors import RequestError
from specqd.model.heads import Head, HeadFiles, load_head
from specqd.train import files, loop
from specqd.train.head import ROPE_THETA, TorchHead
from specqd.train.settings import TrainSettings
from specqd.train.teacher import Teacher
from specqd.train.texts import Text
from specqd.train.training import choose_ids, train
from support.head_training import settings_for
from support.random_models import Shape, make_model
from support.reference import rms_error

SHAPE = Shape(layers=4, context=128, is_peaked=True)
VOCABULARIES = [None, 60]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), SHAPE, seed=1)


@pytest.fixture(scope="module")
def llm(model: Path) -> LLM:
    return LLM(model, "none", cache_positions=20 * 64)


def random_texts(rng: np.random.Generator, number: int) -> list[Text]:
    """Texts of 3 to 24 tokens below 250."""
    drawn = (rng.integers(0, 250, rng.integers(3, 25)).tolist() for _ in range(number))
    return [Text(tokens, int(rng.integers(0, len(tokens)))) for tokens in drawn]


def ticks() -> Callable[[], float]:
    """A clock that moves by a second at each look."""
    return map(float, count()).__next__


def quiet(done: int, total: int) -> None:
    assert 0 <= done <= total


def trained(
    llm: LLM, texts: list[Text], settings: TrainSettings, out: Path, stop_at: int | None = None
) -> None:
    """Trains to the end, or is interrupted at that step."""

    def progress(done: int, total: int) -> None:
        if done == stop_at:
            raise KeyboardInterrupt

    out.mkdir(exist_ok=True)
    train(llm, texts, settings, out, 1e9, ticks(), progress)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_a_stopped_training_ends_as_one_that_was_not(
    llm: LLM, model: Path, tmp_path: Path, rng: np.random.Generator, vocabulary: int | None
) -> None:
    texts = random_texts(rng, 12)
    settings = settings_for(model, vocabulary=vocabulary, epochs=2)
    trained(llm, texts, settings, tmp_path / "whole")
    stop = int(rng.integers(1, 12))
    with pytest.raises(KeyboardInterrupt):
        trained(llm, texts, settings, tmp_path / "parts", stop_at=stop)
    trained(llm, texts, settings, tmp_path / "parts")
    whole, parts = ((tmp_path / name / loop.WEIGHTS).read_bytes() for name in ("whole", "parts"))
    assert whole == parts


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_a_head_drafts_as_it_was_trained(
    llm: LLM, model: Path, tmp_path: Path, rng: np.random.Generator, vocabulary: int | None
) -> None:
    """The native head's first logits are those of the head in torch, up to BF16."""
    texts, settings = random_texts(rng, 8), settings_for(model, vocabulary=vocabulary)
    trained(llm, texts, settings, tmp_path)
    teacher = Teacher(llm.model, settings, choose_ids(llm, settings, texts))
    trainer = loop.make_trainer(teacher, len(texts))
    trainer.load(tmp_path)
    tokens = rng.integers(0, 250, 20).tolist()
    batch = loop.make_batch(teacher, [Text(tokens, 0)])
    with torch.no_grad():
        normed = trainer.head(batch.features, batch.embeddings)[0][0]
    output = trainer.output if trainer.head.lm_head is None else trainer.head.lm_head.weight
    theirs = (normed @ output.detach().T).numpy()
    ours = native_logits(llm, tmp_path, tokens)
    known = ours if teacher.ids is None else ours[:, teacher.ids]
    assert known.shape == theirs.shape
    assert rms_error(known, theirs) < 0.03  # BF16 weights and activations of two short products


def native_logits(llm: LLM, directory: Path, tokens: list[int]) -> np.ndarray:
    """Logits after each pair of the text, all features known."""
    from specqd._native import Rows, Sequence

    head = Head(
        files_of := HeadFiles.open(directory, llm.model.config),
        load_head(files_of, llm.model),
        llm.model,
        llm.model.precision,
    )
    sequence = Sequence(list(tokens), SamplingParams().picker(0, 0), len(tokens))
    llm.model.forward([Rows(llm.model.context(sequence), 0, tokens[:-1], 0)])
    context = head.context(sequence)
    rows = tokens[context.length :]
    head.forward([Rows(context, context.length, rows, len(rows))])
    logits = head.logits().copy()
    head.release(sequence)
    llm.model.release(sequence)
    llm.model.decoder.tap([])
    return logits


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_gradients_are_those_of_all_rows_at_once(
    llm: LLM,
    model: Path,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    vocabulary: int | None,
) -> None:
    """Rows pass the output few at a time, and the model's shares are made once for all steps."""
    monkeypatch.setattr(loop, "_ROWS", int(rng.integers(1, 9)))
    texts, settings = random_texts(rng, 3), settings_for(model, vocabulary=vocabulary, batch=3)
    teacher = Teacher(llm.model, settings, choose_ids(llm, settings, texts))
    trainer = loop.make_trainer(teacher, len(texts))
    loss = trainer.backward(loop.make_batch(teacher, texts))
    found = {name: each.grad for name, each in trainer.head.named_parameters()}
    trainer.optimiser.zero_grad()
    wanted = _loss_of_whole_texts(trainer, texts)
    wanted.backward()
    assert loss == pytest.approx(wanted.item(), rel=1e-4, abs=1e-6)
    for name, each in trainer.head.named_parameters():
        assert (found[name] is None) == (each.grad is None)
        if each.grad is not None:
            torch.testing.assert_close(found[name], each.grad, rtol=1e-3, atol=1e-6)


def _loss_of_whole_texts(trainer: loop.Trainer, texts: list[Text]) -> torch.Tensor:
    """The loss by its definition: text by text, all logits of a guess at once."""
    teacher, steps = trainer.teacher, trainer.teacher.settings.steps
    parts: list[list[torch.Tensor]] = [[] for _ in range(steps)]
    for text in texts:
        lesson, count = teacher.lesson(text.tokens), len(text.tokens)
        known = lesson.is_known & (np.arange(count) >= text.learned - 1)
        embedded = torch.from_numpy(np.pad(teacher.embeddings(text.tokens), ((0, steps), (0, 0))))
        rows = [embedded[None, 1 + step : count + step] for step in range(steps)]
        features = torch.from_numpy(lesson.features[None, :-1])
        for step, normed in enumerate(trainer.head(features, rows)):
            for row in range(count - 1 - step):
                if known[row + 1 + step]:
                    output = trainer.head.lm_head
                    weights = trainer.output if output is None else output.weight
                    shares = torch.from_numpy(lesson.logits[row + 1 + step]).softmax(-1)
                    guess = (normed[0, row] @ weights.T).log_softmax(-1)
                    parts[step].append(-(shares * guess).sum())
    weights = [trainer.teacher.settings.step_weight**step for step in range(steps)]
    means = [torch.stack(each).mean() if each else torch.zeros(()) for each in parts]
    total = sum(weight * mean for weight, mean in zip(weights, means, strict=True))
    assert isinstance(total, torch.Tensor)
    return total / sum(weights)


def test_training_lowers_the_loss(llm: LLM, model: Path, rng: np.random.Generator) -> None:
    """The same texts again and again: what the head cannot learn then is a defect."""
    texts, settings = random_texts(rng, 2), settings_for(model, epochs=60, rate=3e-3)
    texts = [Text(text.tokens, 0) for text in texts]
    trainer = loop.make_trainer(Teacher(llm.model, settings, None), len(texts))
    losses = [trainer.learn(texts) for _ in range(60)]
    entropy = float(np.mean([_entropy(llm, text) for text in texts]))
    assert losses[-1] - entropy < 0.5 * (losses[0] - entropy)


def _entropy(llm: LLM, text: Text) -> float:
    logits = llm.model.logits(text.tokens).astype(np.float64)
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return float(-(p * np.log(np.maximum(p, 1e-300))).sum(1).mean())


def test_a_row_sees_nothing_behind_it(llm: LLM, model: Path, rng: np.random.Generator) -> None:
    """Row t of step i reads the features 0 to t and the tokens up to t + 1 + i."""
    settings, config = settings_for(model), llm.model.config
    torch.manual_seed(0)
    head, n, width = TorchHead(config, settings), 9, config.hidden_size
    features = torch.randn(1, n, len(settings.taps) * width)
    tokens = torch.randn(1, n + settings.steps, width)

    def run() -> list[torch.Tensor]:
        with torch.no_grad():
            rows = [tokens[:, step : step + n] for step in range(settings.steps)]
            return [each.clone() for each in head(features, rows)]

    before, t = run(), int(rng.integers(0, n - 1))
    features[:, t + 1 :] += 1.0
    for step, (old, new) in enumerate(zip(before, run(), strict=True)):
        assert torch.equal(old[:, : t + 1], new[:, : t + 1]), step
        assert not torch.equal(old[:, t + 1 :], new[:, t + 1 :])
    before = run()
    tokens[:, t] += 1.0
    for step, (old, new) in enumerate(zip(before, run(), strict=True)):
        unseen = max(t - step, 0)
        assert torch.equal(old[:, :unseen], new[:, :unseen]), step


def test_batches_hold_every_text_once_an_epoch(model: Path, rng: np.random.Generator) -> None:
    texts = random_texts(rng, int(rng.integers(1, 9)))
    settings = settings_for(model, epochs=3)
    made = list(loop.batches(texts, settings, 0))
    each = -(-len(texts) // settings.batch)
    for epoch in range(3):
        seen = [text for batch in made[epoch * each : (epoch + 1) * each] for text in batch]
        assert sorted(map(id, seen)) == sorted(map(id, texts))
    first = int(rng.integers(0, len(made) + 1))
    assert list(loop.batches(texts, settings, first)) == made[first:]


def test_the_rate_rises_and_falls() -> None:
    shares = [loop.rate_share(step, 100, 0.1) for step in range(100)]
    assert shares[:10] == pytest.approx([step / 10 for step in range(1, 11)])
    assert shares[10:] == sorted(shares[10:], reverse=True)
    assert 0 < shares[-1] < 0.01


def test_a_damaged_state_is_told(
    llm: LLM, model: Path, tmp_path: Path, rng: np.random.Generator
) -> None:
    texts, settings = random_texts(rng, 4), settings_for(model)
    trained(llm, texts, settings, tmp_path)
    state = tmp_path / files.STATE
    content = bytearray(state.read_bytes())
    state.write_bytes(content[: int(rng.integers(0, len(content) // 2))])
    with pytest.raises(RequestError, match=r"cannot be read; remove it") as error:
        trained(llm, texts, settings, tmp_path)
    assert "\n" not in str(error.value)


def command(*words: object) -> int:
    return main(list(map(str, words)))


@pytest.fixture
def arguments(model: Path, tmp_path: Path) -> list[object]:
    out = tmp_path / "head"
    return ["train-head", model, "-o", out, "--tokens", 300, "--length", 24, "--epochs", 1]


def test_the_command_trains_a_head_that_drafts(
    arguments: list[object],
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command(*arguments) == 0
    assert "tokens in" in capsys.readouterr().out
    plain, drafted = (LLM(model, draft) for draft in ("none", f"head:{tmp_path / 'head'}"))
    params = SamplingParams(max_tokens=30, temperature=0.8, seed=4)
    texts = [llm.generate([[5, 6, 7]], params)[0].completions[0].tokens for llm in (plain, drafted)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        (["--layers", "3,x"], "is no list of numbers"),
        (["--layers", "9"], "give ascending numbers from 0 to 4"),
        (["--vocabulary", "10000000"], "the model has"),
        (["--rate", "0"], "is not in the range"),
        (["--texts", "missing.jsonl"], "does not exist"),
    ],
)
def test_bad_arguments_are_told_before_any_work(
    arguments: list[object],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    extra: list[object],
    problem: str,
) -> None:
    assert command(*arguments, *extra) in (1, 2)
    assert problem in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "head").exists()


def test_theta_is_written(llm: LLM, model: Path, tmp_path: Path, rng: np.random.Generator) -> None:
    trained(llm, random_texts(rng, 4), settings_for(model), tmp_path)
    assert HeadFiles.open(tmp_path, llm.model.config).config.rope.theta == ROPE_THETA
