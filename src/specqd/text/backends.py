"""Builds `tokenizers` backends from vocabularies, with the results of Hugging Face's conversions.

Owns how each kind of vocabulary splits text. Knows nothing of files.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # sentencepiece's piece types

# Regular expressions that split text into words before any merge, named after the first model that
# used them.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


_TEKKEN_MARK, _TEKKEN_SIZE = "[AVAILABLE_TOOLS]", 100_000  # Mistral's other vocabularies have 32768


@dataclass(frozen=True, slots=True)
class WordSplit:
    """How a byte-level vocabulary splits text into words."""

    pattern: str | None = None  # None: GPT-2's pattern
    cuts_digits: bool = False  # every digit is a word of its own
    composes: bool = False  # text is first normalised to NFC
    takes_whole_words: bool = False  # a word in the vocabulary needs no merges
    adds_bos: bool = False  # by default; the file can override it


WORD_SPLITS: Mapping[str, WordSplit] = {  # by `tokenizer.ggml.pre` of GGUF files
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "mpt", "jais"), WordSplit()),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), WordSplit(cuts_digits=True)),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"),
        WordSplit(_LLAMA3, takes_whole_words=True, adds_bos=True),
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe"), WordSplit(_LLAMA3)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), WordSplit(_QWEN2, composes=True)),
    "qwen35": WordSplit(_QWEN35, composes=True),
    "tekken": WordSplit(_TEKKEN, takes_whole_words=True, adds_bos=True),
}


@dataclass(frozen=True, slots=True)
class Pieces:
    """A sentencepiece vocabulary, and how it normalises text."""

    algorithm: Literal["bpe", "unigram"]
    texts: Sequence[str]
    scores: Sequence[float]
    kinds: Sequence[int]  # NORMAL to BYTE
    unknown_id: int = 0
    falls_back_to_bytes: bool = True
    adds_space: bool = True  # at the start of the text
    squeezes_spaces: bool = False  # runs of spaces become one
    character_map: bytes = b""  # in sentencepiece's own format


def byte_level_backend(
    tokens: Sequence[str], kinds: Sequence[int], merges: Iterable[tuple[str, str]], split: WordSplit
) -> Tokenizer:
    """Builds byte-level BPE. Raises ValueError for merges outside of the vocabulary."""
    vocabulary = {token: i for i, token in enumerate(tokens)}
    backend = Tokenizer(_bpe(vocabulary, merges, ignore_merges=split.takes_whole_words))
    if split.composes:
        backend.normalizer = normalizers.NFC()
    steps: list[pre_tokenizers.PreTokenizer] = []
    if split.cuts_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if split.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(split.pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.pattern is None))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    _declare_whole(backend, tokens, kinds)
    return backend


def ranked_backend(tokens: Sequence[str], num_special: int, pattern: str) -> Tokenizer:
    """Builds tiktoken's byte-level BPE: it always joins the two neighbours that form the token of
    the lowest id. The first tokens are special."""
    count = len(tokens)
    kinds = [CONTROL] * num_special + [NORMAL] * (count - num_special)
    pieces = Pieces("bpe", tokens, range(0, -count, -1), kinds)
    merges = _merges({token: i for i, token in enumerate(tokens)}, pieces)
    return byte_level_backend(tokens, kinds, merges, WordSplit(pattern, takes_whole_words=True))


def mend_tekken(backend: Tokenizer) -> None:
    """Splits text with Mistral's Tekken vocabulary as that was trained. Its first conversions to
    `tokenizer.json` state Llama 3's pattern, as transformers' flag `fix_mistral_regex` tells."""
    is_tekken = backend.token_to_id(_TEKKEN_MARK) is not None
    if not is_tekken or backend.get_vocab_size() < _TEKKEN_SIZE:
        return
    words = pre_tokenizers.Split(Regex(_TEKKEN), behavior="isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([words, bytes_])


def sentencepiece_backend(pieces: Pieces, unstripped: Collection[str] | None = None) -> Tokenizer:
    """Builds sentencepiece's BPE or Unigram, with its treatment of spaces."""
    if pieces.algorithm == "bpe":
        vocabulary = {text: i for i, text in enumerate(pieces.texts)}
        model: models.Model = _bpe(
            vocabulary,
            _merges(vocabulary, pieces),
            unk_token=pieces.texts[pieces.unknown_id],
            fuse_unk=True,
            byte_fallback=pieces.falls_back_to_bytes,
        )
    else:
        scored = list(zip(pieces.texts, pieces.scores, strict=True))
        model = models.Unigram(scored, pieces.unknown_id, pieces.falls_back_to_bytes)
    backend = Tokenizer(model)
    backend.normalizer = normalizers.Sequence(_normalizers(pieces))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if pieces.adds_space:
        parts.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(parts)
    _declare_whole(backend, pieces.texts, pieces.kinds, unstripped)
    return backend


