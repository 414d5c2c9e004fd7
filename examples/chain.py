"""Builds a chain: n-grams of a file draft for the 4-bit weights, and these draft for the model.

Any model with the same tokenizer can draft too: LLM(model, draft=["fp4", "./small", "ngram"]).
"""

import argparse
import inspect
from collections import Counter

from specqd import LLM, SamplingParams

PROMPT = inspect.getsource(argparse.HelpFormatter)[:600]
PARAMS = SamplingParams(max_tokens=128, temperature=0.8, seed=7)
llm = LLM(draft=["fp4", f"ngram:{argparse.__file__}"])  # each drafts for the one before it
result = llm.generate(PROMPT, PARAMS)[0]
print(f"{PROMPT}{result.text}\n")

depths = Counter(origin.depth for origin in result.completions[0].origins)
for depth, name in enumerate(result.stats.chain):  # 0 is the model itself
    print(f"{name}: {depths[depth]} of {len(result.tokens)} tokens")
for level in result.stats.levels:
    share = f"{level.accepted} of {level.drafted}"
    print(f"{level.name} accepted {share} drafted tokens in {level.forwards} forwards")

plain = llm.with_draft("none").generate(PROMPT, PARAMS)[0]
print(f"equal to plain decoding: {result.tokens == plain.tokens}")
