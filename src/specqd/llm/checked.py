"""The files of a model and of its drafts, found and checked before any weights are loaded."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specqd.config import DecoderConfig, read_config
from specqd.errors import RequestError, SpecqdWarning
from specqd.hub import resolve, shipped_model
from specqd.llm import inputs
from specqd.llm.auto import Small, check_small, checked_chain
from specqd.llm.chains import Drafts
from specqd.llm.draft_words import DraftSpec, parse_chain
from specqd.model.model import Precision
from specqd.text.tokenizer import Tokenizer

_ONE_PRECISION = (
    "the weights are already MXFP4, so they have no fp4 draft; only n-grams or other models draft"
)


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """A model that can be loaded, if there is enough memory. `LLM` describes the arguments."""

    directory: Path
    config: DecoderConfig
    tokenizer: Tokenizer
    drafts: Drafts
    specs: tuple[DraftSpec, ...]

    @classmethod
    def of(
        cls,
        model: str | Path | None,
        draft: str | Sequence[str] | None,
        precision: Precision,
        *,
        context: int | None,
        small: Small,
        chat_template: str | Path | None,
    ) -> "CheckedModel":
        """Finds and reads the files. Raises SpecqdError for a model or a chain that cannot run, and
        ShortMemoryError if it would not fit into memory."""
        parse_chain(draft, precision)  # refuses unknown words before any work
        check_small(draft, inputs.model_name(small, "small"))
        named = inputs.model_name(model)
        directory = shipped_model() if named is None else resolve(named)
        own = read_config(directory)
        _check_context(directory, context, own.max_positions)
        if own.is_mxfp4 and draft == "auto":
            warnings.warn(f"{directory}: {_ONE_PRECISION}", SpecqdWarning, stacklevel=3)
        tokenizer = Tokenizer.open(directory)
        if (template := inputs.file_name("chat_template", chat_template)) is not None:
            tokenizer.use_template(template)
        drafts = Drafts(directory, precision, tokenizer)
        specs = checked_chain(draft, small, precision, directory, own, drafts)
        return cls(directory, own, tokenizer, drafts, specs)

    @property
    def weight_bytes(self) -> int:
        """Bytes of memory that the weights of all models of the chain typically take. Weights of
        packed models are mapped, and take none of their own."""
        return self.drafts.weight_bytes(self.specs)


def _check_context(directory: Path, requested: int | None, own: int) -> None:
    if requested is not None and not 1 <= requested <= own:
        raise RequestError(
            f"{directory}: a context of {requested} tokens is requested, and the model's is {own}; "
            "request at most that"
        )
