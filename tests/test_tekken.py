"""Mistral's `tekken.json` is read as mistral-common does, and its chats have the same tokens."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specqd.cli import main
from specqd.errors import TokenizerError
from specqd.text.messages import read_messages
from specqd.text.parts import PartReader, Thought
from specqd.text.reasoning import reasoning_of
from specqd.text.tokenizer import Tokenizer
from specqd.text.tool_calls import Tool, ToolUse, call_form
from specqd.text.tool_reader import CallPiece
from support.openai_client import closed
from support.random_models import Shape, make_model
from support.refusals import refused
from support.small_tokenizers import byte_level, saved
from support.tekken_files import GOLDENS, NUM_SPECIAL, VERSIONS, tekken_content, write_tekken

EXPECTED = json.loads((GOLDENS / "tekken.json").read_text())
BOOLEAN = closed(a={"type": "boolean"})
TOOLS = (Tool("get", BOOLEAN, False), Tool("get_all", BOOLEAN, False))


@pytest.fixture
def tokenizer_of(tmp_path: Path) -> Callable[[str], Tokenizer]:
    return lambda name: Tokenizer.open(write_tekken(tmp_path / name, tekken_content(name)))


def test_texts_have_the_ids_of_mistral_common(tokenizer_of: Callable[[str], Tokenizer]) -> None:
    tokenizer = tokenizer_of("v13")
    texts = json.loads((GOLDENS / "tokenizers" / "texts.json").read_text())
    assert [tokenizer.encode(text) for text in texts] == EXPECTED["texts"]
    assert [tokenizer.decode(ids) for ids in EXPECTED["texts"]] == texts
    for text, ids in zip(texts, EXPECTED["texts"], strict=True):
        stream = tokenizer.stream()
        assert "".join(stream.feed([token]) for token in ids) + stream.finish() == text


@pytest.mark.parametrize("name", VERSIONS)
def test_chats_have_the_ids_of_mistral_common(
    tokenizer_of: Callable[[str], Tokenizer], name: str
) -> None:
    tokenizer = tokenizer_of(name)
    for chat in EXPECTED["chats"][name]:
        messages = read_messages(chat["messages"])
        ids = tokenizer.chat(messages, tools=chat["tools"] or None, **chat["variables"])
        assert ids == chat["ids"], tokenizer.decode(chat["ids"], skip_special_tokens=False)


def test_special_tokens_come_first_and_the_size_cuts_the_vocabulary(
    tokenizer_of: Callable[[str], Tokenizer],
) -> None:
    tokenizer = tokenizer_of("v3")
    size = tekken_content("v3")["config"]["default_vocab_size"]
    assert tokenizer.vocab_size == tokenizer.own_size == size
    assert tokenizer.special_ids == frozenset(range(NUM_SPECIAL))
    assert tokenizer.id_of("[TOOL_CALLS]") == 9
    assert tokenizer.token_text(NUM_SPECIAL - 1) == f"<SPECIAL_{NUM_SPECIAL - 1}>"
    assert tokenizer.token_text(NUM_SPECIAL + ord("A")) == "A"
    assert tokenizer.named_tokens["eos_token"] == "</s>"


def test_a_chat_template_in_the_directory_is_used_in_place_of_ours(tmp_path: Path) -> None:
    write_tekken(tmp_path, tekken_content("v13"))
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    tokenizer = Tokenizer.open(tmp_path)
    assert tokenizer.render_chat([{"role": "user", "content": "hi"}]) == "hi"


def test_a_file_of_an_unknown_version_has_no_chat_template(tmp_path: Path) -> None:
    content = tekken_content("v13")
    content["config"]["version"] = "v99"
    tokenizer = Tokenizer.open(write_tekken(tmp_path, content))
    assert tokenizer.encode("a", add_special_tokens=False) == [NUM_SPECIAL + ord("a")]
    assert not tokenizer.has_chat_template


def test_tokenizer_json_is_read_before_tekken_json(tmp_path: Path) -> None:
    own = byte_level()
    saved(tmp_path, own)
    write_tekken(tmp_path, {})
    assert Tokenizer.open(tmp_path).id_of("<s>") == own.token_to_id("<s>")


# --- Malformed files ------------------------------------------------------------------------------


def entry(word: bytes, rank: int) -> dict[str, Any]:
    return {"rank": rank, "token_bytes": base64.b64encode(word).decode(), "token_str": None}


def changed(**config: object) -> dict[str, Any]:
    content = tekken_content("v13")
    content["config"] |= config
    return content


def with_word(place: int, word: object) -> dict[str, Any]:
    content = tekken_content("v13")
    content["vocab"][place] = word
    return content


def with_special(*entries: object) -> dict[str, Any]:
    return tekken_content("v13") | {"special_tokens": list(entries)}


BAD = {
    "a list": ([], "not a JSON object"),
    "nothing": ({}, "config is None"),
    "no size": (changed(default_vocab_size=None), "default_vocab_size is None"),
    "a huge size": (changed(default_vocab_size=1 << 40), "not a number up to 1048576"),
    "many special tokens": (changed(default_num_special_tokens=1 << 40), "not a number up to"),
    "a flag": (changed(default_vocab_size=True), "default_vocab_size is True"),
    "a size below the special tokens": (changed(default_vocab_size=3), "but 40 are special"),
    "no bytes": (changed(default_vocab_size=NUM_SPECIAL + 255), "256 are needed"),
    "too few words": (changed(default_vocab_size=100_000), "99960 are needed"),
    "more special tokens": (changed(default_num_special_tokens=4), "lists 22 special tokens"),
    "no pattern": (changed(pattern=None), "pattern is None"),
    "a wrong pattern": (changed(pattern="("), "not a tokenizer"),
    "a word without a rank": (with_word(300, {"token_bytes": "YWE="}), "token 300"),
    "a word of another rank": (with_word(300, entry(b"aa", 3)), "token 300"),
    "a number": (with_word(300, 7), "vocab is not a list of objects"),
    "not base64": (with_word(300, {"rank": 300, "token_bytes": "!"}), "not a tokenizer"),
    "another byte": (with_word(7, entry(b"a", 7)), "not the byte 7"),
    "an empty word": (with_word(300, entry(b"", 300)), "has 0 bytes"),
    "a long word": (with_word(300, entry(b"a" * 1025, 300)), "has 1025 bytes"),
    "a word twice": (with_word(300, entry(b"a", 300)), "two tokens have the same text"),
    "a special word": (with_word(300, entry(b"[INST]", 300)), "two tokens have the same text"),
    "special rank": (with_special({"rank": 1, "token_str": "<s>"}), "special token 0 has the rank"),
    "special text": (with_special({"rank": 0, "token_str": ""}), "special token 0 is"),
    "special number": (with_special(7), "special_tokens is not a list of objects"),
}


@pytest.mark.parametrize("name", BAD)
def test_the_error_for_a_malformed_file_names_it(tmp_path: Path, name: str) -> None:
    content, problem = BAD[name]
    write_tekken(tmp_path, content)
    message = refused(TokenizerError, Tokenizer.open, tmp_path)
    assert str(tmp_path / "tekken.json") in message
    assert problem in message


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000])
def test_a_file_that_is_no_json_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tekken.json").write_bytes(content)
    assert str(tmp_path / "tekken.json") in refused(TokenizerError, Tokenizer.open, tmp_path)


def test_a_file_of_any_size_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "tekken.json").open("wb") as file:
        file.truncate((1 << 27) + 1)
    assert str(tmp_path / "tekken.json") in refused(TokenizerError, Tokenizer.open, tmp_path)


# --- Calls and reasoning --------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "id_"), [("v11", "[CALL_ID]Ab3456789"), ("v13", "")])
def test_calls_are_read_from_answers(
    tokenizer_of: Callable[[str], Tokenizer], name: str, id_: str
) -> None:
    form = call_form(tokenizer_of(name))
    assert (form.begin, form.middle, form.end) == ("[TOOL_CALLS]", "[ARGS]", "")
    assert (form.described_in, form.has_hidden_tags, form.has_ids) == (None, True, name == "v11")
    call = f'[TOOL_CALLS]get{id_}[ARGS]{{"a": true}}'
    text = f"Let me see. {call}{call.replace('get', 'get_all')}"
    arguments = '{"a": true}'
    for step in (1, 2, 7, len(text)):
        reader = PartReader(None, form, ("get", "get_all"))
        parts = [
            part
            for at in range(0, len(text), step)
            for part in reader.read(text[at : at + step], is_last=at + step >= len(text))
        ]
        assert "".join(part for part in parts if isinstance(part, str)) == "Let me see."
        calls = [part for part in parts if isinstance(part, CallPiece)]
        assert [each.name for each in calls if each.name] == ["get", "get_all"]
        for i in range(2):
            assert "".join(each.arguments for each in calls if each.index == i) == arguments


@pytest.mark.parametrize(
    "text", ["[TOOL_CALLS]put[ARGS]{}", "[TOOL_CALLS]get", "[TOOL_CALL", "[TOOL_CALLS]get {}"]
)
def test_what_is_no_call_of_a_known_tool_is_content(
    tokenizer_of: Callable[[str], Tokenizer], text: str
) -> None:
    reader = PartReader(None, call_form(tokenizer_of("v13")), ("get",))
    assert "".join(map(str, reader.read(text, is_last=True))) == text
    assert not reader.has_calls


@pytest.mark.parametrize("name", ["v11", "v13"])
def test_rules_accept_only_correct_calls(
    tokenizer_of: Callable[[str], Tokenizer], name: str
) -> None:
    llguidance = pytest.importorskip("llguidance", reason="needs specqd[serve]")
    tokenizer = tokenizer_of(name)
    eos = tokenizer.id_of("</s>")
    tokens = llguidance.LLTokenizer(
        tokenizer.to_json(), n_vocab=tokenizer.vocab_size, eos_token=[eos]
    )

    def follows(use: ToolUse, text: str) -> bool:
        rules = llguidance.LLMatcher.grammar_from_lark(call_form(tokenizer).rules(use, None))
        matcher = llguidance.LLMatcher(tokens, rules, log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        ids = [*tokenizer.encode(text, add_special_tokens=False), eos]
        return bool(matcher.validate_tokens(ids) == len(ids))

    get = '[TOOL_CALLS]get[ARGS]{"a": true}'
    both, bad = get + get.replace("get", "get_all"), get.replace("true", "1")
    named = get.replace("[ARGS]", "[CALL_ID]Ab3456789[ARGS]")
    must, free = ToolUse(TOOLS, must_call=True), ToolUse(TOOLS)
    one = ToolUse(TOOLS, must_call=True, is_parallel=False)
    assert [follows(must, text) for text in (get, both, "", "x", bad)] == [True] * 2 + [False] * 3
    assert [follows(one, text) for text in (get, both)] == [True, False]
    assert [follows(free, text) for text in ("", "x", f"x{both}", bad)] == [True] * 3 + [False]
    assert follows(must, named) == (name == "v11")


def test_ids_of_other_servers_become_nine_letters_and_digits(
    tokenizer_of: Callable[[str], Tokenizer],
) -> None:
    tokenizer = tokenizer_of("v11")
    function = {"name": "get", "arguments": {}}
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "tool_calls": [{"id": "call_0123456789", "function": function}]},
        {"role": "tool", "tool_call_id": "call_0123456789", "content": "7"},
        {"role": "assistant", "tool_calls": [{"id": "a-1", "function": function}]},
    ]
    text = call_form(tokenizer).rendered(tokenizer, read_messages(messages), None, {})
    assert "[TOOL_CALLS]get[CALL_ID]123456789[ARGS]{}</s>" in text
    assert "[TOOL_RESULTS]123456789[TOOL_CONTENT]7[/TOOL_RESULTS]" in text
    assert "[CALL_ID]0000000a1[ARGS]" in text


def test_reasoning_between_marks_is_split_off(tokenizer_of: Callable[[str], Tokenizer]) -> None:
    tokenizer = tokenizer_of("v13-thoughts")
    prompt = tokenizer.chat([{"role": "user", "content": "?"}])
    reasoning = reasoning_of(tokenizer, prompt)
    assert reasoning is not None
    assert reasoning.has_special_marks
    parts = PartReader(reasoning, None, ()).read("[THINK]so[/THINK]yes", is_last=True)
    assert parts == [Thought("so"), "yes"]
    plain = tokenizer_of("v13")
    assert reasoning_of(plain, plain.chat([{"role": "user", "content": "?"}])) is None


def test_packed_models_keep_the_file(tmp_path: Path) -> None:
    vocabulary = tekken_content("v13")["config"]["default_vocab_size"]
    model = make_model(tmp_path / "model", Shape("mistral", vocab=vocabulary), 1)
    (model / "tokenizer.json").unlink()
    write_tekken(model, tekken_content("v13"))
    assert main(["pack", str(model), str(tmp_path / "packed")]) == 0
    packed = Tokenizer.open(tmp_path / "packed")
    assert packed.render_chat([{"role": "user", "content": "a"}]) == "<s>[INST]a[/INST]"
