"""Makes the tables of docs/performance.md, as JSON, from the results of the peers.

python benchmarks/peers/page.py benchmarks/results benchmarks/results/tables

The script that fills the pages puts them into docs/performance.md.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
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
    rows = []
    for arm in fastest(summary["arms"]):
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


def formats_table(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Speed, memory and quality by arm, each way of drafting at its fastest length."""
    over = {
        word: summary["specqd_over"].get(f"specqd packed + {draft}", {})
        for word, draft in (("`auto`", "auto"), ("with the small model", "small/packed"))
    }
    rows = []
    for arm in fastest(summary["arms"]):
        same = arm["equal_to_exact"]
        row = [label(arm["name"]), _spread(arm["decode_tokens_per_s"], 1)]
        ratios = [ratios.get(arm["name"], {}).get("decode") for ratios in over.values()]
        row += [ratio and _spread(ratio, 2) for ratio in ratios]
        row += [round(arm["peak_memory"] / 1e9, 1), round(arm["bits_per_weight"], 1)]
        rows.append([*row, f"{same['equal']} of {same['outputs']}"])
    columns = [
        "engine, weights + draft",
        _column("tokens/s", ".1f"),
        *(_column(f"ours {word} over it", ".2f") for word in over),
        _column("memory, GB", ".1f"),
        _column("bits per weight", ".1f"),
        "text of exact BF16",
    ]
    return {"title": _of_formats(summary), "columns": columns, "rows": rows}


