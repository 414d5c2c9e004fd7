"""`specqd demo`: decodes a prompt plainly, then with the model's own 4-bit draft. Checks that the
tokens are equal, and prints both speeds with the bytes moved and the bandwidth."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING

import click

from specqd.cli.answers import PlainAnswer, write_answer
from specqd.cli.command import Command
from specqd.cli.draft_options import PLAIN
from specqd.cli.opening import open_llm
from specqd.cli.options import MachineChoice, machine_options, model_argument, option
from specqd.cli.screens import Streamed
from specqd.cli.terminal import ProgressBar, aligned, harmless, write_text
from specqd.errors import RequestError

if TYPE_CHECKING:
    from specqd.bench.levels import Run, Summary, Trial
    from specqd.llm import LLM
    from specqd.sampling import SamplingParams

# With the default temperature and seed, a continuation that does not repeat itself.
_PROMPT = '''class Stack:
    """A last-in, first-out list of items."""

    def __init__(self):
        self.items = []

    def __len__(self):
        return len(self.items)

    def push(self, item):
        self.items.append(item)

    def pop(self):
'''
_REPEATS = 5  # runs of each way of decoding, interleaved so that noise affects both
_TITLES = ("plain", "with its FP4 draft")


@click.command(cls=Command)
@model_argument
@option("-p", "--prompt", default=_PROMPT, metavar="TEXT", help="Text to continue.")
@option(
    *("-n", "--max-tokens"),
    also=("--predict", "--n-predict", "--num-predict", "--max-new-tokens"),
    default=128,
    show_default=True,
    type=click.IntRange(2),
    help="Maximum of new tokens.",
)
@option("--temperature", also=("--temp",), default=0.6, show_default=True, help="0: greedy.")
@option("--seed", also=("-s",), default=6, show_default=True, help="Seed of sampling.")
@machine_options
def demo(
    model: str | None,
    prompt: str,
    max_tokens: int,
    temperature: float,
    seed: int,
    machine: MachineChoice,
) -> None:
    """Compare plain decoding with drafts.

    Decodes a prompt plainly, then with the 4-bit self-draft, and checks that all tokens are equal.

    \b
    Examples:
      specqd demo
      specqd demo --temperature 0
      specqd demo ./my-model -p "Once upon a time" -n 200
    """
    from specqd.bench.levels import Trial, check_equal, encoded_ends, make_arms, summarised, trials
    from specqd.sampling import SamplingParams

    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)
    plain = open_llm(model, PLAIN, machine)
    click.echo(harmless("\n".join(introduction(plain))))
    arms = make_arms(plain, ["fp4"])
    [ids] = encoded_ends(plain, [prompt], max_tokens)
    shown = []
    for title, arm in zip(_TITLES, arms, strict=True):
        click.echo(f"\n--- {title} ---")
        write_text(prompt)
        shown.append(show(arm.llm, ids, params))
    check_equal(arms, Trial(0, tuple(shown), {}))
    if len(shown[0].tokens) < 2:
        raise RequestError("the text ends at its first token; choose another --prompt or --seed")
    done = []
    with ProgressBar("Measuring") as bar:
        for trial in trials(arms, [prompt], params, _REPEATS):
            done.append(trial)
            bar(len(done), _REPEATS)
    check_equal(arms, Trial(0, (shown[0], done[0].runs[1]), {}))
    count, runs = len(shown[0].tokens), len(arms) * (len(done) + 1)
    click.echo(f"\nIdentical: all {count} tokens, in {runs} runs.\n")
    click.echo("\n".join(report(plain, summarised(arms, done), done)))


def introduction(llm: "LLM") -> list[str]:
    from specqd.hub import model_name

    model = llm.model
    sizes = (
        model.bf16_bytes_per_forward,
        model.bytes_per_forward,
        model.as_draft().bytes_per_forward,
    )
    return [
        f"{model_name(llm.directory)} on {model.machine}",
        "Weights: {:.1f} MB in BF16; an exact forward reads {:.1f} MB, of which {:.1f} MB are the "
        "FP4 draft.".format(*(size / 1e6 for size in sizes)),
    ]


def show(llm: "LLM", prompt: list[int], params: "SamplingParams") -> "Run":
    """Streams a completion to standard output. Its times do not count."""
    from specqd.bench.levels import Run

    result = write_answer(llm.stream(prompt, params), PlainAnswer(Streamed()))
    return Run(result.tokens, 0.0, 0.0, ())


def report(plain: "LLM", summaries: "Sequence[Summary]", done: "Sequence[Trial]") -> list[str]:
    """The lines of the table, which has a column for each way of decoding."""
    tokens = sum(len(trial.runs[0].tokens) - 1 for trial in done)
    bf16_bytes = plain.model.bf16_bytes_per_forward
    bandwidth = median(trial.gb_per_s[bf16_bytes] for trial in done)

    def row(title: str, cell: "Callable[[Summary], str]", depth: int = 0) -> list[str]:
        return [title, *(cell(each) if depth < len(each.levels) else "-" for each in summaries)]

    rows = [
        ["", *_TITLES],
        row("tokens/s", lambda each: f"{each.tokens_per_s:.0f}"),
        row("MB moved per token", lambda each: f"{1e3 * each.gigabytes / tokens:.1f}"),
        row("GB/s of the exact precision", lambda each: f"{each.levels[0].gb_per_s:.1f}"),
        row("  share of the bandwidth", lambda each: f"{each.shares[0]:.0%}"),
        row("GB/s of the fp4 precision", lambda each: f"{each.levels[1].gb_per_s:.1f}", 1),
        row("  share of the bandwidth", lambda each: f"{each.shares[1]:.0%}", 1),
        row("drafted tokens accepted", lambda each: f"{each.levels[0].acceptance or 0:.0%}", 1),
        row("tokens per exact forward", lambda each: f"{tokens / each.levels[0].forwards:.2f}"),
        row("x plain decoding", lambda each: f"{each.over_plain.median:.2f}"),
        row("x the BF16 limit", lambda each: f"{each.over_bf16_limit.median:.2f}"),
    ]
    limit = f"{bandwidth * 1e9 / bf16_bytes:.0f} tokens/s: {bf16_bytes / 1e6:.1f} MB per token"
    return [
        *aligned(rows),
        "",
        f"The BF16 limit is {limit} at {bandwidth:.1f} GB/s, the bandwidth measured",
        "now at that working-set size. Plain decoding already reads the smaller, nested weights.",
    ]
