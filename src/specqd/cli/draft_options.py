"""The options that choose drafts: --draft, --small and --no-small."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from specqd.cli.options import option


@dataclass(frozen=True, slots=True)
class Drafting:
    """The drafts that the options request: a chain, empty for `auto` alone, and the small model
    that `auto` adds: a name, `auto` for the known one, or None."""

    chain: tuple[str, ...] = ()
    small: str | None = "auto"

    @property
    def wants_sibling(self) -> bool:
        """Whether the small model that is known for the model drafts."""
        return self.chain[:1] in ((), ("auto",)) and self.small == "auto"


PLAIN = Drafting(("none",))


def draft_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--draft, --small and --no-small, as the one argument `draft`."""

    @wraps(command)
    def with_draft(*, draft: tuple[str, ...], small: str | None, **others: Any) -> Any:
        return command(draft=Drafting(draft, small), **others)

    chain = option(
        "--draft",
        also=("-md", "--model-draft"),
        multiple=True,
        metavar="DRAFT",
        callback=lambda context, parameter, given: () if given == ("auto",) else given,
        help="auto (default: the model's own weights in 4 bits, its MTP layer if it has one, a "
        "small model if one is known or --small names it, n-grams, and heads that are named after "
        "it), none, or a chain, outermost first, one option per level: fp4 (the model's own "
        "weights in 4 bits), mxfp4 (the same in MXFP4), MODEL[:bf16|:fp4|:mxfp4], "
        "head:DIR[:bf16|:fp4|:mxfp4] (a trained EAGLE-3 head, DFlash or DFlash2 drafter; a "
        "directory or owner/name), mtp[:bf16|:fp4|:mxfp4] (the model's own MTP layer), "
        "ngram[:FILE]; A|B for two side by side; at the end :k=N fixes the draft length and "
        ":context=N|all what a draft reads of a long context. Changes the speed, never the text.",
    )
    return chain(
        small_options(
            "draft", "A smaller model with the same tokens, which auto adds to the drafts."
        )(with_draft)
    )


def small_options(
    excluded: str, help_text: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """--small and --no-small, as the one argument `small` of a Drafting. A small model that is
    named cannot be given with the option `excluded`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_small(*, small: str | None, no_small: bool, **others: Any) -> Any:
            return command(small=None if no_small else small or "auto", **others)

        named = option(
            "--small",
            excludes=(excluded,),
            metavar="MODEL",
            help=f"{help_text} Default: the one that `specqd models` lists; it is fetched with the "
            "model.",
        )
        none = option(
            "--no-small",
            excludes=("small",),
            is_flag=True,
            help="Draft without a small model, and fetch none.",
        )
        return named(none(with_small))

    return decorate
