"""Times chains of levels against plain decoding on a set of prompts, as the paper does.

Every arm completes each prompt alone, in turns, and ratios are taken within a prompt. The model is
loaded once per format of draft weights; its exact weights are the same bits in all of them. No arm
finds the prompt in the cache. The prefill of a separate draft model counts as decoding. The tokens
of every arm must equal those of plain decoding.
"""

import json
import shlex
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from itertools import product
from operator import add
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from specqd import _native
from specqd._native import BlockDrafter, Level
from specqd.bench.rounds import Interval, bandwidths, quotients, turns
from specqd.engine.generation import GenerationRequest
from specqd.engine.reports import LevelReport, Stats, models_of
from specqd.errors import LoadedFormatError, RequestError, SpecqdError, SpecqdWarning
from specqd.llm import LLM
from specqd.llm.draft_words import draft_format, parse_chain
from specqd.model.loader import Progress
from specqd.sampling import SamplingParams

PLAIN = "none"
_WARM_UP_TOKENS = 16

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Arm:
    """A way of decoding. `chain` has the values of --draft, outermost level first."""

    name: str
    chain: str
    llm: LLM

    @property
    def levels(self) -> list[Level | BlockDrafter]:
        return models_of(self.llm.engine.level)


@dataclass(frozen=True, slots=True)
class Run:
    """One prompt's completion by one arm; `levels` counts decoding only."""

    tokens: list[int]
    prefill_s: float  # to the first token
    decode_s: float
    levels: tuple[LevelReport, ...]

    @property
    def tokens_per_s(self) -> float:
        return (len(self.tokens) - 1) / self.decode_s

    @property
    def wall_s(self) -> float:
        return self.prefill_s + self.decode_s


@dataclass(frozen=True, slots=True)
class Trial:
    """The runs of one prompt, one per arm with plain decoding first, and the bandwidth before."""

    prompt: int  # its number
    runs: tuple[Run, ...]
    gb_per_s: dict[int, float]  # by working set, in bytes


@dataclass(frozen=True, slots=True)
class Summary:
    """One arm's results over all prompts."""

    name: str
    chain: str
    runs: int
    tokens_per_s: float
    prefill_s: float
    decode_s: float
    wall_s: float
    over_plain: Interval  # tokens/s of decoding over those of plain decoding
    over_bf16_limit: Interval  # tokens/s of decoding over bandwidth / BF16 bytes per token
    wall_over_plain: Interval
    levels: tuple[LevelReport, ...]
    shares: tuple[float, ...]  # by level: share of the bandwidth at its working set

    @property
    def gigabytes(self) -> float:
        """Gigabytes of weights that all levels read, over all prompts and rounds."""
        return sum(level.gigabytes for level in self.levels)

    def described(self) -> dict[str, Any]:
        """The summary as a JSON object."""
        levels = [
            level.described() | {"bandwidth_share": share}
            for level, share in zip(self.levels, self.shares, strict=True)
        ]
        facts = asdict(replace(self, levels=(), shares=()))
        del facts["shares"]
        return facts | {"levels": levels}


@dataclass(frozen=True, slots=True)
class Comparison:
    """The setting, and the results by temperature."""

    model: str
    cpu: str
    threads: int
    isa: str
    prompts: str
    num_prompts: int
    rounds: int
    max_tokens: int
    bf16_bytes_per_token: int
    by_temperature: dict[float, list[Summary]] = field(default_factory=dict)

    @property
    def setting(self) -> str:
        return f"{self.model} on {self.cpu}, {self.threads} threads, {self.isa}"

    @classmethod
    def on(
        cls, plain: LLM, *, prompts: str, num_prompts: int, rounds: int, max_tokens: int
    ) -> "Comparison":
        return cls(
            model=plain.directory.name,
            cpu=_native.cpu_model(),
            threads=plain.model.machine.pool.threads,
            isa=plain.model.machine.isa,
            prompts=prompts,
            num_prompts=num_prompts,
            rounds=rounds,
            max_tokens=max_tokens,
            bf16_bytes_per_token=plain.model.bf16_bytes_per_forward,
        )

    def described(self) -> dict[str, Any]:
        """The comparison as a JSON object. Tokens are equal: `trials` raises if they differ."""
        entry = {name: getattr(self, name) for name in self.__slots__ if name != "by_temperature"}
        temperatures = [
            {"temperature": temperature, "arms": [summary.described() for summary in summaries]}
            for temperature, summaries in self.by_temperature.items()
        ]
        return entry | {"tokens_equal": True, "temperatures": temperatures}


