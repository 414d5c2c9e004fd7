"""Writes tests/goldens/tekken.json: token ids of texts and of random chats, by mistral-common, for
small files of each version. Run it with mistral-common 1.13.1 installed.
"""

import json
import random
import string
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from support.tekken_files import GOLDENS, VERSIONS, tekken_content, write_tekken

CHATS = 7  # for each version
WORDS = [
    "the", "cat's", "12", "\n\n", "", "naïve", "漢字", "😀", "x=3", "Hello", "foo(bar)", '"q"',
    "\\", "end.", "[x]", "{y}", "a\tb",
]  # fmt: skip
VALUES = ["Paris", 3, 2.5, None, True, ["a", {"b": 1}], 'quote " and \n', {}]
RESULTS = ['{"a": 1, "b": [2, "x"]}', "[1, 2]", "true", "17", "plain", "{y} and {z}"]
ID_CHARACTERS = string.ascii_letters + string.digits

Chat = dict[str, Any]


def main() -> None:
    strings = json.loads((GOLDENS / "tokenizers" / "texts.json").read_text())
    expected: dict[str, Any] = {"texts": [], "chats": {}}
    for name in VERSIONS:
        with tempfile.TemporaryDirectory() as folder:
            write_tekken(Path(folder), tekken_content(name))
            theirs = MistralTokenizer.from_file(str(Path(folder) / "tekken.json"))
        if not expected["texts"]:
            encode = theirs.instruct_tokenizer.tokenizer.encode
            expected["texts"] = [encode(text, bos=True, eos=False) for text in strings]
        rng = random.Random(name)
        chats = [random_chat(rng, int(name[1:3].rstrip("-")), name) for _ in range(CHATS)]
        expected["chats"][name] = [{**chat, "ids": ids_of(theirs, chat)} for chat in chats]
    written = json.dumps(expected, ensure_ascii=False, separators=(",", ":"))
    (GOLDENS / "tekken.json").write_text(written + "\n")


def ids_of(theirs: MistralTokenizer, chat: Chat) -> list[int]:
    messages = [their_message(message) for message in chat["messages"]]
    request = ChatCompletionRequest(
        messages=messages, tools=chat["tools"] or None, **chat["variables"]
    )
    return list(theirs.encode_chat_completion(request).tokens)


def their_message(message: Chat) -> Chat:
    theirs = dict(message)
    if calls := message.get("tool_calls"):
        written = [json.dumps(call["function"]["arguments"], ensure_ascii=False) for call in calls]
        theirs["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": text}}
            for call, text in zip(calls, written, strict=True)
        ]
    thought = theirs.pop("reasoning_content", None)
    if thought:
        parts = [{"type": "thinking", "thinking": thought}]
        parts += [{"type": "text", "text": message["content"]}] if message["content"] else []
        theirs["content"] = parts
    return theirs


def random_chat(rng: random.Random, version: int, name: str) -> Chat:
    has_thoughts = name in ("v13-thoughts", "v15")
    messages: list[Chat] = [
        {"role": "system", "content": words(rng)} for _ in range(rng.choice([0, 1, 1, 2]))
    ]
    for _ in range(rng.randrange(1, 4)):
        messages.append({"role": "user", "content": words(rng)})
        if rng.random() < 0.2:
            messages.append({"role": "user", "content": words(rng)})
        if rng.random() < 0.7:
            messages += called(rng, version, has_thoughts)
        messages.append({"role": "assistant", "content": words(rng) + rng.choice(["", "  "])})
        if has_thoughts and rng.random() < 0.4:
            messages[-1]["reasoning_content"] = words(rng)
    if rng.random() < 0.5:  # the last message is a user's or a result
        messages.append({"role": "user", "content": words(rng)})
    while messages[-1]["role"] == "assistant":
        messages.pop()
    has_effort = version >= 15 and rng.random() < 0.5
    tools = [tool(rng, i) for i in range(rng.choice([0, 1, 2]))]
    variables = {"reasoning_effort": "high"} if has_effort else {}
    return {"messages": messages, "tools": tools, "variables": variables}


def called(rng: random.Random, version: int, has_thoughts: bool) -> list[Chat]:
    """A message with calls, and their results, from version 13 on in any order."""
    calls = [call(rng) for _ in range(rng.choice([1, 1, 2, 3]))]
    message: Chat = {"role": "assistant", "content": "", "tool_calls": calls}
    if version >= 7 and rng.random() < 0.3:
        message["content"] = words(rng)
    if has_thoughts and rng.random() < 0.4:
        message["reasoning_content"] = words(rng)
    results = [
        {"role": "tool", "tool_call_id": each["id"], "content": rng.choice([words(rng), *RESULTS])}
        for each in calls
    ]
    if version >= 13:
        rng.shuffle(results)
    return [message, *results]


def call(rng: random.Random) -> Chat:
    names: Sequence[str] = rng.sample(["city", "n", "é", "list"], rng.randrange(4))
    arguments = {name: rng.choice(VALUES) for name in names}
    function = {"name": f"get_{rng.randrange(3)}", "arguments": arguments}
    return {
        "id": "".join(rng.choices(ID_CHARACTERS, k=9)),
        "type": "function",
        "function": function,
    }


def tool(rng: random.Random, number: int) -> Chat:
    described = {"description": words(rng)} if rng.random() < 0.7 else {}
    city = {"type": "string", "description": "Größe <b>"}
    parameters = {"type": "object", "properties": {"city": city}, "required": ["city"]}
    function = {"name": f"get_{number}", **described, "parameters": parameters}
    return {"type": "function", "function": function}


def words(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randrange(1, 7))).lstrip("\n") or "a"


if __name__ == "__main__":
    main()