def add_ends(backend: Tokenizer, first: str | None, last: str | None) -> None:
    """Makes encoding put the tokens `first` and `last` around every text; None adds none."""
    named = dict.fromkeys(token for token in (first, last) if token is not None)
    if named:
        whole = [token for token in (first, "$A", last) if token is not None]
        backend.post_processor = processors.TemplateProcessing(
            single=whole,
            pair=[*whole, "$B:1"],
            special_tokens=[(token, backend.token_to_id(token)) for token in named],
        )


def _bpe(
    vocabulary: dict[str, int], merges: Iterable[tuple[str, str]], **options: str | bool
) -> models.BPE:
    return models.BPE(vocab=vocabulary, merges=list(merges), **options)


def _merges(vocabulary: Mapping[str, int], pieces: Pieces) -> list[tuple[str, str]]:
    """Returns all pairs of pieces that form a piece, ordered by that piece's score.

    sentencepiece always joins the two neighbours whose joined piece has the highest score.
    """
    ranked = []
    lengths = set(map(len, pieces.texts))
    whole = {CONTROL, USER_DEFINED, UNKNOWN, BYTE}
    for text, score, kind in zip(pieces.texts, pieces.scores, pieces.kinds, strict=True):
        if kind in whole:
            continue
        for at in _cuts(len(text), lengths):
            left, right = text[:at], text[at:]
            if left in vocabulary and right in vocabulary:
                ranked.append((-score, vocabulary[text], at, left, right))
    ranked.sort()
    return [(left, right) for *_, left, right in ranked]


def _cuts(length: int, lengths: Set[int]) -> Iterable[int]:
    """Returns where a piece of this length can split into two pieces of known lengths.

    Trying every place of a long piece would take time quadratic in its length.
    """
    if length <= len(lengths):
        return range(1, length)
    return [at for at in lengths if 0 < at < length and length - at in lengths]


def _normalizers(pieces: Pieces) -> list[normalizers.Normalizer]:
    steps: list[normalizers.Normalizer] = []
    if pieces.character_map:
        steps.append(normalizers.Precompiled(pieces.character_map))
    if pieces.squeezes_spaces:
        steps.append(normalizers.Replace(Regex(r"\A +| +\z"), ""))
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    if pieces.adds_space:
        steps.append(normalizers.Prepend("▁"))
    steps.append(normalizers.Replace(" ", "▁"))
    return steps


def _declare_whole(
    backend: Tokenizer,
    tokens: Sequence[str],
    kinds: Sequence[int],
    unstripped: Collection[str] | None = None,
) -> None:
    """Makes encoding find control tokens (special) and user-defined tokens before all others.

    unstripped: the only ones that leave white space after them; None: all do.
    """
    for kind, is_special in ((CONTROL, True), (USER_DEFINED, False)):
        whole = [
            AddedToken(
                token,
                normalized=False,
                special=is_special,
                rstrip=unstripped is not None and token not in unstripped,
            )
            for token, its_kind in zip(tokens, kinds, strict=True)
            if its_kind == kind and token
        ]
        (backend.add_special_tokens if is_special else backend.add_tokens)(whole)
