"""What texts in channels say where, and what of it a conversation shows."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from command_line import run_program
from scripted_models import make_scripted_model
from specqd.channels import ChannelReader, has_channels
from specqd.cli.answers import ChanneledAnswer
from specqd.tokenizer import Tokenizer

TOKENS = [
    *("<|channel|>", "analysis", "<|message|>", "a ", "thought <b", "|>", "<|end|>"),
    *("<|start|>", "assistant", "<|channel|>", "commentary", " to=functions.f", "<|constrain|>"),
    *("json", "<|message|>", "{}", "<|call|>", "<|start|>", "assistant", "<|channel|>", "final"),
    *("<|message|>", "An ", "answer", ".", "<|return|>"),
]
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{{ 'a' }}"


def test_each_channel_is_told_apart_however_the_text_is_cut(rng: np.random.Generator) -> None:
    for _ in range(20):
        ends = np.flatnonzero(rng.random(len(TOKENS)) < rng.random()) + 1
        bounds = [0, *ends, len(TOKENS)]
        reader, said = ChannelReader(), dict[str, str]()
        for start, end in pairwise(bounds):
            for channel, text in reader.feed("".join(TOKENS[start:end])):
                said[channel] = said.get(channel, "") + text
        assert list(reader.finish()) == []
        assert said == {"analysis": "a thought <b|>", "commentary": "{}", "final": "An answer."}


def test_a_text_without_marks_is_an_answer() -> None:
    reader = ChannelReader()
    assert [*reader.feed("an "), *reader.feed("answer")] == []
    assert list(reader.finish()) == [("final", "an answer")]


@pytest.mark.parametrize("shows_thoughts", [False, True])
def test_thoughts_are_shown_apart_and_not_kept(
    capsys: pytest.CaptureFixture[str], shows_thoughts: bool
) -> None:
    answer = ChanneledAnswer(shows_thoughts=shows_thoughts)
    for token in [*TOKENS[:6], "\x1b[1m", *TOKENS[6:]]:
        answer.show(token)
    answer.finish()
    out, err = capsys.readouterr()
    assert answer.text == "An answer."
    assert out == "An answer.\n"
    assert err == ("a thought <b|>[1m{}\n" if shows_thoughts else "")


def test_a_conversation_has_the_answer_alone(tmp_path: Path, seed: int) -> None:
    marks = ("<|channel|>", "<|message|>")
    script = {"a": "<|channel|>final<|message|>Hello to you"}
    model = make_scripted_model(tmp_path / "model", script, TEMPLATE, seed, marks)
    assert has_channels(Tokenizer.open(model))
    ran = run_program("chat", model, "--temperature", "0", input=b"hi\nho\n")
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout == b"Hello to you\n" * 2