def sets_table(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Decoding by arm and set of prompts, the arms of `formats_table`."""
    shown = [arm["name"] for arm in fastest(summary["arms"])]
    rows: dict[str, Cells] = {name: [label(name)] for name in shown}
    columns: list[Any] = ["engine, weights + draft"]
    for name, of_set in summary["sets"].items():
        columns += [_column(name.partition(".jsonl")[0], ".1f"), "exact"]
        found = {arm["name"]: arm for arm in of_set["arms"]}
        for row in rows:
            arm = found.get(row)
            same = arm and arm["equal_to_exact"]
            rows[row] += [
                arm and _spread(arm["decode_tokens_per_s"], 1),
                same and f"{same['equal']} of {same['outputs']}",
            ]
    columns += [_column("with the prompt", ".1f"), _column("accepted", ".2f"), "equal"]
    for arm in fastest(summary["arms"]):
        same, drafted = arm.get("equal_to_own_plain"), arm.get("drafted")
        rows[arm["name"]] += [
            round(arm["wall_tokens_per_s"]["median"], 1),
            round(arm["accepted"] / drafted, 2) if drafted else None,
            same and f"{same['equal']} of {same['outputs']}",
        ]
    return {"title": _of_formats(summary), "columns": columns, "rows": list(rows.values())}


def long_table(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Speed of reading a long prompt and of decoding behind it, by arm."""
    over = summary["specqd_over"]["specqd packed + auto"]
    rows = []
    for arm in summary["arms"]:
        ratios = over.get(arm["name"], {})
        row = [label(arm["name"]), _spread(arm["decode_tokens_per_s"], 1)]
        row += [ratio and _spread(ratio, 2) for ratio in (ratios.get("decode"), ratios.get("wall"))]
        same = arm["equal_to_exact"]
        row += [round(arm["prefill_s"], 1), round(arm["peak_memory"] / 1e9, 1)]
        rows.append([*row, f"{same['equal']} of {same['outputs']}"])
    columns = [
        "engine, weights + draft",
        _column("tokens/s", ".1f"),
        _column("ours with `auto` over it", ".2f"),
        _column("... with the prompt", ".2f"),
        _column("prompt, s", ".1f"),
        _column("memory, GB", ".1f"),
        "text of exact BF16",
    ]
    title = (
        f"`{summary['model']}` behind long prompts, greedy, {summary['new_tokens']} tokens: "
        f"{_counts(summary)}"
    )
    return {"title": title, "columns": columns, "rows": rows}


def _of_formats(summary: Mapping[str, Any]) -> str:
    counts = sorted({arm["runs"] for arm in summary["arms"]})
    prompts = f"{_span(counts)} prompts"
    return (
        f"`{summary['model']}` with and without `{summary['small']}` as a draft, greedy, "
        f"{summary['new_tokens']} tokens: medians and quartiles of {prompts}"
    )


def fastest(arms: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the arm with the fastest length for each way of drafting."""
    best: dict[str, Mapping[str, Any]] = {}
    for arm in arms:
        kept = best.get(way := _way(arm["name"]))
        if kept is None or _wall(arm) > _wall(kept):
            best[way] = arm
    return [arm for arm in arms if best[_way(arm["name"])] is arm]


def _wall(arm: Mapping[str, Any]) -> float:
    speed: float = arm["wall_tokens_per_s"]["median"]
    return speed


def label(arm: str) -> str:
    """An arm of the formats in its users' words."""
    words = re.sub(r" k=\d+", "", arm).split()
    return " ".join(_WORDS.get(word, word) for word in words)


_WORDS = {
    "specqd": "SpecQD",
    "openvino": "OpenVINO",
    "packed": "BF16",
    "bf16": "BF16",
    "q8_0": "Q8_0",
    "q4_k_m": "Q4_K_M",
    "-fa-off": "with `-fa off`",
    "int8": "INT8",
    "int4": "INT4",
    "fp4": "own 4 bits",
    "auto": "`auto`",
    "small/packed": "`auto` with the small model",
    "small/q4_k_m": "small model in Q4_K_M",
    "small/int4": "small model in INT4",
}


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
    machine = summary["machine"]
    named = " EXPERIMENTS=long" if summary["experiment"] == "long" else ""
    for option, is_chat in (("PROMPTS", False), ("CHATS", True)):
        sets = (name.partition(", ") for name in summary["prompts"].split("; "))
        files = [file for file, _, kind in sets if bool(kind) == is_chat and ".jsonl" in file]
        if files:
            words = " ".join(files)
            named += f" {option}={words if len(files) == 1 else repr(words)}"
    return {
        "machine": f"{machine['cpu']}, {machine['threads']} threads, {machine['isa']}; {bandwidth}",
        "date": summary["begun"].partition("T")[0],
        "commit": ", ".join(summary["commits"]),
        "command": f"make bench-peers{named}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("tables", type=Path)
    options = parser.parse_args()

    made: dict[str, tuple[dict[str, Any], Mapping[str, Any], str]] = {}

    def add(name: str, experiment: str, table: Callable[[Mapping[str, Any]], Any]) -> None:
        file = options.results / f"peers-{experiment}.json"
        if file.exists():
            summary = json.loads(file.read_text())
            made[name] = (table(summary), summary, _bandwidth(summary))

    add("chat", "chat", text_table)
    add("decode", "decode", decode_table)
    for file in options.results.glob("peers-formats*.json"):  # one for each machine
        experiment = file.stem.removeprefix("peers-")
        add(experiment, experiment, formats_table)
        add(f"{experiment}-sets", experiment, sets_table)
    add("long", "long", long_table)
    add("text", "text", text_table)
    by_acceptance = {
        acceptance: json.loads(file.read_text())
        for acceptance in ("0.8", "0.9")
        if (file := options.results / f"peers-synthetic-{acceptance}.json").exists()
    }
    if by_acceptance:
        bandwidths = ", ".join(f"{_bandwidth(s)} (p = {p})" for p, s in by_acceptance.items())
        first = next(iter(by_acceptance.values()))
        made["synthetic"] = (synthetic_table(by_acceptance), first, bandwidths)
    for name, (table, summary, bandwidth) in made.items():
        title = {"title": table.pop("title")}
        full = title | measured(summary, bandwidth) | table
        write_table(options.tables / f"peers-{name}.json", full)


if __name__ == "__main__":
    main()
