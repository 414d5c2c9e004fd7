"""Prints digests of small models' tokens, to compare machines: see aarch64."""

import argparse
import json
from hashlib import sha256
from pathlib import Path

from specqd import LLM, SamplingParams

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT.parent / "shared" / "models" / "tiny1m"
GOLDENS = sorted(path.parent for path in (ROOT / "tests" / "goldens").glob("*/config.json"))
MODELS = [*GOLDENS, *([TINY] if TINY.is_dir() else [])]

arguments = argparse.ArgumentParser()
arguments.add_argument("--isa", help="instruction set; default: the fastest")
arguments.add_argument("--tokens", type=int, default=200, help="of each completion")
options = arguments.parse_args()

for model in MODELS:
    for draft in ("auto", "none"):
        llm = LLM(model, draft, threads=2, isa=options.isa)
        for temperature in (0, 0.8):
            params = SamplingParams(
                options.tokens, temperature=temperature, seed=7, ignore_eos=True, logprobs=3
            )
            [completion] = llm.generate("Once upon a time", params)[0].completions
            assert completion.logprobs is not None
            exact = [
                [each.logprob.hex(), *((token, x.hex()) for token, x in each.top)]
                for each in completion.logprobs
            ]
            digest = sha256(json.dumps([completion.tokens, exact]).encode()).hexdigest()[:32]
            count = len(completion.tokens)
            print(
                f"{model.name:20} {draft:5} T={temperature:<4} {count} tokens {digest}", flush=True
            )
