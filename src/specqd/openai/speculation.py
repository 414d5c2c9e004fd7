"""Writes vLLM's JSON on the acceptance of drafts, for answers of all APIs. Knows only counts."""

from dataclasses import dataclass, field
from typing import Any

from specqd.engine.generation import Acceptance
from specqd.engine.updates import Update


@dataclass(slots=True)
class DraftMetrics:
    """The member `metrics` of one answer."""

    longest: int  # tokens in the longest possible proposal; 0: there are no drafts
    _acceptances: list[Acceptance] = field(default_factory=list)  # of samples that have ended

    def note(self, update: Update) -> None:
        """Takes the acceptance of a sample from its last update."""
        if update.acceptance is not None:
            self._acceptances.append(update.acceptance)

    def described(self) -> dict[str, Any]:
        """Returns the member. Its value is null for several samples, as in vLLM."""
        speculation = None
        if self.longest and len(self._acceptances) == 1:
            speculation = _described(self._acceptances[0], self.longest)
        return {"metrics": {"speculative_decoding": speculation}}


def _described(acceptance: Acceptance, longest: int) -> dict[str, Any]:
    """Returns vLLM's counts. Rounds without a draft do not count."""
    counts = acceptance.accepted_counts
    counts = counts + [0] * (longest + 1 - len(counts))
    steps, accepted = sum(counts), sum(j * count for j, count in enumerate(counts))
    return {
        "mean_acceptance_length": 1.0 + accepted / max(steps, 1),
        "draft_acceptance_rate": accepted / max(acceptance.drafted, 1),
        "acceptance_histogram": counts,
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": acceptance.drafted,
        "num_spec_tokens": longest,
    }
