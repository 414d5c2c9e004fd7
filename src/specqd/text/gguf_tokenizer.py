"""Reads the tokenizer and the chat templates of a GGUF file. Owns llama.cpp's keys for them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from specqd.errors import TokenizerError, shown
from specqd.formats.gguf import GgufFile
from specqd.text.backends import (
    BYTE,
    NORMAL,
    WORD_SPLITS,
    Pieces,
    WordSplit,
    add_ends,
    byte_level_backend,
    sentencepiece_backend,
)

_PREFIX = "tokenizer.ggml."
# Phi-3's special tokens remove white space after them, which GGUF cannot say; all but these.
_UNSTRIPPED_OF_PHI3 = ("<unk>", "<s>", "<|endoftext|>")
_NAMED = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",  # as llama.cpp spells it
    "mask_token": "mask_token_id",
}


@dataclass(frozen=True, slots=True)
class GgufTokenizer:
    """A tokenizer as a GGUF file describes it."""

    backend: tokenizers.Tokenizer
    named_tokens: dict[str, str]  # by their names in tokenizer_config.json
    templates: dict[str, str]  # chat templates by name


def read_gguf_tokenizer(path: Path) -> GgufTokenizer:
    """Reads a file's tokenizer. Raises TokenizerError, in one line that names the file."""
    keys = _Keys(GgufFile.open(path))
    tokens = keys.texts("tokens")
    kinds = keys.numbers("token_type", len(tokens)) or [NORMAL] * len(tokens)
    model = keys.get("model")
    if model == "gpt2":
        split = _word_split(keys)
        adds_bos = split.adds_bos
        merges = _merges(keys)
        backend = byte_level_backend(tokens, kinds, merges, split)
    elif model == "llama":
        adds_bos = True
        is_phi3 = keys.gguf.get("general.architecture") == "phi3"
        backend = sentencepiece_backend(
            _pieces(keys, tokens, kinds), _UNSTRIPPED_OF_PHI3 if is_phi3 else None
        )
    else:
        raise keys.error("model", "only gpt2 and llama are supported")
    named = {
        name: tokens[i]
        for name, key in _NAMED.items()
        if (i := keys.id(key, len(tokens))) is not None
    }
    add_ends(
        backend,
        named.get("bos_token") if keys.flag("add_bos_token", adds_bos) else None,
        named.get("eos_token") if keys.flag("add_eos_token", False) else None,
    )
    return GgufTokenizer(backend, named, _templates(keys.gguf))


def tokenizer_files(path: Path) -> dict[str, str]:
    """Returns the same tokenizer and templates as files of a Hugging Face directory, by name."""
    read = read_gguf_tokenizer(path)
    settings: dict[str, Any] = dict(read.named_tokens)
    if read.templates:
        templates = [{"name": name, "template": text} for name, text in read.templates.items()]
        settings["chat_template"] = templates
    files = {"tokenizer_config.json": json.dumps(settings, ensure_ascii=False, indent=1)}
    return files | {"tokenizer.json": read.backend.to_str(pretty=True)}


class _Keys:
    """The values under `tokenizer.ggml.`, with their types checked."""

    def __init__(self, gguf: GgufFile) -> None:
        self.gguf = gguf

    def get(self, key: str) -> Any:
        return self.gguf.get(_PREFIX + key)

    def error(self, key: str, needed: str) -> TokenizerError:
        value = self.get(key)
        found = "is missing" if value is None else f"is {shown(value)}"
        return TokenizerError(f"{self.gguf.path}: {_PREFIX}{key} {found}; {needed}")

    def texts(self, key: str) -> list[str]:
        value = self.get(key)
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise self.error(key, "a list of strings is needed")
        return value

    def numbers(self, key: str, count: int) -> list[Any] | None:
        value = self.get(key)
        if value is None:
            return None
        if (
            not isinstance(value, list)
            or len(value) != count
            or not all(isinstance(number, int | float) for number in value)
        ):
            raise self.error(key, f"a list of {count} numbers is needed")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, "true or false is needed")
        return value

    def id(self, key: str, count: int) -> int | None:
        value = self.get(key)
        if value is None:
            return None
        if type(value) is not int or not 0 <= value < count:
            raise self.error(key, f"an id below {count} is needed")
        return value


def _word_split(keys: _Keys) -> WordSplit:
    name = keys.get("pre")
    if not isinstance(name, str) or name not in WORD_SPLITS:
        known = ", ".join(WORD_SPLITS)
        raise keys.error("pre", f"use the model's Hugging Face directory; known: {known}")
    return WORD_SPLITS[name]


def _merges(keys: _Keys) -> list[tuple[str, str]]:
    merges = []
    for merge in keys.texts("merges"):
        left, space, right = merge.partition(" ")
        if not left or not space or not right or " " in right:
            raise TokenizerError(
                f"{keys.gguf.path}: {_PREFIX}merges has {shown(merge)}; two pieces with a space "
                "between them are needed"
            )
        merges.append((left, right))
    return merges


def _pieces(keys: _Keys, tokens: list[str], kinds: list[Any]) -> Pieces:
    scores = keys.numbers("scores", len(tokens))
    if not tokens or scores is None:
        raise keys.error("scores", "a score for every token is needed")
    return Pieces(
        algorithm="bpe",
        texts=tokens,
        scores=scores,
        kinds=kinds,
        unknown_id=keys.id("unknown_token_id", len(tokens)) or 0,
        falls_back_to_bytes=BYTE in kinds,
        adds_space=keys.flag("add_space_prefix", True),
        squeezes_spaces=keys.flag("remove_extra_whitespaces", False),
    )


def _templates(gguf: GgufFile) -> dict[str, str]:
    """Reads `tokenizer.chat_template`, and `tokenizer.chat_template.NAME` for the listed names."""
    names = gguf.get("tokenizer.chat_templates")
    keys = {"default": "tokenizer.chat_template"}
    if isinstance(names, list):
        keys |= {name: f"tokenizer.chat_template.{name}" for name in names if isinstance(name, str)}
    found = {name: gguf.get(key) for name, key in keys.items()}
    return {name: text for name, text in found.items() if isinstance(text, str)}
