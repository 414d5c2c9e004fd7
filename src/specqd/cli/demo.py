"""`specqd demo`: decodes a prompt plainly, then with the model's own MXFP4 draft. Checks that the
tokens are equal, and prints both speeds with the bytes moved and the bandwidth."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import click

from specqd.cli.opening import open_llm
from specqd.cli.options import machine_options, model_argument
from specqd.cli.terminal import ProgressBar, aligned, harmless, write_text
from specqd.errors import SpecqdError

if TYPE_CHECKING:
    from specqd.engine.reports import LevelReport, Stats
    from specqd.llm import LLM, Result
    from specqd.sampling import SamplingParams
    from specqd.text.tokenizer import Tokenizer

_PROMPT = '''import json
from pathlib import Path


class Settings:
    """Settings that are read from a file."""

    def __init__(self, path):
        self.path = Path(path)
'''
_REPEATS = 5  # of each way of decoding, in turn, so that a noisy moment does not decide

_PRECISIONS = {"bf16": "exact", "mxfp4": "fp4"}  # by the name of a level


@dataclass(frozen=True, slots=True)
class Way:
    """One way of decoding, and its runs; the first run is the one that was shown."""

    title: str
    llm: "LLM"
    results: "list[Result]"

    @property
    def tokens_per_s(self) -> float:
        return median(result.stats.tokens_per_s for result in self.results)

    @property
    def stats(self) -> "Stats":
        """Those of the median run."""
        ordered = sorted(self.results, key=lambda result: result.stats.tokens_per_s)
        return ordered[len(ordered) // 2].stats

    @property
    def bytes_per_token(self) -> float:
        moved = sum(level.gigabytes for level in self.stats.levels) * 1e9
        return moved / self.stats.new_tokens


@dataclass(frozen=True, slots=True)
class Limits:
    """GB/s measured at the bytes that each level reads, and at those of plain BF16 weights."""

    bf16_bytes: int
    bf16_gb_per_s: float
    by_level: dict[str, float]

    @property
    def bf16_tokens_per_s(self) -> float:
        """The upper limit of any reader of plain BF16 weights, one token per forward."""
        return self.bf16_gb_per_s * 1e9 / self.bf16_bytes


@click.command()
@model_argument
@click.option("-p", "--prompt", default=_PROMPT, metavar="TEXT", help="Text to continue.")
@click.option("-n", "--max-tokens", default=128, show_default=True, help="Maximum of new tokens.")
@click.option("--temperature", default=0.7, show_default=True, help="0: greedy.")
@click.option("--seed", default=4, show_default=True, help="Seed of sampling.")
@machine_options
def demo(
    model: str | None,
    prompt: str,
    max_tokens: int,
    temperature: float,
    seed: int,
    threads: int | None,
    isa: str | None,
) -> None:
    """Compare plain decoding with drafts.

    Decodes a prompt plainly, then with the MXFP4 self-draft, and checks that all tokens are equal.

    \b
    Examples:
      specqd demo
      specqd demo --temperature 0
      specqd demo ./my-model -p "Once upon a time" -n 200
    """
    from specqd.sampling import SamplingParams

    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)
    plain = open_llm(model, "none", threads, isa)
    click.echo(harmless("\n".join(introduction(plain))))
    ways = [
        Way("plain", plain, []),
        Way("with its MXFP4 draft", plain.with_draft("mxfp4"), []),
    ]
    for way in ways:
        click.echo(f"\n--- {way.title} ---")
        way.results.append(show(way.llm, prompt, params))
    limits = [measure_limits(ways)]
    with ProgressBar("Measuring") as bar:
        for repeat in range(1, _REPEATS):
            bar(repeat, _REPEATS)
            for way in ways:
                way.results.extend(way.llm.generate(prompt, params))
            limits.append(measure_limits(ways))
    count = check_identical(ways, plain.tokenizer)
    click.echo(f"\nIdentical: all {count} tokens, in {len(ways) * _REPEATS} runs.\n")
    click.echo("\n".join(report(ways, middle(limits))))


def introduction(llm: "LLM") -> list[str]:
    from specqd import _native

    machine, model = llm.model.machine, llm.model
    megabytes = [
        size / 1e6
        for size in (
            model.bf16_bytes_per_forward,
            model.bytes_per_forward,
            model.as_draft().bytes_per_forward,
        )
    ]
    return [
        f"{llm.directory.name} on {_native.cpu_model()}, {machine.pool.threads} threads, "
        f"{machine.isa}",
        "Weights: {:.1f} MB in BF16; read exactly from {:.1f} MB, of which {:.1f} MB are the "
        "MXFP4 draft.".format(*megabytes),
    ]


def show(llm: "LLM", prompt: str, params: "SamplingParams") -> "Result":
    """Streams a completion after its prompt."""
    write_text(prompt)
    stream = llm.stream(prompt, params)
    for piece in stream:
        write_text(piece)
    write_text("\n")
    assert stream.result is not None
    return stream.result


def check_identical(ways: Sequence[Way], tokenizer: "Tokenizer") -> int:
    """The number of tokens of every run. Raises SpecqdError at the first that differs."""
    from specqd.bench.levels import first_difference

    expected = ways[0].results[0].tokens
    for way in ways:
        for result in way.results:
            at = first_difference(expected, result.tokens)
            if at is not None:
                ours, theirs = (
                    repr(tokenizer.token_text(tokens[at])) if at < len(tokens) else "nothing"
                    for tokens in (expected, result.tokens)
                )
                raise SpecqdError(
                    f"NOT IDENTICAL: new token {at} is {ours} in the first plain run and {theirs} "
                    f"{way.title}; this is a defect of specqd, please report it"
                )
    return len(expected)


def measure_limits(ways: Sequence[Way]) -> Limits:
    from specqd.model.bandwidth import bandwidth_at

    model = ways[0].llm.model
    models = {each.precision.value: each for each in (model, model.as_draft())}
    return Limits(
        model.bf16_bytes_per_forward,
        bandwidth_at(model.machine, model.bf16_bytes_per_forward),
        {
            name: bandwidth_at(model.machine, each.bytes_per_forward)
            for name, each in models.items()
        },
    )


def middle(limits: Sequence[Limits]) -> Limits:
    """The median of each number."""
    return Limits(
        limits[0].bf16_bytes,
        median(each.bf16_gb_per_s for each in limits),
        {name: median(each.by_level[name] for each in limits) for name in limits[0].by_level},
    )


def report(ways: Sequence[Way], limits: Limits) -> list[str]:
    """The table: a column per way of decoding."""
    plain = ways[0].tokens_per_s
    rows = [["", *(way.title for way in ways)]]
    rows.append(["tokens/s", *(f"{way.tokens_per_s:.0f}" for way in ways)])
    rows.append(["MB moved per token", *(f"{way.bytes_per_token / 1e6:.1f}" for way in ways)])
    for name in limits.by_level:
        rows.append(
            [f"GB/s of the {_PRECISIONS[name]} precision", *(_speed(way, name) for way in ways)]
        )
        share = f"share of {limits.by_level[name]:.1f} GB/s, measured"
        rows.append([f"  {share}", *(_share(way, name, limits) for way in ways)])
    rows.append(["drafted tokens accepted", *(_acceptance(way) for way in ways)])
    rows.append(["tokens per exact forward", *(f"{_yield(way):.2f}" for way in ways)])
    rows.append(["x plain decoding", *(f"{way.tokens_per_s / plain:.2f}" for way in ways)])
    limit = limits.bf16_tokens_per_s
    rows.append(["x the BF16 limit", *(f"{way.tokens_per_s / limit:.2f}" for way in ways)])
    return [
        *aligned(rows),
        "",
        f"The BF16 limit is {limit:.0f} tokens/s: {limits.bf16_bytes / 1e6:.1f} MB per token at "
        f"{limits.bf16_gb_per_s:.1f} GB/s, the bandwidth measured",
        "now at that working-set size. Plain decoding already reads the smaller, nested weights.",
    ]


def _level(way: Way, name: str) -> "LevelReport | None":
    return next((level for level in way.stats.levels if level.name == name), None)


def _speed(way: Way, name: str) -> str:
    level = _level(way, name)
    return f"{level.gb_per_s:.1f}" if level else "-"


def _share(way: Way, name: str, limits: Limits) -> str:
    level = _level(way, name)
    return f"{level.gb_per_s / limits.by_level[name]:.0%}" if level else "-"


def _acceptance(way: Way) -> str:
    acceptance = way.stats.levels[0].acceptance
    return "-" if acceptance is None else f"{acceptance:.0%}"


def _yield(way: Way) -> float:
    return way.stats.new_tokens / way.stats.levels[0].forwards
