"""`specqd chat`, on a real terminal and through pipes."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from specqd import LLM, SamplingParams
from specqd.cli import main
from specqd.cli.conversation import Conversation
from specqd.errors import RequestError
from specqd.text.tokenizer import Tokenizer
from support.command_line import PROGRAM, run_program
from support.fixtures import a_repeating_model
from support.random_models import Shape, make_model
from support.terminal_session import CTRL_C, CTRL_D, CTRL_J, CTRL_Z, ENTER, UP, TerminalSession

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
GREEDY = ("--temperature", "0", "--draft", "fp4")
endless_talker = a_repeating_model(ord("a"), TEMPLATE)
escaping = a_repeating_model(0x1B)
Open = Callable[..., TerminalSession]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    directory = tmp_path_factory.mktemp("models") / "talker"
    make_model(directory, Shape(is_peaked=True, context=1 << 15), seed)
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return directory


@pytest.fixture(scope="module")
def plain_model(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    directory = tmp_path_factory.mktemp("models") / "writer"
    return make_model(directory, Shape(is_peaked=True, context=512), seed)


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory, plain_model: Path) -> Path:
    """The plain model without an end-of-text token."""
    directory = tmp_path_factory.mktemp("models") / "endless"
    shutil.copytree(plain_model, directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"eos_token_id": None}))
    return directory


@pytest.fixture
def chat_on_terminal(tmp_path: Path) -> Open:
    def start(*arguments: str | Path) -> TerminalSession:
        command = [*PROGRAM, "chat", *map(str, arguments)]
        state = {"XDG_STATE_HOME": str(tmp_path / "state")}
        return TerminalSession(command, os.environ | state)

    return start


def chat_through_pipe(text: str, *arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
    return run_program("chat", *arguments, input=text.encode())


def answers(model: Path, texts: Sequence[str], tokens: int) -> list[str]:
    """The model's answers in turn, from the Python API."""
    llm, messages, params = LLM(model), [], SamplingParams(max_tokens=tokens, temperature=0)
    for text in texts:
        messages.append({"role": "user", "content": text})
        messages.append({"role": "assistant", "content": llm.chat(messages, params).text})
    return [message["content"] for message in messages[1::2]]


def test_each_piped_line_is_a_turn_and_stdout_holds_only_answers(model: Path) -> None:
    sent = ["ab", "héllo\nthere", "/slash"]
    ran = chat_through_pipe("ab\n\nhéllo\\\nthere\n//slash", model, "-n", "12", *GREEDY)
    expected = "".join(
        text if text.endswith("\n") else f"{text}\n" for text in answers(model, sent, 12)
    )
    assert ran.returncode == 0
    assert ran.stdout.decode() == expected
    assert ran.stderr == b""


def test_piped_commands_are_run(model: Path) -> None:
    script = "/system be brief\n/system\nab\n/stats\n/explain\n/clear\n/stats\n/quit\n/nonsense\n"
    ran = chat_through_pipe(script, model, "-n", "5", *GREEDY)
    notes = ran.stderr.decode()
    assert ran.returncode == 0
    assert "system message: be brief" in notes
    assert "5 tokens, " in notes
    assert "forwards" in notes
    assert "bf16 itself: " in notes
    assert "no answer yet" in notes
    assert "/nonsense" not in notes
    llm, params = LLM(model), SamplingParams(max_tokens=5, temperature=0)
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "ab"}]
    assert ran.stdout.decode().rstrip("\n") == llm.chat(messages, params).text.rstrip("\n")


def test_a_piped_line_that_is_no_command_ends_the_program(model: Path) -> None:
    ran = chat_through_pipe("/sytem be brief\nab\n", model, "-n", "2")
    assert (ran.returncode, ran.stdout) == (1, b"")
    assert b"/sytem is not a command; /help lists them" in ran.stderr


@pytest.mark.parametrize("command", ["/quit", "/exit", "/bye"])
def test_nothing_after_quit_is_answered(model: Path, command: str) -> None:
    ran = chat_through_pipe(f"{command}\nab\n", model, "-n", "2")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")


