"""What a text took: one line at its end, and a table of each level's work, 80 columns wide."""

from textwrap import wrap
from typing import TYPE_CHECKING

from specqd.cli.terminal import aligned

if TYPE_CHECKING:
    from specqd.engine.reports import LevelReport, Stats
    from specqd.llm import LLM, Completion, Result
    from specqd.sampling import SamplingParams

_COLUMNS = 80
_TITLES = (
    *("level", "forwards", "rows", "ms per forward", "GB/s", "of the context"),
    *("sampling, ms", "token value, ms"),
    *("drafted", "accepted", "acceptance", "mean length"),
)


def summary(
    llm: "LLM", result: "Result", params: "SamplingParams", *, has_seed: bool = False
) -> str:
    """One line: tokens, tokens/s, why the text ended, and if wanted the seed of a sampled text."""
    stats, completion = result.stats, result.completions[0]
    count = len(completion.tokens)
    parts = [f"{count} {'token' if count == 1 else 'tokens'}"]
    if stats.decoded_tokens:  # the first token comes with the prompt
        parts.append(f"{stats.tokens_per_s:.1f} tokens/s")
    parts.append(f"stopped: {_end(llm, result, completion)}")
    if has_seed and params.resolved(llm.defaults).temperature:
        parts.append(f"seed {completion.seed}")
    return ", ".join(parts)


def _end(llm: "LLM", result: "Result", completion: "Completion") -> str:
    longest = llm.engine.max_context
    match completion.finish_reason:
        case "length" if is_full(llm, result):
            return f"length (all {longest} positions of the context are full)"
        case "stop" if completion.tokens and completion.tokens[-1] in llm.engine.eos_token_ids:
            return "end of text"
        case "stop":
            return "stop text"
        case "cancelled":
            return "Ctrl-C"
        case reason:
            return reason


def is_full(llm: "LLM", result: "Result") -> bool:
    """Whether the prompt and the new tokens fill the context."""
    longest: int = llm.engine.max_context
    return len(result.prompt_tokens) + len(result.tokens) >= longest


def prompt_speed(stats: "Stats", cached: int = 0) -> str:
    """The tokens of the prompt, how many were cached, and how fast the others were read."""
    read = stats.prompt_tokens - cached
    parts = [f"{stats.prompt_tokens} tokens"]
    parts += [f"{cached} of them cached"] if cached else []
    parts.append(f"read in {stats.prefill_s:.2f} s")
    if stats.prefill_s:
        parts.append(f"{read / stats.prefill_s:.1f} tokens/s")
    return ", ".join(parts)


def level_table(stats: "Stats") -> list[str]:
    """A column per level, outermost first; then acceptance by position in the proposal."""
    columns = [_TITLES, *(_cells(level) for level in stats.levels)]
    lines = aligned(list(zip(*columns, strict=True)))
    for level in stats.levels:
        if level.drafted:
            shares = " ".join(f"{share:.2f}" for share in level.acceptance_at)
            line = f"{level.name}: accepted by position {shares}"
            lines += wrap(line, _COLUMNS, subsequent_indent="  ", break_on_hyphens=False)
    return lines


def _cells(level: "LevelReport") -> tuple[str, ...]:
    return (
        level.name,
        str(level.forwards),
        str(level.rows),
        f"{1e3 * level.seconds / max(level.forwards, 1):.2f}",
        f"{level.gb_per_s:.1f}",
        "-" if level.cache_share is None else f"{level.cache_share:.0%}",
        f"{1e3 * level.pick_seconds:.1f}",
        "-" if level.token_value_s is None else f"{1e3 * level.token_value_s:.2f}",
        *_acceptance_cells(level),
    )


def _acceptance_cells(level: "LevelReport") -> tuple[str, ...]:
    if level.acceptance is None or level.mean_accepted_length is None:
        return ("-",) * 4
    return (
        str(level.drafted),
        str(level.accepted),
        f"{level.acceptance:.0%}",
        f"{level.mean_accepted_length:.2f}",
    )
