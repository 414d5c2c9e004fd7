"""`specqd bench levels` and `specqd bench paper`: chains of drafts against plain decoding."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specqd.cli.agreement import agreement_lines, measure_agreement
from specqd.cli.command import Command
from specqd.cli.completion import complete_model
from specqd.cli.draft_options import Drafting, small_options
from specqd.cli.opening import open_llm
from specqd.cli.options import (
    MODEL_IS,
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
    from specqd.bench.levels import Arm, Comparison, Summary, Trial
    from specqd.bench.rounds import Interval
    from specqd.llm import LLM
    from specqd.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run, and where the results go, whatever the arms are."""

    prompts_file: Path
    limit: int
    rounds: int
    max_tokens: int
    temperatures: tuple[float, ...]
    machine: MachineChoice
    json_file: Path | None
    plot: Path | None

    @property
    def params(self) -> "dict[float, SamplingParams]":
        """By temperature."""
        from specqd.sampling import SamplingParams

        common = SamplingParams(max_tokens=self.max_tokens, ignore_eos=True)
        return {each: replace(common, temperature=each) for each in self.temperatures}

    def prompts(self) -> list[str]:
        """Reads the prompts, and refuses a plot that cannot be drawn."""
        from specqd.bench.level_plot import require_matplotlib
        from specqd.bench.levels import read_prompts

        if self.plot is not None:
            require_matplotlib()
        return read_prompts(self.prompts_file, self.limit)

    def comparison(self, plain: "LLM", prompts: Sequence[str]) -> "Comparison":
        from specqd.bench.levels import Comparison

        return Comparison.on(
            plain,
            prompts=self.prompts_file.name,
            num_prompts=len(prompts),
            rounds=self.rounds,
            max_tokens=self.max_tokens,
        )

    def run(
        self,
        comparison: "Comparison",
        arms: "Sequence[Arm]",
        prompts: Sequence[str],
        formats: "Sequence[FormatAgreement] | None" = None,
    ) -> None:
        """Times all arms at each temperature; prints, plots and writes the results. If the user
        interrupts it, the results are those of the runs until then."""
        from specqd.bench.level_plot import draw
        from specqd.bench.levels import summarised

        wanted, is_interrupted = len(prompts) * self.rounds, False
        for temperature, params in self.params.items():
            done = self._runs(f"Temperature {temperature:g}", arms, prompts, params)
            if done:
                summaries = summarised(arms, done)
                comparison.by_temperature[temperature] = summaries
                click.echo("\n".join(_table(temperature, summaries, wanted)))
            is_interrupted = len(done) < wanted
            if is_interrupted:
                break
        if comparison.by_temperature:
            if self.plot is not None:
                draw(self.plot, comparison)
            write_results(described(comparison, formats), self.json_file)
        if is_interrupted:
            raise KeyboardInterrupt

    def _runs(
        self, label: str, arms: "Sequence[Arm]", prompts: Sequence[str], params: "SamplingParams"
    ) -> "list[Trial]":
        """The runs of each prompt, or those until the user interrupts them."""
        from specqd.bench.levels import trials

        done: list[Trial] = []
        with suppress(KeyboardInterrupt), ProgressBar(label) as bar:
            for trial in trials(arms, prompts, params, self.rounds):
                done.append(trial)
                bar(len(done), len(prompts) * self.rounds)
        return done


