"""vLLM's JSON of how the drafts for one sample fared. Knows counts only."""

from typing import Any

from specqd.engine.generation import Acceptance


def speculation_of(acceptance: Acceptance, longest: int) -> dict[str, Any]:
    """The members of `metrics.speculative_decoding`; rounds without a draft do not count.

    longest: tokens of the longest possible proposal.
    """
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
