"""Streams one text while it completes others in the same batch, with asyncio."""

import asyncio

from specqd import AsyncLLM, SamplingParams

PROMPTS = ["def area(r):\n", "import json\n", "class Circle:\n"]
PARAMS = SamplingParams(max_tokens=48, temperature=0.8, seed=7)


async def shown(llm: AsyncLLM, prompt: str) -> str:
    text = ""
    async for piece in llm.stream(prompt, PARAMS):  # breaking out cancels the request
        print(piece, end="", flush=True)
        text += piece
    print()
    return text


async def main(llm: AsyncLLM) -> None:
    async with llm:  # ends the engine's thread at the end
        both = shown(llm, PROMPTS[0]), llm.generate(PROMPTS, PARAMS)
        streamed, results = await asyncio.gather(*both)
        print(f"streamed, equal to the whole: {streamed == results[0].text}")
        for prompt, result in zip(PROMPTS, results, strict=True):
            [alone] = await llm.generate(prompt, PARAMS)
            print(f"{prompt!r}, equal alone: {result.tokens == alone.tokens}")


asyncio.run(main(AsyncLLM()))
