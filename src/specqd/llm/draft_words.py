"""The words of `draft`: what drafts in which place of a chain. Knows no models and no files."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from specqd.errors import RequestError
from specqd.formats.fp4 import DraftFormat
from specqd.model.model import Precision

_LONGEST = 64
_CONTEXTS = 192, 1 << 30  # the least holds the first page and the two newest
_OPTIONS = {
    "k": (1, _LONGEST, f"k=N, with N from 1 to {_LONGEST}"),
    "context": (*_CONTEXTS, f"context=N, with N from {_CONTEXTS[0]}, or context=all"),
}
KNOWN = (
    "auto, none, fp4[:k=N], mxfp4[:k=N], MODEL[:bf16|:fp4|:mxfp4][:k=N], "
    "head:DIR[:bf16|:fp4|:mxfp4][:k=N], mtp[:bf16|:fp4|:mxfp4][:k=N], ngram[:FILE][:k=N], "
    "A|B"
)
_HEADS_VERIFY = "heads verify no tokens"
_LAST = {"ngram": "n-grams read no weights", "head": _HEADS_VERIFY, "mtp": _HEADS_VERIFY}
_FORMATS = {"fp4": DraftFormat.FP4, "mxfp4": DraftFormat.MXFP4}


@dataclass(frozen=True, slots=True)
class DraftSpec:
    """One level of a chain: what drafts, and how many tokens at a time (None: as many as pay)."""

    word: str  # as it was written
    # self: the target's own weights; mtp: the MTP layer of the model above
    kind: Literal["self", "model", "head", "mtp", "ngram"]
    source: str = ""  # the directory of a model or head, or a file of texts for n-grams
    precision: Precision = Precision.FP4
    format: DraftFormat | None = None  # of the 4-bit weights; None: as they are loaded
    length: int | None = None
    context: int | None = None  # most positions that it reads; 0: all; None: as many as pay
    alternatives: "tuple[DraftSpec, ...]" = ()  # drafters of the same place, after |

    @classmethod
    def parse(cls, word: str) -> "DraftSpec":
        """One drafter, or several with `|` between them. Raises RequestError."""
        first, *others = (cls._parse_one(each) for each in word.split("|"))
        return replace(first, alternatives=tuple(others))

    @property
    def members(self) -> "tuple[DraftSpec, ...]":
        return self, *self.alternatives

    @classmethod
    def _parse_one(cls, word: str) -> "DraftSpec":
        """`fp4`, `mxfp4`, `MODEL[:bf16|:fp4|:mxfp4]`, `head:DIR[:bf16|:fp4|:mxfp4]`,
        `mtp[:bf16|:fp4|:mxfp4]` or `ngram[:FILE]`, each with an optional `:k=N`; models also with
        `:context=N` or `:context=all`.

        Names may contain colons: options are taken off the end. Raises RequestError.
        """
        name, options = _cut_options(word)
        context = options.get("context")
        spec = replace(cls._parse_name(name, word), length=options.get("k"), context=context)
        if context is not None and spec.kind not in ("self", "model"):
            raise refused(word, "only a model's draft may read a part of the context; leave it out")
        return spec

    @classmethod
    def _parse_name(cls, name: str, word: str) -> "DraftSpec":
        kind, colon, rest = name.partition(":")
        if kind == "ngram":
            return cls(word, "ngram", rest)
        if kind == "mtp":
            if colon and rest not in ("bf16", *_FORMATS):
                raise refused(
                    word, f"{rest!r} is not understood; write mtp[:bf16|:fp4|:mxfp4][:k=N]"
                )
            read = Precision.EXACT if rest == "bf16" else Precision.FP4
            return cls(word, "mtp", precision=read, format=_FORMATS.get(rest))
        if kind in _FORMATS:
            if colon:
                raise refused(word, f"{rest!r} is not understood; write {kind} or {kind}:k=N")
            return cls(word, "self", format=_FORMATS[kind])
        if kind in ("none", "auto", ""):
            raise refused(word, f"not a draft; known: {KNOWN}")
        is_head = kind == "head" and bool(colon)
        if is_head and not rest:
            raise refused(word, "names no directory; write head:DIR")
        holder: Literal["model", "head"] = "head" if is_head else "model"
        source, _, precision = (whole := rest if is_head else name).rpartition(":")
        if source and precision == "bf16":
            return cls(word, holder, source, Precision.EXACT)
        if source and precision in _FORMATS:
            return cls(word, holder, source, format=_FORMATS[precision])
        return cls(word, holder, whole)


def _cut_options(word: str) -> tuple[str, dict[str, int]]:
    """The word without its options, and their values by name."""
    name, options = word, dict[str, int]()
    while True:
        before, _, option = name.rpartition(":")
        key, is_option, value = option.partition("=")
        if not before or not is_option or key not in _OPTIONS:
            return name, options
        if key in options:
            raise refused(word, f"{key} is given twice; give it once")
        options[key] = _option_value(word, option, key, value)
        name = before


def _option_value(word: str, option: str, key: str, value: str) -> int:
    least, most, known = _OPTIONS[key]
    if key == "context" and value == "all":
        return 0
    if not (value.isascii() and value.isdecimal() and least <= int(value) <= most):
        raise refused(word, f"{option!r} is not understood; write {known}")
    return int(value)


def refused(word: str, problem: str) -> RequestError:
    """The error for a word that cannot draft."""
    return RequestError(problem, "draft", word)


def parse_chain(
    drafts: str | Sequence[str] | None,
    precision: Precision = Precision.EXACT,
    *,
    is_mxfp4: bool = False,
    has_mtp: bool = False,
    small: DraftSpec | None = None,
) -> tuple[DraftSpec, ...]:
    """The levels of `auto` (with heads after it, or alone), of `none` or None, or of a chain,
    outermost first.

    precision, is_mxfp4, has_mtp: of the target: the weights that it reads, whether they are MXFP4
        already, and whether it has an MTP layer.
    small: a small model, which also drafts in `auto`.

    Raises RequestError for words that are not understood or cannot draft for this target.
    """
    words = words_of(drafts)
    if "none" in words or "auto" in words:
        if len(words) > 1 and not is_auto(words):
            raise RequestError(
                "none and auto must be the only word, but for heads after auto (head:DIR); leave "
                "out the others",
                "draft",
            )
        heads = [DraftSpec.parse(word) for word in words[1:]]
        own = [DraftSpec("mtp", "mtp")] if has_mtp else []
        has_draft = precision is Precision.EXACT and not is_mxfp4
        return _auto(has_draft, [*own, *heads], small) if words[0] == "auto" else ()
    specs = tuple(DraftSpec.parse(word) for word in words)
    for i, spec in ((i, member) for i, level in enumerate(specs) for member in level.members):
        if spec.kind == "self" and precision is Precision.FP4:
            problem = "in the precision fp4 the 4-bit weights are the target; leave this draft out"
            raise refused(spec.word, problem)
        if spec.kind == "self" and is_mxfp4:
            raise refused(
                spec.word,
                "the weights are already MXFP4, so their fp4 precision would be the model itself; "
                "draft with ngram or another model",
            )
        if spec.kind == "self" and i > 0:
            raise refused(
                spec.word,
                "the model's own fp4 precision drafts only for the model; name it first and once "
                "(another model's is MODEL:fp4)",
            )
        if spec is specs[i] and spec.kind in _LAST and i + 1 < len(specs):
            problem = f"{_LAST[spec.kind]}, so nothing can draft for them; name them last and once"
            raise refused(spec.word, problem)
    return specs


def words_of(drafts: str | Sequence[str] | None) -> list[str]:
    """The words of `draft`, one per level."""
    return [drafts or "none"] if drafts is None or isinstance(drafts, str) else list(drafts)


def is_auto(drafts: str | Sequence[str] | None) -> bool:
    """Whether the words are `auto`, alone or before draft heads that it adds."""
    words = words_of(drafts)
    heads = (word.startswith("head:") and "|" not in word for word in words[1:])
    return words[:1] == ["auto"] and all(heads)


def _auto(
    has_draft: bool, heads: Sequence[DraftSpec], small: DraftSpec | None
) -> tuple[DraftSpec, ...]:
    """All drafters in one place. Those that can draft for the target's own 4-bit draft do that too,
    in a second place below it."""
    others = [*heads, *([small] if small else []), DraftSpec("ngram", "ngram")]
    places = [[DraftSpec("fp4", "self"), *others] if has_draft else others]
    if has_draft:
        places.append(others)
    return tuple(replace(first, alternatives=tuple(rest)) for first, *rest in places)


def auto_words(small: str) -> list[str]:
    """The words of the chain that `auto` is with this small model, for a target with a 4-bit draft
    and without an MTP layer."""
    levels = parse_chain("auto", small=DraftSpec(small, "model", small))
    return ["|".join(member.word for member in level.members) for level in levels]


def draft_format(specs: Sequence[DraftSpec]) -> DraftFormat | None:
    """The format in which the chain reads the target's own weights; None: not stated."""
    own = (spec.format for spec in members_of(specs) if spec.kind == "self")
    return next((each for each in own if each is not None), None)


def members_of(specs: Sequence[DraftSpec]) -> list[DraftSpec]:
    """All drafters of a chain, outermost first."""
    return [member for spec in specs for member in spec.members]
