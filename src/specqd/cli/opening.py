"""Opens the model that the options name."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specqd.cli.options import MachineChoice
from specqd.cli.terminal import ProgressBar

if TYPE_CHECKING:
    from specqd.llm import LLM


def open_llm(
    model: str | None,
    draft: str | Sequence[str],
    machine: MachineChoice,
    *,
    precision: str = "exact",
    cache_positions: int | None = None,
    context: int | None = None,
) -> "LLM":
    """Loads the model with a progress bar; an empty `draft` means `auto`."""
    from specqd.llm import LLM

    with ProgressBar("Packing weights") as bar:
        return LLM(
            model,
            draft or "auto",
            machine.threads,
            machine.isa,
            numa=machine.numa,
            precision=precision,
            cache_positions=cache_positions,
            context=context,
            progress=bar,
        )
