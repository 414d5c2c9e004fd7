"""Chat templates: the dialect; hostile templates are stopped."""

from __future__ import annotations

import json
import resource
import sys
import time
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specqd.errors import RequestError, TokenizerError
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


def test_a_key_without_a_value_is_missing() -> None:
    messages = [{"role": "assistant", "content": None, "tool_calls": [{"id": None}]}]
    assert render("{{ messages | tojson }}", messages) == (
        '[{"role": "assistant", "tool_calls": [{"id": null}]}]'
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


@pytest.mark.parametrize("messages", [[], ["hi"], [{"role": "user", "content": object()}], [None]])
def test_malformed_messages_are_refused(messages: Any) -> None:
    with pytest.raises(RequestError, match="messages"):
        render("{{ messages }}", messages)


def test_a_message_nested_within_itself_is_refused() -> None:
    endless: dict[str, Any] = {"role": "user"}
    endless["content"] = [endless]
    with pytest.raises(RequestError, match="nested too deeply"):
        render("{{ messages }}", [endless])


def stopped(source: str, messages: Any = MESSAGES) -> str:
    """The error, one line, of a bad template; asserts short time and little memory."""
    started, before = time.thread_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    message = refused(TokenizerError, render, source, messages)
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert time.thread_time() - started < 4
    if sys.platform == "linux":
        assert kibibytes < 300 * 1024
    assert message.startswith("m/tokenizer_config.json: the chat template ")
    assert len(message) <= 500
    return message


@pytest.mark.parametrize(
    "source",
    [
        "{% if %}", "{{ foo.bar.baz }}", "{{ 1 / 0 }}", "{{ nofilter | nofilter }}", "{{ x() }}",
        "{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}", "{{ 'a' + 1 }}",
        "{% autoescape true %}{% endautoescape %}", "{{ [] | tojson(indent='x', nonsense=1) }}",
        "{{ raise_exception }" "{", "{{ raise_exception('a' * 10**8) }}", "{{ self.root() }}",
    ],
)  # fmt: skip
def test_a_broken_template_is_named(source: str) -> None:
    stopped(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ messages[0].update(a=1) }}",
        "{{ ''.format.__globals__.x }}", "{{ '{0.__class__.__mro__}'.format(1) }}",
        "{{ '{0.__class__.x}'.format_map({'0': 1}) }}", "{{ 'a'.encode() }}", "{{ lipsum() }}",
        "{{ (1).to_bytes(10**9) }}", "{{ cycler.__init__.__globals__ }}",
        "{{ self._TemplateRef.x }}",
        "{{ ('' | attr('format')).__self__.x }}", "{{ raise_exception.__globals__.os }}",
        "{{ messages[0].fromkeys(range(9)) }}", "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ namespace(__class__=1) }}", "{{ dict.fromkeys(range(9)) }}", "{{ 'a'.translate({}) }}",
        "{{ 'x' | urlize }}", "{{ joiner.__init__.__globals__ }}", "{{ ''['__class__'].x }}",
    ],
)  # fmt: skip
def test_a_template_reaches_only_its_data(source: str) -> None:
    stopped(source)


