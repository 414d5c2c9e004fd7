"""Conversations of `specqd chat` that last: continued later, with another model, or beyond the
context; and reasoning that is folded."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from specqd.cli.chat_files import read_chat, replace_file
from specqd.cli.conversation import Conversation, Turn, prompt_with_room
from specqd.errors import RequestError
from specqd.text.tokenizer import Tokenizer
from support.command_line import PROGRAM, run_program
from support.fixtures import a_model
from support.random_models import Shape
from support.scripted_models import make_scripted_model
from support.served import TEMPLATE
from support.terminal_session import CTRL_D, TerminalSession

GREEDY = ("-n", "8", "--temperature", "0", "--draft", "none", "--ignore-eos")
model = a_model(Shape(is_peaked=True, context=1 << 14), TEMPLATE)
writer = a_model(Shape(is_peaked=True, context=1 << 14))


@pytest.fixture
def state(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}


def piped(state: dict[str, str], script: str, *options: str | Path) -> tuple[int, str, str]:
    ran = run_program("chat", *options, input=script.encode(), env=state)
    return ran.returncode, ran.stdout.decode(), ran.stderr.decode()


def messages_in(file: Path) -> list[str]:
    return [each["content"] for each in json.loads(file.read_text())["messages"]]


# --- chat --resume --------------------------------------------------------------------------------


def test_the_last_conversation_goes_on_with_its_model(
    model: Path, state: dict[str, str], tmp_path: Path
) -> None:
    options = (*GREEDY, "--system", "s")
    with TerminalSession([*PROGRAM, "chat", str(model), *options], state) as session:
        session.say("ab")
        session.expect("stopped: length")
        session.say("", CTRL_D)
        assert session.wait() == 0
    kept = tmp_path / "state" / "specqd" / "last_chat.json"
    assert kept.stat().st_mode & 0o077 == 0
    first = messages_in(kept)
    with TerminalSession([*PROGRAM, "chat", "--resume", *GREEDY], state) as session:
        session.expect('continuing after 1 turn, the last one "ab"')
        session.say("cd")
        session.expect("stopped: length")
        session.say(f"/save {tmp_path / 'talk.json'}")
        session.expect("saved to ")
        session.say("", CTRL_D)
        assert session.wait() == 0
    saved = messages_in(tmp_path / "talk.json")
    assert saved[:4] == [*first, "cd"]
    whole = tmp_path / "whole.json"
    assert piped(state, f"ab\ncd\n/save {whole}\n", model, *options)[0] == 0
    assert messages_in(whole) == saved


def test_a_saved_conversation_is_continued_and_saved_again(
    model: Path, state: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "talk.json"
    assert piped(state, f"ab\n/save {file}\n", model, *GREEDY)[0] == 0
    script = f"cd\n/save {tmp_path / 'more.json'}\nef\n/save\n"
    assert piped(state, script, "--resume", file, *GREEDY)[0] == 0
    contents = messages_in(tmp_path / "more.json")
    assert contents[::2] == ["ab", "cd", "ef"]
    assert contents[:2] == messages_in(file)
    assert not (tmp_path / "state").exists(), "a pipe's conversation is not the last one"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "there is no such file"),
        ("[", "it is not JSON"),
        ('{"text": "a"}', "has no list of messages"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "the last message has no answer"),
        ('{"messages": [{"role": "tool", "content": "a"}, {}]}', "messages[0] is not a text of"),
        ('{"messages": [], "model": 3}', "model: 3 is not a name"),
    ],
)
def test_a_file_that_is_no_conversation_is_named(
    tmp_path: Path, content: str | None, problem: str
) -> None:
    file = tmp_path / "talk.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(RequestError) as caught:
        read_chat(file)
    assert problem in str(caught.value)
    assert str(file) in str(caught.value)


def test_without_a_last_conversation_none_is_continued(state: dict[str, str]) -> None:
    status, out, err = piped(state, "", "--resume")
    assert (status, out) == (1, "")
    assert "there is no last conversation yet" in err


# --- /load ----------------------------------------------------------------------------------------


def test_another_model_continues_the_conversation(
    model: Path, writer: Path, state: dict[str, str], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(model, other)
    (other / "chat_template.jinja").write_text(TEMPLATE.replace("[{{", "<{{").replace("}}]", "}}>"))
    files = [tmp_path / f"{i}.json" for i in range(2)]
    script = f"ab\n/save {files[0]}\n/load {other}\ncd\n/load {writer}\nef\n/save {files[1]}\n"
    status, _, err = piped(state, script, model, *GREEDY)
    assert status == 0, err
    assert "small has no chat template: it continues what you write" in err
    contents = messages_in(files[1])
    assert contents[::2] == ["ab", "cd", "ef"]
    assert json.loads(files[1].read_text())["model"] == str(writer)
    resumed = tmp_path / "resumed.json"
    options = ("--resume", files[0], *GREEDY)
    assert piped(state, f"cd\n/save {resumed}\n", other, *options)[0] == 0
    assert messages_in(resumed) == contents[:4]


def test_a_model_that_cannot_be_loaded_leaves_the_old_one(
    model: Path, state: dict[str, str], tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(model, broken)
    (broken / "model.safetensors").write_bytes(b"no tensors")
    with TerminalSession([*PROGRAM, "chat", str(model), *GREEDY], state) as session:
        session.say("ab")
        session.expect("stopped: length")
        for name in ("./missing", broken):
            session.say(f"/load {name}")
            session.expect("error: ")
            session.expect(" stays)")
        session.say("/load")
        session.expect("error: /load needs a model")
        session.say("cd")
        session.expect("stopped: length")
        session.say(f"/save {tmp_path / 'talk.json'}")
        session.expect("saved to ")
    whole = tmp_path / "whole.json"
    assert piped(state, f"ab\ncd\n/save {whole}\n", model, *GREEDY)[0] == 0
    assert messages_in(tmp_path / "talk.json") == messages_in(whole)


def test_what_is_set_stays_with_another_model(
    model: Path, state: dict[str, str], tmp_path: Path
) -> None:
    script = f"/set temperature 0.25\n/load {model}\n/set\n/set temperature -\n/set\n"
    status, _, err = piped(state, script, model)
    assert status == 0
    values = [line for line in err.splitlines() if "temperature" in line]
    assert "temperature 0.25, " in values[0]
    assert "temperature 0.7, " in values[1]


# --- --on-full ------------------------------------------------------------------------------------


def test_the_oldest_turns_are_dropped_until_half_of_the_context_is_free(model: Path) -> None:
    tokenizer = Tokenizer.open(model)
    conversation = Conversation(tokenizer)
    conversation.system = "keep me"
    for i in range(9):
        conversation.record(f"{i}" * 20, "a" * 20)
    whole = len(conversation.prompt("x"))
    unchanged = prompt_with_room(conversation, "x", 2 * whole, None)
    assert unchanged == (conversation.prompt("x"), [])
    assert prompt_with_room(conversation, "x", whole + 5, 5)[1] == []  # 5 tokens have room
    context = whole + 10
    prompt, dropped = prompt_with_room(conversation, "x", context, None)
    assert dropped == conversation.turns[: len(dropped)]
    rest = Conversation(tokenizer, conversation.turns[len(dropped) :])
    rest.system = "keep me"
    assert prompt == rest.prompt("x")
    assert len(prompt) <= context - context // 2
    rest.turns.insert(0, dropped[-1])
    assert len(rest.prompt("x")) > context - context // 2, "no more is dropped than must be"
    assert prompt == conversation.prompt("x")
    assert len(conversation.saved()["messages"]) == 19, "nothing is lost from the conversation"
    conversation.read_by(tokenizer)
    assert len(conversation.prompt("x")) == whole


def test_dropped_turns_are_named_and_the_rest_is_answered(
    model: Path, state: dict[str, str], tmp_path: Path
) -> None:
    options = ("--context", "120", *GREEDY)
    script = "a" * 30 + "\n" + "b" * 30 + "\n" + "c" * 30 + "\n"
    status, _, err = piped(state, script, model, *options)
    assert status == 1
    assert "or drop old turns: /set on-full shift" in err
    kept, rest, again = (tmp_path / f"{name}.json" for name in ("kept", "rest", "again"))
    for before in ("", "/set on-full shift\n"):
        flag = () if before else ("--on-full", "shift")
        ran = piped(state, f"{before}{script}/save {kept}\n", model, *options, *flag)
        assert ran[0] == 0, ran[2]
        said = r'context of 120 tokens is full; dropped the oldest (\d) turns?: "(\w)\2{29}"'
        found = re.findall(said, ran[2])  # the answers' lengths decide how many turns are dropped
        assert found[0][1] == "a"
        messages = json.loads(kept.read_text())["messages"]
        kept.unlink()
        assert [each["content"][0] for each in messages[::2]] == ["a", "b", "c"]
    # The last answer is that to the conversation without the dropped turns.
    dropped = sum(int(number) for number, _ in found)
    rest.write_text(json.dumps({"messages": messages[2 * dropped : 4]}))
    ran = piped(state, f"{'c' * 30}\n/save {again}\n", model, "--resume", rest, *options)
    assert ran[0] == 0, ran[2]
    assert json.loads(again.read_text())["messages"] == messages[2 * dropped :]


def test_a_message_that_does_not_fit_alone_is_refused_in_both_ways(
    model: Path, state: dict[str, str]
) -> None:
    for flag in ("stop", "shift"):
        options = ("--context", "40", "--on-full", flag)
        status, _, err = piped(state, "a" * 60, model, *options)
        assert status == 1
        assert "too many for the context of 40" in err


def test_a_turn_that_was_dropped_can_be_taken_back(model: Path) -> None:
    conversation = Conversation(Tokenizer.open(model), [Turn("a", "b")], dropped=1)
    assert conversation.take_back() == ("a", "b")
    conversation.record("c", "d")
    assert len(conversation.prompt("x")) > len(Conversation(conversation.tokenizer).prompt("x"))


# --- Reasoning and Markdown -----------------------------------------------------------------------

THINKER = (
    "{% for m in messages %}[{{ m.role }}]{{ (m.content or '').split('</think>') | last }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]A{% endif %}"
)


def test_reasoning_is_folded_and_markdown_drawn(
    state: dict[str, str], tmp_path: Path, seed: int
) -> None:
    script = {"A": "<think>Let me see, it is four.\n</think>\n\nIt is **four**, `2 + 2`."}
    thinker = make_scripted_model(tmp_path / "thinker", script, THINKER, seed)
    command = [*PROGRAM, "chat", str(thinker), "--temperature", "0", "--draft", "none"]
    with TerminalSession(command, state) as session:
        session.say("2 + 2?")
        session.expect("thought for ")
        session.expect(" s; /reasoning shows it")
        drawn = session.expect("specqd: ").replace("\r\n", "\n")
        assert drawn.rpartition("\r")[2].strip() == "It is four, 2 + 2."  # after earlier drawings
        session.say("/reasoning")
        session.expect("Let me see, it is four.")
        session.say("", CTRL_D)
        assert session.wait() == 0
    with TerminalSession([*command, "--no-markdown"], state) as session:
        session.say("2 + 2?")
        session.expect("It is **four**, `2 + 2`.")
    with TerminalSession([*command, "2 + 2?"], state) as session:
        session.expect("Let me see, it is four.")  # no command could show it later
        session.expect("It is four, 2 + 2.")
        assert session.wait() == 0


def test_a_file_that_cannot_be_replaced_stays_and_leaves_nothing_else(tmp_path: Path) -> None:
    kept = tmp_path / "chat"
    kept.mkdir()  # in place of a file
    with pytest.raises(RequestError, match="cannot be written"):
        replace_file(kept, "{}")
    assert list(tmp_path.iterdir()) == [kept]
    replace_file(tmp_path / "new", "text")
    assert (tmp_path / "new").read_text() == "text"


def test_a_file_that_cannot_be_written_whole_is_removed(tmp_path: Path) -> None:
    pytest.importorskip("resource")
    script = (
        "import resource, signal, sys; from pathlib import Path;"
        "from specqd.cli.chat_files import write_new;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100));"
        "write_new(Path(sys.argv[1]), 'x' * 1000)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "file")], capture_output=True, check=False
    )
    assert b"cannot be written (File too large); make room" in ran.stderr
    assert not (tmp_path / "file").exists()


def test_an_empty_message_is_not_answered_again_and_stays(
    model: Path, state: dict[str, str], tmp_path: Path
) -> None:
    file, saved = tmp_path / "talk.json", tmp_path / "saved.json"
    contents = ["ab", "one", "", "kept"]
    roles = ["user", "assistant"] * 2
    messages = [{"role": r, "content": c} for r, c in zip(roles, contents, strict=True)]
    file.write_text(json.dumps({"messages": messages}))
    script = f"/regenerate\n/save {saved}\n"
    status, _, err = piped(
        state, script, model, "--resume", file, "-n", "4", "--temperature", "0.5"
    )
    assert status == 0, err
    assert messages_in(saved) == contents


def test_a_single_question_does_not_replace_the_last_conversation(
    model: Path, state: dict[str, str], tmp_path: Path
) -> None:
    kept = tmp_path / "state" / "specqd" / "last_chat.json"
    with TerminalSession([*PROGRAM, "chat", str(model), *GREEDY, "ab"], state) as session:
        assert session.wait() == 0
    assert not kept.exists()
