"""Compares chains of drafts with the first one named, sequence by sequence.

    python benchmarks/chains.py [MODEL] --prompts FILE --chain fp4 --chain auto --chain fp4

All chains continue each prompt in turns, over one loaded model. The time begins at the first token.
If the first chain is named again, its row shows the noise of the machine. Tokens must be equal.
Unlike `specqd bench levels`, this decodes several sequences at once (`--at-once`).
"""

from pathlib import Path
from time import perf_counter

from harness import Report, parser

from specqd import LLM, SamplingParams
from specqd.bench.levels import encoded_ends, read_prompts, words_of
from specqd.engine.generation import GenerationRequest


def written(
    llm: LLM, prompts: list[list[int]], params: SamplingParams
) -> tuple[list[list[int]], float]:
    """The tokens after these prompts, decoded together, and the tokens per second."""
    engine = llm.engine
    generations = engine.submit(GenerationRequest(prompts, params.resolved(llm.defaults)))
    while not all(each.count for each in generations):
        engine.step()
    begun, before = perf_counter(), sum(each.count for each in generations)
    while not engine.is_idle:
        engine.step()
    speed = (sum(each.count for each in generations) - before) / (perf_counter() - begun)
    return [list(each.sequence.tokens) for each in generations], speed


def main() -> None:
    arguments = parser(__doc__, rounds=3)
    arguments.add_argument("model", nargs="?")
    arguments.add_argument("--prompts", type=Path, required=True)
    arguments.add_argument("--chain", dest="chains", action="append", required=True)
    arguments.add_argument("--limit", type=int, default=44, help="prompts")
    arguments.add_argument("--at-once", type=int, default=1, help="sequences")
    arguments.add_argument("-n", type=int, default=128, help="new tokens")
    arguments.add_argument("--temperature", type=float, default=0.0)
    options = arguments.parse_args()
    plain = LLM(options.model, "none", threads=options.threads, isa=options.isa)
    prompts = encoded_ends(plain, read_prompts(options.prompts, options.limit), options.n)
    parts = [prompts[i : i + options.at_once] for i in range(0, len(prompts), options.at_once)]
    common = {"max_tokens": options.n, "temperature": options.temperature, "ignore_eos": True}
    arms = {}
    for number, chain in enumerate(options.chains):
        llm = plain.with_draft(words_of(chain))
        llm.engine.scheduler.reuses_prefixes = False
        arms[f"{number}: {chain}"] = lambda number, llm=llm: written(
            llm, parts[number % len(parts)], SamplingParams(seed=number, **common)
        )
    title = f"{plain.directory.name}, {options.at_once} at once, T = {options.temperature:g}"
    columns = ["chain", ("tokens/s", ".0f"), ("over the first", ".3f")]
    with Report(options, title, plain.model.machine, columns) as report:
        done = report.rounds(arms, rounds=options.rounds * len(parts))
        first = next(iter(arms))
        for name, runs in done.runs.items():
            if any(a[0] != b[0] for a, b in zip(runs, done.runs[first], strict=True)):
                raise SystemExit(f"NOT EQUAL: {name} wrote other tokens than {first}")
            speeds = [speed for _, speed in runs]
            report.row(name, speeds, done.ratios(name, first, lambda run: run[1]))


if __name__ == "__main__":
    main()
