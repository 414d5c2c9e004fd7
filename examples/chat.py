"""Chats with the shipped model, which knows Python source but has no chat template.

The example adds one. For a chat model, LLM("Qwen/Qwen3-0.6B") replaces the four lines of `with`.
"""

import os
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory

from specqd import LLM, SamplingParams

TEMPLATE = """{% for message in messages %}# {{ message.role }}
{{ message.content }}
{% endfor %}{% if add_generation_prompt %}# assistant
{% endif %}"""
params = SamplingParams(max_tokens=40, temperature=0)

with TemporaryDirectory() as empty:
    model = copytree(LLM().directory, f"{empty}/model", copy_function=os.symlink)
    Path(model, "chat_template.jinja").write_text(TEMPLATE)
    llm = LLM(model)

messages: list[dict[str, str]] = []
for question in ("def area(r):", "def volume(r):"):
    messages.append({"role": "user", "content": question})
    answer = llm.chat(messages, params)
    equal = answer.tokens == llm.with_draft("none").chat(messages, params).tokens
    messages.append({"role": "assistant", "content": answer.text})
    print(f"> {question}\n{answer.text}\n{equal}: equal to plain decoding")
