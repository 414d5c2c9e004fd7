"""`specqd inspect` of a trained head: its kind and size."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from specqd.cli.terminal import harmless


def show_head(name: str, *, is_json: bool) -> bool:
    """Shows a trained head, if the name is a directory that holds one."""
    from specqd.model.head_summary import HeadSummary

    head = HeadSummary.of(Path(name)) if Path(name).is_dir() else None
    if head is None:
        return False
    if is_json:
        click.echo(json.dumps({"directory": name, **asdict(head)}))
        return True
    block = f", blocks of {head.block} tokens" if head.block is not None else ""
    lines = [
        name,
        f"  type        {head.kind}{block}, {head.parameters / 1e6:,.2f} M parameters",
        f"  layers      {head.layers} of {head.hidden_size}",
        f"  bytes       {head.bf16_bytes / 1e6:,.2f} MB in BF16, {head.fp4_bytes / 1e6:,.2f} MB in "
        "4 bits",
        f"  use         --draft head:{name}, with the model for which it was trained",
    ]
    click.echo("\n".join(harmless(line) for line in lines))
    return True
