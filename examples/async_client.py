"""Serves the shipped model on a free port, and sends it several requests at once."""

import asyncio
import re
import subprocess
import sys
from contextlib import ExitStack

from openai import AsyncOpenAI

PROMPTS = ["def area(r):\n", "import json\n", "class Circle:\n", "if __name__"]


async def ask(client: AsyncOpenAI, prompt: str) -> str:
    asked = {"model": "pycode-28m", "prompt": prompt, "max_tokens": 32, "seed": 7}
    return (await client.completions.create(**asked)).choices[0].text


async def main(url: str) -> None:
    async with AsyncOpenAI(base_url=url, api_key="unused") as client:
        together = await asyncio.gather(*(ask(client, prompt) for prompt in PROMPTS))
        for prompt, text in zip(PROMPTS, together, strict=True):
            print(f"{prompt!r} {text!r}; equal alone: {text == await ask(client, prompt)}")


command = [sys.executable, "-m", "specqd", "serve", "--port", "0"]
with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server, ExitStack() as ends:
    ends.callback(server.terminate)
    url = next(found[0] for line in server.stderr if (found := re.search(r"http://\S+", line)))
    asyncio.run(main(f"{url}/v1"))
