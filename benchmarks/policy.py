"""The drafting policy alone: recorded tokens of real models, replayed at modelled costs.

    python benchmarks/policy.py record MODEL --prompts FILE [--small SMALL] -o RECORD.json
    python benchmarks/policy.py replay RECORD.json... [-o RESULTS.json] [--against RESULTS.json]

`record` writes the text of the model, and what each draft model would say at each of its positions
and how confidently. `replay` decodes these texts again through real levels. Its clock advances by
modelled costs, so the figures do not depend on the load of the machine. The policy reads a clock
with interference; the figures count the modelled costs without it.

After a rejected token a draft goes on with its recorded tokens, as if it were on the text again.
"""

import argparse
import json
import math
import random
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from policy_records import Record, Text, read_records, recorded

from specqd import LLM, SamplingParams, _native
from specqd._native import (
    Context,
    DraftChoice,
    DraftRequest,
    Level,
    NgramDrafter,
    NoDraft,
    Rows,
    Sequence,
)
from specqd.bench.levels import encoded_ends, read_prompts
from specqd.hub import resolve
from specqd.model.model import Model, Precision

EXACT_S = 0.01  # modelled seconds of an exact forward of one row
FORWARD_S, SAMPLE_S = 0.02 * EXACT_S, 0.002 * EXACT_S  # of any forward; of sampling one row
PHASE_S = 100 * EXACT_S  # in each third one the memory is half as fast again
CACHE = 1 << 14  # positions, while recording
BATCHES = (1, 4, 16)
PASSES = 3
CHAINS = (
    *("auto", "ngram", "fp4", "small", "fp4+small", "fp4|ngram+small", "fp4|ngram+ngram"),
    *("small tree", "useless tree", "useless", "useless|auto"),
)


@dataclass(frozen=True, slots=True)
class Machine:
    """A modelled machine says what further rows add to a forward, in exact forwards of one row.

    The second row adds `second`, and each further one `row`. A row beyond `kink` rows adds `row`
    once more. Behind a prompt each row of the target adds `attention`, and each sequence `cache`;
    the measurements at the start show neither.
    """

    name: str
    second: float
    row: float
    kink: int
    is_noisy: bool
    attention: float = 0.0
    cache: float = 0.0


MACHINES = (
    Machine("memory-bound", 0.03, 0.03, 16, is_noisy=False),
    Machine("memory-bound, long prompts", 0.03, 0.03, 16, is_noisy=False, attention=0.15),
    Machine(
        "memory-bound, long batches", 0.03, 0.01, 64, is_noisy=False, attention=0.01, cache=0.1
    ),
    Machine("compute-bound, noisy", 0.15, 0.15, 64, is_noisy=True),
    Machine("matrix units, noisy", 0.17, 0.02, 16, is_noisy=True),
)


class Clock:
    """Modelled seconds: `spent` without interference, and the ones that the policy reads."""

    def __init__(self, machine: Machine) -> None:
        self.spent = self._read = 0.0
        self._is_noisy = machine.is_noisy
        self._rng = random.Random(7)

    def __call__(self) -> float:
        return self._read

    @property
    def is_slow(self) -> bool:
        return self._is_noisy and int(self.spent / PHASE_S) % 3 == 2

    def advance(self, seconds: float) -> None:
        self.spent += seconds
        if self._is_noisy:
            seconds *= 1 + abs(self._rng.gauss(0.0, 0.03))
            if self._rng.random() < 0.02:
                seconds *= self._rng.uniform(1.5, 4.0)
        self._read += seconds


