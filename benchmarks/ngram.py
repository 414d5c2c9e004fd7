"""Proposals of the n-gram drafter: their length, their acceptance and their cost.

    python benchmarks/ngram.py --prompts PROMPTS.jsonl [MODEL] [--temperature 0.8] [--row 0.1]

The model decodes each prompt; its tokens are then replayed through the drafter as a level directly
above it would verify. `--row` is the price of verifying a token, in tokens of the level's own rate.
"""

import argparse
from pathlib import Path
from time import perf_counter

from specqd import LLM, SamplingParams, _native
from specqd._native import DraftRequest, NgramDrafter, RowCosts, Sequence
from specqd.bench.levels import encoded_ends, read_prompts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=40, help="prompts")
    parser.add_argument("-n", type=int, default=128, help="new tokens")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--row", type=float, default=0.1)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    llm = LLM(options.model, threads=options.threads)
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
            right = next((i for i, (a, b) in pairs if a != b), len(proposal.tokens))
            drafter.observe(request, proposal, right)
            sequence.tokens.extend(rest[: right + 1])
            rounds, drafted, accepted = rounds + 1, drafted + len(proposal.tokens), accepted + right
            made += len(rest[: right + 1])
            rest = rest[right + 1 :]
        drafter.release(sequence)
    print(
        f"{len(prompts)} prompts, temperature {options.temperature}, a row at {options.row}: "
        f"{made / rounds:.2f} tokens a round, {drafted / rounds:.2f} drafted, "
        f"acceptance {accepted / max(drafted, 1):.3f}; {seconds / rounds * 1e6:.1f} us a proposal, "
        f"{feeding_seconds / sum(map(len, prompts)) * 1e9:.0f} ns a prompt's token"
    )


if __name__ == "__main__":
    main()