NS = "{% set ns = namespace(s='a', l=[1], t=(1,), n=3) %}"
TWICE = "{% set ns.t = (ns.t, ns.t) %}"
SIXTY = NS + "{% for i in range(60) %}" + TWICE + "{% endfor %}"
DEEP = NS + "{% for i in range(100000) %}{% set ns.t = (ns.t,) %}{% endfor %}"
MILLION = "{% set b = 'x' * 1000000 %}"
ALWAYS = "{% for i in range(100000) %}"


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(10**9) %}a{% endfor %}",
        ALWAYS + ALWAYS + "{% endfor %}{% endfor %}",
        ALWAYS + "{% for j in range(100000) if false %}{% endfor %}{% endfor %}",
        ALWAYS + "{% set c = range(50000) | sort | list %}{% endfor %}",
        ALWAYS + "{% set c = range(50000) | map('string') | unique | list %}{% endfor %}",
        MILLION + ALWAYS + "{% if 'xxxxxxxxxxxxxxxxxy' in b %}{% endif %}{% endfor %}",
        MILLION + ALWAYS + "{% set c = b.count('xxxxxxxxxxxxxxxxxy') %}{% endfor %}",
        "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(50) }}",
        "{% for x in messages recursive %}{{ loop(messages) }}{% endfor %}",
        "{% block a %}{{ self.a() }}{% endblock %}",
    ],
)
def test_an_endless_template_is_stopped(source: str) -> None:
    stopped(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10**10 }}", "{{ 10**10 * 'a' }}", "{{ [1] * 10**10 }}", "{{ (1,) * 10**10 }}",
        NS + "{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        NS + "{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        NS + "{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
        NS + "{% for i in range(99) %}{% set ns.s = '%s%s' % (ns.s, ns.s) %}{% endfor %}",
        NS + "{% for i in range(99) %}{% set ns.s = '{0}{0}'.format(ns.s) %}{% endfor %}",
        NS + "{% for i in range(99) %}{% set ns.s = [ns.s, ns.s] | join %}{% endfor %}",
        NS + "{% for i in range(99) %}{% set ns.s = ns.s.join([ns.s, ns.s]) %}{% endfor %}",
        NS + "{% for i in range(99) %}{% set ns.s = ns.s.replace('a', 'aa') %}{% endfor %}",
        NS + "{% for i in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
        NS + "{% for i in range(99) %}{% set x %}{{ ns.s }}{{ ns.s }}{% endset %}"
             "{% set ns.s = x %}{% endfor %}",
        SIXTY + "{{ ns.t }}", SIXTY + "{{ ns.t == [ns.t] or ns.t == (ns.t, ns.t) }}",
        SIXTY + "{{ {ns.t: 1} }}", SIXTY + "{{ messages[ns.t] }}", SIXTY + "{{ ns.t | tojson }}",
        SIXTY + "{{ messages[0].get(ns.t) }}", SIXTY + "{{ ns.t | string }}",
        SIXTY + "{{ ns.t ~ 1 }}",
        SIXTY + "{{ ns.t is eq(ns.t) }}", SIXTY + "{{ '%s' % ns.t }}",
        SIXTY + "{{ '{}'.format(ns.t) }}",
        SIXTY + "{{ dict([[ns.t, 1]]) }}", SIXTY + "{{ [ns.t] | unique | list }}",
        DEEP + "{{ {ns.t: 1} }}", DEEP + "{{ ns.t }}", DEEP + "{{ ns.t == ns.t }}",
        "{{ 2 ** (10**9) }}", "{{ (2**4000) ** (2**4000) }}",
        "{{ ('f' * 1000000) | int(base=16) }}",
        "{{ '%1000000000d' % 1 }}", "{{ '%*d' % (10**9, 1) }}", "{{ '%.1000000000f' % 1 }}",
        "{{ '{:>1000000000}'.format(1) }}", "{{ '{:{}}'.format(1, 10**9) }}",
        "{{ '%1000000000d' | format(1) }}", "{{ 'a' | center(10**9) }}", "{{ 'a'.ljust(10**9) }}",
        "{{ 'a'.zfill(10**9) }}", "{{ ('a\n' * 100000) | indent(9999) }}",
        "{{ 'a' | indent(10**9) }}",
        MILLION + "{{ b.replace('x', b) }}", MILLION + "{{ b | replace('x', b) }}",
        MILLION + "{{ b | list | join(b) }}", MILLION + "{{ b | join(b) }}",
        MILLION + "{{ b.join(b) }}",
        MILLION + "{{ ('%s' * 100000) % ((b,) * 10) }}", MILLION + "{{ ('{0}' * 1000).format(b) }}",
        MILLION + "{{ '%(a)s' * 9999 % {'a': b} }}", "{{ [1] | batch(10**9, 0) | list }}",
        "{{ [1] | slice(10**9) | list }}", "{{ 1 | round(-10**9) }}", "{{ 1 | round(10**9) }}",
        "{{ messages | tojson(indent=10**9) }}", "{{ messages | tojson(indent=' ' * 1000) }}",
        "{{ strftime_now('%Y' * 1000) }}", "{{ ([[1]] * 60000) | sum(start=[]) | length }}",
        ALWAYS + "x" * 60000 + "{% endfor %}",
        "{% set x %}" + ALWAYS + "x" * 60000 + "{% endfor %}{% endset %}",
        MILLION + NS + ALWAYS + "{% set ns.l = ns.l + [b[i:]] %}{% endfor %}",
        MILLION + NS + ALWAYS + "{% set ns.l = [ns.l, b ~ i] %}{% endfor %}",
        NS + "{% set c = range(50000) | list %}" + ALWAYS
            + "{% set ns.l = [ns.l, c[i:]] %}{% endfor %}",
        NS + ALWAYS + "{% set ns.l = [ns.l" + ", 1" * 20000 + "] %}{% endfor %}",
        MILLION + NS + ALWAYS + "{% set ns.l = [ns.l, b.split('x')] %}{% endfor %}",
    ],
)  # fmt: skip
def test_a_template_that_grows_is_stopped(source: str) -> None:
    stopped(source)


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
def test_a_template_that_cannot_be_compiled_is_named(source: str) -> None:
    stopped(source)


def test_a_long_chat_is_rendered() -> None:
    source = (
        "{% set ns = namespace(last=-1) %}{% for m in messages[::-1] %}{% if m.role == 'user' and "
        "'tool' not in m %}{% set ns.last = loop.index %}{% endif %}{% endfor %}"
        "{% for m in messages %}{{ '<' + m.role + '>' ~ m['content'] | trim }}{% endfor %}"
    )
    messages = [{"role": "user", "content": "x" * 3000}] * 2000
    assert len(render(source, messages)) == 2000 * 3006
