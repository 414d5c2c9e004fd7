"""Plots a comparison of chains. The only module that needs matplotlib."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specqd.bench.levels import Comparison, Summary
from specqd.errors import RequestError
from specqd.extras import install_command

_DRAFTS = "#1a7f37"
_LIMIT = "#0b69a3"
_FEWEST = 10  # proposals that reached a position; fewer are not plotted


def require_matplotlib() -> None:
    """Raises RequestError if matplotlib is missing."""
    if find_spec("matplotlib") is None:
        raise RequestError(f"plots need matplotlib; {install_command('bench')}")


def draw(path: Path, comparison: Comparison) -> None:
    """Draws a row per temperature: speed-ups with 95 % intervals, and acceptance by position in
    the proposal, for each level."""
    require_matplotlib()
    from matplotlib.figure import Figure

    by_temperature = comparison.by_temperature
    rows = len(by_temperature)
    figure = Figure(figsize=(13, 1.0 + 3.4 * rows), layout="constrained")
    figure.suptitle(f"{comparison.model}, {comparison.num_prompts} prompts of {comparison.prompts}")
    axes = figure.subplots(rows, 2, squeeze=False)
    for (temperature, summaries), (speed, places) in zip(by_temperature.items(), axes, strict=True):
        _draw_speedups(speed, summaries)
        _draw_places(places, summaries)
        speed.set_ylabel(f"temperature {temperature:g}")
    try:
        figure.savefig(path, dpi=150)
    except ValueError as error:
        raise RequestError(f"{path}: {error}") from error


def _draw_speedups(axes: Any, summaries: Sequence[Summary]) -> None:
    places = range(len(summaries))
    ratios = [summary.over_plain for summary in summaries]
    spans = [[r.median - r.low for r in ratios], [r.high - r.median for r in ratios]]
    axes.barh(places, [r.median for r in ratios], color=_DRAFTS, alpha=0.35)
    axes.errorbar(
        [r.median for r in ratios],
        places,
        xerr=spans,
        fmt="none",
        ecolor=_DRAFTS,
        capsize=4,
        label="x plain decoding, 95 % interval",
    )
    limits = [summary.over_bf16_limit.median for summary in summaries]
    axes.plot(limits, places, "D", color=_LIMIT, label="x BF16 limit")
    axes.axvline(1.0, color="grey", linewidth=0.8)
    axes.set_yticks(places, [summary.name for summary in summaries])
    axes.invert_yaxis()
    axes.set_xlabel("relative decoding speed")
    axes.legend(fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)


def _draw_places(axes: Any, summaries: Sequence[Summary]) -> None:
    """A line per level that verifies: solid for the target, dotted below it."""
    for number, summary in enumerate(summaries):
        for depth, level in enumerate(summary.levels):
            reached = sum(drafted >= _FEWEST for drafted in level.drafted_at)
            if reached:
                axes.plot(
                    range(1, reached + 1),
                    level.acceptance_at[:reached],
                    "o:" if depth else "o-",
                    color=f"C{number}",
                    markersize=3,
                    label=f"{summary.name}: by {level.name}" if depth else summary.name,
                )
    axes.set_ylim(0.0, 1.02)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("position in the proposal")
    axes.set_ylabel("accepted")
    if axes.lines:
        axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.01, 0.5))
