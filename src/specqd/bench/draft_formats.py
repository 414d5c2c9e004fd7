"""Measures how often a model's own draft agrees with it, in each format of draft weights.

The model is loaded once in each format. The exact precision has the same bits in all of them, so
the target writes the same text each time. Knows tokens, but no text.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from specqd._native import PAGE_POSITIONS
from specqd.bench.agreement import MOST_AT_ONCE, Agreement, agreement
from specqd.bench.suggestion import LeftOut
from specqd.errors import MachineError, SpecqdWarning
from specqd.formats.fp4 import DraftFormat
from specqd.llm import LLM
from specqd.model.model import Model
from specqd.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class FormatAgreement:
    """A format of draft weights at one temperature, with the bits per weight of each precision."""

    draft: DraftFormat
    calibration: str  # the text that a packed model was calibrated on, or none
    exact_bits: float
    draft_bits: float
    measured: Agreement

    def described(self) -> dict[str, Any]:
        """The agreement as a JSON object."""
        return {
            "draft_format": self.draft.value,
            "calibration": self.calibration,
            "bits_per_weight": {"exact": self.exact_bits, "draft": self.draft_bits},
        } | self.measured.described()


def agreement_by_format(
    plain: LLM,
    prompts: Sequence[Sequence[int]],
    temperatures: Sequence[SamplingParams],
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[FormatAgreement], list[LeftOut]]:
    """Measures the loaded format, then all others; also returns those that do not fit into memory.

    A packed model has only its own format, and a model of MXFP4 experts has none. `temperatures`
    holds resolved params, one for each temperature.
    """
    if plain.model.config.is_mxfp4:
        return [], []
    own = plain.model.weights.draft
    others = [] if plain.model.weights.is_mapped else [each for each in DraftFormat if each != own]
    found, left_out = list[FormatAgreement](), list[LeftOut]()
    for done, draft in enumerate([own, *others], 1):
        try:
            model = plain.model if draft is own else _loaded(plain, draft, prompts, temperatures)
        except MachineError as error:
            left_out.append(LeftOut(draft.value, str(error)))
            continue
        for params in temperatures:
            measured = agreement(model, prompts, params, stop_ids=plain.engine.eos_token_ids)
            found.append(_described(model, measured))
        del model  # before the next one is loaded
        if progress is not None:
            progress(done, 1 + len(others))
    return found, left_out


def _loaded(
    plain: LLM,
    draft: DraftFormat,
    prompts: Sequence[Sequence[int]],
    temperatures: Sequence[SamplingParams],
) -> Model:
    """Loads another format, with a cache for as many prompts as are judged at once."""
    new_tokens = max(params.max_tokens or 0 for params in temperatures)
    longest = max(map(len, prompts)) + new_tokens + PAGE_POSITIONS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpecqdWarning)  # the first load has warned
        return Model.open(
            plain.directory,
            machine=plain.model.machine,
            draft=draft,
            cache_positions=MOST_AT_ONCE * longest,
            context=plain.model.config.max_positions,
        )


def _described(model: Model, measured: Agreement) -> FormatAgreement:
    exact, draft = (
        16 * each.bytes_per_forward / model.bf16_bytes_per_forward
        for each in (model, model.as_draft())
    )
    return FormatAgreement(model.weights.draft, model.weights.calibration, exact, draft, measured)