def test_without_a_template_the_text_is_continued_with_a_note(plain_model: Path) -> None:
    ran = chat_through_pipe("ab\n\ncd\n", plain_model, "-n", "6", *GREEDY)
    llm, params, text = LLM(plain_model), SamplingParams(max_tokens=6, temperature=0), ""
    pieces = []
    for line in ("ab", "", "\ncd"):
        text += line.removeprefix("\n") if text.endswith("\n") else line
        pieces.append(llm.generate(text, params)[0].text)
        text += pieces[-1]
    expected = "".join(piece if piece.endswith("\n") else f"{piece}\n" for piece in pieces)
    assert ran.stdout.decode() == expected
    assert b"writer has no chat template: it continues" in ran.stderr
    assert ran.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [("/system be brief\n", "no chat template"), ("\n", "no text to continue")],
)
def test_a_piped_line_that_cannot_be_answered_ends_with_one_line(
    plain_model: Path, text: str, problem: str
) -> None:
    ran = chat_through_pipe(text, plain_model, "-n", "2")
    assert ran.returncode == 1
    assert problem in ran.stderr.decode().splitlines()[-1]
    assert b"Traceback" not in ran.stderr


def test_a_piped_line_that_is_not_utf8_is_named(plain_model: Path) -> None:
    command = [*PROGRAM, "chat", str(plain_model), "-n", "2"]
    ran = subprocess.run(command, input=b"ab\n\xff\n", capture_output=True, check=False)
    assert ran.returncode == 1
    assert b"standard input: line 2 is not UTF-8" in ran.stderr


def test_a_terminal_streams_and_keeps_the_conversation(model: Path, chat_on_terminal: Open) -> None:
    with chat_on_terminal(model, "-n", "5", *GREEDY) as session:
        session.expect("/help lists the commands")
        session.say("one" + CTRL_J + "two")
        session.expect("specqd: 5 tokens, ")
        session.expect("stopped: length")
        session.say("three\\" + ENTER + "four")
        session.expect("specqd: 5 tokens, ")
        session.expect("stopped: length")
        session.say("/stats")
        shown = session.expect("context ")
        session.say("", CTRL_D)
        assert session.wait() == 0
    first, _ = answers(model, ["one\ntwo", "three\nfour"], 5)
    messages = [
        {"role": "user", "content": "one\ntwo"},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "three\nfour"},
    ]
    assert f"{len(Tokenizer.open(model).chat(messages))} tokens, " in shown
    assert b"Traceback" not in session.raw


def test_ctrl_c_stops_one_answer_and_its_prompt_stays_cached(
    endless_talker: Path, chat_on_terminal: Open
) -> None:
    with chat_on_terminal(endless_talker, *GREEDY) as session:
        for message in ("x" * 150, "again"):
            session.say(message)
            session.expect_answer()
            session.send(CTRL_C)
            session.expect("stopped: Ctrl-C")
        session.say("a line given up", CTRL_C)
        session.say("/stats")
        session.expect("tokens, ")
        assert int(session.expect(" of them cached")) >= 128
        session.say("", CTRL_D)
        assert session.wait() == 0
    assert b"Traceback" not in session.raw


INTERRUPTED = """
import os, signal, sys
from specqd.cli import main
from specqd.cli.talk import Talk
prepare = Talk._prompt
def interrupted(talk, message):
    os.kill(os.getpid(), signal.SIGINT)
    return prepare(talk, message)
Talk._prompt = interrupted
sys.exit(main(sys.argv[1:]))
"""


def test_ctrl_c_while_a_prompt_is_prepared_stops_its_answer(endless_talker: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, "chat", str(endless_talker), "a", *GREEDY]
    with TerminalSession(command, os.environ) as session:
        session.expect("stopped: Ctrl-C")
        assert session.wait() == 0


def test_a_chat_that_is_ended_gives_the_terminal_back(
    endless_talker: Path, chat_on_terminal: Open
) -> None:
    with chat_on_terminal(endless_talker) as session:
        session.expect("Ctrl-D leaves")
        session.expect_raw("\x1b[?2004h")
        session.end(signal.SIGTERM)
        session.expect_raw("\x1b[?2004l")
        assert session.wait() == 128 + signal.SIGTERM


