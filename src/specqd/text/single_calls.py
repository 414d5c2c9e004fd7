"""Splits messages with several tool calls into messages with one call each.

For chat templates that reject several calls. Knows messages. Knows no templates and no tokens.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specqd.text.chat_template import REASONING
from specqd.text.messages import Message


def has_several_calls(message: Message) -> bool:
    """Returns whether this is a message with more than one call."""
    return len(message.get("tool_calls") or ()) > 1


def one_by_one(messages: Sequence[Message]) -> list[Message]:
    """Returns the conversation with each call in a message of its own, before its results.

    The text and the reasoning of a message stay with its first call. A result belongs to the call
    that it names; if it names none of them, to the first call without a result, or else to the last
    call. A call may have no result.
    """
    split: list[Message] = []
    at = 0
    while at < len(messages):
        message, end = messages[at], at + 1
        if has_several_calls(message):
            while end < len(messages) and messages[end]["role"] == "tool":
                end += 1
            split += _turns(message, messages[at + 1 : end])
        else:
            split.append(message)
        at = end
    return split


def _turns(message: Message, results: Sequence[Message]) -> Iterator[Message]:
    calls = message["tool_calls"]
    later = {name: value for name, value in message.items() if name not in ("content", *REASONING)}
    for i, own in enumerate(_by_call(calls, results)):
        yield {**(later if i else message), "tool_calls": [calls[i]]}
        yield from own


def _by_call(calls: Sequence[Mapping[str, Any]], results: Sequence[Message]) -> list[list[Message]]:
    """Returns the results of each call. Calls with the same id get theirs in turn."""
    places: dict[str, deque[int]] = {}
    for place, call in enumerate(calls):
        places.setdefault(str(call.get("id")), deque()).append(place)
    by_call: list[list[Message]] = [[] for _ in calls]
    unnamed = []
    for result in results:
        named = places.get(str(result.get("tool_call_id")))
        if named is None:
            unnamed.append(result)
        else:
            by_call[named.popleft() if len(named) > 1 else named[0]].append(result)
    without = (place for place, own in enumerate(by_call) if not own)
    for result in unnamed:
        by_call[next(without, -1)].append(result)
    return by_call
