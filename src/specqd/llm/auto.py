"""What drafts in a model's chain, and the small model that `auto` adds. Loads no weights."""

import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from specqd.config import DecoderConfig
from specqd.errors import RequestError, SpecqdError, SpecqdWarning
from specqd.hub import cached, real_path, resolve
from specqd.llm.chains import Drafts
from specqd.llm.draft_words import DraftSpec, is_auto, parse_chain, words_of
from specqd.model.model import Precision
from specqd.model.mtp import has_mtp
from specqd.siblings import sibling_of

Small = str | Path | None


def check_small(draft: str | Sequence[str] | None, small: Small) -> None:
    """Raises RequestError for a small model beside a chain that does not use it."""
    if _is_named(small) and not is_auto(draft) and words_of(draft) != ["none"]:
        raise RequestError(
            "only auto adds a small model; name it in the chain, or leave out the chain",
            "small",
            str(small),
        )


def checked_chain(
    draft: str | Sequence[str] | None,
    small: Small,
    precision: Precision,
    directory: Path,
    own: DecoderConfig,
    drafts: Drafts,
) -> tuple[DraftSpec, ...]:
    """The chain for the model in that directory, after `drafts` has checked it.

    `auto` includes the model's MTP layer, if it has one, and the small model. If that is a known
    sibling that cannot draft, a warning says so, and the chain does without it.

    Raises SpecqdError.
    """
    adds = is_auto(draft)
    has_layer = adds and has_mtp(directory, own)
    parse = partial(parse_chain, draft, precision, is_mxfp4=own.is_mxfp4, has_mtp=has_layer)
    chosen = _small_draft(directory, small) if adds else None
    try:
        specs = parse(small=chosen)
        drafts.check(specs)
    except SpecqdError as error:
        if chosen is None:
            raise
        if _is_named(small):
            if error.value == chosen.word:
                error.parameter = "small"
            raise
        reason = error.args[0]
    else:
        return specs
    specs = parse()
    drafts.check(specs)
    problem = f"auto drafts without the small model {chosen.word}: {reason}"
    warnings.warn(problem, SpecqdWarning, stacklevel=5)  # of LLM and its decorator
    return specs


def _is_named(small: Small) -> bool:
    return small not in (None, "none", "auto")


def _small_draft(directory: Path, small: Small) -> DraftSpec | None:
    """The small model as a draft; fetches it only if it is named."""
    if small is None or small == "none":
        return None
    if small != "auto":
        try:
            found = resolve(small)
        except SpecqdError as error:
            error.parameter = error.parameter or "small"
            raise
        return DraftSpec(str(small), "model", str(real_path(found)))
    name = sibling_of(directory)
    path = cached(name) if name is not None else None
    return None if name is None or path is None else DraftSpec(name, "model", str(real_path(path)))
