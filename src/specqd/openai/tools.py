"""Checks the tools of a chat request's body."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from specqd.config.fields import Fields, LenientObject
from specqd.errors import FieldError, shown
from specqd.text.tool_calls import NO_PARAMETERS, Tool, ToolUse

FIELDS = ("tools", "tool_choice", "parallel_tool_calls")
MOST_TOOLS = 128  # OpenAI's limit

_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_LONGEST_NAME = 64
_MODES = ("auto", "required")
_MEMBERS = ("name", "description", "parameters", "strict")


class Spelling(NamedTuple):
    """How an API writes tools, and the choice among them, in JSON."""

    function: Callable[[str, object], Fields]  # a tool's name in errors, the tool -> its function
    # A request -> the type of its tool_choice, its function, and its allowed tools.
    choice: Callable[[Fields], tuple[object, Fields | None, Fields | None]]
    shown: str  # the possible choices, for errors


def tool_use(fields: Fields, spelling: Spelling | None = None) -> ToolUse | None:
    """Reads the tools that the text may or must call, or returns None if there are none.

    The prompt then lists no tools, so that the model has no reason to call one. spelling: by
    default that of chats. Raises FieldError.
    """
    spelling = spelling or NESTED
    given = fields.get("tools")
    if given is None:
        for name in ("tool_choice", "parallel_tool_calls"):
            if fields.get(name) not in (None, "none"):
                raise FieldError(name, "needs tools")
        return None
    if not isinstance(given, list) or not 0 < len(given) <= MOST_TOOLS:
        raise fields.wrong("tools", f"a list of 1 to {MOST_TOOLS} functions")
    kept = kept_tools(given, ("function",))
    functions = [spelling.function(name, each) for name, each in kept]
    tools = uniquely_named(tool_of(function, "parameters") for function in functions)
    is_parallel = fields.flag("parallel_tool_calls", True)
    choice = fields.values.get("tool_choice", "auto")
    if choice == "none" or (choice == "auto" and not tools):
        return None
    if not tools:
        raise FieldError("tool_choice", "needs tools of type function")
    if isinstance(choice, dict):
        return _chosen(fields, tools, is_parallel, spelling)
    if choice not in _MODES:
        raise fields.wrong("tool_choice", f"none, {', '.join(_MODES)}, or {spelling.shown}")
    return ToolUse(tools, must_call=choice == "required", is_parallel=is_parallel)


def kept_tools(given: Sequence[object], types: Sequence[object]) -> list[tuple[str, object]]:
    """Returns the tools with their names in errors, without tools of unsupported types.

    Only a lenient body drops these. In any other body they remain, and are rejected later.
    """
    kept = []
    for i, tool in enumerate(given):
        if isinstance(tool, LenientObject) and tool.get("type") not in types:
            tool.report(f"tools[{i}] of type {shown(tool.get('type'))}")
        else:
            kept.append((f"tools[{i}]", tool))
    return kept


def uniquely_named(tools: Iterable[Tool]) -> tuple[Tool, ...]:
    """Returns the tools. Raises FieldError if two have the same name."""
    checked, names = tuple(tools), set[str]()
    for tool in checked:
        if tool.name in names:
            raise FieldError("tools", f"two functions are named {tool.name}; rename one")
        names.add(tool.name)
    return checked


def tool_of(function: Fields, schema: str, longest_name: int = _LONGEST_NAME) -> Tool:
    """Reads a tool. schema: the member that has the schema of its parameters."""
    called = function.text("name")
    if called is None or not _NAME.fullmatch(called) or len(called) > longest_name:
        raise function.wrong("name", f"a name of 1 to {longest_name} letters, digits, _ and -")
    parameters = function.object(schema) or NO_PARAMETERS
    if parameters.get("type", "object") != "object":
        raise function.error(schema, "a schema of type object is needed")
    return Tool(
        called,
        {"type": "object", **parameters},
        function.flag("strict"),
        function.text("description"),
    )


def _chosen(
    fields: Fields, tools: tuple[Tool, ...], is_parallel: bool, spelling: Spelling
) -> ToolUse:
    """Reads a tool_choice that names one function or allows several."""
    names = [tool.name for tool in tools]
    kind, function, allowed = spelling.choice(fields)
    if kind == "function" and function is not None and allowed is None:
        named = name_in(function, names)
        return ToolUse(tools, frozenset({named}), must_call=True, is_parallel=False)
    if kind != "allowed_tools" or allowed is None or function is not None:
        raise fields.wrong("tool_choice", spelling.shown)
    if allowed.get("mode") not in _MODES:
        raise allowed.wrong("mode", " or ".join(_MODES))
    must_call = allowed.get("mode") == "required"
    few = _allowed(allowed, names, spelling)
    return ToolUse(tools, few, must_call=must_call, is_parallel=is_parallel)


def _allowed(fields: Fields, names: Sequence[str], spelling: Spelling) -> frozenset[str]:
    """Returns the names in a list of tools, in which clients may repeat the descriptions."""
    given = fields.get("tools")
    if not isinstance(given, list) or not 0 < len(given) <= MOST_TOOLS:
        raise fields.wrong("tools", f"a list of 1 to {MOST_TOOLS} functions")
    return frozenset(
        name_in(spelling.function(f"{fields.within}tools[{i}]", each), names)
        for i, each in enumerate(given)
    )


def name_in(function: Fields, names: Sequence[str]) -> str:
    """Returns a function's name, which must be one of `names`. Raises FieldError."""
    named = function.text("name")
    if named is None or named not in names:
        raise function.wrong("name", "the name of one of the tools")
    return named


def _nested_function(name: str, tool: object) -> Fields:
    fields = Fields.of(tool, ("type", "function"), name)
    function = fields.nested("function", _MEMBERS)
    if fields.get("type") != "function" or function is None:
        raise FieldError(name, 'a tool {"type": "function", "function": {...}} is needed')
    return function


def _nested_choice(fields: Fields) -> tuple[object, Fields | None, Fields | None]:
    choice = fields.nested("tool_choice", ("type", "function", "allowed_tools"))
    assert choice is not None
    function = choice.nested("function", ("name",))
    return choice.get("type"), function, choice.nested("allowed_tools", ("mode", "tools"))


def _flat_function(name: str, tool: object) -> Fields:
    if isinstance(tool, Mapping) and tool.get("type") != "function":
        kind = shown(tool.get("type"))
        raise FieldError(name, f"is of type {kind}; only functions are supported; leave it out")
    return Fields.of(tool, ("type", *_MEMBERS), name)


def _flat_choice(fields: Fields) -> tuple[object, Fields | None, Fields | None]:
    choice = fields.nested("tool_choice", ("type", "name", "mode", "tools"))
    assert choice is not None
    kind = choice.get("type")
    return kind, choice if kind == "function" else None, choice if kind != "function" else None


NESTED = Spelling(
    _nested_function,
    _nested_choice,
    '{"type": "function", "function": {"name": ...}} or '
    '{"type": "allowed_tools", "allowed_tools": {"mode": ..., "tools": [...]}}',
)
FLAT = Spelling(
    _flat_function,
    _flat_choice,
    '{"type": "function", "name": ...} or {"type": "allowed_tools", "mode": ..., "tools": [...]}',
)
