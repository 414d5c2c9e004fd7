"""Prompts as token ids: random ones, texts and chats from files in turn. Knows no engines."""

import json
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np

from specqd.text.tokenizer import Tokenizer

RANDOM_PROMPT_TOKENS = 16
WARM_UP_PROMPT_TOKENS = 512
TEXT_PROMPT_CHARACTERS = 1200
CHAT_PROMPT_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts as token ids with the names of their sets, and one for warming up."""

    warm_up: list[int]
    texts: list[list[int]]
    sets: list[str]


@dataclass(frozen=True, slots=True)
class PromptSet:
    """The `prompt` of each line of a file, or windows of Python's standard library; texts, or chats
    through the model's template."""

    file: Path | None
    is_chat: bool

    @classmethod
    def named(
        cls, prompts: Sequence[Path] | None, chats: Sequence[Path] | None
    ) -> "list[PromptSet]":
        """The sets of the options: None if an option is not given, empty if it names no file."""
        found = []
        for files, is_chat in ((prompts, False), (chats, True)):
            if files is not None:
                found += [cls(file, is_chat) for file in files] or [cls(None, is_chat)]
        return found

    @property
    def name(self) -> str:
        name = self.file.name if self.file else "standard library"
        return name + (", chat" if self.is_chat else "")

    def read(self, model: Path, count: int, room: int) -> list[list[int]]:
        """`count` prompts. Texts that leave no room for new tokens lose their start; chats are left
        out. Files are sorted by kind, so the order of chats is drawn once.

        Raises SystemExit if there are too few.
        """
        texts, tokenizer = self._texts(), Tokenizer.open(model)
        if self.is_chat:
            Random(0).shuffle(texts)
            chats = (tokenizer.chat([{"role": "user", "content": text}]) for text in texts)
            encoded = list(islice((chat for chat in chats if len(chat) <= room), count))
        else:
            encoded = [tokenizer.encode(text)[-room:] for text in texts[:count]]
        if len(encoded) < count:
            raise SystemExit(f"{self.name}: {count} prompts are needed, {len(encoded)} fit")
        return encoded

    def _texts(self) -> list[str]:
        if self.file is not None:
            lines = self.file.read_text("utf-8").splitlines()
            return [json.loads(line)["prompt"] for line in lines if line.strip()]
        if self.is_chat:
            windows = library_texts(CHAT_PROMPT_CHARACTERS)
            return [f"What does this Python code do?\n\n{window}" for window in windows]
        return library_texts(TEXT_PROMPT_CHARACTERS)


def alternating(sets: Sequence[PromptSet], model: Path, count: int, room: int) -> Prompts:
    """`count` prompts, from each set in turn, and another one for warming up."""
    each = -(-(count + 1) // len(sets))
    rounds = zip(*(found.read(model, each, room) for found in sets), strict=True)
    texts = [text for turn in rounds for text in turn][: count + 1]
    names = [found.name for _ in range(each) for found in sets][:count]
    return Prompts(texts[-1][-WARM_UP_PROMPT_TOKENS:], texts[:-1], names)


def random_prompts(vocabulary: int, count: int) -> Prompts:
    drawn = np.random.default_rng(0).integers(
        300, vocabulary, size=(count + 1, RANDOM_PROMPT_TOKENS)
    )
    return Prompts(drawn[0].tolist(), drawn[1:].tolist(), ["random"] * count)


def library_texts(characters: int) -> list[str]:
    """Windows of Python's standard library."""
    library = Path(sysconfig.get_path("stdlib"))
    texts = [path.read_text("utf-8")[2000:] for path in sorted(library.glob("[a-l]*.py"))]
    return [text[:characters] for text in texts if len(text) > 8000]
