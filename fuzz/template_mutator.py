"""Mutates a Jinja template into another valid one.

Templates are rendered in another process, so the fuzzer has no coverage to guide it, and random
changes of bytes fail in Jinja's parser. Most changes here insert, wrap, replace or remove complete
statements and expressions, drawn from all that Jinja and the variables of chat templates offer.
Knows nothing of the fuzzer.
"""

import random
import re
from collections.abc import Callable

from jinja2.defaults import DEFAULT_FILTERS, DEFAULT_NAMESPACE, DEFAULT_TESTS

PARTS = re.compile(r"({%.*?%}|{{.*?}}|{#.*?#})", re.DOTALL)
GIVEN = ("messages", "messages[0]", "messages[0].content", "tools", "bos_token", "eos_token")
LOCAL = ("message", "m", "x", "ns", "loop", "self", "caller", "f", "varargs", "kwargs", "unknown")
FUNCTIONS = ("raise_exception", "strftime_now", "f", "loop", "caller", *DEFAULT_NAMESPACE)
CONSTANTS = (
    *("0", "1", "-1", "2", "60", "100000", "2147483648", "9007199254740993", "1e308", "1.5"),
    *("''", "'a'", "'%d'", "'%s' * 9", "'{}'", "'{0.__class__}'", "'\\ud800'", "'é' * 99", "'\\0'"),
    *("[]", "{}", "()", "[[]]", "{'role': 'user'}", "'content'", "'role'", "'user'", "'%Y' * 50"),
)
FILTERS = sorted(DEFAULT_FILTERS)
TESTS = sorted(name for name in DEFAULT_TESTS if name.isidentifier())
METHODS = sorted(
    name
    for kind in (str, list, dict, int)
    for name in dir(kind)
    if not name.startswith("__") or name in ("__class__", "__len__", "__init__", "__dict__")
)
KEYWORDS = ("attribute", "indent", "default", "reverse", "width", "case_sensitive", "x", "n")
OPERATORS = ("+", "-", "*", "/", "//", "%", "**", "~", "==", "<", ">=", "and", "or", "in", "not in")
BLOCKS = (
    "{{% for {name} in {one} %}}{body}{{% else %}}{more}{{% endfor %}}",
    "{{% for {name} in {one} if {two} recursive %}}{body}{{{{ loop({two}) }}}}{{% endfor %}}",
    "{{% for {name}, x in {one} | items %}}{body}{{% break %}}{{% endfor %}}",
    "{{% if {one} %}}{body}{{% elif {two} %}}{more}{{% else %}}{{% endif %}}",
    "{{% macro f({name}, x={one}) %}}{body}{{% endmacro %}}{{{{ f({two}) }}}}",
    "{{% call(x) f({one}) %}}{body}{{% endcall %}}",
    "{{% filter {filter} %}}{body}{{% endfilter %}}",
    "{{% set {name} %}}{body}{{% endset %}}{{{{ {name} }}}}",
    "{{% set ns.{name} = {one} %}}{body}",
    "{{% set {name} = {one} %}}{body}",
    "{{% set ns = namespace({name}={one}) %}}{body}{{{{ ns.{name} }}}}",
    "{{% with {name} = {one} %}}{body}{{% endwith %}}",
    "{{% generation %}}{body}{{% endgeneration %}}",
    "{{% block {name} %}}{body}{{{{ super() }}}}{{% endblock %}}",
    "{{% autoescape {one} %}}{body}{{% endautoescape %}}",
    "{{% raw %}}{body}{{% endraw %}}",
    "{{% include {one} ignore missing %}}{body}",
    "{{% import {one} as {name} %}}{body}",
    "{{%- if {one} -%}} {body} {{%- endif +%}}",
    "{{{{ {one} }}}}{body}",
)
OPENING = (
    *("for", "if", "else", "elif", "macro", "call", "filter", "with", "generation", "block"),
    *("autoescape", "raw"),
)
TAG = re.compile(r"{%[-+]?\s*(\w+)")
LONGEST = 3000  # bytes; longer templates compile slowly, so a new one replaces them


