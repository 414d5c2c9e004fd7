"""Measures the n-gram drafter's proposals: their length, acceptance rate and cost.

    python benchmarks/ngram.py --prompts PROMPTS.jsonl [MODEL] [--temperature 0.8] [--row 0.1]

The model decodes each prompt. Its tokens are then replayed through the drafter, as the level that
verifies would do. `--row` is the cost of verifying one token, in forwards of one row.
"""

from pathlib import Path
from time import perf_counter

from harness import Report, parser

from specqd import LLM, SamplingParams, _native
from specqd._native import DraftRequest, NgramDrafter, RowCosts, Sequence
from specqd.bench.levels import encoded_ends, read_prompts


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("model", nargs="?")
    arguments.add_argument("--prompts", type=Path, required=True)
    arguments.add_argument("--limit", type=int, default=40, help="prompts")
    arguments.add_argument("-n", type=int, default=128, help="new tokens")
    arguments.add_argument("--temperature", type=float, default=0.0)
    arguments.add_argument("--row", type=float, default=0.1)
    options = arguments.parse_args()
    llm = LLM(options.model, threads=options.threads, isa=options.isa)
    params = SamplingParams(
        max_tokens=options.n, temperature=options.temperature, seed=1, ignore_eos=True
    )
    prompts = encoded_ends(llm, read_prompts(options.prompts, options.limit), options.n)
    costs = RowCosts()
    costs.begin({1: 1.0, 101: 1.0 + 100 * options.row})
    drafter = NgramDrafter()
    rounds = drafted = accepted = made = 0
    seconds = feeding_seconds = 0.0
    for prompt, result in zip(prompts, llm.generate(prompts, params), strict=True):
        sequence = Sequence([*prompt, result.tokens[0]], _native.Sampler(), len(prompt))
        rest = result.tokens[1:]
        begun = perf_counter()
        drafter.propose([DraftRequest(sequence, 1)])
        feeding_seconds += perf_counter() - begun
        while rest:
            request = DraftRequest(sequence, len(rest) - 1, token_value_s=1.0, costs=costs)
            begun = perf_counter()
            proposal = drafter.propose([request])[0]
            seconds += perf_counter() - begun
            pairs = enumerate(zip(proposal.tokens, rest, strict=False))
            taken = next((i for i, (a, b) in pairs if a != b), len(proposal.tokens))
            drafter.observe(request, proposal, taken)
            sequence.tokens.extend(rest[: taken + 1])
            rounds, drafted, accepted = rounds + 1, drafted + len(proposal.tokens), accepted + taken
            made += len(rest[: taken + 1])
            rest = rest[taken + 1 :]
        drafter.release(sequence)
    title = f"N-grams, {len(prompts)} prompts, T = {options.temperature:g}, row {options.row:g}"
    columns = [("tokens per round", ".2f"), ("drafted per round", ".2f"), ("accepted", ".3f")]
    columns += [("us per proposal", ".1f"), ("ns per prompt token", ".0f")]
    with Report(options, title, llm.model.machine, columns) as report:
        report.row(
            *(made / rounds, drafted / rounds, accepted / max(drafted, 1)),
            *(seconds / rounds * 1e6, feeding_seconds / sum(map(len, prompts)) * 1e9),
        )


if __name__ == "__main__":
    main()
