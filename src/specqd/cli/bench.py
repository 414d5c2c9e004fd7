"""`specqd bench`: what this machine can do."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from specqd.cli.options import machine_options
from specqd.cli.terminal import aligned


@click.group()
def bench() -> None:
    """Measure this machine."""


@bench.command()
@machine_options
@click.option("--json", "json_file", type=click.Path(dir_okay=False), help="Also write a file.")
def bandwidth(threads: int | None, isa: str | None, json_file: str | None) -> None:
    """Read memory of growing size: the limit that all decoding runs against.

    \b
    Example:
      specqd bench bandwidth --threads 4 --json bandwidth.json
    """
    from specqd import _native
    from specqd.bench.bandwidth import MEGABYTE, SIZES, measure
    from specqd.model import Machine

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
        Path(json_file).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