class TemplateMutator:
    """A custom mutator for the fuzzer: (data, max_size, seed) -> data."""

    def __init__(self, mutate_bytes: Callable[[bytes, int], bytes]) -> None:
        """`mutate_bytes` is the fuzzer's own mutator."""
        self._mutate_bytes = mutate_bytes

    def __call__(self, data: bytes, max_size: int, seed: int) -> bytes:
        chance = random.Random(seed)
        if chance.random() < 0.2:
            return self._mutate_bytes(data, max_size)
        parts = [part for part in PARTS.split(data.decode("utf-8", "replace")) if part]
        for _ in range(chance.choice((1, 1, 1, 2, 4))):
            self._change(chance, parts)
        changed = "".join(parts).encode("utf-8", "replace")
        if len(changed) > min(LONGEST, max_size):
            return block(chance, "").encode()
        return changed

    def _change(self, chance: random.Random, parts: list[str]) -> None:
        """Changes some adjacent entries of `parts`, in place."""
        start = chance.randint(0, len(parts))
        end = min(len(parts), start + chance.choice((0, 0, 1, 1, 3, 9)))
        if not is_balanced(parts[start:end]):
            end = start
        body, kind = "".join(parts[start:end]), chance.random()
        if kind < 0.15:
            parts[start:end] = []
        elif kind < 0.25:
            parts[start:start] = parts[start:end] * chance.choice((1, 2, 40))
        else:
            parts[start:end] = [block(chance, body)]


def is_balanced(parts: list[str]) -> bool:
    """Returns whether each block in `parts` both begins and ends there."""
    depth = 0
    for part in parts:
        match = TAG.match(part)
        tag = match[1] if match else ""
        if tag.startswith("end") or tag in ("else", "elif"):
            depth -= 1
        if depth < 0:
            return False
        depth += tag in OPENING
    return depth == 0


def block(chance: random.Random, body: str) -> str:
    """Returns a random statement or expression around `body`."""
    return chance.choice(BLOCKS).format(
        body=body,
        more=chance.choice(("", "{{ x }}", "{% continue %}")),
        name=chance.choice(("x", "m", "message", "ns", "messages", "f")),
        filter=_filter(chance, 2),
        one=expression(chance),
        two=expression(chance),
    )


def expression(chance: random.Random, depth: int = 4) -> str:
    def below() -> str:
        return expression(chance, depth - 1)

    if depth == 0 or chance.random() < 0.2:
        return chance.choice(chance.choice((GIVEN, GIVEN, LOCAL, CONSTANTS)))
    match chance.randrange(11):
        case 0 | 1:
            return f"({below()}) | {_filter(chance, depth)}"
        case 2:
            return f"({below()}) {chance.choice(OPERATORS)} ({below()})"
        case 3:
            return f"({below()})[{below()}]"
        case 4:
            bounds = [chance.choice(("", below())) for _ in range(3)]
            return f"({below()})[{':'.join(bounds)}]"
        case 5:
            return f"({below()}).{chance.choice(METHODS)}"
        case 6:
            return f"({below()}).{chance.choice(METHODS)}({_arguments(chance, depth)})"
        case 7:
            return f"{chance.choice(FUNCTIONS)}({_arguments(chance, depth)})"
        case 8:
            return f"({below()}) is {chance.choice(('', 'not '))}{chance.choice(TESTS)}"
        case 9:
            return f"({below()} if {below()} else {below()})"
        case _:
            return chance.choice(("[{}, {}]", "({}, {})", "{{{}: {}}}")).format(below(), below())


def _filter(chance: random.Random, depth: int) -> str:
    name = chance.choice(FILTERS)
    return f"{name}({_arguments(chance, depth)})" if chance.random() < 0.5 else name


def _arguments(chance: random.Random, depth: int) -> str:
    given = [expression(chance, depth - 1) for _ in range(chance.choice((0, 1, 1, 2, 3)))]
    if given and chance.random() < 0.2:
        given[-1] = f"{chance.choice(KEYWORDS)}={given[-1]}"
    return ", ".join(given)
