"""`specqd bench head`: how often the guesses of a draft head are accepted, by place."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specqd.cli.command import Command
from specqd.cli.draft_options import Drafting
from specqd.cli.opening import open_llm
from specqd.cli.options import (
    MachineChoice,
    json_option,
    limits,
    machine_options,
    model_argument,
    prompts_option,
    temperatures_option,
)
from specqd.cli.terminal import ProgressBar, aligned, one_line, write_results
from specqd.errors import RequestError

if TYPE_CHECKING:
    from specqd.bench.heads import Difference, HeadAcceptance
    from specqd.llm import LLM
    from specqd.sampling import SamplingParams


@click.command("head", cls=Command)
@model_argument
@click.option(
    "--draft",
    "word",
    required=True,
    metavar="head:DIR|mtp[:bf16|:fp4]",
    help="The head to measure, or the model's own MTP layer.",
)
@prompts_option
@click.option(
    "--guesses",
    default=4,
    show_default=True,
    type=click.IntRange(1, 32),
    help="Tokens of each proposal.",
)
@limits(8, 64, "New tokens after each prompt.")
@temperatures_option(0.0, 0.8)
@click.option(
    "--probe",
    is_flag=True,
    help="Also read the head's configuration in other ways, one difference at a time, and compare.",
)
@machine_options
@json_option
def bench_head(
    model: str | None,
    word: str,
    prompts_file: Path,
    guesses: int,
    limit: int,
    max_tokens: int,
    temperatures: tuple[float, ...],
    probe: bool,
    machine: MachineChoice,
    json_file: Path | None,
) -> None:
    """Measure how often the guesses of a trained head are accepted, by place.

    The model writes a text. After each token the head proposes the next ones, and a guess is judged
    if all guesses before it are accepted. "length" is the mean number of tokens that a round with
    such a proposal makes, the model's own token included. "step" is the time of one forward of the
    head, relative to one of the model. With --probe, a second table compares other ways of reading
    the configuration with the stated one, with 95 % intervals: the length, and for drafters of
    blocks also "nats", the cross-entropy of the text under their logits. This shows smaller faults.

    \b
    Examples:
      specqd bench head ./model --draft head:./head --prompts prompts.jsonl
      specqd bench head ./model --draft head:./head --prompts prompts.jsonl --probe
    """
    from specqd.bench.levels import encoded_ends, read_prompts
    from specqd.sampling import SamplingParams

    is_head = word.startswith("head:") or word.partition(":")[0] == "mtp"
    if not is_head or "|" in word or ":k=" in word:
        raise RequestError(f"--draft {word}: write head:DIR or mtp, then :bf16 or :fp4 if needed")
    texts = read_prompts(prompts_file, limit)
    llm = open_llm(model, Drafting((f"{word}:k={guesses}",)), machine)
    prompts = encoded_ends(llm, texts, max_tokens)
    common = SamplingParams(max_tokens=max_tokens)
    click.echo(
        one_line(
            f"{llm.directory.name} on {llm.model.machine}; {len(prompts)} prompts of "
            f"{prompts_file.name}, {max_tokens} new tokens each"
        )
    )
    measured = list(_measured(llm, prompts, common, temperatures, probe))
    click.echo("\n".join(_lines(measured, guesses)))
    if probe:
        click.echo("\n".join(["", "Differences from the configuration as stated:"]))
        click.echo("\n".join(_difference_lines(measured)))
    write_results({"head": word, "results": [each.described() for each in measured]}, json_file)


def _measured(
    llm: "LLM",
    prompts: Sequence[Sequence[int]],
    common: "SamplingParams",
    temperatures: Sequence[float],
    probe: bool,
) -> "Iterator[HeadAcceptance]":
    from dataclasses import replace

    from specqd.bench import heads
    from specqd.bench.readings import HeadLevel, other_levels

    level = heads.head_level(llm.engine)
    levels: dict[str, HeadLevel] = {"as stated": level}
    if probe:
        levels |= dict(other_levels(level, llm.model))
    for temperature in temperatures:
        params = replace(common, temperature=temperature).resolved(llm.defaults)
        for reading, each in levels.items():
            with ProgressBar(f"Temperature {temperature:g}, {reading}") as bar:
                yield heads.head_acceptance(llm, each, prompts, params, bar, reading)


def _lines(measured: "Sequence[HeadAcceptance]", guesses: int) -> list[str]:
    places = [f"guess {place}" for place in range(1, guesses + 1)]
    rows = [["configuration", "temperature", *places, "length", "step ms", "step", "positions"]]
    for each in measured:
        rows.append(
            [
                one_line(each.reading),
                f"{each.temperature:g}",
                *(f"{share:.3f}" for share in each.conditional),
                f"{each.accepted_length:.2f}",
                f"{1e3 * each.step_s:.3f}",
                f"{each.step_s / each.target_s:.1%}" if each.target_s else "-",
                str(each.judged[0]),
            ]
        )
    return aligned(rows)


def _difference_lines(measured: "Sequence[HeadAcceptance]") -> list[str]:
    rows = [["configuration", "temperature", "length", "nats"]]
    for each in measured:
        stated = next(one for one in measured if one.temperature == each.temperature)
        if each is not stated:
            differences = (each.length_above(stated), each.nats_above(stated))
            cells = (_interval_cell(one) if one else "-" for one in differences)
            rows.append([one_line(each.reading), f"{each.temperature:g}", *cells])
    return aligned(rows)


def _interval_cell(found: "Difference") -> str:
    difference, low, high = found
    return f"{difference:+.3f} [{low:+.3f}, {high:+.3f}]"
