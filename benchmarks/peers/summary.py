"""Summarises raw files of rounds as one JSON file of medians.

    python benchmarks/peers/summary.py RAW.jsonl ... --json RESULT.json

Several files hold different arms on the same prompts. Ratios are taken within a round, so that a
slow phase of the machine slows both sides. page.py makes tables of the result.
"""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from arms import Arm
from protocol import Run


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, quartiles and range over rounds."""

    median: float
    quartiles: tuple[float, float]
    range: tuple[float, float]

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        ordered = sorted(values)
        last = len(ordered) - 1
        quartiles = ordered[round(last / 4)], ordered[round(last * 3 / 4)]
        return cls(median(ordered), quartiles, (ordered[0], ordered[-1]))


@dataclass(frozen=True, slots=True)
class Round:
    """One prompt's runs by arm, and GB/s before and after, by working set in bytes."""

    prompt: int
    set: str | None
    runs: dict[str, Run]
    memory: dict[str, dict[str, int]]  # bytes by arm
    before: dict[int, float]
    after: dict[int, float]


@dataclass(frozen=True, slots=True)
class Experiment:
    plan: dict[str, Any]
    arms: list[Arm]
    workers: dict[str, Any]  # their descriptions, and absent peers
    rounds: list[Round]
    sittings: int  # number of times that processes were loaded
    failed: dict[str, int]  # rounds without an answer, by arm


def read(path: Path) -> Experiment:
    """Reads one raw file."""
    plan, *records = [json.loads(line) for line in path.read_text().splitlines()]
    arms = [Arm(**fields) for fields in plan.pop("arms")]
    reports = [record for record in records if "machine" in record]
    rounds, failed = [], dict.fromkeys((arm.name for arm in arms), 0)
    for record in (record for record in records if "prompt" in record):
        runs = {n: Run(**run) for n, run in record["runs"].items() if "failed" not in run}
        for name in record["runs"].keys() - runs.keys():
            failed[name] += 1
        bandwidths = ({int(s): v for s, v in record[at].items()} for at in ("before", "after"))
        memory = record.get("memory", {})
        rounds.append(Round(record["prompt"], record.get("set"), runs, memory, *bandwidths))
    workers = reports[-1] | {"commits": sorted({each["machine"]["commit"] for each in reports})}
    return Experiment(plan, arms, workers, rounds, len(reports), failed)


def merged(experiments: Sequence[Experiment]) -> Experiment:
    """All arms of raw files that differ only in their arms. Raises ValueError otherwise."""
    first = experiments[0]
    if any(each.plan != first.plan for each in experiments):
        raise ValueError("the raw files hold different plans")
    workers: dict[str, Any] = {}
    for each in experiments:
        for key, value in each.workers.items():
            workers[key] = workers.get(key, {}) | value if isinstance(value, dict) else value
    commits = sorted({commit for each in experiments for commit in each.workers["commits"]})
    failed: Counter[str] = Counter()
    for each in experiments:
        failed.update(each.failed)
    arms = dict.fromkeys(arm for each in experiments for arm in each.arms)

    def place(arm: Arm) -> tuple[bool, bool]:  # ours first, beginning with plain decoding
        return arm.engine != "specqd", arm.engine == "specqd" and arm.kind != "plain"

    return Experiment(
        first.plan,
        sorted(arms, key=place),
        workers | {"commits": commits},
        [a_round for each in experiments for a_round in each.rounds],
        max(each.sittings for each in experiments),
        dict(failed),
    )


def summarised(experiment: Experiment) -> dict[str, Any]:
    """The summary of all rounds; of formats, also that of each set of prompts."""
    summary = _summarised(experiment)
    if experiment.plan["experiment"] == "formats":
        sets = dict.fromkeys(each.set for each in experiment.rounds)
        fields = ("rounds", "arms", "specqd_over")
        summary["sets"] = {}
        for name in sets:
            rounds = [each for each in experiment.rounds if each.set == name]
            whole = _summarised(replace(experiment, rounds=rounds))
            summary["sets"][name] = {field: whole[field] for field in fields}
    return summary


def _summarised(experiment: Experiment) -> dict[str, Any]:
    sizes = list(experiment.rounds[0].before)
    bandwidth = {
        str(size): {
            "before": asdict(Spread.of([r.before[size] for r in experiment.rounds])),
            "after": asdict(Spread.of([r.after[size] for r in experiment.rounds])),
        }
        for size in sizes
    }
    measured = [
        arm for arm in experiment.arms if any(arm.name in r.runs for r in experiment.rounds)
    ]
    return {
        **experiment.plan,
        **experiment.workers,
        "sittings": experiment.sittings,
        "rounds": len({each.prompt for each in experiment.rounds}),
        "bandwidth_gb_per_s": bandwidth,
        "arms": [_of_arm(experiment, arm) for arm in measured],
        "failed_rounds": {name: count for name, count in experiment.failed.items() if count},
        "specqd_over": _ratios(experiment, measured),
    }


