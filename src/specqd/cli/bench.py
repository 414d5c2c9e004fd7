"""`specqd bench`: what this machine can do."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specqd.cli.opening import open_llm
from specqd.cli.options import machine_options, model_argument
from specqd.cli.terminal import ProgressBar, aligned, one_line

if TYPE_CHECKING:
    from specqd.bench.kernels import KernelSpeed
    from specqd.bench.levels import Arm, Comparison, Interval, Summary
    from specqd.sampling import SamplingParams

_json_option = click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write a file.",
)


@click.group()
def bench() -> None:
    """Measure this machine."""


@bench.command()
@machine_options
@_json_option
def bandwidth(threads: int | None, isa: str | None, json_file: Path | None) -> None:
    """Read memory of growing size: the limit that all decoding runs against.

    \b
    Example:
      specqd bench bandwidth --threads 4 --json bandwidth.json
    """
    from specqd import _native
    from specqd.model.bandwidth import MEGABYTE, SIZES, measure
    from specqd.model.model import Machine

    machine = Machine.choose(threads, isa)
    click.echo(f"{_native.cpu_model()}, {machine.pool.threads} threads, {machine.isa}")
    click.echo("  working set      GB/s   quartiles")
    measured = []
    for each in measure(machine, SIZES):
        measured.append(each)
        [line] = aligned(
            [
                [
                    f"{each.working_set_bytes / MEGABYTE:10.0f} MB",
                    f"{each.gb_per_s:8.1f}",
                    f"{each.lower_quartile:.1f}-{each.upper_quartile:.1f}",
                ]
            ]
        )
        click.echo(line)
    if json_file:
        content = {
            "cpu": _native.cpu_model(),
            "threads": machine.pool.threads,
            "isa": machine.isa,
            "sizes": [asdict(each) for each in measured],
        }
        json_file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


@bench.command()
@click.option(
    "--rows", multiple=True, type=click.IntRange(1, 512), help="Rows of a product; may repeat."
)
@click.option(
    "--megabytes",
    default=128.0,
    show_default=True,
    type=click.FloatRange(1, 65536),
    help="Weights to read in the fp4 precision; the exact one reads three times that.",
)
@machine_options
@_json_option
def kernels(
    rows: tuple[int, ...],
    megabytes: float,
    threads: int | None,
    isa: str | None,
    json_file: Path | None,
) -> None:
    """Multiply random weights in both precisions: how near to the bandwidth the kernels run.

    A product's rows are the tokens of one forward. The share is of the bandwidth measured beside
    each; "x BF16 limit" is the speed over that of a perfect reader of BF16 weights.

    \b
    Example:
      specqd bench kernels --rows 1 --rows 8 --json kernels.json
    """
    from specqd import _native
    from specqd.bench import kernels as speeds
    from specqd.model.model import Machine

    machine = Machine.choose(threads, isa)
    packed = speeds.random_weights(speeds.weights_of(megabytes))
    click.echo(f"{_native.cpu_model()}, {machine.pool.threads} threads, {machine.isa}")
    click.echo("precision  rows  Gweights/s    GB/s   share of bandwidth   x BF16 limit")
    cases = [
        speeds.Case(precision, machine.isa, m)
        for precision in speeds.PRECISIONS
        for m in rows or speeds.ROWS
    ]
    measured = []
    for speed in speeds.measure(machine, packed, speeds.INPUTS, cases):
        measured.append(speed)
        click.echo(_kernel_line(speed))
    if json_file:
        content = {
            "cpu": _native.cpu_model(),
            "threads": machine.pool.threads,
            "weights": packed.weights,
            "speeds": [_kernel_json(speed) for speed in measured],
        }
        json_file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _kernel_json(speed: "KernelSpeed") -> dict[str, Any]:
    """With the case's precision also by the name that the field had before, `reading`."""
    facts = asdict(speed)
    old_name = {"fp4": "draft", "exact": "exact"}[speed.case.precision]
    facts["case"]["reading"] = old_name
    return facts


def _kernel_line(speed: "KernelSpeed") -> str:
    least, most = speed.share_range
    return (
        f"{speed.case.precision:7} {speed.case.rows:5} {speed.gweights_per_s:11.1f} "
        f"{speed.gb_per_s:7.1f}   {speed.share:5.0%} [{least:.0%}, {most:.0%}]".ljust(53)
        + f"{speed.over_bf16_limit:13.2f}"
    )


