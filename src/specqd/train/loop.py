"""The course of a training: batches, the loss, the optimiser and checkpoints. Uses torch."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors import torch as tensors_file
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from specqd.errors import RequestError
from specqd.train.files import STATE, replacing
from specqd.train.head import TorchHead
from specqd.train.settings import TrainSettings
from specqd.train.teacher import Teacher
from specqd.train.texts import Text
from specqd.train.vocabulary import known_by_target, offsets_of

WEIGHTS = "model.safetensors"
_ROWS = 256  # whose logits are held at once


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts padded to n rows; row t pairs the feature of token t with the embedding behind it."""

    features: Tensor  # [batch, n, taps * hidden]
    embeddings: list[Tensor]  # by step: [batch, n, hidden]
    is_learned: list[Tensor]  # by step: [batch, n]
    shares: Tensor  # the model's probabilities behind each learned token: [learned, tokens]
    learned: list[Tensor]  # by step, which rows of `shares` its learned rows foresee


def make_batch(teacher: Teacher, texts: Sequence[Text]) -> Batch:
    """Lets the model read the texts."""
    steps, lessons = teacher.settings.steps, [teacher.lesson(text.tokens) for text in texts]
    rows = max(len(text.tokens) for text in texts) - 1
    features = np.zeros((len(texts), rows, lessons[0].features.shape[1]), np.float32)
    width = teacher.model.config.hidden_size
    embeddings = [np.zeros((len(texts), rows, width), np.float32) for _ in range(steps)]
    is_learned = [np.zeros((len(texts), rows), bool) for _ in range(steps)]
    logits, positions = [], []
    for at, (text, lesson) in enumerate(zip(texts, lessons, strict=True)):
        count = len(text.tokens) - 1
        features[at, :count] = lesson.features[:-1]
        embedded = teacher.embeddings(text.tokens)
        known = lesson.is_known.copy()
        known[: max(text.learned - 1, 1)] = False
        for step in range(steps):
            first = step + 1  # row t reads token t + first, and foresees the one behind it
            embeddings[step][at, : count + 1 - first] = embedded[first:]
            is_learned[step][at, : count + 1 - first] = known[first:]
        logits.append(lesson.logits[known])
        positions.append(np.flatnonzero(known))
    position = torch.from_numpy(np.concatenate(positions))
    return Batch(
        torch.from_numpy(features),
        [torch.from_numpy(each) for each in embeddings],
        [torch.from_numpy(each) for each in is_learned],
        torch.from_numpy(np.concatenate(logits)).softmax(-1),
        [(position > step).nonzero()[:, 0] for step in range(steps)],
    )


