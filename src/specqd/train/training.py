"""Trains a head from the texts to the files; each stage goes on where a stopped run left it."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specqd.errors import RequestError
from specqd.llm import LLM
from specqd.train import files
from specqd.train.settings import TrainSettings
from specqd.train.teacher import Teacher
from specqd.train.texts import Text, Writer, keep_texts, read_kept, read_prompts, read_texts
from specqd.train.vocabulary import Ids, frequent_ids

Progress = Callable[[int, int], None]
_HELD_OUT = 50  # every so many texts, one is not trained on
_MOST_HELD_OUT = 40


@dataclass(frozen=True, slots=True)
class Sources:
    """Where texts come from: a file of texts, a file of prompts, or the model alone."""

    texts: Path | None = None
    prompts: Path | None = None

    def described(self) -> dict[str, Any]:
        """The files' names as a JSON object."""
        named = {"texts": self.texts, "prompts": self.prompts}
        return {name: path.name if path else None for name, path in named.items()}


@dataclass(frozen=True, slots=True)
class Result:
    """What a training came to."""

    tokens: int  # that were learned, once for each epoch
    seconds: float
    loss: float | None  # nats a token, over the last steps; None: nothing was left to do
    agreement: list[float]  # by guess, of the texts that were held out
    held_out: int  # such texts

    def described(self) -> dict[str, Any]:
        """The result as a JSON object."""
        return {
            "tokens": self.tokens,
            "seconds": self.seconds,
            "loss": self.loss,
            "held_out_agreement": self.agreement,
        }


def require_torch() -> None:
    """Raises RequestError where torch is missing."""
    for name in ("torch", "safetensors"):
        if importlib.util.find_spec(name) is None:
            raise RequestError(
                f"train-head needs {name}; install it: pip install 'specqd[train]' "
                "--extra-index-url https://download.pytorch.org/whl/cpu"
            )


def make_texts(
    llm: LLM, sources: Sources, settings: TrainSettings, out: Path, progress: Progress
) -> list[Text]:
    """The texts of the training, which the directory keeps."""
    path = out / files.TEXTS
    if sources.texts is not None:
        texts = read_kept(path)
        if not texts:
            texts = read_texts(sources.texts, llm.tokenizer, settings.length)
            keep_texts(path, texts)
        return texts
    prompts: list[list[int]] = []
    if sources.prompts is not None:
        prompts = read_prompts(sources.prompts, llm.tokenizer, settings.length)
    writer = Writer(llm, prompts, settings.length, settings.seed)
    return writer.write(path, settings.tokens, progress)


def split(texts: list[Text]) -> tuple[list[Text], list[Text]]:
    """Texts to train on, and those that are held out. Too short ones are left out."""
    usable = [text for text in texts if len(text.tokens) > 2]
    held = usable[_HELD_OUT - 1 :: _HELD_OUT]
    trained = [text for at, text in enumerate(usable, 1) if at % _HELD_OUT]
    return trained, held[:_MOST_HELD_OUT]


def choose_ids(llm: LLM, settings: TrainSettings, texts: list[Text]) -> Ids | None:
    """The model's ids of the head's tokens; None: all."""
    if settings.vocabulary is None:
        return None
    learned = (text.tokens[text.learned :] for text in texts)
    return frequent_ids(
        learned, llm.model.config.vocab_size, settings.vocabulary, llm.engine.eos_token_ids
    )


def train(
    llm: LLM,
    texts: list[Text],
    settings: TrainSettings,
    out: Path,
    checkpoint_s: float,
    clock: Callable[[], float],
    progress: Progress,
) -> Result:
    """Trains on the texts and writes the head. Raises RequestError for too few texts."""
    from specqd.train import head, loop

    trained, held = split(texts)
    if not trained:
        raise RequestError(f"{out / files.TEXTS}: has no text of more than two tokens")
    teacher = Teacher(llm.model, settings, choose_ids(llm, settings, texts))
    trainer = loop.make_trainer(teacher, len(trained))
    if (out / files.STATE).exists():
        trainer.load(out)
    config = files.head_config(llm.model.config, settings, head.ROPE_THETA)
    files.write_json(out / files.CONFIG, config)
    loop.run(trainer, trained, out, checkpoint_s, clock, progress)
    losses = trainer.losses
    return Result(
        sum(text.count for text in trained) * settings.epochs,
        trainer.seconds,
        sum(losses) / len(losses) if losses else None,
        trainer.agreement(held),
        len(held),
    )
