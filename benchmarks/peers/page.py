"""Makes the tables of docs/performance.md, as JSON, from the results of the peers.

python benchmarks/peers/page.py benchmarks/results benchmarks/results/tables

The script that fills the pages puts them into docs/performance.md.
"""

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from harness import write_table

Cells = list[Any]


def decode_table(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Plain decoding by arm, and the ratio of specqd over each peer's arm of the same width."""
    shares = {arm["name"]: arm["share_of_bandwidth"]["median"] for arm in summary["arms"]}
    rows = []
    for arm in summary["arms"]:
        row = [arm["name"], _spread(arm["decode_tokens_per_s"], 1)]
        row += [round(arm["wall_tokens_per_s"]["median"], 1), round(shares[arm["name"]], 2)]
        ours = "specqd bf16" if arm["name"].endswith("bf16") else "specqd mxfp4"
        ratio = summary["specqd_over"][ours].get(arm["name"], {}).get("decode")
        at_most = ratio and round(ratio["median"] / shares[ours], 2)
        rows.append([*row, ratio and _spread(ratio, 2), at_most])
    columns = [
        "arm",
        _column("decoding", ".1f"),
        _column("with the prompt", ".1f"),
        _column("of bandwidth", ".2f"),
        _column("ours over it", ".2f"),
        _column("at most", ".2f"),
    ]
    title = f"Plain decoding of `{summary['model']}`, tokens/s: {_counts(summary)}"
    return {"title": title, "columns": columns, "rows": rows}


def synthetic_table(by_acceptance: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Decoding by arm at each acceptance."""
    rows: dict[str, Cells] = {}
    for acceptance, summary in by_acceptance.items():
        for arm in summary["arms"]:
            name = arm["name"].removesuffix(f" p={acceptance}")
            rows.setdefault(name, [name]).append(_spread(arm["decode_tokens_per_s"], 1))
    columns = ["arm", *(_column(f"p = {acceptance}", ".1f") for acceptance in by_acceptance)]
    first = next(iter(by_acceptance.values()))
    title = f"Decoding of `{first['model']}` at a set acceptance p, tokens/s: {_counts(first)}"
    return {"title": title, "columns": columns, "rows": list(rows.values())}


def text_table(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Decoding by arm, each way of drafting at its fastest length; the ratio of `auto` over it."""
    over = summary["specqd_over"]["specqd bf16 + auto"]
    fastest: dict[str, float] = {}
    for arm in summary["arms"]:
        way, speed = _way(arm["name"]), arm["wall_tokens_per_s"]["median"]
        fastest[way] = max(speed, fastest.get(way, 0.0))
    rows = []
    for arm in summary["arms"]:
        if arm["wall_tokens_per_s"]["median"] < fastest[_way(arm["name"])]:
            continue
        row = [arm["name"], _spread(arm["decode_tokens_per_s"], None)]
        row.append(round(arm["wall_tokens_per_s"]["median"]))
        row.append(round(arm["accepted"] / arm["drafted"], 2) if arm.get("drafted") else None)
        same, ratio = arm.get("equal_to_own_plain"), over.get(arm["name"])
        row.append(same and f"{same['equal']} of {same['outputs']}")
        row += [ratio and round(ratio[of]["median"], 2) for of in ("decode", "wall")]
        rows.append(row)
    columns = [
        "arm",
        _column("decoding", "d"),
        _column("with the prompt", "d"),
        _column("accepted", ".2f"),
        "equal",
        _column("`auto` over it", ".2f"),
        _column("... with the prompt", ".2f"),
    ]
    what = f"`{summary['model']}`, greedy, tokens/s"
    return {"title": f"{what}: {_counts(summary)}", "columns": columns, "rows": rows}


def _way(arm: str) -> str:
    """The arm's name without the length; all n-grams of an engine count as one way."""
    return re.sub(r" ngram-\S+", " ngram", re.sub(r" k=\d+", "", arm))


def _column(name: str, form: str) -> dict[str, str]:
    return {"name": name, "format": form}


def _spread(values: Mapping[str, Any], digits: int | None) -> list[float]:
    return [round(value, digits) for value in (values["median"], *values["quartiles"])]


def _counts(summary: Mapping[str, Any]) -> str:
    sittings = "sitting" if summary["sittings"] == 1 else "sittings"
    counts = f"{summary['rounds']} rounds in {summary['sittings']} {sittings}"
    return f"medians and quartiles of {counts}"


def _bandwidth(summary: Mapping[str, Any]) -> str:
    """Medians before and after the rounds, by size if one of the sizes fits into a cache."""
    found = {
        int(size): [round(around[when]["median"]) for when in ("before", "after")]
        for size, around in summary["bandwidth_gb_per_s"].items()
    }
    if summary["experiment"] != "text":
        return f"{_span([speed for speeds in found.values() for speed in speeds])} GB/s"
    return ", ".join(
        f"{_span(speeds)} GB/s at {size / 1e6:.0f} MB" for size, speeds in found.items()
    )


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low} to {high}"


def measured(summary: Mapping[str, Any], bandwidth: str) -> dict[str, str]:
    """The machine, date, commit and command of a table."""
    machine, (file, _, kind) = summary["machine"], summary["prompts"].partition(", ")
    prompts = f" {'CHATS' if kind else 'PROMPTS'}={file}"
    return {
        "machine": f"{machine['cpu']}, {machine['threads']} threads, {machine['isa']}; {bandwidth}",
        "date": summary["begun"].partition("T")[0],
        "commit": ", ".join(summary["commits"]),
        "command": "make bench-peers" + (prompts if ".jsonl" in prompts else ""),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("tables", type=Path)
    options = parser.parse_args()

    def results(name: str) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((options.results / f"peers-{name}.json").read_text())
        return summary

    by_acceptance = {p: results(f"synthetic-{p}") for p in ("0.8", "0.9")}
    bandwidths = ", ".join(f"{_bandwidth(s)} (p = {p})" for p, s in by_acceptance.items())
    decode, text, chat = results("decode"), results("text"), results("chat")
    made = {
        "chat": (text_table(chat), chat, _bandwidth(chat)),
        "decode": (decode_table(decode), decode, _bandwidth(decode)),
        "synthetic": (synthetic_table(by_acceptance), by_acceptance["0.8"], bandwidths),
        "text": (text_table(text), text, _bandwidth(text)),
    }
    for name, (table, summary, bandwidth) in made.items():
        title = {"title": table.pop("title")}
        full = title | measured(summary, bandwidth) | table
        write_table(options.tables / f"peers-{name}.json", full)


if __name__ == "__main__":
    main()
