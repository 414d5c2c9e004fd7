"""Finds the fastest chain for a model: candidates run in heats, and clear losers leave early.

Owns the candidates and the heats; `levels` runs and times them.
"""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from time import perf_counter

from specqd.bench.levels import (
    PLAIN,
    Arm,
    Clock,
    Summary,
    Trial,
    make_arms,
    summarised,
    trials,
    words_of,
)
from specqd.errors import HubError, SpecqdError
from specqd.llm import LLM
from specqd.model.mtp import has_mtp
from specqd.sampling import SamplingParams

HEATS = (2, 4, 8)  # prompts; clear losers leave after each heat but the last
_NOISE = 0.98  # share of the best speed at which a shorter chain is as good

DEFAULT_PROMPTS = (
    "def read_lines(path):\n    ",
    "Once upon a time there was a little girl who lived near the sea. Every morning she",
    "Question: A train leaves at 9:40 and arrives at 13:05. How long is the journey?\nAnswer:",
    "class Queue:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):",
    "The water cycle begins when the sun warms the ocean. Explain what happens next, in order:\n1.",
    "import json\nimport sys\n\n\ndef main():\n    with open(sys.argv[1]) as file:\n        ",
    "Dear Mrs Miller,\n\nthank you for your letter of 3 May. We are sorry to hear that",
    "name,price,count\napple,1.20,10\npear,1.50,4\n",
)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A draft that cannot be used with this model, with the reason in one line."""

    draft: str
    reason: str


def candidates(
    directories: Sequence[str], *, is_mxfp4: bool = False, has_mtp: bool = False
) -> list[str]:
    """Chains to try: the model's own drafts, and each other model or draft head. The latter draft
    alone in both precisions, and below the model's own fp4 draft, if it has one, above n-grams."""
    own = ["ngram"] if is_mxfp4 else ["fp4", "ngram", "auto"]
    outer = "" if is_mxfp4 else "fp4 "
    own += ["mtp", f"{outer}mtp"] if has_mtp else []
    chains = []
    for directory in dict.fromkeys(directories):
        exact, draft = (shlex.quote(f"{directory}:{precision}") for precision in ("bf16", "fp4"))
        inner = "" if directory.startswith("head:") else " ngram"  # nothing drafts for a head
        chains += [exact, draft, f"{outer}{draft}{inner}"]
    return [*own, *chains]


def usable_arms(plain: LLM, directories: Sequence[str]) -> tuple[list[Arm], list[LeftOut]]:
    """Arms for plain decoding and each candidate, and the drafts that cannot be used.

    Skips all chains of a model that cannot draft. Raises HubError for a model that does not exist.
    """
    arms, left_out = make_arms(plain, []), list[LeftOut]()
    config = plain.model.config
    traits = {"is_mxfp4": config.is_mxfp4, "has_mtp": has_mtp(plain.directory, config)}
    for chain in candidates(directories, **traits):
        words = words_of(chain)
        if any(word.startswith(f"{each.draft}:") for each in left_out for word in words):
            continue
        try:
            arms += make_arms(plain, [chain])[1:]
        except HubError:
            raise
        except SpecqdError as error:
            named = next((d for d in directories if any(w.startswith(f"{d}:") for w in words)), "")
            left_out.append(LeftOut(named or chain, str(error)))
    return arms, left_out


def hold_heats(
    arms: Sequence[Arm],
    prompts: Sequence[str],
    params: SamplingParams,
    seconds: float,
    *,
    clock: Clock = perf_counter,
    progress: Callable[[int, int], None] | None = None,
) -> list[Summary]:
    """Runs all arms in heats over the prompts in turn; the first arm is plain decoding.

    After a heat, arms of the slower half leave unless their interval overlaps that of the best. A
    heat ends after its share of `seconds`, but has at least one prompt. Summaries are in the order
    of the arms; an arm that left has fewer prompts.
    """
    alive, done, finished = list(arms), list[Trial](), dict[str, Summary]()
    coming = islice(cycle(range(len(prompts))), sum(HEATS))
    begun = clock()
    for heat, size in enumerate(HEATS):
        numbers = list(islice(coming, size))
        for trial in trials(alive, [prompts[number] for number in numbers], params):
            done.append(replace(trial, prompt=numbers[trial.prompt]))
            if progress is not None:
                progress(min(int(clock() - begun), int(seconds)), int(seconds) + 1)
            if clock() - begun >= seconds * (heat + 1) / len(HEATS):
                break
        summaries = summarised(alive, done)
        finished |= {summary.chain: summary for summary in summaries}
        stay = [0] + [i for i in range(1, len(alive)) if not _has_lost(summaries, i)]
        alive = [alive[i] for i in stay]
        done = [replace(trial, runs=tuple(trial.runs[i] for i in stay)) for trial in done]
    return [finished[arm.chain] for arm in arms]


def _has_lost(summaries: Sequence[Summary], at: int) -> bool:
    """Whether a chain is in the slower half and its interval is below that of the best."""
    drafted = sorted((s.over_plain for s in summaries[1:]), key=lambda s: -s.median)
    own = summaries[at].over_plain
    return own.median < drafted[(len(drafted) - 1) // 2].median and own.high < drafted[0].low


def best_of(summaries: Sequence[Summary]) -> Summary:
    """The shortest of the chains that are as fast as the fastest within noise."""
    limit = _NOISE * max(summary.over_plain.median for summary in summaries)
    as_fast = [summary for summary in summaries if summary.over_plain.median >= limit]
    return min(as_fast, key=lambda s: (_num_words(s), -s.over_plain.median))


def _num_words(summary: Summary) -> int:
    return 0 if summary.chain == PLAIN else len(words_of(summary.chain))
