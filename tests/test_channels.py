"""Texts in channels: how they are split, and which channels a conversation shows."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from specqd import LLM, SamplingParams
from specqd._native import Sampler, Sequence
from specqd.cli.answers import ReasonedAnswer
from specqd.cli.screens import Dimmed, Streamed
from specqd.engine.generation import Generation
from specqd.engine.updates import Update
from specqd.openai.answers import form_of
from specqd.openai.requests import Prepared, chat_request
from specqd.text.channels import ChannelReader, HeaderTokens, has_channels
from specqd.text.reasoning import Reasoning
from specqd.text.tokenizer import Tokenizer
from support.command_line import run_program
from support.openai_client import CHAT, COMPLETIONS
from support.random_models import Shape, make_model
from support.scripted_models import make_scripted_model
from support.served import serving
from support.small_tokenizers import CONFIG, byte_level

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


def test_channels_are_separated_within_marks_too(rng: np.random.Generator) -> None:
    text = "".join(TOKENS)
    for _ in range(20):
        ends = np.flatnonzero(rng.random(len(text)) < rng.random()) + 1
        reader, parts = ChannelReader(), list[tuple[str, str]]()
        for start, end in pairwise([0, *ends, len(text)]):
            parts += reader.feed(text[start:end])
        parts += reader.finish()
        for channel, read in (("analysis", "a thought <b|>"), ("final", "An answer.")):
            assert "".join(text for name, text in parts if name == channel) == read


def test_a_text_may_end_with_the_beginning_of_a_mark() -> None:
    reader = ChannelReader()
    assert list(reader.feed("<|channel|>final<|message|>1 <|")) == [("final", "1 ")]
    assert list(reader.finish()) == [("final", "<|")]
    reader = ChannelReader()
    assert [*reader.feed("1 <"), *reader.finish()] == [("final", "1 <")]


MARKS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")
THOUGHTS = ("a > b >> c", "so >")  # of the analysis, in two messages
SAID = "final >> 4 >>>> 5 |> 6"


@pytest.fixture(scope="module")
def harmony() -> tuple[Tokenizer, list[int]]:
    """A tokenizer with channels, and the tokens of a text in them."""
    backend = byte_level()
    backend.add_special_tokens(list(MARKS))
    tokenizer = Tokenizer(backend, CONFIG, {})
    texts = [*(f"<|channel|>analysis<|message|>{text}<|end|>" for text in THOUGHTS)]
    text = "<|start|>assistant".join([*texts, f"<|channel|>final<|message|>{SAID}"])
    return tokenizer, tokenizer.encode(text, add_special_tokens=False)


def generated(
    tokenizer: Tokenizer, tokens: list[int], stops: list[str], ends: list[int]
) -> tuple[Generation, list[str]]:
    """The tokens as a chat's answer, in rounds that end there; also the pieces of its text."""
    params = SamplingParams(stop=stops, skip_special_tokens=False)
    generation = Generation(
        Sequence([1], Sampler(), 1),
        params,
        *(0, 0, len(tokens)),
        tokenizer.stream(skip_special_tokens=False),
        headers=HeaderTokens(tokenizer),
    )
    pieces = []
    for start, end in pairwise([0, *ends, len(tokens)]):
        if start < end and generation.finish_reason is None:
            length = len(generation.text)
            count = end - start
            reason = generation.take(tokens[start:end], [1.0] * count, [0] * count)
            if reason is not None:
                generation.finish(reason)
            pieces.append(generation.text[length:])
    return generation, pieces


@pytest.mark.parametrize(
    ("stops", "thought", "answer"),
    [
        ([">>>"], "".join(THOUGHTS), "final >> 4 "),
        (["|>"], "".join(THOUGHTS), "final >> 4 >>>> 5 "),
        (["final"], "".join(THOUGHTS), ""),
        (["analysis", "assistant", "channel", "<|end|>", "><"], "".join(THOUGHTS), SAID),
        ([">a", "c<", "cso", "|>so"], "".join(THOUGHTS), SAID),
        ([">>"], "a > b ", ""),
        ([" >>>>", "so >"], "a > b >> c", ""),
    ],
)
def test_stop_strings_are_not_searched_for_in_marks_of_channels(
    harmony: tuple[Tokenizer, list[int]],
    rng: np.random.Generator,
    stops: list[str],
    thought: str,
    answer: str,
) -> None:
    tokenizer, tokens = harmony
    for chance in (0.0, 0.3, 1.0):
        ends = (np.flatnonzero(rng.random(len(tokens)) < chance) + 1).tolist()
        generation, pieces = generated(tokenizer, tokens, stops, ends)
        assert (generation.stop_text is None) == (thought + answer == "".join(THOUGHTS) + SAID)
        for texts in ([generation.text], pieces):
            reader = ChannelReader()
            parts = [reader.split(text, is_last=False) for text in texts]
            parts.append(reader.split("", is_last=True))
            found = "".join(each for each, _ in parts), "".join(each for _, each in parts)
            assert found == (answer, thought)


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


def test_chats_and_completions_end_at_stop_strings_of_their_texts(
    tmp_path: Path, seed: int
) -> None:
    for name in ("fastapi", "uvicorn", "llguidance"):
        pytest.importorskip(name, reason="needs specqd[serve]")
    script = {"a": "<|channel|>final<|message|>Hello |> to >>> you"}
    model = make_scripted_model(tmp_path / "model", script, TEMPLATE, seed, MARKS[1:3])
    asked = [{"role": "user", "content": "Say."}]
    expected = {
        ">>>": "Hello |> to ",
        "|>": "Hello ",
        "final": "Hello |> to >>> you",
        "<|message|>": "Hello |> to >>> you",
    }
    llm = LLM(model, "none", threads=1)
    with serving(str(model), "--draft", "none") as served:
        for stop, text in expected.items():
            body = {"messages": asked, "temperature": 0, "stop": stop}
            whole = served.ask("POST", CHAT, body).content["choices"][0]
            assert whole["message"]["content"] == text
            assert "reasoning_content" not in whole["message"]
            chunks = served.ask("POST", CHAT, body | {"stream": True}).chunks
            deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
            assert "".join(delta.get("content", "") for delta in deltas) == text
            assert not any("reasoning_content" in delta for delta in deltas)
            params = SamplingParams(temperature=0, stop=stop)
            reply = llm.chat(asked, params).reply
            assert reply is not None
            assert (reply.content, reply.reasoning) == (text, "")
        body = {"prompt": "a", "temperature": 0, "stop": "final"}
        assert served.ask("POST", COMPLETIONS, body).content["choices"][0]["text"] == ""
    params = SamplingParams(temperature=0, stop="<|message|>", skip_special_tokens=False)
    assert llm.generate("a", params)[0].text == "<|channel|>final"


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
