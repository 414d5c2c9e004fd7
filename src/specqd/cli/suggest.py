"""`specqd inspect --drafts`: prints how often a model's own draft agrees with it, and the command
line of the fastest chain. Computes nothing itself."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specqd.cli.agreement import agreement_lines, measure_agreement, note_left_out
from specqd.cli.bench_levels import described, interval_cells
from specqd.cli.command import Command as AnyCommand
from specqd.cli.options import IN_FILE, Command, option
from specqd.cli.terminal import ProgressBar, aligned, one_line

if TYPE_CHECKING:
    from specqd.bench.levels import Comparison
    from specqd.llm import LLM

_OPTION = "--drafts"
_NEW_TOKENS = 64
_SECONDS = 60.0


class WithDrafts(AnyCommand):
    """A command whose `--drafts` takes all arguments up to the next option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        spread, is_drafts = list[str](), False
        for word in args:
            if word == _OPTION:
                spread.append(f"{_OPTION}=")  # so that --drafts without a DIR counts as given
            else:
                spread.append(f"{_OPTION}={word}" if is_drafts and word[:1] != "-" else word)
            is_drafts = word == _OPTION or (is_drafts and word[:1] != "-")
        return super().parse_args(ctx, spread)


def options(command: Command) -> Command:
    drafts = option(
        _OPTION,
        multiple=True,
        metavar="[DIR]...",
        help="Find the fastest drafts; each DIR is a model to try as a draft.",
    )
    prompts = option(
        "--prompts",
        needs="drafts",
        type=IN_FILE,
        help='With --drafts: file with one JSON object per line, {"prompt": "..."}. '
        "Default: eight built-in prompts.",
    )
    temperature = option(
        "--temperature",
        needs="drafts",
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
    """Measures how often the model's own draft agrees with it in each format, times the candidates
    and prints the command line of the fastest.

    `plain` decodes without drafts.
    """
    from specqd.bench.levels import Comparison, read_prompts
    from specqd.bench.suggestion import (
        DEFAULT_PROMPTS,
        HEATS,
        best_of,
        hold_heats,
        usable_arms,
    )
    from specqd.sampling import SamplingParams

    texts = read_prompts(prompts, sum(HEATS)) if prompts else list(DEFAULT_PROMPTS)
    new_tokens = min(_NEW_TOKENS, plain.model.config.max_positions // 2)
    params = SamplingParams(max_tokens=new_tokens, temperature=temperature, ignore_eos=True)
    formats = measure_agreement(plain, texts, [params])
    arms, left_out = usable_arms(plain, directories)
    note_left_out(left_out)
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
            "best": {"chain": best.chain, "command": command},
        }
        click.echo(json.dumps(described(comparison, formats) | suggestion))
    else:
        lines = [*agreement_lines(formats), *table(comparison, temperature)]
        click.echo("\n".join(map(one_line, lines)))
        click.echo(one_line(f"best: {command}"))


def command_for(model: str | None, chain: str) -> str:
    """The command line for a chain."""
    from specqd.bench.levels import words_of

    words = ["specqd", "generate", *([model] if model else [])]
    for word in words_of(chain):
        words += ["--draft", word]
    return shlex.join(words)


def table(comparison: "Comparison", temperature: float) -> list[str]:
    """A row per chain, fastest first."""
    rows = [["chain", "tokens/s", "x plain", "", "accepted"]]
    for summary in sorted(
        comparison.by_temperature[temperature], key=lambda s: -s.over_plain.median
    ):
        accepted = summary.levels[0].acceptance
        rows.append(
            [
                summary.name,
                f"{summary.tokens_per_s:.1f}",
                *interval_cells(summary.over_plain),
                "-" if accepted is None else f"{accepted:.0%}",
            ]
        )
    each = f"{comparison.max_tokens} tokens each at temperature {temperature:g}"
    return [f"{comparison.setting}; {each}, equal in all chains", *aligned(rows)]
