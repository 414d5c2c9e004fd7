"""`specqd inspect --drafts`: prints how often a model's own draft agrees with it, and the fastest
chain. Computes nothing itself."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specqd.cli.bench import interval_cells
from specqd.cli.options import IN_FILE, Command
from specqd.cli.terminal import ProgressBar, aligned, one_line

if TYPE_CHECKING:
    from specqd.bench.agreement import Agreement
    from specqd.bench.levels import Comparison
    from specqd.llm import LLM
    from specqd.sampling import SamplingParams

_OPTION = "--drafts"
_NEW_TOKENS = 64
_SECONDS = 60.0


class WithDrafts(click.Command):
    """A command whose `--drafts` takes all arguments up to the next option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        spread, is_drafts = list[str](), False
        for word in args:
            if word == _OPTION:
                spread.append(f"{_OPTION}=")  # makes --drafts alone count as given
            else:
                spread.append(f"{_OPTION}={word}" if is_drafts and word[:1] != "-" else word)
            is_drafts = word == _OPTION or (is_drafts and word[:1] != "-")
        return super().parse_args(ctx, spread)


def options(command: Command) -> Command:
    drafts = click.option(
        _OPTION,
        multiple=True,
        metavar="[DIR]...",
        help="Find the fastest drafts; each DIR is a model to try as a draft.",
    )
    prompts = click.option(
        "--prompts",
        type=IN_FILE,
        help='With --drafts: file with one JSON object per line, {"prompt": "..."}. '
        "Default: eight built-in prompts.",
    )
    temperature = click.option(
        "--temperature",
        type=click.FloatRange(0),
        help="With --drafts: sampling temperature. Default: 0.",
    )
    return drafts(prompts(temperature(command)))


def suggest(
    plain: "LLM",
    model: str | None,
    directories: Sequence[str],
    prompts: Path | None,
    temperature: float,
    *,
    is_json: bool,
) -> None:
    """Measures the own draft's agreement, times the candidates and prints the best command line.

    `plain` decodes without drafts.
    """
    from specqd.bench.levels import Comparison, encoded_ends, read_prompts
    from specqd.bench.suggestion import (
        DEFAULT_PROMPTS,
        HEATS,
        best_of,
        command_for,
        hold_heats,
        usable_arms,
    )
    from specqd.sampling import SamplingParams

    texts = read_prompts(prompts, sum(HEATS)) if prompts else list(DEFAULT_PROMPTS)
    new_tokens = min(_NEW_TOKENS, plain.model.config.max_positions // 2)
    params = SamplingParams(max_tokens=new_tokens, temperature=temperature, ignore_eos=True)
    own = own_agreement(plain, encoded_ends(plain, texts, new_tokens), params)
    arms, left_out = usable_arms(plain, directories)
    for each in left_out:
        click.echo(one_line(f"specqd: note: {each.draft} is left out: {each.reason}"), err=True)
    with ProgressBar("Trying drafts") as bar:
        summaries = hold_heats(arms, texts, params, _SECONDS, progress=bar)
    comparison = Comparison.on(
        plain,
        prompts=prompts.name if prompts else "built in",
        num_prompts=len(texts),
        rounds=1,
        max_tokens=new_tokens,
    )
    comparison.by_temperature[temperature] = summaries
    best = best_of(summaries)
    command = command_for(model, best.chain)
    if is_json:
        suggestion = {
            "left_out": [{"draft": each.draft, "reason": each.reason} for each in left_out],
            "agreement": [] if own is None else [described(plain, own)],
            "best": {"chain": best.chain, "command": command},
        }
        click.echo(json.dumps(comparison.described() | suggestion))
    else:
        lines = [] if own is None else agreement_lines(plain, own)
        click.echo("\n".join(map(one_line, [*lines, *table(comparison, temperature)])))
        click.echo(one_line(f"best: {command}"))


def own_agreement(
    plain: "LLM", prompts: Sequence[list[int]], params: "SamplingParams"
) -> "Agreement | None":
    """Measures the agreement of the model's own draft; None for a model without one."""
    from specqd.bench.agreement import agreement

    if plain.model.config.is_mxfp4:
        return None
    stop_ids = frozenset(plain.defaults.eos_token_ids or plain.model.config.eos_token_ids)
    return agreement(plain.model, prompts, params.resolved(plain.defaults), stop_ids=stop_ids)


def described(plain: "LLM", own: "Agreement") -> dict[str, Any]:
    """The draft and its agreement as a JSON object."""
    model = plain.model
    exact, draft = (
        16 * each.bytes_per_forward / model.bf16_bytes_per_forward
        for each in (model, model.as_draft())
    )
    return {
        "draft_format": model.weights.draft.value,
        "bits_per_weight": {"exact": exact, "draft": draft},
    } | own.described()


def agreement_lines(plain: "LLM", own: "Agreement") -> list[str]:
    """A row for the model's own draft."""
    facts, (low, high) = described(plain, own), own.interval
    bits = facts["bits_per_weight"]
    rows = [
        ["own draft", "agrees", "", "positions", "bits/weight", "of"],
        [
            facts["draft_format"],
            f"{own.share:.1%}",
            f"[{low:.1%}, {high:.1%}]",
            str(sum(own.judged)),
            f"{bits['draft']:.2f}",
            f"{bits['exact']:.2f}",
        ],
    ]
    return [*aligned(rows), ""]


def table(comparison: "Comparison", temperature: float) -> list[str]:
    """A row per chain, fastest first."""
    rows = [["chain", "tokens/s", "x plain", "", "accepted"]]
    for summary in sorted(
        comparison.by_temperature[temperature], key=lambda s: -s.over_plain.median
    ):
        accepted = summary.levels[0].acceptance
        rows.append(
            [
                summary.title,
                f"{summary.tokens_per_s:.1f}",
                *interval_cells(summary.over_plain),
                "-" if accepted is None else f"{accepted:.0%}",
            ]
        )
    each = f"{comparison.max_tokens} tokens each at temperature {temperature:g}"
    return [f"{comparison.setting}; {each}, equal in all chains", *aligned(rows)]