def words_of(chain: str) -> list[str]:
    """The values for --draft; names with blanks are quoted as in a shell."""
    try:
        return shlex.split(chain)
    except ValueError as error:
        raise RequestError(f"chain {chain}: {error}; close the quotation") from error


def default_chains(small: str | None) -> list[str]:
    """The chains of the paper (self-draft, small draft alone, both), and `auto`."""
    with_small = []
    if small:
        exact, draft = (shlex.quote(f"{small}:{precision}") for precision in ("bf16", "fp4"))
        with_small = [exact, f"fp4 {draft} ngram"]
    return ["fp4", *with_small, "auto"]


def name_of(chain: str) -> str:
    """The chain with only the last part of each path."""
    members = [word.split("|") for word in words_of(chain)]
    words = ["|".join(each.rsplit("/", 1)[-1] for each in level) for level in members]
    return "plain" if words == [PLAIN] else " ".join(words)


def chain_to_open(chains: Sequence[str]) -> str:
    """The chain with which the model is loaded, in its format: the first, if all chains state the
    same format of the model's own draft. Otherwise plain decoding, in the default format."""
    formats = {draft_format(parse_chain(words_of(chain))) for chain in chains}
    return PLAIN if None in formats or len(formats) > 1 else chains[0]


def make_arms(plain: LLM, chains: Sequence[str], progress: Progress | None = None) -> list[Arm]:
    """Plain decoding, then each chain. A chain that drafts in a format in which no model is loaded
    yet loads all of its models in that format."""
    arms, loaded = [Arm(name_of(PLAIN), PLAIN, plain)], [plain]
    for chain in dict.fromkeys(chains):
        if (words := words_of(chain)) != [PLAIN]:
            arms.append(Arm(name_of(chain), chain, _with_draft(loaded, words, progress)))
    for arm in arms:
        arm.llm.engine.scheduler.reuses_prefixes = False
    return arms


def _with_draft(loaded: list[LLM], words: Sequence[str], progress: Progress | None) -> LLM:
    """The chain over the first of the loaded models that has its formats, else over another one,
    which is added to them."""
    for llm in loaded:
        try:
            return llm.with_draft(words, progress=progress)
        except LoadedFormatError:
            continue
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpecqdWarning)  # the first load has warned
        loaded.append(loaded[0].with_draft(words, reload=True, progress=progress))
    return loaded[-1]


def read_prompts(path: Path, limit: int) -> list[str]:
    """The first `limit` prompts of a file with one JSON object per line."""
    prompts: list[str] = []
    number = 0
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                if len(prompts) == limit:
                    break
                entry = json.loads(line)
                prompt = entry.get("prompt") if isinstance(entry, dict) else None
                if not isinstance(prompt, str) or not prompt:
                    raise RequestError(f'{path}:{number}: no text; write {{"prompt": "..."}}')
                prompts.append(prompt)
    except ValueError as error:
        where = f"{path}:{max(number, 1)}"
        raise RequestError(f"{where}: not one JSON object per line, in UTF-8: {error}") from error
    if not prompts:
        raise RequestError(f"{path}: the file has no prompts")
    return prompts


def encoded_ends(llm: LLM, prompts: Sequence[str], new_tokens: int) -> list[list[int]]:
    """Each prompt's tokens, without its start if prompt and new tokens exceed the context."""
    context = llm.model.config.max_positions
    room = context - new_tokens
    if room < 1:
        raise RequestError(
            f"{new_tokens} new tokens leave no room for a prompt in the model's context "
            f"of {context}; ask for fewer"
        )
    return [llm.encode(prompt)[-room:] for prompt in prompts]


