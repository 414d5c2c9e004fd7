"""Prints a text while it is generated, and ends it early when a condition is met."""

from specqd import LLM, SamplingParams

llm = LLM()
params = SamplingParams(max_tokens=200, temperature=0.8, seed=3)
stream = llm.stream("class Circle:\n", params)

text = ""
for piece in stream:
    print(piece, end="", flush=True)
    text += piece
    if text.count("\n") >= 8:
        stream.stop()  # ends the text after the current round; `break` would cancel it

result = stream.result
assert result is not None
whole = llm.generate("class Circle:\n", params)[0]
print(f"\n\n{len(result.tokens)} tokens, {result.stats.tokens_per_s:.0f} tokens/s")
print(f"ended by: {result.completions[0].finish_reason}")
print(f"the pieces are the text: {text == result.text}")
print(f"the beginning of the whole text: {whole.text.startswith(text)}")