class Replayed:
    """A model of a record, as a level uses it; what it says depends on the position alone."""

    max_positions, max_rows, precision = 1 << 20, 512, Precision.EXACT

    def __init__(
        self, name: str, record: Record, machine: Machine, clock: Clock, exact: "Replayed | None"
    ) -> None:
        self.vocabulary = 1 << 20
        self._clock, self._machine, self._exact = clock, machine, exact
        self._attention = EXACT_S * machine.attention if name == "exact" else 0.0
        self._cache = EXACT_S * machine.cache if name == "exact" else 0.0
        self._first = EXACT_S * record.bytes[name]
        self._operations = EXACT_S * record.operations[name]
        self._said = [(len(text.prompt), text.said[name]) for text in record.texts]
        self._contexts: dict[int, Context] = {}
        self._prompts: list[int] = []  # lengths, by slot

    def context(self, sequence: Sequence) -> Context:
        if sequence.key not in self._contexts:
            exact = None if self._exact is None else self._exact.context(sequence)
            self._contexts[sequence.key] = Context(len(self._prompts), exact)
            self._prompts.append(sequence.prompt_length)
        return self._contexts[sequence.key]

    def release(self, sequence: Sequence) -> None:
        self._contexts.pop(sequence.key, None)
        if self._exact is not None:
            self._exact.release(sequence)

    def forward(self, batch: SequenceOf[Rows]) -> None:
        rows = 0
        for each in batch:
            tokens = each.tokens
            begin = self._prompts[each.context.slot] - 1  # prompts are free: all chains read them
            rows += each.start + len(tokens) - max(each.start, begin)
            each.context.record(each.start, tokens)
        first = self._first * (1.5 if self._clock.is_slow else 1.0)
        further = max(rows - 2, 0) + max(rows - self._machine.kink, 0)
        more = (self._machine.second if rows > 1 else 0.0) + self._machine.row * further
        is_behind_prompt = batch[0].start > 0
        attention = self._attention * rows + self._cache * len(batch) if is_behind_prompt else 0.0
        self._clock.advance(FORWARD_S + first + self._operations * more + attention)

    def verify(
        self, row: int, proposal: SequenceOf[int], sequence: Sequence
    ) -> tuple[list[int], list[float]]:
        self._clock.advance(SAMPLE_S * (len(proposal) + 1))
        prompt, said = self._said[sequence.key % len(self._said)]
        at = min(len(sequence.tokens) - prompt, len(said) - 1)
        tokens, confidences = [], []
        for i in range(len(proposal) + 1):
            token, confidence = said[min(at + i, len(said) - 1)]
            tokens.append(token)
            confidences.append(confidence)
            if i < len(proposal) and token != proposal[i]:
                break
        return tokens, confidences


def chain_of(words: str, record: Record, machine: Machine, clock: Clock) -> Level:
    """The target's level over a chain of CHAINS, or over nothing."""
    target = Replayed("exact", record, machine, clock, None)

    def level(name: str, below: Any = None) -> Level:
        exact = target if name == "fp4" else None
        model = Replayed(name, record, machine, clock, exact)
        return Level(model, below or NoDraft(), name=name, clock=clock)

    def auto() -> list[Any]:
        return [level("fp4"), NgramDrafter()]

    def tree(small: str) -> Any:
        others = [level(small), NgramDrafter()]
        return DraftChoice([level("fp4", DraftChoice(others)), *others])

    drafters: dict[str, Callable[[], Any]] = {
        "plain": NoDraft,
        "auto": lambda: DraftChoice(auto()),
        "ngram": NgramDrafter,
        "fp4": lambda: level("fp4"),
        "small": lambda: level("small"),
        "fp4+small": lambda: level("fp4", level("small")),
        "fp4|ngram+small": lambda: DraftChoice([level("fp4", level("small")), NgramDrafter()]),
        "fp4|ngram+ngram": lambda: DraftChoice([level("fp4", NgramDrafter()), NgramDrafter()]),
        "small tree": lambda: tree("small"),
        "useless tree": lambda: tree("useless"),
        "useless": lambda: level("useless"),
        "useless|auto": lambda: DraftChoice([level("useless"), *auto()]),
    }
    return Level(target, drafters[words](), name="exact", clock=clock)


def seconds_per_token(words: str, record: Record, machine: Machine, batch: int) -> float:
    """Modelled seconds per token of all texts, PASSES times: always `batch` at once, without each
    text's first token."""
    clock = Clock(machine)
    target = chain_of(words, record, machine, clock)
    target.measure()
    coming = list(enumerate([*record.texts] * PASSES))
    running: list[Running] = []
    seconds, made = 0.0, 0
    while True:
        while len(running) < batch and coming:
            number, text = coming.pop(0)
            running.append(Running.of(text, number + 2 * len(record.texts), record.temperature > 0))
            advance(target, running[-1:], batch)
        if len(running) < batch:
            return seconds / made  # the tail, of fewer texts at once, does not count
        begun = clock.spent
        made += advance(target, running, batch)
        seconds += clock.spent - begun
        for each in running:
            if each.left <= 0:
                target.release(each.sequence)
        running = [each for each in running if each.left > 0]


@dataclass(slots=True)
class Running:
    """A text being decoded."""

    sequence: Sequence
    end: int
    confidence: float = 1.0

    @classmethod
    def of(cls, text: Text, key: int, is_sampled: bool) -> "Running":
        sampler, length = _native.Sampler(), len(text.prompt)
        sequence = Sequence(text.prompt, sampler, length, is_sampled=is_sampled)
        sequence.key = key
        return cls(sequence, len(text.tokens))

    @property
    def left(self) -> int:
        return self.end - len(self.sequence.tokens)


