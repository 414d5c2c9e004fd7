"""The form of tool calls is found from the chat template, and grammars enforce it."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specqd.errors import FieldError, RequestError
from specqd.text.tokenizer import Tokenizer
from specqd.text.tool_calls import Tool, ToolUse, call_form
from support.openai_client import closed, function
from support.random_models import EOS, write_tokenizer
from support.scripted_models import HERMES, LLAMA

REVERSED = HERMES.replace(
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}',
    '{ "arguments": {{ c.function.arguments | tojson }}, "name": "{{ c.function.name }}"}',
)
TEACHING = (
    "{% if tools %}Answer with <tool_call>\n"
    '{"name": <name>, "arguments": <arguments>}\n</tool_call>{% endif %}'
    "{% for m in messages %}{{ m.content }}{% endfor %}"
)
IN_BRACKETS = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if m.tool_calls %}"
    '[TOOL_CALLS] [{"name": "{{ m.tool_calls[0].function.name }}", "arguments": '
    "{{ m.tool_calls[0].function.arguments | tojson }}}]{% endif %}{% endfor %}"
)
REFUSING = "{% for m in messages %}{{ raise_exception('no') if m.tool_calls }}{% endfor %}"
UNTAGGED_ELSEWHERE = LLAMA.replace("[assistant]{{ script }}", "[assistant][thinking]")


def tokenizer_of(
    directory: Path, template: str | None, added: Sequence[str] = (), *, is_special: bool = True
) -> Tokenizer:
    directory.mkdir(exist_ok=True)
    write_tokenizer(directory, 320)
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    like = tokenizer["added_tokens"][0]
    for i, mark in enumerate(added):
        token = {"id": 320 + i, "content": mark, "special": is_special}
        tokenizer["added_tokens"].append(like | token)
    path.write_text(json.dumps(tokenizer))
    if template is not None:
        path = directory / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))
    return Tokenizer.open(directory)


def test_the_form_of_a_call_is_read_from_the_template(tmp_path: Path) -> None:
    form = call_form(tokenizer_of(tmp_path, HERMES))
    written = ('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>")
    assert (form.begin, form.middle, form.end) == written
    assert form.is_tagged
    assert form.special_ids == {}
    close = call_form(tokenizer_of(tmp_path, HERMES.replace('{{ "\\n" }}', "")))
    assert (close.begin, close.end) == ('<tool_call>{"name": "', "}</tool_call>")
    form = call_form(tokenizer_of(tmp_path, LLAMA, ["<|python_tag|>"]))
    assert (form.begin, form.middle, form.end) == ('{"name": "', '", "parameters": ', "}")
    assert not form.is_tagged
    assert form.special_ids == {"<|python_tag|>": 320}


@pytest.mark.parametrize("template", [REVERSED, TEACHING], ids=["reversed", "teaching"])
def test_a_template_that_explains_tags_uses_the_form_of_hermes(
    tmp_path: Path, template: str
) -> None:
    assert call_form(tokenizer_of(tmp_path, template)) == call_form(tokenizer_of(tmp_path, HERMES))


@pytest.mark.parametrize("template", [IN_BRACKETS, REFUSING, UNTAGGED_ELSEWHERE])
def test_without_a_known_form_calls_have_that_of_hermes_in_plain_messages(
    tmp_path: Path, template: str
) -> None:
    form = call_form(tokenizer_of(tmp_path, template))
    hermes = call_form(tokenizer_of(tmp_path / "hermes", HERMES))
    shows_system = template != REFUSING  # it shows no message at all
    assert form == replace(hermes, described_in="system" if shows_system else "user")


def test_tools_need_a_template(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no chat template"):
        call_form(tokenizer_of(tmp_path, None))


# --- Rules ----------------------------------------------------------------------------------------

BOOLEAN = closed(a={"type": "boolean"})
TOOLS = (Tool("get", BOOLEAN, False), Tool("get_all", BOOLEAN, False))
GET = '<tool_call>\n{"name": "get", "arguments": {"a": true}}\n</tool_call>'
ALL = GET.replace('"get"', '"get_all"').replace("true", "false")
PLAIN = '{"name": "get", "parameters": {"a": true}}'


def follows(tokenizer: Tokenizer, rules: str, text: str) -> bool:
    llguidance = pytest.importorskip("llguidance", reason="needs specqd[serve]")
    tokens = llguidance.LLTokenizer(tokenizer.to_json(), n_vocab=330, eos_token=[EOS])
    written = llguidance.LLMatcher.grammar_from_lark(rules)
    matcher = llguidance.LLMatcher(tokens, written, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = [*tokenizer.encode(text), EOS]
    return bool(matcher.validate_tokens(ids) == len(ids))


def check_rules(
    tokenizer: Tokenizer,
    use: ToolUse,
    right: Sequence[str],
    wrong: Sequence[str],
    answer: dict[str, Any] | None = None,
) -> None:
    rules = call_form(tokenizer).rules(use, answer)
    assert [text for text in right if not follows(tokenizer, rules, text)] == []
    assert [text for text in wrong if follows(tokenizer, rules, text)] == []


@pytest.mark.parametrize(
    ("added", "is_special"),
    [
        ((), False),
        (("<tool_call>", "</tool_call>"), True),
        (("<tool_call>", "</tool_call>"), False),
    ],
    ids=["plain", "special", "added"],
)
def test_rules_of_tagged_calls_accept_only_correct_texts(
    tmp_path: Path, added: Sequence[str], is_special: bool
) -> None:
    tokenizer = tokenizer_of(tmp_path, HERMES, added, is_special=is_special)
    assert call_form(tokenizer).has_hidden_tags == is_special
    bad = GET.replace("true", "1")
    unknown = GET.replace('"get"', '"put"')
    must = ToolUse(TOOLS, must_call=True)
    one = ToolUse(TOOLS, must_call=True, is_parallel=False)
    named = ToolUse(TOOLS, frozenset({"get_all"}), must_call=True, is_parallel=False)
    check_rules(
        tokenizer, must, [GET, ALL, f"{GET}\n{ALL}"], ["", "x", f"x{GET}", f"{GET}x", bad, unknown]
    )
    check_rules(tokenizer, one, [GET, ALL], [f"{GET}\n{ALL}", bad])
    check_rules(tokenizer, named, [ALL], [GET, f"{ALL}\n{ALL}"])
    free = ["", "x", GET, f"x\n{GET}\n{ALL}y", "{}", "a <tool b"]
    check_rules(tokenizer, ToolUse(TOOLS), free, [bad, unknown, f"x{bad}", "x<tool_call>y"])
    one_at_most = ToolUse(TOOLS, is_parallel=False)
    check_rules(tokenizer, one_at_most, ["", "x", f"x{GET}y"], [f"{GET}\n{ALL}", bad])
    some = ToolUse(TOOLS, frozenset({"get"}))
    check_rules(tokenizer, some, ["", "x", GET, f"x{GET}{GET}y"], [ALL, f"{GET}\n{ALL}", bad])
    either = ['{"a":true}', GET, f"{GET}\n{ALL}"]
    check_rules(tokenizer, ToolUse(TOOLS), either, ["", "x", '{"a":1}', bad], BOOLEAN)


def test_rules_of_untagged_calls_accept_only_correct_texts(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, LLAMA)
    bad = PLAIN.replace("true", "1")
    check_rules(tokenizer, ToolUse(TOOLS, must_call=True), [PLAIN], ["", "x", bad, f"{PLAIN}x"])
    check_rules(tokenizer, ToolUse(TOOLS), [PLAIN, "", "x {", " x"], [bad, "{}", " {"])
    some = ToolUse(TOOLS, frozenset({"get"}))
    check_rules(tokenizer, some, [PLAIN, "", "x"], [PLAIN.replace("get", "get_all"), bad])
    with pytest.raises(FieldError, match="response_format"):
        call_form(tokenizer).rules(ToolUse(TOOLS), BOOLEAN)


def test_earlier_calls_and_results_reach_the_template(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, HERMES)
    call = function("get", arguments={"a": True})
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "7", "tool_call_id": "x"},
    ]
    text = tokenizer.render_chat(messages, tools=[TOOLS[0].described()])
    assert text.startswith('[tools]{"type": "function", "function": {"name": "get", ')
    assert text.endswith(f"[assistant]{GET}[tool]7[assistant]")