def _of_arm(experiment: Experiment, arm: Arm) -> dict[str, Any]:
    runs = [r.runs[arm.name] for r in experiment.rounds if arm.name in r.runs]
    plain = Arm(arm.engine, arm.weights).name
    out: dict[str, Any] = {"name": arm.name, "kind": arm.kind, "engine": arm.engine}
    out["runs"] = len(runs)
    out["decode_tokens_per_s"] = asdict(Spread.of([run.decode_speed for run in runs]))
    out["wall_tokens_per_s"] = asdict(Spread.of([run.wall_speed for run in runs]))
    out["prefill_s"] = median(run.prefill_s for run in runs)
    bytes_read = experiment.workers["bytes_read"].get(arm.name)
    if arm.kind != "speculative" and bytes_read is not None:
        out["bytes_read"] = bytes_read
        out["share_of_bandwidth"] = asdict(_share(experiment, arm, bytes_read))
    drafted = sum(run.drafted or 0 for run in runs)
    if drafted:
        out["drafted"] = drafted
        out["accepted"] = sum(run.accepted or 0 for run in runs)
    if arm.kind == "speculative" and arm.acceptance is None:
        own = {r.prompt: r.runs[plain].tokens for r in experiment.rounds if plain in r.runs}
        out["equal_to_own_plain"] = _equal_texts(experiment, arm, own)
    memory = [r.memory[arm.name] for r in experiment.rounds if arm.name in r.memory]
    if memory:
        out["peak_memory"] = max(each["peak"] for each in memory)
        out["memory"] = memory[-1]["now"]
        stored = experiment.workers["stored_bytes"][arm.name]
        out["bits_per_weight"] = 8 * stored / experiment.workers["parameters"]
        ends = experiment.workers["eos_token_ids"]
        out["equal_to_exact"] = _equal_texts(experiment, arm, _exact_texts(experiment), ends)
    return out


def _exact_texts(experiment: Experiment) -> dict[int, list[int]]:
    """The text of BF16, which arms of specqd with all bits of the weights write, by prompt."""
    exact = [
        arm.name
        for arm in experiment.arms
        if arm.engine == "specqd" and arm.weights in ("bf16", "packed")
    ]
    return {
        each.prompt: each.runs[name].tokens
        for each in experiment.rounds
        for name in exact
        if name in each.runs
    }


def _equal_texts(
    experiment: Experiment, arm: Arm, others: Mapping[int, list[int]], ends: Sequence[int] = ()
) -> dict[str, int]:
    """Counts the prompts for which the arm's output is that of `others`."""
    equal = [
        _same_text(others[each.prompt], each.runs[arm.name].tokens, ends)
        for each in experiment.rounds
        if arm.name in each.runs and each.prompt in others
    ]
    return {"outputs": len(equal), "equal": sum(equal)}


def _share(experiment: Experiment, arm: Arm, bytes_read: int) -> Spread:
    """Bytes/s that decoding reads, over the bandwidth at that working-set size."""
    shares = []
    for r in (r for r in experiment.rounds if arm.name in r.runs):
        size = min(r.before, key=lambda size: abs(size - bytes_read))
        bandwidth = (r.before[size] + r.after[size]) / 2 * 1e9
        shares.append(r.runs[arm.name].decode_speed * bytes_read / bandwidth)
    return Spread.of(shares)


def _same_text(one: Sequence[int], other: Sequence[int], ends: Sequence[int] = ()) -> bool:
    """Compares the common length, because some engines exceed the limit with an accepted draft;
    nothing after a token of `ends`."""
    shared = min(len(one), len(other))
    pairs = list(zip(one[:shared], other[:shared], strict=True))
    last = next((i for i, (token, _) in enumerate(pairs) if token in ends), shared)
    return all(a == b for a, b in pairs[: last + 1])


def _ratios(experiment: Experiment, measured: Sequence[Arm]) -> dict[str, Any]:
    """The speed of each arm of specqd over that of each arm of the peers."""
    ours = [arm for arm in measured if arm.engine == "specqd"]
    out: dict[str, Any] = {}
    for arm in ours:
        out[arm.name] = {
            theirs.name: {
                "decode": _ratio(experiment, arm, theirs, lambda run: run.decode_speed),
                "wall": _ratio(experiment, arm, theirs, lambda run: run.wall_speed),
            }
            for theirs in measured
            if theirs.engine != "specqd" and _share_rounds(experiment, arm, theirs)
        }
    return out


def _share_rounds(experiment: Experiment, one: Arm, other: Arm) -> bool:
    return any(one.name in r.runs and other.name in r.runs for r in experiment.rounds)


def _ratio(
    experiment: Experiment, ours: Arm, theirs: Arm, speed: Callable[[Run], float]
) -> dict[str, Any]:
    values = [
        speed(r.runs[ours.name]) / speed(r.runs[theirs.name])
        for r in experiment.rounds
        if ours.name in r.runs and theirs.name in r.runs
    ]
    return asdict(Spread.of(values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("raw", type=Path, nargs="+")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--cpu", help="its name, where the system does not tell generations apart")
    options = parser.parse_args()
    summary = summarised(merged([read(path) for path in options.raw]))
    summary["machine"]["cpu"] = options.cpu or summary["machine"]["cpu"]
    options.json.write_text(json.dumps(summary, indent=1) + "\n")
    for name, reason in summary["absent"].items():
        print(f"{name} is absent: {reason}")


if __name__ == "__main__":
    main()
