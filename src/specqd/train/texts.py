"""Texts to train on: read from a file, or written by the model itself and kept in a file.

A line of the file is one text: its token ids, and the first that is learned. Knows no features.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from specqd.engine.generation import GenerationRequest
from specqd.errors import RequestError, TokenizerError
from specqd.llm import LLM
from specqd.sampling import SamplingParams
from specqd.text.text_file import json_lines, read_text_file
from specqd.text.tokenizer import Tokenizer
from specqd.train.files import replacing

Progress = Callable[[int, int], None]  # tokens so far, tokens wanted

TOGETHER = 64  # texts that are submitted, and written to the file, at once
_TURN = 96  # tokens of a user's turn that the model writes, at most
_WARM = 0.8  # the temperature of every other text; the others are greedy
_MARK = "\x02"  # stands for the user's words in a template


@dataclass(frozen=True, slots=True)
class Text:
    """Token ids; those from `learned` on are what a head learns to foresee."""

    tokens: list[int]
    learned: int

    @property
    def count(self) -> int:
        return len(self.tokens) - self.learned


def read_kept(path: Path) -> list[Text]:
    """The whole lines of a file that `keep_texts` wrote; none where there is no file.

    A line that a kill cut off is left out. Raises RequestError for another file.
    """
    if not path.exists():
        return []
    lines = read_text_file(path, "train-head", "use another directory").split("\n")
    texts = []
    for number, line in enumerate(lines[:-1], 1):
        try:
            entry = json.loads(line)
            texts.append(Text([int(each) for each in entry["tokens"]], int(entry["learned"])))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            problem = "not a text of train-head; remove the file, or use another directory"
            raise RequestError(f"{path}:{number}: {problem}") from error
    return texts


def keep_texts(path: Path, texts: Sequence[Text]) -> None:
    """Replaces the file by these texts."""
    with replacing(path) as file:
        file.write_text("".join(map(_line, texts)), encoding="utf-8")


def _line(text: Text) -> str:
    return json.dumps({"tokens": text.tokens, "learned": text.learned}) + "\n"


def read_texts(path: Path, tokenizer: Tokenizer, length: int) -> list[Text]:
    """All lines of a file with `text` or `messages`, in parts of `length` tokens."""
    texts = []
    for entry, where in _entries(path, "--texts"):
        tokens = _encoded(entry, tokenizer, where, is_prompt=False)
        parts = (tokens[at : at + length] for at in range(0, len(tokens), length))
        texts += [Text(part, 1) for part in parts if len(part) > 2]
    if not texts:
        raise RequestError(f"--texts {path}: has no text; write one JSON object a line")
    return texts


def read_prompts(path: Path, tokenizer: Tokenizer, length: int) -> list[list[int]]:
    """The ends of all prompts of a file with `prompt`, `text` or `messages` a line."""
    entries = _entries(path, "--prompts")
    prompts = [_encoded(entry, tokenizer, where, is_prompt=True) for entry, where in entries]
    prompts = [prompt[-(length // 2) :] for prompt in prompts if prompt]
    if not prompts:
        raise RequestError(f"--prompts {path}: has no prompts; write one JSON object a line")
    return prompts


def _entries(path: Path, option: str) -> Iterator[tuple[dict[str, Any], str]]:
    content = read_text_file(path, option, "name a file of JSON lines")
    for entry, where in json_lines(content, f"{option} {path}:", ":"):
        if not isinstance(entry, dict):
            raise RequestError(f"{where} is no object; write one JSON object a line")
        yield entry, where


def _encoded(
    entry: dict[str, Any], tokenizer: Tokenizer, where: str, *, is_prompt: bool
) -> list[int]:
    names = ("prompt", "text") if is_prompt else ("text",)
    text = next((entry[name] for name in names if isinstance(entry.get(name), str)), None)
    if text is not None:
        return tokenizer.encode(text)
    messages = entry.get("messages")
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        listed = ", ".join(f"`{name}`" for name in names)
        raise RequestError(f"{where} has no text; write an object with {listed} or `messages`")
    try:
        return tokenizer.chat(messages, add_generation_prompt=is_prompt)
    except (RequestError, TokenizerError) as error:
        raise RequestError(f"{where}: {error}") from error


def up_to(wanted: int, texts: Sequence[Text]) -> list[Text]:
    """The first texts that have that many learned tokens together; all if they have fewer."""
    before = accumulate((text.count for text in texts), initial=0)
    return [text for text, count in zip(texts, before, strict=False) if count < wanted]


class Writer:
    """Lets the model write texts after prompts, or after prompts that it writes too."""

    def __init__(self, llm: LLM, prompts: Sequence[Sequence[int]], length: int, seed: int) -> None:
        self._llm = llm
        self._prompts = prompts
        self._length = length
        self._seed = seed

    def write(self, path: Path, wanted: int, progress: Progress) -> list[Text]:
        """Appends texts to the file until they have `wanted` learned tokens; returns all of them.

        The text of a number follows from the seed and the number alone.
        """
        texts = up_to(wanted, read_kept(path))
        keep_texts(path, texts)  # without a line that was cut off
        total, idle = sum(text.count for text in texts), 0
        while total < wanted:
            new = up_to(wanted - total, self._together(len(texts)))
            with path.open("a", encoding="utf-8") as file:
                file.write("".join(map(_line, new)))
            texts += new
            written = sum(text.count for text in new)
            total, idle = total + written, 0 if written else idle + 1
            if idle > 2:
                raise RequestError("the model ends every text at once; give --prompts or --texts")
            progress(min(total, wanted), wanted)
        return texts

    def _together(self, first: int) -> list[Text]:
        numbers = range(first, first + TOGETHER)
        prompts = self._prompts_of(numbers)
        pairs = zip(numbers, prompts, strict=True)
        answers = self._run([(prompt, self._answer(number, prompt)) for number, prompt in pairs])
        texts = zip(prompts, answers, strict=True)
        return [Text([*prompt, *answer], len(prompt)) for prompt, answer in texts]

    def _prompts_of(self, numbers: range) -> list[list[int]]:
        tokenizer = self._llm.tokenizer
        if self._prompts:
            return [list(self._prompts[number % len(self._prompts)]) for number in numbers]
        if not tokenizer.has_chat_template:
            begin = tokenizer.bos_token_id
            begin = tokenizer.eos_token_id if begin is None else begin
            return [[0 if begin is None else begin] for _ in numbers]
        chat = tokenizer.render_chat([{"role": "user", "content": _MARK}])
        opening = tokenizer.encode(chat.partition(_MARK)[0], add_special_tokens=False)
        most = min(_TURN, self._length // 4)
        params = SamplingParams(max_tokens=most, temperature=1.0, top_p=1.0, top_k=0)
        turns = self._run([(opening, self._seeded(params, number)) for number in numbers])
        contents = [tokenizer.decode(turn).strip() or "Hello" for turn in turns]
        chats = [tokenizer.chat([{"role": "user", "content": each}]) for each in contents]
        return [chat[-(self._length // 2) :] for chat in chats]

    def _answer(self, number: int, prompt: Sequence[int]) -> SamplingParams:
        """Greedy for every other text, as long as that is a new one."""
        is_greedy = self._is_new(number) and number % 2 == 0
        temperature = 0.0 if is_greedy else _WARM
        params = SamplingParams(max_tokens=self._length - len(prompt), temperature=temperature)
        return self._seeded(params, number)

    def _is_new(self, number: int) -> bool:
        if self._prompts:
            return number < len(self._prompts)
        return self._llm.tokenizer.has_chat_template

    def _seeded(self, params: SamplingParams, number: int) -> SamplingParams:
        return replace(params, seed=(self._seed << 32) + number)

    def _run(self, requests: Sequence[tuple[list[int], SamplingParams]]) -> list[list[int]]:
        """The new tokens of all requests, which run in one batch."""
        engine, defaults = self._llm.engine, self._llm.defaults
        generations = [
            engine.submit(GenerationRequest([prompt], params.resolved(defaults)))[0]
            for prompt, params in requests
        ]
        try:
            while any(each.finish_reason is None for each in generations):
                engine.step()
        finally:
            for each in generations:
                engine.cancel(each)
        for error in (each.error for each in generations if each.error is not None):
            raise error
        return [list(each.tokens) for each in generations]
