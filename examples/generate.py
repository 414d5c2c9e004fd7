"""Generates with and without drafts: tokens and log-probabilities are the same."""

from specqd import LLM, SamplingParams

llm = LLM()  # the shipped model; or LLM("./my-model"), LLM("Qwen/Qwen3-0.6B")
plain = llm.with_draft("none")  # the same weights, loaded once
prompts = ["def area(r):\n", "import json\n"]
params = SamplingParams(max_tokens=64, temperature=0.8, seed=7, logprobs=0)

results = llm.generate(prompts, params)
expected = plain.generate(prompts, params)
for prompt, result in zip(prompts, results, strict=True):
    print(f"{prompt}{result.text}\n")

is_equal = all(a.completions == b.completions for a, b in zip(results, expected, strict=True))
target = results[0].stats.levels[0]  # statistics of the whole call, both prompts
print(f"{target.accepted} of {target.drafted} drafted tokens accepted")
print(f"{target.forwards} forwards, {expected[0].stats.levels[0].forwards} without drafts")
print(f"equal to plain decoding: {is_equal}")
