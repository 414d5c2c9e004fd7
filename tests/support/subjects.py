"""The requests and the models of the exactness harness."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from specqd import _native
from specqd._native import Sequence
from specqd.config import read_config
from specqd.errors import HubError
from specqd.hub import shipped_model
from specqd.text.tokenizer import Tokenizer
from support.families import FAMILY_SHAPES, PLAIN, SMALL_SHAPES
from support.random_dflash import BlockShape, make_drafter
from support.random_heads import HeadShape, make_head
from support.random_models import Shape, make_model, shorten_model

SAMPLINGS: Mapping[str, Mapping[str, float]] = {
    "greedy": {},
    "noisy": {"temperature": 0.8},
    "shaped": {
        "temperature": 0.8,
        "top_p": 0.95,
        "top_k": 100,
        "min_p": 0.001,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.1,
        "presence_penalty": 0.1,
    },
}
CORPUS = Path(__file__)  # source of prompts


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, its sampling parameters, and its behaviour in a batch."""

    prompt: tuple[int, ...]
    new_tokens: int
    sampling: str
    seed: int
    enters: int = 0  # the round in which it joins the batch
    patience: tuple[int, ...] = ()  # limits of tokens per round, in turn; empty: none

    def sequence(self) -> Sequence:
        """Makes a new sequence for this request."""
        settings = SAMPLINGS[self.sampling]
        return Sequence(
            list(self.prompt),
            _native.Sampler(seed=self.seed, **settings),
            len(self.prompt),
            needs_history="repetition_penalty" in settings,
        )


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, with lengths that suit its speed and context."""

    name: str
    directory: Path
    new_tokens: int
    context: int
    is_small: bool  # enough for portable kernels
    edges: tuple[int, ...] = ()  # lengths of prompts at which others of a batch begin
    small: Path | None = None  # a smaller model with the same tokens
    head: Path | None = None  # a random head
    blocks: Path | None = None  # a random drafter of blocks
    selected: Path | None = None  # another, with convolutions and a selector

    def requests(self, rng: np.random.Generator) -> tuple[dict[str, Request], list[Request]]:
        """The request for each sampling, the same in every cell, and the other requests of a batch.

        The others start and end at different times. One crosses the attention chunk of 512
        positions, where the model is small and its context long enough.
        """
        text = CORPUS.read_text(encoding="utf-8")
        ids = Tokenizer.open(self.directory).encode(text, add_special_tokens=False)
        most = min(500 if self.is_small else 70, self.context - self.new_tokens - 16)

        def prompt(length: int) -> tuple[int, ...]:
            length = min(length, most)
            start = int(rng.integers(0, len(ids) - length))
            return tuple(ids[start : start + length])

        def seed() -> int:
            return int(rng.integers(1 << 62))

        main = prompt(int(rng.integers(66, 132)))
        mains = {name: Request(main, self.new_tokens, name, seed()) for name in SAMPLINGS}
        half = max(64, self.new_tokens // 2)
        mates = [
            Request(
                prompt(int(rng.integers(1, 6))), self.new_tokens, "noisy", seed(), 0, (3, 9, 1)
            ),
            Request(prompt(int(rng.integers(470, 500))), half, "greedy", seed(), 2),
            Request(prompt(int(rng.integers(7, 40))), half, "shaped", seed(), 5, (1, 1, 12)),
            Request(prompt(64), half, "greedy", seed(), 20, (2, 8, 4, 6)),
        ]
        if self.edges:
            mates = [
                Request(prompt(at), 64 + int(rng.integers(0, 4)), "noisy", seed(), 0, (64, 8, 2))
                for at in self.edges
            ]
        return mains, mates if self.is_small else mates[:2]


RANDOM_SHAPES: Mapping[str, Shape] = {
    **{name: SMALL_SHAPES[name] for name in PLAIN},
    "hybrid": FAMILY_SHAPES["qwen3_5_text"],
    "convolutions": FAMILY_SHAPES["lfm2"],
}
RECURRENT = ("hybrid", "convolutions")
EDGES = (31, 32, 33, 63, 64, 65)  # around the anchors of recurrent states


def random_subject(name: str, directory: Path, seed: int) -> Subject:
    """Writes a peaked random model of RANDOM_SHAPES or FAMILY_SHAPES to `directory`."""
    shape, new_tokens = (
        (RANDOM_SHAPES[name], 416) if name in RANDOM_SHAPES else (FAMILY_SHAPES[name], 96)
    )
    make_model(directory, shape, seed)
    edges = EDGES if name in RECURRENT else ()
    return Subject(name, directory, new_tokens, shape.context, is_small=True, edges=edges)


def trained_subjects(shared_models: Path) -> list[Subject]:
    """Returns the trained models that are present: small ones for tests, and the shipped one."""
    stories, python = shared_models / "stories260k", shared_models / "pycode-3m"
    subjects = [
        Subject("stories260k", stories, 200, 512, is_small=True),
        Subject("tiny1m", shared_models / "tiny1m", 120, 256, is_small=True, small=stories),
    ]
    subjects = [subject for subject in subjects if subject.directory.is_dir()]
    with suppress(HubError):  # a test reports that it is missing
        subjects.append(Subject("shipped", shipped_model(), 64, 512, is_small=False, small=python))
    return subjects


def with_small(subject: Subject, directory: Path) -> Subject:
    """Adds a small model to the subject: its own, or else one with half of its layers."""
    if subject.small is not None and subject.small.is_dir():
        return subject
    layers = read_config(subject.directory).num_layers // 2
    return replace(subject, small=shorten_model(directory, subject.directory, layers))


def with_head(subject: Subject, directory: Path, seed: int) -> Subject:
    """Adds a random draft head and two drafters of blocks, which read two layer boundaries of the
    subject."""
    config = read_config(subject.directory)
    target = Shape(hidden=config.hidden_size, vocab=config.vocab_size, layers=config.num_layers)
    taps = (config.num_layers // 2, config.num_layers)
    head = HeadShape(taps=taps, heads=3, kv_heads=1, head_dim=24, ffn=70, tokens=97)
    blocks = BlockShape(
        taps=taps, heads=3, kv_heads=1, head_dim=24, ffn=70, tokens=97, window=40,
        layer_types=("full_attention", "sliding_attention"),
    )  # fmt: skip
    selected = BlockShape(taps=taps, block=9, convolution=(2, 4), selector=(24, 16))
    return replace(
        subject,
        head=make_head(directory / "head", target, head, seed),
        blocks=make_drafter(directory / "blocks", target, blocks, seed),
        selected=make_drafter(directory / "selected", target, selected, seed),
    )
