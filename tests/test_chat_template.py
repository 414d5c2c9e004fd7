"""Chat templates: their dialect of Jinja, and broken and hostile ones."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specqd.errors import ChatTemplateError, RequestError
from specqd.text.chat_template import ChatTemplate
from support.refusals import refused

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "hi\n<b>é 😀</b>"},
    {"role": "assistant", "content": " yes "},
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def render(source: str, messages: Any = MESSAGES, **keywords: Any) -> str:
    return ChatTemplate(source, "m/tokenizer_config.json").render(messages, **keywords)


def test_blocks_leave_no_empty_lines() -> None:
    source = "  {% for m in messages %}\n[{{ m.role }}]\n  {% endfor %}\nend"
    assert render(source) == "[system]\n[user]\n[assistant]\nend"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ messages[1]['content'] }}", "hi\n<b>é 😀</b>"),
        ("{{ messages[-1].content | trim ~ 1 ~ none }}", "yes1None"),
        ("{{ messages[1:] | map(attribute='role') | join(',') }}", "user,assistant"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{% for m in messages if m.role != 'user' %}{{ loop.index }}{{ m.role[0] }}{% endfor %}",
         "1s2a"),
        ("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}"
         "{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "02"),
        ("{% generation %}{{ messages[0].role }}{% endgeneration %}!", "system!"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
         "{% endfor %}{{ ns.n }}", "3"),
        ("{% macro f(x, y=2) %}<{{ x }}{{ y }}>{% endmacro %}{{ f(1) }}{{ f(3, y=4) }}",
         "<12><34>"),
        ("{{ 'a</t>b'.split('</t>')[-1].lstrip('b') ~ 'x'.replace('x', 'yy') }}", "yy"),
        ("{{ '%s-%03d' % ('a', 7) }}{{ '{:>3}|{}'.format('b', [1]) }}", "a-007  b|[1]"),
        ("{{ 2 ** 10 % 1000 // 5 + 7 / 2 }}{{ [1, 2] + [3] }}{{ 'ab' * 2 }}", "7.5[1, 2, 3]abab"),
        ("{{ [1, 2, 3] | sum }}{{ [[1], [2]] | sum(start=[]) }}", "6[1, 2]"),
        ("{{ 1 < 2 < 3 and 'a' in 'abc' and 'z' not in ['a'] }}", "True"),
        ("{{ dict(a=1) | items | list }}{{ {'b': (1,)} }}", "[('a', 1)]{'b': (1,)}"),
        ("{% for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k }}{{ v }}{% endfor %}", "a2b1"),
        ("{{ strftime_now('%d %b %Y') }}", "09 May 2026"),
        ("{{ x }}{{ x is defined }}{{ tools is none }}{{ documents }}", "FalseTrueNone"),
        ("{{ add_generation_prompt }}{{ bos_token }}{{ enable_thinking }}", "True<s>False"),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x | upper }}{% filter lower %}B{% endfilter %}", "A1b"),
        ("{{ messages is iterable and messages[0] is mapping and messages[0].role is string }}",
         "True"),
    ],
)  # fmt: skip
def test_the_dialect_of_chat_templates(source: str, text: str) -> None:
    template = ChatTemplate(source, "m", now=lambda: datetime(2026, 5, 9))
    variables = {"bos_token": "<s>", "enable_thinking": False}
    assert template.render(MESSAGES, add_generation_prompt=True, variables=variables) == text


@given(JSON, st.sampled_from([None, 0, 2, "\t"]), st.booleans())
def test_tojson_is_json_without_html_escapes(value: Any, indent: Any, ascii_only: bool) -> None:
    source = "{{ x | tojson(indent=indent, ensure_ascii=ascii_only) }}"
    variables = {"x": value, "indent": indent, "ascii_only": ascii_only}
    expected = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert render(source, variables=variables) == expected


def test_a_key_without_a_value_is_missing_but_not_the_content_of_a_message_with_calls() -> None:
    messages = [
        {"role": "assistant", "content": "x", "name": None},
        {"role": "assistant", "content": None, "tool_calls": [{"id": None}]},
    ]
    assert render("{{ messages | tojson }}", messages) == (
        '[{"role": "assistant", "content": "x"}, '
        '{"role": "assistant", "tool_calls": [{"id": null}], "content": ""}]'
    )


def test_reasoning_is_available_under_its_usual_names() -> None:
    messages = [{"role": "assistant", "content": "", "reasoning": "hm"}]
    assert render("{{ messages[0].reasoning_content }}{{ messages[0].thinking }}", messages) == (
        "hmhm"
    )


def test_tools_and_documents_reach_the_template() -> None:
    source = "{{ tools[0].function.name }}{{ documents[0].title }}"
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert render(source, tools=tools, documents=[{"title": "T", "text": ""}]) == "fT"


def test_rendering_leaves_no_trace_in_the_messages_or_the_template() -> None:
    template = ChatTemplate("{% set messages = 3 %}{{ x }}{{ messages }}", "m")
    before = json.dumps(MESSAGES)
    assert template.render(MESSAGES, variables={"x": 1}) == "13"
    assert template.render(MESSAGES) == "3"
    assert json.dumps(MESSAGES) == before


def test_an_error_that_a_template_raises_is_a_request_error() -> None:
    source = "{{ raise_exception('roles must\n alternate, not ' ~ messages[0].role) }}"
    with pytest.raises(RequestError, match="roles must alternate, not system"):
        render(source)


@pytest.mark.parametrize(
    "messages", [[], ["hi"], [{"role": "user", "content": object()}], [None], [{(1, 2): 3}]]
)
def test_malformed_messages_are_rejected(messages: Any) -> None:
    with pytest.raises(RequestError, match="messages"):
        render("{{ messages }}", messages)


def test_a_message_nested_within_itself_is_rejected() -> None:
    endless: dict[str, Any] = {"role": "user"}
    endless["content"] = [endless]
    with pytest.raises(RequestError, match="nested more than 60 levels deep"):
        render("{{ messages }}", [endless])


def failure(source: str, **options: Any) -> str:
    """Returns the error, one line, of a template that fails."""
    template = ChatTemplate(source, "m/tokenizer_config.json", **options)
    message = refused(ChatTemplateError, template.render, MESSAGES)
    assert message.startswith("m/tokenizer_config.json: the chat template ")
    assert len(message) <= 700
    return message


@pytest.mark.parametrize(
    "source",
    [
        "{% if %}", "{{ foo.bar.baz }}", "{{ 1 / 0 }}", "{{ nofilter | nofilter }}", "{{ x() }}",
        "{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}", "{{ 'a' + 1 }}",
        "{{ [] | tojson(indent='x', nonsense=1) }}", "{{ raise_exception }" "{",
        "{{ self.root() }}", "{{ range(10**9) }}", "{{ 'é' | e | b }}",
    ],
)  # fmt: skip
def test_the_error_for_a_broken_template_names_it(source: str) -> None:
    assert " fails: " in failure(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ messages[0].update(a=1) }}",
        "{{ ''.format.__globals__.x }}", "{{ '{0.__class__.__mro__}'.format(1) }}",
        "{{ '{0.__class__.x}'.format_map({'0': 1}) }}", "{{ cycler.__init__.__globals__ }}",
        "{{ self._TemplateRef.x }}", "{{ ('' | attr('format')).__self__.x }}",
        "{{ raise_exception.__globals__.os }}", "{{ strftime_now.__self__._environment.x }}",
        "{{ namespace.__init__.__globals__ }}", "{{ lipsum.__globals__.os }}",
        "{{ joiner.__init__.__globals__ }}", "{{ ''['__class__'].x }}",
        "{{ ''.format.__self__.__class__.x }}", "{{ (messages | map(attribute='__class__')"
        " | first).x }}",
    ],
)  # fmt: skip
def test_a_template_reaches_only_its_data(source: str) -> None:
    assert "Error: " in failure(source)


NS = "{% set ns = namespace(s='a', l=[1], t=(1,), n=3) %}"
TWICE = "{% set ns.t = (ns.t, ns.t) %}"
SIXTY = NS + "{% for i in range(60) %}" + TWICE + "{% endfor %}"
ALWAYS = "{% for i in range(100000) %}"


@pytest.mark.parametrize(
    "source",
    [
        ALWAYS + ALWAYS + "{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(50) }}",
        SIXTY + "{{ {ns.t: 1} }}", SIXTY + "{{ ns.t == (ns.t, 1) }}{{ ns.t | string }}",
        "{{ ('x' * 100000000).rfind('y' ~ 'x' * 50000000) }}",
        "{{ ('x' * 10000000).rsplit('x' * 5000000 ~ 'y') }}" * 1000,
        "{{ ('x' * 10000000).strip('y' ~ 'x') }}" * 1000,
        "{{ (7 ** 3000000) % 11 }}",
    ],
)  # fmt: skip
def test_an_endless_template_is_stopped_even_within_one_call(source: str) -> None:
    message = failure(source, cpu_seconds=0.05)
    assert "is stopped because it takes too long" in message


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10**10 }}", "{{ [1] * 10**10 }}", "{{ '%1000000000d' % 1 }}",
        "{{ '{:>1000000000}'.format(1) }}", "{{ 'a' | center(10**9) }}",
        NS + "{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{{ ('a\n' * 1000) | indent(999999) }}",
        "{{ range(20000) | list | reverse | join('x' * 100000) }}",
        "{{ messages | tojson(indent=10**9) }}",
    ],
)  # fmt: skip
def test_a_template_that_grows_is_stopped(source: str) -> None:
    message = failure(source, cpu_seconds=20.0)  # filling memory takes a slow machine long
    assert "is stopped because it needs too much memory" in message


def test_a_text_much_longer_than_its_messages_is_rejected() -> None:
    assert "its text is too long" in failure("{{ 'x' * 10000000 }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "(" * 9999 + ")" * 9999 + " }}", "{{ " + "[" * 9999 + "]" * 9999 + " }}",
        "{{ " + "not " * 9999 + "a }}", "{{ " + "-" * 9999 + "1 }}", "{{ a" + ".b" * 9999 + " }}",
        "{{ a" + " | upper" * 7000 + " }}", "{{ 'a'" + "+'a'" * 9999 + " }}",
        "{% if a %}" * 999 + "{% endif %}" * 999, "{% for a in b %}" * 50 + "{% endfor %}" * 50,
        "{#" * 9999, "{{ '" + "a" * 70000 + "' }}",
    ],
)  # fmt: skip
def test_the_error_for_a_template_that_cannot_be_compiled_names_it(source: str) -> None:
    failure(source)


def test_a_refusal_of_any_length_is_one_short_line() -> None:
    with pytest.raises(RequestError, match=r"^the chat template rejects this request: a{499}…$"):
        render("{{ raise_exception('a' * 10**7) }}")


def test_texts_with_any_characters_pass_unchanged() -> None:
    text = "\ud83d \x00 é 😀 \n"
    assert render("{{ messages[0].content }}", [{"role": "user", "content": text}]) == text


def test_a_long_chat_is_rendered() -> None:
    source = (
        "{% set ns = namespace(last=-1) %}{% for m in messages[::-1] %}{% if m.role == 'user' and "
        "'tool' not in m %}{% set ns.last = loop.index %}{% endif %}{% endfor %}"
        "{% for m in messages %}{{ '<' + m.role + '>' ~ m['content'] | trim }}{% endfor %}"
    )
    messages = [{"role": "user", "content": "x" * 3000}] * 2000
    assert len(render(source, messages)) == 2000 * 3006