def test_ctrl_z_is_left_to_the_shell(model: Path, chat_on_terminal: Open) -> None:
    """It suspends nothing here, where no shell runs; the line that was begun stays."""
    with chat_on_terminal(model, "-n", "3", *GREEDY) as session:
        session.say("a", CTRL_Z)
        session.say("b")
        session.say("/stats")
        expected = len(Tokenizer.open(model).chat([{"role": "user", "content": "ab"}]))
        session.expect(f"prompt     {expected} tokens, ")


def test_a_full_context_is_reported_and_clear_starts_again(
    endless: Path, chat_on_terminal: Open
) -> None:
    full = "all 40 positions of the context are full); /clear starts again"
    with chat_on_terminal(endless, "--context", "40", *GREEDY) as session:
        session.say("ab")
        session.expect(full)
        session.say("abcd" * 30)
        session.expect("too many for the context of 40; shorten the message, or start again")
        session.say("/clear")
        session.say("ab")
        session.expect(full)


def test_lines_of_earlier_conversations_are_in_the_history(
    model: Path, chat_on_terminal: Open, tmp_path: Path
) -> None:
    with chat_on_terminal(model, "-n", "2", *GREEDY) as session:
        session.say("a memorable line")
        session.say("/quit")
        assert session.wait() == 0
    kept = tmp_path / "state" / "specqd" / "chat_history"
    assert "a memorable line" in kept.read_text()
    assert kept.stat().st_mode & 0o077 == 0
    with chat_on_terminal(model, "-n", "2", *GREEDY) as session:
        session.say("", 2 * UP)
        session.expect("a memorable line")


def test_a_models_text_cannot_control_the_terminal(escaping: Path, chat_on_terminal: Open) -> None:
    with chat_on_terminal(escaping, "-n", "7") as session:
        session.say("ab")
        session.say("/explain")
        session.expect("bf16 itself: ")
        session.say("", CTRL_D)
        assert session.wait() == 0
    assert b"\x1b\x1b" not in session.raw


def test_a_refused_message_on_a_terminal_is_reported_and_dropped(
    plain_model: Path, chat_on_terminal: Open
) -> None:
    with chat_on_terminal(plain_model, "-n", "3", *GREEDY) as session:
        session.say("ab" * 600)
        session.expect("error: the conversation has")
        session.say("ab")
        session.say("/stats")
        session.expect("prompt     2 tokens")


def test_help_of_chat_loads_no_editor(capsys: pytest.CaptureFixture[str]) -> None:
    code = (
        "import sys; from specqd.cli import main; main(['chat', '--help']); "
        "sys.exit('prompt_toolkit' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
    assert main(["chat", "--help"]) == 0
    assert "specqd chat" in capsys.readouterr().out


def test_a_conversation_grows_only_by_what_is_recorded(model: Path) -> None:
    tokenizer = Tokenizer.open(model)
    dialogue = Conversation(tokenizer)
    dialogue.system = "be brief"
    prompt = dialogue.prompt("hi")
    assert dialogue.prompt("hi") == prompt
    assert tokenizer.decode(prompt) == "<system>be brief\n<user>hi\n<assistant>"
    dialogue.record("hi", "ho")
    expected = "<system>be brief\n<user>hi\n<assistant>ho\n<user>so\n<assistant>"
    assert tokenizer.decode(dialogue.prompt("so")) == expected
    dialogue.clear()
    assert dialogue.prompt("hi") == prompt


def test_without_a_template_lines_are_appended(plain_model: Path) -> None:
    tokenizer = Tokenizer.open(plain_model)
    text = Conversation(tokenizer)
    with pytest.raises(RequestError, match="no text to continue"):
        text.prompt("")
    text.record("a", "b")
    assert tokenizer.decode(text.prompt("")) == "ab"
    assert tokenizer.decode(text.prompt("c")) == "ab\nc"
    text.record("c", "d\n")
    assert tokenizer.decode(text.prompt("e")) == "ab\ncd\ne"
    with pytest.raises(RequestError, match="no system message"):
        text.system = "be brief"
