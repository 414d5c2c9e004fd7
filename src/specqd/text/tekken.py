"""Reads Mistral's `tekken.json`: a vocabulary of bytes, after its special tokens.

Owns the file's layout, and which chat template fits it: `tekken.jinja`, with the version of the
file and what its special tokens allow. Does not know how words are joined.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import tokenizers

from specqd.errors import shown
from specqd.formats.small_file import MOST_VOCABULARY_BYTES
from specqd.text.backends import add_ends, ranked_backend
from specqd.text.stream import BYTE_OF
from specqd.text.tokenizer_files import as_tokenizer_error, read_object

NAMED = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
# Files up to version 7 may not list their special tokens; then these are meant.
_FIRST_SPECIAL = [
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]",
    "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
]  # fmt: skip
_CHAT_VERSIONS = {"v3": 3, "v7": 7, "v11": 11, "v13": 13, "v15": 15}
_MOST_TOKENS = 1 << 20  # the files in use have 131,072
_LONGEST_TOKEN = 1024  # bytes; the work to split a token into two grows with its square
_SPELLING = str.maketrans({chr(byte): character for character, byte in BYTE_OF.items()})


@dataclass(frozen=True, slots=True)
class Tekken:
    """A backend, the named tokens that it has, and the chat template; "" for unknown versions."""

    backend: tokenizers.Tokenizer
    named_tokens: Mapping[str, str]
    template: str


def read_tekken(path: Path) -> Tekken:
    """Reads a file. Raises TokenizerError, in one line that names it."""
    with as_tokenizer_error(path):
        content = read_object(path, MOST_VOCABULARY_BYTES)
        config = content.get("config")
        if not isinstance(config, dict):
            raise ValueError(f"config is {shown(config)}, not an object")
        size = _count(config, "default_vocab_size")
        special = _special_tokens(content.get("special_tokens"), config)
        if size < len(special):
            raise ValueError(f"default_vocab_size is {size}, but {len(special)} are special")
        tokens = [*special, *_words(content.get("vocab"), size - len(special))]
        if len(set(tokens)) < size:
            raise ValueError("two tokens have the same text")
        pattern = config.get("pattern")
        if not isinstance(pattern, str):
            raise ValueError(f"pattern is {shown(pattern)}, not a string")
        backend = ranked_backend(tokens, len(special), pattern)
        named = {name: token for name, token in NAMED.items() if token in special}
        add_ends(backend, named.get("bos_token"), None)
        version = _CHAT_VERSIONS.get(str(config.get("version")))
        template = "" if version is None else _template(version, special, content)
        return Tekken(backend, named, template)


def _count(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if type(value) is not int or not 0 <= value <= _MOST_TOKENS:
        raise ValueError(f"{name} is {shown(value)}, not a number up to {_MOST_TOKENS}")
    return value


def _special_tokens(listed: object, config: Mapping[str, Any]) -> list[str]:
    """Returns all special tokens in the order of their ids; names those that the file does not."""
    count = _count(config, "default_num_special_tokens")
    tokens = _FIRST_SPECIAL[:count] if listed is None else _listed(listed)
    if len(tokens) > count:
        raise ValueError(f"lists {len(tokens)} special tokens, but says that there are {count}")
    return tokens + [f"<SPECIAL_{i}>" for i in range(len(tokens), count)]


def _listed(entries: object) -> list[str]:
    tokens: list[str] = []
    for entry in _objects(entries, "special_tokens"):
        text = entry.get("token_str")
        if not isinstance(text, str) or not text:
            raise ValueError(f"special token {len(tokens)} is {shown(text)}, not a text")
        if entry.get("rank") != len(tokens):
            raise ValueError(f"special token {len(tokens)} has the rank {shown(entry.get('rank'))}")
        tokens.append(text)
    return tokens


def _words(entries: object, count: int) -> list[str]:
    """Returns the byte-level spellings of the first `count` tokens of the vocabulary."""
    words: list[str] = []
    for entry in _objects(entries, "vocab")[:count]:
        coded = entry.get("token_bytes")
        if entry.get("rank") != len(words) or not isinstance(coded, str):
            raise ValueError(f"token {len(words)} of the vocabulary has no rank or no bytes")
        word = base64.b64decode(coded, validate=True)
        if len(words) < 256 and word != bytes([len(words)]):
            raise ValueError(f"token {len(words)} of the vocabulary is not the byte {len(words)}")
        if not 0 < len(word) <= _LONGEST_TOKEN:
            raise ValueError(
                f"token {len(words)} of the vocabulary has {len(word)} bytes; 1 to "
                f"{_LONGEST_TOKEN} are possible"
            )
        words.append(word.decode("latin-1").translate(_SPELLING))
    if len(words) < max(count, 256):
        raise ValueError(f"the vocabulary has {len(words)} tokens; {max(count, 256)} are needed")
    return words


def _objects(entries: object, name: str) -> Sequence[Mapping[str, Any]]:
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{name} is not a list of objects")
    return entries


def _template(version: int, special: Sequence[str], content: Mapping[str, Any]) -> str:
    """Returns the chat template with its constants: the version, and what the tokens allow."""
    thinks = version >= 13 and {"[THINK]", "[/THINK]"} <= set(special)
    constants = {
        "version": version,
        "thought_begin": "[THINK]" if thinks else "",
        "thought_end": "[/THINK]" if thinks else "",
        "usual_effort": _usual_effort(content) if version >= 15 else "",
    }
    stated = "".join(
        f"{{%- set {name} = {json.dumps(value)} %}}\n" for name, value in constants.items()
    )
    source = files("specqd.text") / "tekken.jinja"
    return stated + source.read_text("utf-8")


def _usual_effort(content: Mapping[str, Any]) -> str:
    """Returns the default of the setting `reasoning_effort`, or "" if there is no such setting."""
    builder = content.get("model_settings_builder")
    effort = builder.get("reasoning_effort") if isinstance(builder, dict) else None
    usual = effort.get("default") if isinstance(effort, dict) else None
    return usual if isinstance(usual, str) and usual.isalpha() else ""
