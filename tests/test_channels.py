"""Texts in channels: how they are split, and which channels a conversation shows."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from specqd.cli.answers import ReasonedAnswer
from specqd.cli.screens import Dimmed, Streamed
from specqd.engine.updates import Update
from specqd.openai.answers import form_of
from specqd.openai.requests import Prepared, chat_request
from specqd.text.channels import ChannelReader, has_channels
from specqd.text.reasoning import Reasoning
from specqd.text.tokenizer import Tokenizer
from support.command_line import run_program
from support.random_models import Shape, make_model
from support.scripted_models import make_scripted_model
from support.served import serving

TOKENS = [
    *("<|channel|>", "analysis", "<|message|>", "a ", "thought <b", "|>", "<|end|>"),
    *("<|start|>", "assistant", "<|channel|>", "commentary", " to=functions.f", "<|constrain|>"),
    *("json", "<|message|>", "{}", "<|call|>", "<|start|>", "assistant", "<|channel|>", "final"),
    *("<|message|>", "An ", "answer", ".", "<|return|>"),
]
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{{ 'a' }}"


def test_channels_are_separated_wherever_the_text_is_cut(rng: np.random.Generator) -> None:
    for _ in range(20):
        ends = np.flatnonzero(rng.random(len(TOKENS)) < rng.random()) + 1
        bounds = [0, *ends, len(TOKENS)]
        reader, read = ChannelReader(), dict[str, str]()
        for start, end in pairwise(bounds):
            for channel, text in reader.feed("".join(TOKENS[start:end])):
                read[channel] = read.get(channel, "") + text
        assert list(reader.finish()) == []
        assert read == {"analysis": "a thought <b|>", "commentary": "{}", "final": "An answer."}


def test_a_text_without_marks_is_the_answer() -> None:
    reader = ChannelReader()
    assert [*reader.feed("an "), *reader.feed("answer")] == []
    assert list(reader.finish()) == [("final", "an answer")]


@pytest.mark.parametrize("shows_thoughts", [False, True])
def test_thoughts_go_to_standard_error_and_are_not_kept(
    capsys: pytest.CaptureFixture[str], shows_thoughts: bool
) -> None:
    answer = ReasonedAnswer(Reasoning(None), Streamed(), Dimmed if shows_thoughts else None)
    for token in [*TOKENS[:6], "\x1b[1m", *TOKENS[6:]]:
        answer.show(token)
    answer.finish()
    out, err = capsys.readouterr()
    assert answer.text == "An answer."
    assert out == "An answer.\n"
    assert err == ("a thought <b|>[1m{}\n" if shows_thoughts else "")


def test_a_conversation_shows_the_answer_alone(tmp_path: Path, seed: int) -> None:
    marks = ("<|channel|>", "<|message|>")
    script = {"a": "<|channel|>final<|message|>Hello to you"}
    model = make_scripted_model(tmp_path / "model", script, TEMPLATE, seed, marks)
    assert has_channels(Tokenizer.open(model))
    ran = run_program("chat", model, "--temperature", "0", input=b"hi\nho\n")
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout == b"Hello to you\n" * 2
    ran = run_program("generate", model, "--chat", "-p", "hi", "--temperature", "0")
    assert (ran.returncode, ran.stdout) == (0, b"Hello to you\n")


def test_a_message_has_thoughts_in_a_separate_field(
    tmp_path: Path, rng: np.random.Generator, seed: int
) -> None:
    tokenizer = Tokenizer.open(make_model(tmp_path / "model", Shape(), seed))
    request = chat_request({"messages": [{"role": "user", "content": "Say."}]})
    prepared = Prepared(request, [[1]], request.params, reasoning=Reasoning(None))
    ends = np.flatnonzero(rng.random(len(TOKENS)) < rng.random()) + 1
    bounds = [0, *(end for end in ends if end < len(TOKENS)), len(TOKENS)]
    texts = ["".join(TOKENS[start:end]) for start, end in pairwise(bounds)]
    reasons = [None] * (len(texts) - 1) + ["stop"]
    form = form_of(prepared, tokenizer, "key")
    streamed = {"content": "", "reasoning_content": ""}
    for text, reason in zip(texts, reasons, strict=True):
        [choice] = form.chunks(Update(0, text, [], [], reason, None))
        for name, part in choice["delta"].items():
            assert part
            streamed[name] += part
    assert streamed == {"content": "An answer.", "reasoning_content": "a thought <b|>{}"}
    whole = form_of(prepared, tokenizer, "key").whole(
        Update(0, "".join(texts), [], [], "stop", None)
    )
    assert {name: whole["message"][name] for name in streamed} == streamed


def test_a_server_returns_thoughts_separately(tmp_path: Path, seed: int) -> None:
    for name in ("fastapi", "uvicorn", "llguidance"):
        pytest.importorskip(name, reason="needs specqd[serve]")
    script = {"a": "<|channel|>analysis<|message|>Hm.<|end|>"}
    marks = ("<|channel|>", "<|message|>", "<|end|>")
    model = make_scripted_model(tmp_path / "model", script, TEMPLATE, seed, marks)
    body = {"messages": [{"role": "user", "content": "Say."}], "temperature": 0}
    with serving(str(model)) as served:
        message = served.ask("POST", "/v1/chat/completions", body).content["choices"][0]["message"]
        assert (message["content"], message["reasoning_content"]) == ("", "Hm.")
        limited = {**body, "thinking_token_budget": 50}  # has no effect on channels
        answer = served.ask("POST", "/v1/chat/completions", limited).content
        assert answer["choices"][0]["message"] == message
        held = served.ask("POST", "/v1/completions", {"prompt": "a", "temperature": 0})
        assert held.content["choices"][0]["text"] == "analysisHm."
