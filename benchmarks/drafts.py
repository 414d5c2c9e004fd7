"""Decoding with drafts against plain decoding, on a file of prompts.

    python benchmarks/drafts.py --prompts PROMPTS.jsonl [MODEL] [--draft mxfp4 --draft mxfp4:k=4]

Arms are interleaved prompt by prompt over one loaded model; ratios are taken within a prompt, and
every arm's tokens are compared with plain decoding's while timing. Batch 1; times are of decoding,
after the first token.
"""

import argparse
import json
from pathlib import Path
from statistics import median

from specqd import LLM, SamplingParams


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[round(share * (len(values) - 1))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--draft", action="append", help="an arm; default mxfp4")
    parser.add_argument("--limit", type=int, default=20, help="prompts")
    parser.add_argument("-n", type=int, default=128, help="new tokens")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--isa")
    options = parser.parse_args()
    plain = LLM(options.model, draft="none", threads=options.threads, isa=options.isa)
    arms = {name: plain.with_draft(name) for name in options.draft or ["mxfp4"]}
    params = SamplingParams(
        max_tokens=options.n, temperature=options.temperature, seed=1, ignore_eos=True
    )
    room = plain.model.config.max_positions - options.n
    lines = options.prompts.read_text().splitlines()[: options.limit]
    prompts = [plain.encode(json.loads(line)["prompt"])[-room:] for line in lines]
    speeds: dict[str, list[float]] = {name: [] for name in arms}
    base, drafted, accepted = [], dict.fromkeys(arms, 0), dict.fromkeys(arms, 0)
    for prompt in prompts:
        expected = plain.generate([prompt], params)[0]
        base.append(expected.stats.tokens_per_s)
        for name, llm in arms.items():
            result = llm.generate([prompt], params)[0]
            assert result.tokens == expected.tokens, f"{name} differs from plain decoding"
            speeds[name].append(result.stats.tokens_per_s)
            drafted[name] += result.stats.levels[0].drafted
            accepted[name] += result.stats.levels[0].accepted
    print(f"plain {median(base):8.0f} tokens/s, {len(prompts)} prompts of {options.n} new tokens")
    for name in arms:
        ratios = [s / b for s, b in zip(speeds[name], base, strict=True)]
        print(
            f"{name:12} {median(speeds[name]):8.0f} tokens/s   x {median(ratios):.2f} of plain "
            f"[quartiles {quantile(ratios, 0.25):.2f} .. {quantile(ratios, 0.75):.2f}]   "
            f"acceptance {accepted[name] / max(drafted[name], 1):.3f}   tokens equal"
        )


if __name__ == "__main__":
    main()
