"""Prints how often a model's own draft agrees with it, by format. Computes nothing itself."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from specqd.cli.terminal import ProgressBar, aligned, inform, one_line

if TYPE_CHECKING:
    from specqd.bench.draft_formats import FormatAgreement
    from specqd.bench.suggestion import LeftOut
    from specqd.llm import LLM
    from specqd.sampling import SamplingParams


_POSITIONS = 64  # compared after each prompt, at most: each takes two forwards per format


def measure_agreement(
    plain: "LLM", texts: Sequence[str], temperatures: Sequence["SamplingParams"]
) -> "list[FormatAgreement]":
    """Compares each draft with the model, at each temperature, on the text that the model writes
    after the prompts."""
    from specqd.bench.draft_formats import agreement_by_format
    from specqd.bench.levels import encoded_ends

    new_tokens = min(_POSITIONS, *(params.max_tokens or _POSITIONS for params in temperatures))
    prompts = encoded_ends(plain, texts, new_tokens)
    resolved = [
        replace(params, max_tokens=new_tokens).resolved(plain.defaults) for params in temperatures
    ]
    with ProgressBar("Comparing draft formats") as bar:
        found, left_out = agreement_by_format(plain, prompts, resolved, bar)
    note_left_out(left_out)
    return found


def note_left_out(left_out: "Sequence[LeftOut]") -> None:
    for each in left_out:
        inform(f"note: {each.draft} is left out: {each.reason}")


def agreement_lines(found: "Sequence[FormatAgreement]") -> list[str]:
    """A table with a row for each format and temperature; empty for a model without a draft."""
    if not found:
        return []
    rows = [["own draft", "temperature", "agrees", "", "positions", "bits/weight", "of"]]
    for each in found:
        low, high = each.measured.interval
        calibrated = "" if each.calibration == "none" else f" calibrated ({each.calibration})"
        rows.append(
            [
                one_line(each.draft.value + calibrated),
                f"{each.measured.temperature:g}",
                f"{each.measured.share:.1%}",
                f"[{low:.1%}, {high:.1%}]",
                str(sum(each.measured.judged)),
                f"{each.draft_bits:.2f}",
                f"{each.exact_bits:.2f}",
            ]
        )
    return [*aligned(rows), ""]
