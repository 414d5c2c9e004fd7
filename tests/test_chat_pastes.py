"""What is typed or pasted in `specqd chat` while no editor reads it: it stays one text, and Ctrl-C
and Ctrl-D work."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.fixtures import a_repeating_model
from support.served import TEMPLATE
from support.terminal_session import CTRL_C, CTRL_D, ENTER, TerminalSession

# A paste of 26 KB in 700 lines. As one message, it is one command, so no model answers it.
PASTE = "/system " + "\n".join(f"line {i} of the text that is pasted" for i in range(700))
ENDLESS = ("-n", "-1", "--ignore-eos", "--temperature", "0", "--draft", "none")
# The program, whose model is opened only once the FIFO named first has been written.
WAITING = """
import sys
from specqd.cli import chat, main
gate, open_llm = sys.argv[1], chat.open_llm
def wait(*arguments, **options):
    print("loading", file=sys.stderr)
    open(gate).close()
    return open_llm(*arguments, **options)
chat.open_llm = wait
sys.exit(main(sys.argv[2:]))
"""
model = a_repeating_model(ord("a"), TEMPLATE)
Open = Callable[[], None]
Start = Callable[..., TerminalSession]


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "gate")
    return tmp_path / "gate"


@pytest.fixture
def open_gate(gate: Path) -> Iterator[Open]:
    """Lets the program load its model. Never waits for the program."""
    ends: list[int] = []
    yield lambda: ends.append(os.open(gate, os.O_RDWR))
    for end in ends:
        os.close(end)


@pytest.fixture
def start(gate: Path, model: Path, tmp_path: Path) -> Start:
    """Starts a conversation, which loads its model until the gate is opened."""

    def begin(*options: str) -> TerminalSession:
        command = [sys.executable, "-c", WAITING, str(gate), "chat", str(model), *options]
        return TerminalSession(command, os.environ | {"XDG_STATE_HOME": str(tmp_path / "state")})

    return begin


def saved_system(session: TerminalSession, tmp_path: Path) -> str:
    """The system message that the conversation has now."""
    session.say(f"/save {tmp_path / 'talk.json'}")
    session.expect("saved to ")
    session.expect("talk.json")
    [message] = json.loads((tmp_path / "talk.json").read_text())["messages"]
    assert message["role"] == "system"
    return str(message["content"])


@pytest.mark.parametrize("is_marked", [True, False], ids=["marked", "unmarked"])
def test_a_paste_while_the_model_loads_is_one_text_for_the_editor(
    start: Start, open_gate: Open, tmp_path: Path, is_marked: bool
) -> None:
    with start() as session:
        session.expect("loading")
        session.paste(PASTE, is_marked=is_marked)
        session.send(ENTER)
        open_gate()
        session.say("")
        assert saved_system(session, tmp_path) == PASTE.removeprefix("/system ")
        session.say("", CTRL_D)
        assert session.wait() == 0


@pytest.mark.parametrize("is_marked", [True, False], ids=["marked", "unmarked"])
def test_a_paste_while_the_model_answers_is_one_text_for_the_editor(
    start: Start, open_gate: Open, tmp_path: Path, is_marked: bool
) -> None:
    with start(*ENDLESS) as session:
        open_gate()
        session.say("ab")
        session.expect_answer()
        session.paste(PASTE, is_marked=is_marked)
        session.send(CTRL_C)
        session.expect("stopped: Ctrl-C")
        session.say("")
        session.say("/clear")
        assert saved_system(session, tmp_path) == PASTE.removeprefix("/system ")


def test_a_paste_while_the_prompt_is_read_is_one_text_for_the_editor(
    start: Start, open_gate: Open, tmp_path: Path
) -> None:
    with start("-n", "3") as session:
        open_gate()
        session.say("ab " * 2000)
        session.expect_sent()
        session.paste(PASTE)
        session.say("")
        session.say("/clear")
        assert saved_system(session, tmp_path) == PASTE.removeprefix("/system ")


def test_a_paste_in_the_editor_is_one_text(start: Start, open_gate: Open, tmp_path: Path) -> None:
    with start() as session:
        open_gate()
        session.say("/system", "")
        session.paste(PASTE.removeprefix("/system"))
        session.send(ENTER)
        assert saved_system(session, tmp_path) == PASTE.removeprefix("/system ")


def test_after_a_paste_ctrl_c_ends_the_loading(start: Start) -> None:
    with start() as session:
        session.expect("loading")
        session.paste(PASTE)
        session.send(CTRL_C)
        assert session.wait() == 130
    assert b"Traceback" not in session.raw


def test_ctrl_d_while_the_model_loads_leaves(start: Start, open_gate: Open) -> None:
    with start() as session:
        session.expect("loading")
        session.send(CTRL_D)
        open_gate()
        assert session.wait() == 0


def test_after_a_paste_ctrl_c_and_ctrl_d_leave_the_editor(start: Start, open_gate: Open) -> None:
    with start(*ENDLESS) as session:
        open_gate()
        session.say("ab")
        session.expect_answer()
        session.paste(PASTE)
        session.send(CTRL_C)
        session.expect("stopped: Ctrl-C")
        session.say("", CTRL_C)
        session.say("", CTRL_D)
        assert session.wait() == 0
    assert b"error" not in session.raw


def test_lines_typed_while_the_model_answers_are_not_sent(
    start: Start, open_gate: Open, tmp_path: Path
) -> None:
    with start(*ENDLESS) as session:
        open_gate()
        session.say("ab")
        session.expect_answer()
        session.send(f"/system one{ENTER}two{ENTER}")
        session.send(CTRL_C)
        session.expect("stopped: Ctrl-C")
        session.say("")
        session.say("/clear")
        assert saved_system(session, tmp_path) == "one\ntwo"