@dataclass(slots=True)
class Trainer:
    """A head, its optimiser, and how far they are; a checkpoint holds all of it."""

    teacher: Teacher
    head: TorchHead
    output: Tensor  # the model's rows of the head's tokens, where the head has none of its own
    optimiser: torch.optim.Optimizer
    total: int  # steps
    step: int = 0
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)  # of the last steps

    def learn(self, texts: Sequence[Text]) -> float:
        """One step of the optimiser; returns the loss in nats a token."""
        settings = self.teacher.settings
        for group in self.optimiser.param_groups:
            group["lr"] = settings.rate * rate_share(self.step, self.total, settings.warmup)
        batch = make_batch(self.teacher, texts)
        self.optimiser.zero_grad()
        loss = self.backward(batch)
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), settings.clip)
        self.optimiser.step()
        self.step += 1
        return loss

    def backward(self, batch: Batch) -> float:
        """Adds the loss's gradients to the parameters'; returns the loss.

        Few rows at a time pass the output, so the logits of a batch are never held together.
        """
        weights = [self.teacher.settings.step_weight**step for step in range(len(batch.learned))]
        normed, gradients, loss = [], [], 0.0
        steps = zip(weights, self._learned_rows(batch), batch.learned, strict=True)
        for weight, rows, learned in steps:
            ends = rows.detach().requires_grad_()
            for few, their in zip(ends.split(_ROWS), learned.split(_ROWS), strict=True):
                entropy = cross_entropy(self._logits(few), batch.shares[their], reduction="sum")
                part = weight / sum(weights) / max(len(learned), 1) * entropy
                part.backward()
                loss += part.item()
            normed.append(rows)
            gradients.append(ends.grad)
        torch.autograd.backward(normed, gradients)
        return loss

    def _learned_rows(self, batch: Batch) -> list[Tensor]:
        """The head's normed rows that are learned, by step."""
        normed = self.head(batch.features, batch.embeddings)
        return [rows[learned] for rows, learned in zip(normed, batch.is_learned, strict=True)]

    def _logits(self, rows: Tensor) -> Tensor:
        """The head's logits of normed rows."""
        if self.head.lm_head is not None:
            return self.head.lm_head(rows)
        config = self.teacher.model.config
        logits, cap = config.logit_scale * linear(rows, self.output), config.logit_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def agreement(self, texts: Sequence[Text]) -> list[float]:
        """By step, the share of rows whose likeliest token is the model's; empty without texts."""
        if not texts:
            return []
        agreed = np.zeros((2, self.teacher.settings.steps))
        with torch.no_grad():
            for text in texts:
                batch = make_batch(self.teacher, [text])
                theirs = batch.shares.argmax(-1)
                for step, rows in enumerate(self._learned_rows(batch)):
                    is_same = self._logits(rows).argmax(-1) == theirs[batch.learned[step]]
                    agreed[:, step] += float(is_same.sum()), len(is_same)
        return [float(each) for each in agreed[0] / np.maximum(agreed[1], 1)]

    def save(self, out: Path) -> None:
        """Writes the head, and all that a later run needs to go on."""
        self._write_head(out / WEIGHTS)
        state = {
            "head": self.head.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
        }
        with replacing(out / STATE) as file:
            torch.save(state, file)

    def _write_head(self, path: Path) -> None:
        tensors = {
            name: value.detach().to(torch.bfloat16).contiguous()
            for name, value in self.head.state_dict().items()
        }
        if self.teacher.ids is not None:
            size = self.teacher.model.config.vocab_size
            tensors["d2t"] = torch.from_numpy(offsets_of(self.teacher.ids))
            tensors["t2d"] = torch.from_numpy(known_by_target(self.teacher.ids, size))
        with replacing(path) as file:
            file.write_bytes(tensors_file.save(tensors, metadata={"format": "pt"}))

    def load(self, out: Path) -> None:
        """Goes on where `save` was called. Raises RequestError for a damaged file."""
        try:
            state = torch.load(out / STATE, weights_only=True)
            self.head.load_state_dict(state["head"])
            self.optimiser.load_state_dict(state["optimiser"])
            self.step, self.seconds = state["step"], state["seconds"]
        except Exception as error:  # of pickle, zip or torch
            raise RequestError(
                f"{out / STATE}: cannot be read; remove it, and the training begins again"
            ) from error


def make_trainer(teacher: Teacher, num_texts: int) -> Trainer:
    """A trainer at its first step; the head begins with weights of the model."""
    settings, config = teacher.settings, teacher.model.config
    torch.manual_seed(settings.seed)
    head = TorchHead(config, settings)
    beginning = {name: torch.from_numpy(x.copy()) for name, x in teacher.beginning().items()}
    output = torch.from_numpy(teacher.head_rows())
    if head.lm_head is not None:
        beginning["lm_head.weight"] = output
    head.load_state_dict(beginning, strict=False)
    optimiser = torch.optim.AdamW(
        head.parameters(), lr=settings.rate, betas=(0.9, 0.95), weight_decay=0.01, fused=True
    )
    total = settings.epochs * -(-num_texts // settings.batch)
    return Trainer(teacher, head, output, optimiser, total)


def rate_share(step: int, total: int, warmup: float) -> float:
    """The learning rate at a step over the highest: a line up, then a cosine down."""
    rise = max(1, round(warmup * total))
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, total - rise)))


def batches(texts: Sequence[Text], settings: TrainSettings, first: int) -> Iterator[list[Text]]:
    """Batches from step `first` on: all texts once in each epoch, in an order from the seed."""
    each = -(-len(texts) // settings.batch)
    for epoch in range(first // each, settings.epochs):
        order = np.random.default_rng((settings.seed, epoch)).permutation(len(texts))
        for at in range(first - epoch * each if epoch == first // each else 0, each):
            yield [texts[i] for i in order[at * settings.batch : (at + 1) * settings.batch]]


def run(
    trainer: Trainer,
    texts: Sequence[Text],
    out: Path,
    checkpoint_s: float,
    clock: Callable[[], float],
    progress: Callable[[int, int], None],
) -> None:
    """Trains to the end; saves whenever `checkpoint_s` have passed, at the end and when stopped."""
    last = clock()

    def save() -> None:
        nonlocal last
        now = clock()
        trainer.seconds, last = trainer.seconds + now - last, now
        trainer.save(out)

    saved = clock()
    try:
        for batch in batches(texts, trainer.teacher.settings, trainer.step):
            trainer.losses = [*trainer.losses[-99:], trainer.learn(batch)]
            progress(trainer.step, trainer.total)
            if clock() - saved >= checkpoint_s:
                save()
                saved = clock()
    finally:
        save()
