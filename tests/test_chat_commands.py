"""Commands and sampling of `specqd chat`, through pipes and in a trial on a real terminal."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from specqd import LLM, SamplingParams
from specqd.cli.conversation import Conversation
from specqd.cli.talk import COMMANDS, HELP, LEAVE
from specqd.config.generation import GenerationDefaults
from specqd.sampling import chat_sampling
from specqd.text.tokenizer import Tokenizer
from support.command_line import PROGRAM, run_program
from support.fixtures import a_model, a_repeating_model
from support.random_models import Shape, make_model
from support.served import TEMPLATE
from support.terminal_session import TerminalSession

OURS = SamplingParams(max_tokens=12, temperature=0.7, repetition_penalty=1.05, ignore_eos=True)
OPTIONS = ("-n", "12", "--ignore-eos", "--draft", "fp4")
model = a_model(Shape(is_peaked=True, context=1 << 14), TEMPLATE)
endless_talker = a_repeating_model(ord("a"), TEMPLATE)


def terminal(tmp_path: Path, model: Path, *options: str) -> TerminalSession:
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    return TerminalSession([*PROGRAM, "chat", str(model), *options], os.environ | state)


def piped(model: Path, script: str, *options: str) -> tuple[int, str, str]:
    ran = run_program("chat", model, *OPTIONS, *options, input=script.encode())
    return ran.returncode, ran.stdout.decode(), ran.stderr.decode()


def answer(model: Path, message: str, params: SamplingParams) -> str:
    text = LLM(model, "none").chat([{"role": "user", "content": message}], params).text
    return text if text.endswith("\n") else f"{text}\n"


def test_a_trial(model: Path, tmp_path: Path) -> None:
    with terminal(tmp_path, model, *OPTIONS, "--seed", "7") as session:
        session.expect("sampling: temperature 0.7, repetition penalty 1.05; /set changes it")
        session.say("ab")
        session.expect("specqd: 12 tokens, ")
        session.expect(" tokens/s, stopped: length")
        session.say("/stats")
        session.expect("seed       7")
        session.say("/regenerate")
        session.expect(" tokens/s, stopped: length")
        session.say("/stats")
        session.expect("seed       8")
        session.say(f"/save {tmp_path / 'talk.json'}")
        session.expect("saved to ")
        session.say("/set temperature 0.25")
        session.say("/set")
        session.expect("temperature 0.25, ")
        session.say("/set warmth 3")
        session.expect("error: warmth cannot be set; known: max-tokens, temperature, ")
        session.say("cd")
        session.expect("stopped: length")
        session.say("/help")
        session.expect("/regenerate")
        session.say("/bye")
        assert session.wait() == 0
    assert b"Traceback" not in session.raw
    [asked, answered] = json.loads((tmp_path / "talk.json").read_text())["messages"]
    assert asked == {"role": "user", "content": "ab"}
    expected = answer(model, "ab", replace(OURS, seed=8))
    assert answered["content"].rstrip("\n") == expected.rstrip("\n")


def test_nothing_typed_is_shown_while_the_model_answers(
    endless_talker: Path, tmp_path: Path
) -> None:
    with terminal(tmp_path, endless_talker, "-n", "-1", "--temperature", "0") as session:
        session.say("ab")
        session.expect_answer()
        assert not session.echoes


def test_what_is_typed_meanwhile_waits_for_the_editor(endless_talker: Path, tmp_path: Path) -> None:
    with terminal(tmp_path, endless_talker, "-n", "1500", "--temperature", "0") as session:
        session.say("ab")
        session.expect_answer()
        session.send("typed ahead")
        assert "typed ahead" not in session.expect("stopped: length")
        session.expect("typed ahead")


def test_the_default_is_repeatable_by_its_seed(model: Path) -> None:
    expected = answer(model, "ab", replace(OURS, seed=5))
    assert piped(model, "ab\n", "--seed", "5")[:2] == (0, expected)
    script = "/set seed 5\nab\n"
    assert piped(model, script)[:2] == (0, expected)


def test_set_changes_what_options_set(model: Path) -> None:
    script = "/set temp 0\n/set parameter max_tokens 5\n/set stop never\nab\n/set temp -\n/set\n"
    status, out, err = piped(model, script, "--seed", "5")
    assert status == 0
    assert out == answer(model, "ab", replace(OURS, max_tokens=5, temperature=0))
    assert "max-tokens 5, temperature 0.7, " in err
    assert "stop 'never'" in err
    assert "seed 5" in err


def test_set_system_sets_the_message(model: Path) -> None:
    assert "system message: be brief" in piped(model, "/set system be brief\n/system\n")[2]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("/set warmth 3", "warmth cannot be set; known: max-tokens, temperature, "),
        ("/set temperature", "/set temperature has no value; write /set NAME VALUE"),
        ("/set temperature hot", "temperature: 'hot' is not a valid float"),
        ("/set temperature -3", "temperature: -3.0 is not 0 or a number"),
        ("/set temperature 0\nab\n/regenerate", "at temperature 0 the answer would be the same"),
        ("/save", "/save needs the name of a new file"),
        ("/save /", "name a new file"),
    ],
)
def test_a_command_that_cannot_be_done_is_named(model: Path, line: str, problem: str) -> None:
    status, _, err = piped(model, f"{line}\n")
    assert status == 1
    assert problem in err.splitlines()[-1]
    assert "Traceback" not in err


def test_without_an_answer_nothing_is_regenerated(model: Path) -> None:
    status, out, err = piped(model, "/regenerate\n")
    assert (status, out) == (1, "")
    assert "no answer yet" in err


def test_a_conversation_is_saved_as_text_and_never_over_a_file(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "talk.md"
    status, out, err = piped(model, f"/system s\nab\n/save {file}\n/save {file}\n", "--seed", "5")
    assert status == 1
    assert "File exists; name a new file" in err
    text = file.read_bytes().decode()
    assert text.startswith("## system\n\ns\n\n## user\n\nab\n\n## assistant\n\n")
    assert text.endswith(f"{out.strip()}\n")


@pytest.mark.parametrize("given", [None, 0.3])
def test_a_models_own_sampling_stays(given: float | None) -> None:
    params = SamplingParams(temperature=given)
    own = GenerationDefaults(do_sample=True, temperature=0.6, top_p=0.9)
    assert chat_sampling(params, own) == params


def test_where_none_is_stated_ours_is_taken() -> None:
    nothing = GenerationDefaults()
    ours = chat_sampling(SamplingParams(), nothing)
    assert (ours.temperature, ours.repetition_penalty) == (0.7, 1.05)
    greedy = SamplingParams(temperature=0)
    assert chat_sampling(greedy, nothing) == greedy
    assert chat_sampling(SamplingParams(repetition_penalty=1), nothing).repetition_penalty == 1
    penalised = GenerationDefaults(repetition_penalty=1.3)
    assert chat_sampling(SamplingParams(), penalised).repetition_penalty == 1.3


def test_a_turn_may_be_taken_back(model: Path, tmp_path: Path, seed: int) -> None:
    writer = make_model(tmp_path / "writer", Shape(is_peaked=True), seed)
    for conversation in (Conversation(Tokenizer.open(each)) for each in (model, writer)):
        assert conversation.take_back() is None
        conversation.record("a", "b\n")
        before = conversation.saved(), conversation.shown(), conversation.prompt("x")
        conversation.record("c", "d")
        assert conversation.take_back() == ("c", "d")
        assert (conversation.saved(), conversation.shown(), conversation.prompt("x")) == before
        assert conversation.take_back() == ("a", "b\n")
        assert conversation.take_back() is None


def test_a_text_behind_the_model_is_answered_and_the_program_ends(
    model: Path, tmp_path: Path
) -> None:
    expected = answer(model, "ab cd", replace(OURS, seed=5))
    for words in (("ab cd",), ("ab", "cd"), ("-p", "ab cd")):
        ran = run_program("chat", model, *words, *OPTIONS, "--seed", "5")
        assert (ran.returncode, ran.stdout.decode(), ran.stderr) == (0, expected, b"")
    with terminal(tmp_path, model, "ab cd", *OPTIONS, "--seed", "5") as session:
        session.expect("stopped: length")
        assert session.wait() == 0
    assert b"/help" not in session.raw


def test_what_is_piped_stands_before_the_text(model: Path) -> None:
    expected = answer(model, "ab\ncd", replace(OURS, seed=5))
    ran = run_program("chat", model, "cd", *OPTIONS, "--seed", "5", input=b"ab\n")
    assert (ran.returncode, ran.stdout.decode()) == (0, expected)


def test_a_text_that_does_not_fit_is_an_error(model: Path) -> None:
    ran = run_program("chat", model, "ab cd", *OPTIONS, "--context", "3")
    assert ran.returncode == 1
    assert b"shorten the message" in ran.stderr


def test_thinking_reaches_a_template_that_knows_it(tmp_path: Path, seed: int) -> None:
    model = make_model(tmp_path / "thinker", Shape(is_peaked=True, context=1 << 14), seed)
    switch = "{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}"
    (model / "chat_template.jinja").write_text(TEMPLATE + switch)
    params = replace(OURS, temperature=0, repetition_penalty=None, seed=5)
    words = ("-n", "12", "--ignore-eos", "--temperature", "0")
    for thinks in (True, False):
        flag = "--think" if thinks else "--no-think"
        llm = LLM(model, "none")
        text = llm.chat([{"role": "user", "content": "ab"}], params, enable_thinking=thinks).text
        line = text if text.endswith("\n") else f"{text}\n"
        assert piped(model, "ab\n", "--temperature", "0", flag)[:2] == (0, line)
        script = f"/set {'think' if thinks else 'nothink'}\nab\n"
        assert piped(model, script, "--temperature", "0")[:2] == (0, line)
        ran = run_program("generate", model, "ab", "--chat", flag, *words)
        assert ran.stdout.decode().rstrip("\n") == text.rstrip("\n")


@pytest.mark.parametrize("command", [("chat",), ("generate", "--chat")])
def test_thinking_is_refused_where_the_template_has_no_switch(
    model: Path, command: tuple[str, ...]
) -> None:
    ran = run_program(*command, "--no-think", str(model), "ab")
    assert ran.returncode == 1
    assert b"has no enable_thinking" in ran.stderr
    ran = run_program("generate", "--think", str(model), "ab")
    assert (ran.returncode, b"--think needs --chat; add it" in ran.stderr) == (2, True)


def test_one_message_to_a_model_without_a_template_is_told(tmp_path: Path, seed: int) -> None:
    model = make_model(tmp_path / "writer", Shape(is_peaked=True), seed)
    ran = run_program("chat", model, "ab", *OPTIONS)
    assert ran.returncode == 0
    assert ran.stderr.decode().splitlines() == [
        "specqd: writer has no chat template: it continues what you write"
    ]


def test_the_help_names_all_commands_within_80_columns() -> None:
    assert max(map(len, HELP.splitlines())) <= 80
    assert {*COMMANDS, *LEAVE} <= set(HELP.replace(",", " ").split())
