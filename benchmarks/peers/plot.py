"""Plots JSON results in one picture, with a panel for each, or for each set of prompts.

python benchmarks/peers/plot.py RESULT.json ... --png PICTURE.png
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from page import fastest, label

COLOURS = {
    "specqd": "#1a7f37",
    "llama.cpp": "#8250df",
    "openvino": "#0b69a3",
    "transformers": "#bf8700",
}
BARS = (("decode", 0.8, 0.35), ("wall", 0.3, 0.9))  # quantity, height, opacity


def draw(summaries: Sequence[dict[str, Any]], path: Path) -> None:
    heights = [1.3 + 0.28 * len(summary["arms"]) for summary in summaries]
    figure = Figure(figsize=(10, sum(heights)), layout="constrained")
    panels = figure.subplots(len(summaries), 1, squeeze=False, height_ratios=heights)[:, 0]
    for panel, summary in zip(panels, summaries, strict=True):
        _draw_panel(panel, summary)
    figure.savefig(path, dpi=120)


def draw_sets(summary: dict[str, Any], path: Path) -> None:
    """Panels side by side, one for each set of prompts, and what each arm costs at the right."""
    shown = fastest(summary["arms"])
    figure = Figure(figsize=(11, 1.6 + 0.3 * len(shown)), layout="constrained")
    panels = figure.subplots(1, len(summary["sets"]), squeeze=False, sharey=True)[0]
    for panel, (name, of_set) in zip(panels, summary["sets"].items(), strict=True):
        found = {arm["name"]: arm for arm in of_set["arms"]}
        places = [place for place, arm in enumerate(shown) if arm["name"] in found]
        _bars(panel, places, [found[shown[place]["name"]] for place in places])
        panel.set_title(name.partition(".jsonl")[0], fontsize="medium")
        panel.set_xlabel("tokens/s")
    panels[0].set_yticks(
        range(len(shown)), [label(arm["name"]).replace("`", "") for arm in shown], fontsize="small"
    )
    panels[0].invert_yaxis()
    costs = panels[-1].secondary_yaxis("right")
    costs.set_yticks(range(len(shown)), [_cost(arm) for arm in shown], fontsize="small")
    costs.tick_params(length=0)
    machine = summary["machine"]
    figure.suptitle(
        f"{summary['model']}, greedy, {summary['new_tokens']} tokens: {machine['cpu']}, "
        f"{machine['threads']} threads\n"
        "wide: decoding, narrow: with the prompt (medians, quartiles)",
        fontsize="medium",
    )
    figure.savefig(path, dpi=120)


def _cost(arm: Mapping[str, Any]) -> str:
    same = arm["equal_to_exact"]
    share = "exact" if arm["engine"] == "specqd" else f"{same['equal']} of {same['outputs']} exact"
    return f"{arm['peak_memory'] / 1e9:.1f} GB, {share}"


def _draw_panel(panel: Any, summary: dict[str, Any]) -> None:
    arms = summary["arms"]
    places = range(len(arms))
    _bars(panel, places, arms)
    panel.set_yticks(places, [arm["name"] for arm in arms], fontsize="small")
    panel.invert_yaxis()
    panel.set_xlabel("tokens/s; wide: decoding, narrow: with the prompt (medians, quartiles)")
    machine = summary["machine"]
    panel.set_title(
        f"{summary['experiment']}, {summary['model']}: {machine['cpu']}, {machine['isa']}, "
        f"{machine['threads']} threads, {summary['rounds']} rounds",
        fontsize="medium",
    )


def _bars(panel: Any, places: Sequence[int], arms: Sequence[Mapping[str, Any]]) -> None:
    for what, height, opacity in BARS:
        spreads = [arm[f"{what}_tokens_per_s"] for arm in arms]
        medians = [spread["median"] for spread in spreads]
        low = [s["median"] - s["quartiles"][0] for s in spreads]
        high = [s["quartiles"][1] - s["median"] for s in spreads]
        panel.barh(
            places,
            medians,
            height,
            xerr=[low, high],
            color=[COLOURS[arm["engine"]] for arm in arms],
            alpha=opacity,
            error_kw={"ecolor": "black", "capsize": 2, "linewidth": 0.8},
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--png", type=Path, required=True)
    options = parser.parse_args()
    summaries = [json.loads(path.read_text()) for path in options.results]
    if len(summaries) == 1 and "sets" in summaries[0]:
        draw_sets(summaries[0], options.png)
    else:
        draw(summaries, options.png)


if __name__ == "__main__":
    main()