def plan_options(
    limit: int, temperatures: tuple[float, ...]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options of a Plan with these defaults, as the one argument `plan`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        fields = Plan.__dataclass_fields__

        @wraps(command)
        def with_plan(**options: Any) -> Any:
            plan = Plan(**{name: options.pop(name) for name in fields})
            return command(plan=plan, **options)

        rounds = click.option(
            "--rounds",
            default=1,
            show_default=True,
            type=click.IntRange(1),
            help="Runs of each prompt.",
        )
        plot = click.option(
            "--plot", type=OUT_FILE, help="Also plot the results; needs the extra `bench`."
        )
        measured = limits(limit, 128, "New tokens of each run.")
        placed = machine_options(json_option(plot(with_plan)))
        return prompts_option(rounds(measured(temperatures_option(*temperatures)(placed))))

    return decorate


@click.command(cls=Command)
@model_argument
@option(
    "--chain",
    "chains",
    multiple=True,
    metavar="DRAFTS",
    help='Values for --draft, outermost level first, such as "fp4 ngram". May repeat.',
)
@small_options(
    "chains",
    "A smaller model for auto; the default chains also have it alone and below fp4 if it is named.",
)
@plan_options(20, (0.0, 0.8))
def levels(model: str | None, chains: tuple[str, ...], small: str | None, plan: Plan) -> None:
    """Time chains of drafts against plain decoding, and check that all tokens are equal.

    First loads each format of draft weights and shows how often its draft agrees with the model.
    Default chains: fp4 and auto; with --small also the small model alone and below fp4.
    Chains may name fp4 and mxfp4; the model is then loaded in both formats.
    Batch 1; ratios are medians over prompts with their 95 % interval. "accepted" is the acceptance
    rate of the drafts for each level, outermost first; "of the context", the share of its keys and
    values that each draft reads. Ctrl-C ends it with the results of the runs until then.

    \b
    Examples:
      specqd bench levels --prompts prompts.jsonl
      specqd bench levels ./big --prompts prompts.jsonl --small ./small --plot levels.png
      specqd bench levels --prompts prompts.jsonl --chain fp4:k=4 --chain "mxfp4 ngram" --limit 50
    """
    from specqd.bench.levels import PLAIN, chain_to_open, default_chains, make_arms, words_of

    prompts = plan.prompts()
    compared = chains or default_chains(None if small == "auto" else small)
    opened = Drafting(tuple(words_of(chain_to_open(compared))), small)
    plain = open_llm(model, opened, plan.machine).with_draft(PLAIN)
    with ProgressBar("Loading drafts") as bar:
        arms = make_arms(plain, compared, bar)
    comparison = plan.comparison(plain, prompts)
    click.echo(_setting(comparison))
    formats = measure_agreement(plain, prompts, list(plan.params.values()))
    click.echo("\n".join(["", *agreement_lines(formats)][:-1]))
    plan.run(comparison, arms, prompts, formats)


@click.command(cls=Command)
@click.argument("model", shell_complete=complete_model, help=MODEL_IS)
@click.argument(
    "small", shell_complete=complete_model, help="A smaller model with the same tokens."
)
@plan_options(100, (0.0,))
def paper(model: str, small: str, plan: Plan) -> None:
    """Time the arms of the ML-SpecQD paper (arXiv 2503.13565) and ours on the same prompts.

    GREEDY is plain decoding. MXFP4 drafts with the model's own weights in MXFP4, DRAFT with SMALL
    in BF16, and MULTI with the MXFP4 weights, for which SMALL drafts in MXFP4; 8 tokens at a time,
    as in the authors' script. Then come our own draft (fp4), the default (auto), and both with
    SMALL below and beside them (auto+small); their lengths adapt. The models are loaded in both
    formats. Columns are those of `bench levels`.

    \b
    Example:
      specqd bench paper ./7b ./0.5b --prompts mbpp.jsonl --json paper.json --plot paper.png
    """
    from specqd.bench.levels import PLAIN, name_of
    from specqd.bench.paper import paper_arms, paper_chains

    prompts = plan.prompts()
    drafted = open_llm(
        model, Drafting(tuple(paper_chains(small)["DRAFT"]), None), plan.machine
    )  # checks both first
    plain = drafted.with_draft(PLAIN)
    with ProgressBar("Loading drafts") as bar:
        arms = paper_arms(plain, small, bar)
    comparison = plan.comparison(plain, prompts)
    width = max(len(arm.name) for arm in arms)
    legend = [f"{arm.name.ljust(width)}  {name_of(arm.chain)}" for arm in arms]
    click.echo("\n".join([_setting(comparison), "", *map(one_line, legend)]))
    plan.run(comparison, arms, prompts)


def described(
    comparison: "Comparison", formats: "Sequence[FormatAgreement] | None"
) -> dict[str, Any]:
    """The object that --json prints."""
    if formats is None:
        return comparison.described()
    return comparison.described() | {"agreement": [each.described() for each in formats]}


def _setting(comparison: "Comparison") -> str:
    return one_line(
        f"{comparison.setting}; {comparison.num_prompts} prompts of {comparison.prompts}, "
        f"{comparison.rounds} x {comparison.max_tokens} new tokens each"
    )


def _table(temperature: float, summaries: "Sequence[Summary]", wanted: int) -> list[str]:
    header = [
        *("chain", "tokens/s", "x plain", "", "x BF16 limit", "", "x plain, wall", ""),
        *("prefill ms", "accepted", "length", "of the context", "share of bandwidth"),
    ]
    rows = [header, *(_row(summary) for summary in summaries)]
    title, runs = f"temperature {temperature:g}: equal tokens in all chains", summaries[0].runs
    if runs < wanted:
        title += f", in {runs} of {wanted} runs"
    return ["", title, *aligned(rows)]


def _row(summary: "Summary") -> list[str]:
    rates = [level.acceptance for level in summary.levels]
    reads = [level.cache_share for level in summary.levels[1:]]
    length = summary.levels[0].mean_accepted_length
    return [
        one_line(summary.name),
        f"{summary.tokens_per_s:.1f}",
        *interval_cells(summary.over_plain),
        *interval_cells(summary.over_bf16_limit),
        *interval_cells(summary.wall_over_plain),
        f"{1e3 * summary.prefill_s:.1f}",
        " ".join(f"{rate:.0%}" for rate in rates if rate is not None) or "-",
        "-" if length is None else f"{length:.2f}",
        " ".join(f"{read:.0%}" for read in reads if read is not None) or "-",
        " ".join(f"{share:.0%}" for share in summary.shares),
    ]


def interval_cells(interval: "Interval") -> list[str]:
    return [f"{interval.median:.2f}", f"[{interval.low:.2f}, {interval.high:.2f}]"]