@bench.command()
@model_argument
@click.option(
    "--prompts",
    "prompts_file",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help='A JSON object a line: {"prompt": "..."}.',
)
@click.option("--chain", "chains", multiple=True, metavar="WORDS", help="An arm; may repeat.")
@click.option("--small", metavar="MODEL", help="A small model for the arms that need one.")
@click.option(
    "--rounds", default=1, show_default=True, type=click.IntRange(1), help="Runs of each prompt."
)
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1), help="Prompts.")
@click.option(
    *("-n", "--max-tokens"),
    default=128,
    show_default=True,
    type=click.IntRange(2),
    help="New tokens.",
)
@click.option(
    "--temperature",
    "temperatures",
    multiple=True,
    default=(0.0, 0.8),
    show_default=True,
    help="May repeat.",
)
@machine_options
@_json_option
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw it; needs specqd[bench]."
)
def levels(
    model: str | None,
    prompts_file: Path,
    chains: tuple[str, ...],
    small: str | None,
    limit: int,
    rounds: int,
    max_tokens: int,
    temperatures: tuple[float, ...],
    threads: int | None,
    isa: str | None,
    json_file: Path | None,
    plot: Path | None,
) -> None:
    """Time chains of drafts against plain decoding: equal tokens, and how much sooner.

    A chain is written as the words for --draft, from the outermost in. Left out: mxfp4 and auto,
    and with --small the small model alone and below mxfp4. Batch 1; ratios are medians over prompts
    with their 95 % interval. The last line is one JSON object, but on a terminal.

    \b
    Examples:
      specqd bench levels --prompts prompts.jsonl
      specqd bench levels ./big --prompts prompts.jsonl --small ./small --plot levels.png
      specqd bench levels --prompts prompts.jsonl --chain mxfp4:k=4 --chain "mxfp4 ngram" --limit 50
    """
    if chains and small:
        raise click.UsageError("--small is for the usual arms; name the small model in --chain")
    from specqd.bench.level_plot import draw, require_matplotlib
    from specqd.bench.levels import PLAIN, Comparison, default_chains, make_arms, read_prompts
    from specqd.sampling import SamplingParams

    if plot is not None:
        require_matplotlib()
    prompts = read_prompts(prompts_file, limit)
    plain = open_llm(model, PLAIN, threads, isa)
    arms = make_arms(plain, chains or default_chains(small))
    comparison = Comparison.on(
        plain,
        prompts=prompts_file.name,
        num_prompts=len(prompts),
        rounds=rounds,
        max_tokens=max_tokens,
    )
    click.echo(_setting(comparison))
    for temperature in temperatures:
        params = SamplingParams(max_tokens=max_tokens, temperature=temperature, ignore_eos=True)
        summaries = _compared(arms, prompts, params, rounds)
        comparison.by_temperature[temperature] = summaries
        click.echo("\n".join(_level_lines(temperature, summaries)))
    if plot is not None:
        draw(plot, comparison)
    content = json.dumps(comparison.described())
    if json_file:
        json_file.write_text(content + "\n", encoding="utf-8")
    if not sys.stdout.isatty():
        click.echo(content)


def _compared(
    arms: "Sequence[Arm]", prompts: Sequence[str], params: "SamplingParams", rounds: int
) -> "list[Summary]":
    from specqd.bench.levels import summarised, trials

    done = []
    with ProgressBar(f"Temperature {params.temperature:g}") as bar:
        for trial in trials(arms, prompts, params, rounds):
            done.append(trial)
            bar(len(done), len(prompts) * rounds)
    return summarised(arms, done)


def _setting(comparison: "Comparison") -> str:
    return one_line(
        f"{comparison.model} on {comparison.cpu}, {comparison.threads} threads, {comparison.isa}; "
        f"{comparison.num_prompts} prompts of {comparison.prompts}, "
        f"{comparison.rounds} x {comparison.max_tokens} new tokens each"
    )


def _level_lines(temperature: float, summaries: "Sequence[Summary]") -> list[str]:
    header = [
        *("chain", "tokens/s", "x plain", "", "x BF16 limit", "", "x plain, wall", ""),
        *("prefill ms", "accepted", "length", "share of bandwidth"),
    ]
    rows = [header, *(_level_row(summary) for summary in summaries)]
    return ["", f"temperature {temperature:g}: equal tokens in all arms", *aligned(rows)]


def _level_row(summary: "Summary") -> list[str]:
    verifier = summary.levels[0]
    accepted, length = verifier.acceptance, verifier.mean_accepted_length
    return [
        one_line(summary.title),
        f"{summary.tokens_per_s:.1f}",
        *interval_cells(summary.over_plain),
        *interval_cells(summary.over_bf16_limit),
        *interval_cells(summary.wall_over_plain),
        f"{1e3 * summary.prefill_s:.1f}",
        "-" if accepted is None else f"{accepted:.0%}",
        "-" if length is None else f"{length:.2f}",
        " ".join(f"{share:.0%}" for share in summary.shares),
    ]


def interval_cells(interval: "Interval") -> list[str]:
    return [f"{interval.median:.2f}", f"[{interval.low:.2f}, {interval.high:.2f}]"]
