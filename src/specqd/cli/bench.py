"""`specqd bench`: measures bandwidth, kernels and chains of levels on this machine."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specqd.cli.agreement import agreement_lines, measure_agreement
from specqd.cli.bench_head import bench_head
from specqd.cli.command import Group
from specqd.cli.draft_options import PLAIN
from specqd.cli.opening import open_llm
from specqd.cli.options import (
    OUT_FILE,
    MachineChoice,
    json_option,
    limits,
    machine_options,
    model_argument,
    option,
    prompts_option,
    temperatures_option,
)
from specqd.cli.terminal import ProgressBar, aligned, one_line, write_results

if TYPE_CHECKING:
    from specqd.bench.draft_formats import FormatAgreement
    from specqd.bench.kernels import KernelSpeed
    from specqd.bench.levels import Arm, Comparison, Summary
    from specqd.bench.rounds import Interval
    from specqd.bench.stages import ForwardTimes
    from specqd.model.model import Machine
    from specqd.sampling import SamplingParams


@click.group(cls=Group)
def bench() -> None:
    """Measure bandwidth, kernels and drafts on this machine."""


bench.add_command(bench_head)


@bench.command()
@machine_options
@json_option
def bandwidth(machine: MachineChoice, json_file: Path | None) -> None:
    """Measure memory bandwidth by working-set size: the upper limit of decoding speed.

    \b
    Example:
      specqd bench bandwidth --threads 4 --json bandwidth.json
    """
    from specqd.model.bandwidth import MEGABYTE, SIZES, measure

    chosen = machine.machine()
    click.echo(chosen)
    click.echo("  working set      GB/s   quartiles")
    sizes = []
    for each in measure(chosen, SIZES):
        sizes.append(asdict(each))
        click.echo(
            f"{each.working_set_bytes / MEGABYTE:10.0f} MB  {each.gb_per_s:8.1f}  "
            f"{each.lower_quartile:.1f}-{each.upper_quartile:.1f}"
        )
    _write_json(json_file, chosen, {"isa": chosen.isa, "sizes": sizes})


@bench.command()
@click.option(
    "--rows", multiple=True, type=click.IntRange(1, 512), help="Rows of inputs. May repeat."
)
@click.option(
    "--megabytes",
    default=128.0,
    show_default=True,
    type=click.FloatRange(1, 65536),
    help="Size of the weights in fp4; in the exact precision they have three times that.",
)
@machine_options
@json_option
def kernels(
    rows: tuple[int, ...],
    megabytes: float,
    machine: MachineChoice,
    json_file: Path | None,
) -> None:
    """Time products with random weights in both precisions, against the bandwidth.

    Rows are the tokens of one forward. "share of bandwidth" compares with plain reads of as many
    bytes, timed before and after; "x BF16 limit" compares with a perfect reader of BF16 weights.

    \b
    Example:
      specqd bench kernels --rows 1 --rows 8 --json kernels.json
    """
    from specqd.bench import kernels as speeds

    chosen = machine.machine()
    packed = speeds.random_weights(speeds.weights_of(megabytes))
    click.echo(chosen)
    click.echo("precision  rows  Gweights/s    GB/s   share of bandwidth   x BF16 limit")
    cases = [
        speeds.Case(precision, chosen.isa, m)
        for precision in speeds.PRECISIONS
        for m in rows or speeds.ROWS
    ]
    measured = []
    for speed in speeds.measure(chosen, packed, speeds.INPUTS, cases):
        measured.append(asdict(speed))
        click.echo(_kernel_line(speed))
    _write_json(json_file, chosen, {"weights": packed.weights, "speeds": measured})


def _write_json(file: Path | None, machine: "Machine", results: dict[str, Any]) -> None:
    from specqd import _native

    facts = {"cpu": _native.cpu_model(), "threads": machine.pool.threads}
    write_results(facts | results, file)


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
    "--rows",
    default=1,
    show_default=True,
    type=click.IntRange(1, 512),
    help="Tokens of the forward: 1 in plain decoding, more where drafts are verified.",
)
@click.option(
    "--position",
    default=128,
    show_default=True,
    type=click.IntRange(0),
    help="Tokens before these rows, in the KV cache.",
)
@click.option(
    "--repeats", default=50, show_default=True, type=click.IntRange(1), help="Forwards to time."
)
@click.option(
    "--follow",
    is_flag=True,
    help="Begin each forward where the one before it ended, as in decoding.",
)
@machine_options
@json_option
@click.option(
    "--trace",
    type=OUT_FILE,
    help="Write the fastest forwards, by thread, for chrome://tracing or ui.perfetto.dev.",
)
def forward(
    model: str | None,
    rows: int,
    position: int,
    repeats: int,
    follow: bool,
    machine: MachineChoice,
    json_file: Path | None,
    trace: Path | None,
) -> None:
    """Time the stages of one forward in both precisions, against the bandwidth.

    A stage is a product, attention, the preparation of inputs, or the wait of a thread for the
    others. Times are medians over forwards, summed over layers and averaged over threads. Plain
    reads of as many bytes, up to 1 GB, measure the bandwidth after each forward; the quartiles
    compare each forward with its read.

    \b
    Example:
      specqd bench forward ./model --rows 4 --trace forward.json
    """
    from specqd.bench import stages
    from specqd.model.model import Precision

    opened = open_llm(model, PLAIN, machine).model
    click.echo(opened.machine)
    measured = []
    for precision in Precision:
        times = stages.measure(opened, precision, rows, position, repeats, follow)
        measured.append(times)
        click.echo("\n".join(_stage_lines(times)))
    forwards = [each.described() for each in measured]
    _write_json(json_file, opened.machine, {"isa": opened.machine.isa, "forwards": forwards})
    if trace is not None:
        trace.write_text(json.dumps(stages.chrome_trace(measured)) + "\n", encoding="utf-8")


def _stage_lines(times: "ForwardTimes") -> list[str]:
    rows = [["stage", "calls", "ms", "share"]]
    for stage in times.stages:
        share = stage.seconds / times.seconds
        rows.append([stage.name, f"{stage.calls}", f"{1e3 * stage.seconds:.3f}", f"{share:.0%}"])
    title = f"{times.precision}, {times.rows} rows: {1e3 * times.seconds:.3f} ms"
    low, middle, high = times.shares
    read = (
        f"{times.moved_bytes / 1e6:.1f} MB at {middle:.0%} [{low:.0%}, {high:.0%}] of the "
        f"bandwidth, {times.gb_per_s:.1f} GB/s"
    )
    return ["", title, read, *aligned(rows)]


@bench.command()
@model_argument
@prompts_option
@option(
    "--chain",
    "chains",
    excludes=("small",),
    multiple=True,
    metavar="DRAFTS",
    help='Values for --draft, outermost level first, such as "fp4 ngram". May repeat.',
)
@option(
    "--small", metavar="MODEL", help="A small draft model for the default chains, and for auto."
)
@click.option(
    "--rounds", default=1, show_default=True, type=click.IntRange(1), help="Runs of each prompt."
)
@limits(20, 128, "New tokens of each run.")
@temperatures_option
@machine_options
@json_option
@click.option("--plot", type=OUT_FILE, help="Also plot the results; needs the extra `bench`.")
def levels(
    model: str | None,
    prompts_file: Path,
    chains: tuple[str, ...],
    small: str | None,
    limit: int,
    rounds: int,
    max_tokens: int,
    temperatures: tuple[float, ...],
    machine: MachineChoice,
    json_file: Path | None,
    plot: Path | None,
) -> None:
    """Time chains of drafts against plain decoding, and check that all tokens are equal.

    First loads each format of draft weights and shows how often its draft agrees with the model.
    Default chains: fp4 and auto; with --small also the small model alone and below fp4.
    Batch 1; ratios are medians over prompts with their 95 % interval.

    \b
    Examples:
      specqd bench levels --prompts prompts.jsonl
      specqd bench levels ./big --prompts prompts.jsonl --small ./small --plot levels.png
      specqd bench levels --prompts prompts.jsonl --chain fp4:k=4 --chain "fp4 ngram" --limit 50
    """
    from specqd.bench.level_plot import draw, require_matplotlib
    from specqd.bench.levels import Comparison, default_chains, make_arms, read_prompts
    from specqd.sampling import SamplingParams

    if plot is not None:
        require_matplotlib()
    prompts = read_prompts(prompts_file, limit)
    plain = open_llm(model, replace(PLAIN, small=small or "auto"), machine)
    with ProgressBar("Loading drafts"):
        arms = make_arms(plain, chains or default_chains(small))
    comparison = Comparison.on(
        plain,
        prompts=prompts_file.name,
        num_prompts=len(prompts),
        rounds=rounds,
        max_tokens=max_tokens,
    )
    click.echo(_setting(comparison))
    common = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    by_temperature = {each: replace(common, temperature=each) for each in temperatures}
    formats = measure_agreement(plain, prompts, list(by_temperature.values()))
    click.echo("\n".join(["", *agreement_lines(formats)][:-1]))
    for temperature, params in by_temperature.items():
        summaries = _compared(arms, prompts, params, rounds)
        comparison.by_temperature[temperature] = summaries
        click.echo("\n".join(_level_lines(temperature, summaries)))
    if plot is not None:
        draw(plot, comparison)
    write_results(described(comparison, formats), json_file)


def described(comparison: "Comparison", formats: "Sequence[FormatAgreement]") -> dict[str, Any]:
    """The object that --json prints."""
    return comparison.described() | {"agreement": [each.described() for each in formats]}


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
        f"{comparison.setting}; {comparison.num_prompts} prompts of {comparison.prompts}, "
        f"{comparison.rounds} x {comparison.max_tokens} new tokens each"
    )


def _level_lines(temperature: float, summaries: "Sequence[Summary]") -> list[str]:
    header = [
        *("chain", "tokens/s", "x plain", "", "x BF16 limit", "", "x plain, wall", ""),
        *("prefill ms", "accepted", "length", "share of bandwidth"),
    ]
    rows = [header, *(_level_row(summary) for summary in summaries)]
    return ["", f"temperature {temperature:g}: equal tokens in all chains", *aligned(rows)]


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
