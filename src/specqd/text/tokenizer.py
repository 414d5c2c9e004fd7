"""Converts text to token ids and back, and chats to prompts.

Owns the tokenizer's files and their meaning, and gives the results of transformers' AutoTokenizer.
Builds on the `tokenizers` library. Reads `tokenizer.json`, or else Mistral's `tekken.json`, or else
sentencepiece's `tokenizer.model`, or the vocabulary of a GGUF file. Knows nothing of models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from specqd.errors import RequestError, TokenizerError
from specqd.formats.gguf import is_gguf
from specqd.formats.small_file import MOST_VOCABULARY_BYTES
from specqd.text.backends import add_ends, mend_tekken, sentencepiece_backend
from specqd.text.chat_template import ChatTemplate
from specqd.text.gguf_tokenizer import read_gguf_tokenizer
from specqd.text.sentencepiece import SentencepieceModel, read_sentencepiece
from specqd.text.stream import PieceMaker, TextStream, tidied
from specqd.text.tekken import read_tekken
from specqd.text.tokenizer_files import (
    as_tokenizer_error,
    first_line,
    read_object,
    read_template,
    read_templates,
    read_text,
)

NAMED_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
# In characters. Encoding a shorter text holds the GIL for a few milliseconds. Longer texts go to
# the library's threads, which release it.
_LONG_TEXT = 1 << 14
_LARGEST_ID = 1 << 24  # the library needs time and memory for all ids up to the largest
_LONGEST_CAUSE = 200  # characters of the library's message
_TRAITS = ("lstrip", "rstrip", "single_word", "normalized")  # of an added token
# Raised for wrong arguments and signals. The library's panics are other BaseExceptions.
_NOT_ITS_FAILURES = (TypeError, OverflowError, MemoryError, KeyboardInterrupt, SystemExit)


@dataclass(frozen=True, slots=True)
class TokenDifference:
    """An id that has different tokens in two tokenizers."""

    token_id: int
    ours: str
    theirs: str


class Tokenizer:
    """A model's tokenizer. `open` reads one; the constructor takes its parts.

    `settings` are the contents of tokenizer_config.json. `templates` maps names to chat templates.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        settings: Mapping[str, Any],
        templates: Mapping[str, ChatTemplate],
    ) -> None:
        self._backend = backend
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = bool(settings.get("split_special_tokens"))
        self.named_tokens = {
            name: text for name in NAMED_TOKENS if (text := token_text(settings.get(name)))
        }
        self._declare_special_tokens(settings)
        self._clean_up = bool(settings.get("clean_up_tokenization_spaces")) and not isinstance(
            backend.model, tokenizers.models.BPE
        )
        self.special_ids = frozenset(
            token_id for token_id, t in backend.get_added_tokens_decoder().items() if t.special
        )
        self._pieces = PieceMaker(backend, self._decode, self.special_ids)
        self._templates = dict(templates)
        self._texts_within: dict[int, str] = {}  # cached results of `text_within`
        self.vocab_size = _size(backend.get_vocab())
        # Without added tokens: a model may lack rows for some that its texts never have.
        self.own_size = _size(backend.get_vocab(with_added_tokens=False))

    @classmethod
    def open(cls, directory: Path) -> Tokenizer:
        """Reads the tokenizer of a model directory or GGUF file.

        Raises TokenizerError if it is missing or unreadable.
        """
        directory = Path(directory)
        if is_gguf(directory):
            return cls._of_gguf(directory)
        settings = read_object(directory / "tokenizer_config.json")
        if "added_tokens_decoder" not in settings:
            settings |= read_object(directory / "special_tokens_map.json")
        path, model = directory / "tokenizer.json", directory / "tokenizer.model"
        tekken = directory / "tekken.json"
        text = read_text(path, MOST_VOCABULARY_BYTES)
        if text is None and "added_tokens_decoder" not in settings:
            added = read_object(directory / "added_tokens.json")
            settings["added_tokens_decoder"] = _older_decoder(added, settings)
        if text is None and tekken.exists():
            return cls._of_tekken(tekken, settings)
        if text is None and not model.exists():
            raise TokenizerError(
                f"{path}: not found, nor tokenizer.model, nor tekken.json; a model directory needs "
                "one of them"
            )
        if text is not None:
            with as_tokenizer_error(path):
                backend = tokenizers.Tokenizer.from_str(text)
                mend_tekken(backend)
            if (largest := max(backend.get_vocab().values(), default=0)) > _LARGEST_ID:
                raise TokenizerError(
                    f"{path}: the id {largest} is larger than {_LARGEST_ID}; fetch the file again"
                )
        else:
            with as_tokenizer_error(model):
                backend, ends = sentencepiece_tokenizer(read_sentencepiece(model), settings)
            settings = ends | settings
        with as_tokenizer_error(directory / "tokenizer_config.json", "malformed"):
            return cls(backend, settings, read_templates(directory, settings))

    @classmethod
    def _of_tekken(cls, path: Path, settings: Mapping[str, Any]) -> Tokenizer:
        read = read_tekken(path)
        with as_tokenizer_error(path.parent / "tokenizer_config.json", "malformed"):
            templates = read_templates(path.parent, settings)
            if not templates and read.template:
                templates = {"default": ChatTemplate(read.template, str(path))}
            return cls(read.backend, {**settings, **read.named_tokens}, templates)

    @classmethod
    def _of_gguf(cls, path: Path) -> Tokenizer:
        with as_tokenizer_error(path):
            read = read_gguf_tokenizer(path)
            templates = {
                name: ChatTemplate(text, str(path)) for name, text in read.templates.items()
            }
            return cls(read.backend, read.named_tokens, templates)

    def use_template(self, path: Path) -> None:
        """Uses the chat template in a file in place of the model's own, and tries it.

        Raises TokenizerError if it cannot be read or fails. It may reject the chat of the trial.
        """
        self._templates = {"default": ChatTemplate(read_template(path), str(path))}
        with suppress(RequestError):
            self.render_chat([{"role": "user", "content": "?"}])

    @property
    def has_chat_template(self) -> bool:
        return bool(self._templates)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Returns the ids of `text`. Special tokens spelled out in it become special tokens.

        With `add_special_tokens`, the file's post-processor decides which ones are added. As in
        transformers 5, tokenizer.json overrides the settings `add_bos_token` and `add_eos_token`.
        Raises RequestError for a lone surrogate, TokenizerError if the library fails.
        """
        return list(self._encoding(text, add_special_tokens).ids)

    def places(self, text: str) -> list[int]:
        """Returns where the tokens of `encode(text)` begin in the text, in characters.

        All tokens of one character begin where it does. A token that is not in the text begins
        where the next one does.

        Raises the errors of `encode`.
        """
        places, end = [], 0
        for first, last in self._encoding(text, has_offsets=True).offsets:
            # Some tokenizers leave a space out of the token that begins with it.
            places.append(min(first, end) if first < last else end)
            end = max(end, last)
        return places

    def _encoding(
        self, text: str, add_special_tokens: bool = True, *, has_offsets: bool = False
    ) -> tokenizers.Encoding:
        """has_offsets: the encoding knows them, which takes longer."""
        try:
            if len(text) < _LONG_TEXT:
                return self._backend.encode(text, add_special_tokens=add_special_tokens)
            encode = self._backend.encode_batch if has_offsets else self._backend.encode_batch_fast
            [encoding] = encode([text], add_special_tokens=add_special_tokens)
            return encoding
        except (UnicodeError, TypeError) as error:  # the library raises either for a surrogate
            problem = "the text is not valid Unicode (a lone surrogate); remove it"
            raise RequestError(problem) from error
        except _NOT_ITS_FAILURES:
            raise
        except BaseException as error:  # a panic
            raise failure("encode", error) from error

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Returns the text of `ids`. An id without a token adds nothing.

        Raises TokenizerError if the library fails.
        """
        text = self._decode(list(ids), skip_special_tokens)
        return tidied(text) if self._clean_up else text

    def _decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        try:
            return str(self._backend.decode(ids, skip_special_tokens=skip_special_tokens))
        except _NOT_ITS_FAILURES:
            raise
        except BaseException as error:  # a panic
            raise failure("decode", error) from error

    def stream(self, *, skip_special_tokens: bool = True, after: Sequence[int] = ()) -> TextStream:
        """Returns a new stream, for one sequence of tokens.

        after: the ids of a text that the tokens continue. Special tokens alone are no text.
        """
        skipped = self.special_ids if skip_special_tokens else frozenset[int]()
        if all(token_id in self.special_ids for token_id in after):
            after = ()
        return TextStream(
            self._pieces(),
            self._backend.id_to_token,
            skipped,
            clean_up=self._clean_up,
            after=after,
        )

    def decode_after(
        self, before: Sequence[int], ids: Sequence[int], *, skip_special_tokens: bool = True
    ) -> str:
        """Returns the text that `ids` add to the text of `before`."""
        stream = self.stream(skip_special_tokens=skip_special_tokens, after=before)
        return stream.feed(ids) + stream.finish()

    def to_json(self, size: int | None = None) -> str:
        """Returns the contents of tokenizer.json, with the special tokens of the settings; with
        `size`, without the tokens that a model of that many lacks."""
        text = str(self._backend.to_str())
        if size is None or self.vocab_size <= size:
            return text
        content = json.loads(text)
        content["added_tokens"] = [each for each in content["added_tokens"] if each["id"] < size]
        return json.dumps(content)

    def text_within(self, token_id: int) -> str:
        """Returns the text that a token adds within a text.

        Decoding the token alone would not give it: some decoders strip a text's first space.
        """
        text = self._texts_within.get(token_id)
        if text is None:
            once = self.decode([token_id], skip_special_tokens=False)
            twice = self.decode([token_id, token_id], skip_special_tokens=False)
            is_longer = twice.startswith(once) and len(twice) > len(once)
            text = self._texts_within[token_id] = twice[len(once) :] if is_longer else once
        return text

    def token_text(self, token_id: int) -> str:
        """Returns a token's spelling in the vocabulary ("Ġthe", "▁the"); "" for an unknown id."""
        return self._backend.id_to_token(token_id) or ""

    def is_special(self, token: str) -> bool:
        """Returns whether `decode` omits the token by default."""
        return self.id_of(token) in self.special_ids

    def is_added(self, token: str) -> bool:
        """Returns whether the token is no part of the model's own vocabulary of pieces, so that its
        text is never split."""
        return self.id_of(token) in self._backend.get_added_tokens_decoder()

    def id_of(self, token: str | None) -> int | None:
        """Returns the id of a token by its spelling, or None."""
        return None if token is None else self._backend.token_to_id(token)

    @property
    def template_source(self) -> str:
        """The default chat template, or "" if there is none."""
        template = self._templates.get("default")
        return "" if template is None else template.source

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **template_variables: Any,
    ) -> list[int]:
        """Returns the ids of a chat's prompt. The template itself writes bos and similar tokens.

        Raises RequestError without a template or if it rejects the messages, and TokenizerError if
        it fails.
        """
        text = self.render_chat(
            messages, tools=tools, add_generation_prompt=add_generation_prompt, **template_variables
        )
        return self.encode(text, add_special_tokens=False)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **template_variables: Any,
    ) -> str:
        """Returns the text of a chat's prompt. Raises the errors of `chat`.

        `documents` is one of the possible variables.
        """
        documents = template_variables.pop("documents", None)
        return self._template(tools is not None).render(
            messages,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            variables={**self.named_tokens, **template_variables},
        )

    def first_difference(self, other: Tokenizer) -> TokenDifference | None:
        """Returns the lowest id that has different tokens in the two tokenizers, or None.

        An id that only one of them has is padding or an addition, not a difference.
        """
        theirs = {token_id: token for token, token_id in other._backend.get_vocab().items()}
        differing = [
            (token_id, token, theirs[token_id])
            for token, token_id in self._backend.get_vocab().items()
            if theirs.get(token_id, token) != token
        ]
        return TokenDifference(*min(differing)) if differing else None

    def _template(self, has_tools: bool) -> ChatTemplate:
        if has_tools and "tool_use" in self._templates:
            return self._templates["tool_use"]
        if "default" in self._templates:
            return self._templates["default"]
        if self._templates:
            names = ", ".join(sorted(self._templates))
            raise TokenizerError(f"no chat template is named default; there are: {names}")
        raise RequestError("this model has no chat template; use a plain prompt")

    def _declare_special_tokens(self, settings: Mapping[str, Any]) -> None:
        """Makes the special tokens of the settings special, if the vocabulary has them, and gives
        all of their tokens the stated traits, such as whether one takes the spaces after it.

        A token outside of the vocabulary would get an id that has no row in the model.
        """
        extra = settings.get("additional_special_tokens") or settings.get("extra_special_tokens")
        extra = extra.values() if isinstance(extra, Mapping) else extra or ()
        named = [*self.named_tokens.values(), *(token_text(token) for token in extra)]
        stated = map(_added_token, (settings.get("added_tokens_decoder") or {}).values())
        known = {
            token.content: token for token in self._backend.get_added_tokens_decoder().values()
        }
        wanted = known | {token.content: token for token in stated}
        for text in filter(None, named):
            wanted[text] = _as_special(wanted.get(text), text)
        self._backend.add_tokens(
            [
                token
                for text, token in wanted.items()
                if self.id_of(text) is not None and repr(token) != repr(known.get(text))
            ]
        )