def trials(
    arms: Sequence[Arm], prompts: Sequence[str], params: SamplingParams, rounds: int = 1
) -> Iterator[Trial]:
    """Yields each prompt's runs, `rounds` times; its seed is that of params (or 0) plus its number.

    Prompts that are too long lose their start. Raises SpecqdError if an arm's tokens differ from
    the first arm's.
    """
    assert params.max_tokens is not None
    encoded = encoded_ends(arms[0].llm, prompts, params.max_tokens)
    for arm in arms:
        timed(arm.llm, encoded[0], replace(params, max_tokens=_WARM_UP_TOKENS, seed=0))
    for begin, number in product(range(rounds), range(len(encoded))):
        bandwidth = measured_bandwidth(arms)
        seeded = replace(params, seed=(params.seed or 0) + number)
        runs: dict[int, Run] = {}
        for at in turns(begin * len(encoded) + number, len(arms)):
            runs[at] = timed(arms[at].llm, encoded[number], seeded)
        trial = Trial(number, tuple(runs[at] for at in range(len(arms))), bandwidth)
        check_equal(arms, trial)
        yield trial


def timed(
    llm: LLM, prompt: Sequence[int], params: SamplingParams, clock: Clock = perf_counter
) -> Run:
    """Completes one prompt, alone."""
    engine = llm.engine
    [generation] = engine.submit(GenerationRequest([prompt], params.resolved(llm.defaults)))
    begun = clock()
    while generation.count == 0 and generation.finish_reason is None:
        engine.step()
    prefilled, before = clock(), Stats.of(engine)
    while generation.finish_reason is None:
        engine.step()
    ended = clock()
    if generation.error is not None:
        raise generation.error
    levels = Stats.of(engine).since(before).levels
    return Run(generation.tokens, prefilled - begun, ended - prefilled, levels)


def check_equal(arms: Sequence[Arm], trial: Trial) -> None:
    expected = trial.runs[0].tokens
    for arm, run in zip(arms, trial.runs, strict=True):
        at = first_difference(expected, run.tokens)
        if at is not None:
            raise SpecqdError(
                f"NOT EQUAL: prompt {trial.prompt}, new token {at}: {arm.chain} differs from plain "
                "decoding; this is a defect of specqd, please report it"
            )


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    for at, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return at
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))


def measured_bandwidth(arms: Sequence[Arm]) -> dict[int, float]:
    """GB/s by working set: the bytes that each level reads, and plain BF16 weights."""
    sizes = {level.model.bytes_per_forward for arm in arms for level in arm.levels}
    model = arms[0].llm.model
    return bandwidths(model.machine, sizes | {model.bf16_bytes_per_forward})


def summarised(arms: Sequence[Arm], done: Sequence[Trial]) -> list[Summary]:
    """One summary per arm, over all trials."""
    bf16_bytes = arms[0].llm.model.bf16_bytes_per_forward
    limits = [trial.gb_per_s[bf16_bytes] * 1e9 / bf16_bytes for trial in done]
    plain = [trial.runs[0] for trial in done]
    summaries = []
    for at, arm in enumerate(arms):
        runs = [trial.runs[at] for trial in done]
        speeds = [run.tokens_per_s for run in runs]
        levels = tuple(reduce(add, each) for each in zip(*(r.levels for r in runs), strict=True))
        sizes = [level.model.bytes_per_forward for level in arm.levels]
        bandwidths = [median(trial.gb_per_s[size] for trial in done) for size in sizes]
        summaries.append(
            Summary(
                arm.name,
                arm.chain,
                len(runs),
                median(speeds),
                median(run.prefill_s for run in runs),
                median(run.decode_s for run in runs),
                median(run.wall_s for run in runs),
                _ratios(done, speeds, [run.tokens_per_s for run in plain]),
                _ratios(done, speeds, limits),
                _ratios(done, [run.wall_s for run in plain], [run.wall_s for run in runs]),
                levels,
                tuple(level.gb_per_s / b for level, b in zip(levels, bandwidths, strict=True)),
            )
        )
    return summaries


def _ratios(done: Sequence[Trial], ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """The interval over prompts of each prompt's median ratio over rounds."""
    by_prompt: dict[int, list[float]] = {}
    for trial, ratio in zip(done, quotients(ours, theirs), strict=True):
        by_prompt.setdefault(trial.prompt, []).append(ratio)
    return Interval.of([median(ratios) for ratios in by_prompt.values()])
