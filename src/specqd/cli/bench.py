"""`specqd bench`: measures bandwidth, kernels and the stages of a forward on this machine."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specqd.cli.bench_head import bench_head
from specqd.cli.bench_levels import levels, paper
from specqd.cli.command import Group
from specqd.cli.draft_options import PLAIN
from specqd.cli.opening import open_llm
from specqd.cli.options import (
    OUT_FILE,
    MachineChoice,
    json_option,
    machine_options,
    model_argument,
)
from specqd.cli.terminal import aligned, write_results

if TYPE_CHECKING:
    from specqd.bench.kernels import KernelSpeed
    from specqd.bench.stages import ForwardTimes
    from specqd.model.model import Machine


@click.group(cls=Group)
def bench() -> None:
    """Measure bandwidth, kernels and drafts on this machine."""


for each in (bench_head, levels, paper):
    bench.add_command(each)


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
    "--sequences",
    default=1,
    show_default=True,
    type=click.IntRange(1, 512),
    help="Sequences at once, each with so many rows.",
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
    sequences: int,
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
    from specqd._native import PAGE_POSITIONS
    from specqd.bench import stages
    from specqd.model.model import MAX_ROWS, Precision

    if rows * sequences > MAX_ROWS:
        raise click.UsageError(f"--rows times --sequences is at most {MAX_ROWS}")
    length = position + rows * (repeats + 1 if follow else 1)
    pages = -(-length // PAGE_POSITIONS)
    positions = sequences * pages * PAGE_POSITIONS if sequences > 1 else None
    opened = open_llm(model, PLAIN, machine, cache_positions=positions).model
    click.echo(opened.machine)
    measured = []
    for precision in Precision:
        times = stages.measure(opened, precision, rows, position, repeats, follow, sequences)
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
    whose = f" of each of {times.sequences} sequences" if times.sequences > 1 else ""
    title = f"{times.precision}, {times.rows} rows{whose}: {1e3 * times.seconds:.3f} ms"
    low, middle, high = times.shares
    read = (
        f"{times.moved_bytes / 1e6:.1f} MB at {middle:.0%} [{low:.0%}, {high:.0%}] of the "
        f"bandwidth, {times.gb_per_s:.1f} GB/s"
    )
    return ["", title, read, *aligned(rows)]
