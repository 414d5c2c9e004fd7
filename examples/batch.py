"""Answers a file of OpenAI batch requests offline. A second run answers only what is missing."""

import json
import subprocess
import sys
from pathlib import Path

from specqd import LLM, SamplingParams

PROMPTS = {"area": "def area(r):\n", "tests": "import unittest\n", "main": "if __name__"}
SAMPLING = {"max_tokens": 24, "temperature": 0.8, "seed": 7}

requests, answers = Path("requests.jsonl"), Path("answers.jsonl")
with requests.open("w") as file:
    for name, prompt in PROMPTS.items():
        request = {"custom_id": name, "method": "POST", "url": "/v1/completions"}
        file.write(json.dumps(request | {"body": {"prompt": prompt} | SAMPLING}) + "\n")

subprocess.run(
    [sys.executable, "-m", "specqd", "batch", str(requests), "-o", str(answers)], check=True
)
llm = LLM()
for line in answers.read_text().splitlines():  # in order of completion
    answer = json.loads(line)
    text = answer["response"]["body"]["choices"][0]["text"]
    alone = llm.generate(PROMPTS[answer["custom_id"]], SamplingParams(**SAMPLING))[0].text
    print(f"{answer['custom_id']}: {text!r}; equal to the request alone: {text == alone}")
