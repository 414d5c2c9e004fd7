"""Reads streams of named events, as in OpenAI's responses and Anthropic's messages."""

import json
from itertools import pairwise
from typing import Any

from support.openai_client import RESPONSES
from support.served import Served


def events_of(served: Served, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the events of a stream. Each must have its name and, in responses, its number."""
    reply = served.ask("POST", path, body | {"stream": True})
    assert reply.status == 200, reply.body
    *lines, rest = reply.body.decode().split("\n\n")
    assert rest == ""
    events = []
    for number, line in enumerate(lines):
        name, _, data = line.removeprefix("event: ").partition("\ndata: ")
        event = json.loads(data)
        assert event["type"] == name
        assert path != RESPONSES or event["sequence_number"] == number
        events.append(event)
    return events


def kinds_of(events: list[dict[str, Any]]) -> list[str]:
    """Returns the kinds of the events in order, each run of equal kinds once."""
    kinds = [event["type"].removeprefix("response.") for event in events]
    return [kind for kind, after in pairwise([*kinds, ""]) if kind != after]
