"""Summarises a raw file of rounds as one JSON file of medians.

    python benchmarks/peers/summary.py RAW.jsonl --json RESULT.json

Ratios are taken within a round, so that a slow phase of the machine slows both sides. page.py makes
tables of the result.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
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

    runs: dict[str, Run]
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
    plan, *records = [json.loads(line) for line in path.read_text().splitlines()]
    arms = [Arm(**fields) for fields in plan.pop("arms")]
    reports = [record for record in records if "machine" in record]
    rounds, failed = [], dict.fromkeys((arm.name for arm in arms), 0)
    for record in (record for record in records if "prompt" in record):
        runs = {n: Run(**run) for n, run in record["runs"].items() if "failed" not in run}
        for name in record["runs"].keys() - runs.keys():
            failed[name] += 1
        bandwidths = ({int(s): v for s, v in record[at].items()} for at in ("before", "after"))
        rounds.append(Round(runs, *bandwidths))
    workers = reports[-1] | {"commits": sorted({each["machine"]["commit"] for each in reports})}
    return Experiment(plan, arms, workers, rounds, len(reports), failed)


def summarised(experiment: Experiment) -> dict[str, Any]:
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
        "rounds": len(experiment.rounds),
        "bandwidth_gb_per_s": bandwidth,
        "arms": [_of_arm(experiment, arm, measured) for arm in measured],
        "failed_rounds": {name: count for name, count in experiment.failed.items() if count},
        "specqd_over": _ratios(experiment, measured),
    }


def _of_arm(experiment: Experiment, arm: Arm, measured: Sequence[Arm]) -> dict[str, Any]:
    runs = [r.runs[arm.name] for r in experiment.rounds if arm.name in r.runs]
    plain = Arm(arm.engine).name
    out: dict[str, Any] = {"name": arm.name, "kind": arm.kind, "engine": arm.engine}
    out["decode_tokens_per_s"] = asdict(Spread.of([run.decode_speed for run in runs]))
    out["wall_tokens_per_s"] = asdict(Spread.of([run.wall_speed for run in runs]))
    out["prefill_s"] = median(run.prefill_s for run in runs)
    if arm.kind != "speculative":
        bytes_read = experiment.workers["bytes_read"][arm.name]
        out["bytes_read"] = bytes_read
        out["share_of_bandwidth"] = asdict(_share(experiment, arm, bytes_read))
    drafted = sum(run.drafted or 0 for run in runs)
    if drafted:
        out["drafted"] = drafted
        out["accepted"] = sum(run.accepted or 0 for run in runs)
    if arm.kind == "speculative" and arm.acceptance is None:
        pairs = [
            (r.runs[arm.name].tokens, r.runs[plain].tokens)
            for r in experiment.rounds
            if arm.name in r.runs and plain in r.runs
        ]
        equal = sum(_same_text(ours, theirs) for ours, theirs in pairs)
        out["equal_to_own_plain"] = {"outputs": len(pairs), "equal": equal}
    return out


def _share(experiment: Experiment, arm: Arm, bytes_read: int) -> Spread:
    """Bytes/s that decoding reads, over the bandwidth at that working-set size."""
    shares = []
    for r in (r for r in experiment.rounds if arm.name in r.runs):
        size = min(r.before, key=lambda size: abs(size - bytes_read))
        bandwidth = (r.before[size] + r.after[size]) / 2 * 1e9
        shares.append(r.runs[arm.name].decode_speed * bytes_read / bandwidth)
    return Spread.of(shares)


def _same_text(one: Sequence[int], other: Sequence[int]) -> bool:
    """Compares the common length, because some engines exceed the limit with an accepted draft."""
    shared = min(len(one), len(other))
    return list(one[:shared]) == list(other[:shared])


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
            if theirs.engine != "specqd"
        }
    return out


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
    parser.add_argument("raw", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--cpu", help="its name, where the system does not tell generations apart")
    options = parser.parse_args()
    summary = summarised(read(options.raw))
    summary["machine"]["cpu"] = options.cpu or summary["machine"]["cpu"]
    options.json.write_text(json.dumps(summary, indent=1) + "\n")
    for name, reason in summary["absent"].items():
        print(f"{name} is absent: {reason}")


if __name__ == "__main__":
    main()
