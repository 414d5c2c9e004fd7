"""Plots JSON results in one picture, with a panel for each.

python benchmarks/peers/plot.py RESULT.json ... --png PICTURE.png
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

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


def _draw_panel(panel: Any, summary: dict[str, Any]) -> None:
    arms = summary["arms"]
    places = range(len(arms))
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
    panel.set_yticks(places, [arm["name"] for arm in arms], fontsize="small")
    panel.invert_yaxis()
    panel.set_xlabel("tokens/s; wide: decoding, narrow: with the prompt (medians, quartiles)")
    machine = summary["machine"]
    panel.set_title(
        f"{summary['experiment']}, {summary['model']}: {machine['cpu']}, {machine['isa']}, "
        f"{machine['threads']} threads, {summary['rounds']} rounds",
        fontsize="medium",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--png", type=Path, required=True)
    options = parser.parse_args()
    draw([json.loads(path.read_text()) for path in options.results], options.png)


if __name__ == "__main__":
    main()