def advance(target: Level, running: SequenceOf[Running], batch: int) -> int:
    """Runs a round; returns the number of new tokens."""
    value_s = target.seconds_per_token(batch)
    results = target.advance(
        [DraftRequest(each.sequence, each.left, value_s, each.confidence) for each in running]
    )
    for each, result in zip(running, results, strict=True):
        each.sequence.tokens.extend(result.tokens)
        each.confidence = result.confidences[-1]
    return sum(len(result.tokens) for result in results)


def chains(record: Record) -> list[str]:
    return [words for words in CHAINS if "small" in record.bytes or "small" not in words]


def results(records: SequenceOf[Record]) -> Iterator[dict[str, Any]]:
    """Speeds over plain decoding of every case."""
    for record, machine, batch in product(records, MACHINES, BATCHES):
        plain = seconds_per_token("plain", record, machine, batch)
        for words in chains(record):
            yield {
                "model": record.model,
                "temperature": record.temperature,
                "machine": machine.name,
                "batch": batch,
                "chain": words,
                "speed": plain / seconds_per_token(words, record, machine, batch),
            }


# --- Commands ------------------------------------------------------------------------------------


def record(options: argparse.Namespace) -> None:
    llm = LLM(options.model, "none", cache_positions=CACHE, threads=options.threads)
    small = None
    if options.small:
        small = Model.open(
            resolve(options.small),
            precision=Precision.FP4,
            machine=llm.model.machine,
            cache_positions=CACHE,
        )
    prompts = []
    for path in options.prompts:
        lines = [text[:1500] for text in read_prompts(path, 1 << 20)]
        part = lines[:: max(1, len(lines) // options.limit)][: options.limit]
        if options.chat:
            prompts += [llm.tokenizer.chat([{"role": "user", "content": text}]) for text in part]
        else:
            prompts += [tokens[-200:] for tokens in encoded_ends(llm, part, options.n)]
    records = []
    for temperature in (0.0, 0.8):
        params = SamplingParams(
            max_tokens=options.n, temperature=temperature, seed=1, ignore_eos=True
        ).resolved(llm.defaults)
        records.append(
            asdict(recorded(llm.model, small, Path(options.model).stem, prompts, params))
        )
    options.output.write_text(json.dumps(records))


def mean(speeds: SequenceOf[float]) -> float:
    return math.exp(sum(map(math.log, speeds)) / len(speeds))


def replay(options: argparse.Namespace) -> None:
    found = list(results([each for path in options.records for each in read_records(path)]))
    if options.output:
        options.output.write_text(json.dumps(found))
    others = json.loads(options.against.read_text()) if options.against else found
    print(f"{'':40}{'x plain':>9}{'against':>9}{'least':>9}")
    groups: dict[str, list[tuple[float, float]]] = {}
    for case, other in zip(found, others, strict=True):
        pair = case["speed"], case["speed"] / other["speed"]
        for key in ("model", "temperature", "machine", "batch", "chain"):
            groups.setdefault(f"{key} {case[key]}", []).append(pair)
        groups.setdefault("all", []).append(pair)
    for name, pairs in groups.items():
        speeds, ratios = zip(*pairs, strict=True)
        print(f"{name:40}{mean(speeds):9.3f}{mean(ratios):9.3f}{min(ratios):9.3f}")
    slowest = min(found, key=lambda case: case["speed"])
    print(f"the slowest case is {slowest['speed']:.3f} x plain: {slowest}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    recording = commands.add_parser("record")
    recording.set_defaults(run=record)
    recording.add_argument("model")
    recording.add_argument("--small", help="a smaller model with the same tokens")
    recording.add_argument("--prompts", type=Path, action="append", required=True)
    recording.add_argument("--chat", action="store_true", help="ask through the chat template")
    recording.add_argument("--limit", type=int, default=8, help="prompts of each file")
    recording.add_argument("-n", type=int, default=128, help="new tokens")
    recording.add_argument("--threads", type=int)
    recording.add_argument("-o", "--output", type=Path, required=True)
    replaying = commands.add_parser("replay")
    replaying.set_defaults(run=replay)
    replaying.add_argument("records", type=Path, nargs="+")
    replaying.add_argument("-o", "--output", type=Path, help="write each case's speed here")
    replaying.add_argument("--against", type=Path, help="compare with speeds written before")
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