def _size(vocabulary: Mapping[str, int]) -> int:
    return max(vocabulary.values(), default=-1) + 1


def failure(verb: str, error: BaseException) -> TokenizerError:
    """Returns the error for what the library raised while it tried to `verb` a text."""
    cause = first_line(error)[:_LONGEST_CAUSE]
    return TokenizerError(
        f"the tokenizer cannot {verb} this text ({cause}); change the text, or fetch the model's "
        "tokenizer again"
    )


def sentencepiece_tokenizer(
    model: SentencepieceModel, settings: Mapping[str, Any]
) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """Returns the backend with the tokens that the settings add, and the model's named tokens."""
    texts = model.pieces.texts
    backend = sentencepiece_backend(model.pieces)
    ids = {
        "bos_token": model.bos_id,
        "eos_token": model.eos_id,
        "unk_token": model.pieces.unknown_id,
    }
    named = {name: texts[i] for name, i in ids.items() if i is not None}
    added = settings.get("added_tokens_decoder") or {}
    for token_id, token in sorted(added.items(), key=lambda item: int(item[0])):
        made = _added_token(token)
        backend.add_tokens([made])
        if backend.token_to_id(made.content) != int(token_id):
            raise ValueError(f"{made.content!r} is not token {token_id}, as the settings say")
    bos = token_text(settings.get("bos_token")) or named.get("bos_token")
    eos = token_text(settings.get("eos_token")) or named.get("eos_token")
    add_ends(
        backend,
        bos if settings.get("add_bos_token", True) else None,
        eos if settings.get("add_eos_token", False) else None,
    )
    return backend, named


def _added_token(entry: Mapping[str, Any]) -> tokenizers.AddedToken:
    """Returns the token of an entry of `added_tokens_decoder`."""
    traits = {trait: bool(entry.get(trait)) for trait in ("special", *_TRAITS)}
    return tokenizers.AddedToken(token_text(entry) or "", **traits)


def _older_decoder(added: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `added_tokens_decoder` for the ids by token of an added_tokens.json."""
    named = {token_text(settings.get(name)) for name in NAMED_TOKENS}
    return {str(i): {"content": text, "special": text in named} for text, i in added.items()}


def _as_special(token: tokenizers.AddedToken | None, text: str) -> tokenizers.AddedToken:
    """Returns an added token, if there is one with this text, as special, with its other traits."""
    if token is None:
        return tokenizers.AddedToken(text, special=True)
    return tokenizers.AddedToken(text, special=True, **{t: getattr(token, t) for t in _TRAITS})


def token_text(token: Any) -> str | None:
    """Returns the text of a token in a settings file: the value itself, or its `content`."""
    if isinstance(token, Mapping):
        token = token.get("content")
    if token is not None and not isinstance(token, str):
        raise ValueError(f"a token is a {type(token).__name__}, not a string")
    return token
