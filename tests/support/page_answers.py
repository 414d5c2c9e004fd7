"""Streamed answers that tests of the page give instead of the server."""

import json
from typing import Any

from support.browser import Visit

CHATS = "**/v1/chat/completions"
# Lets a test send the parts of a chat's stream one by one.
HELD = """() => {
  const { fetch } = globalThis;
  globalThis.held = new Promise((hold) => {
    globalThis.fetch = (path, options) =>
      path === "/v1/chat/completions"
        ? Promise.resolve(new Response(new ReadableStream({ start: hold })))
        : fetch(path, options);
  });
}"""
CHAIN = ("bf16", "fp4", "ngram")
MARKDOWN = """# Reversing

A *short* **answer** with `code` and a [link](https://example.com/a?b=c&d=e).

1. first
2. second
   - nested

```python
def area(r):
    return 3 * r
```

| a | b |
|---|--:|
| 1 | 2 |
"""


def stream_of(
    texts: list[str], depths: list[int] | None = None, seconds: list[float] | None = None
) -> str:
    """Returns a streamed answer with one token and one event for each text."""
    events = []
    for i, text in enumerate(texts):
        depth = (depths or [0] * len(texts))[i]
        origin = {"text": text, "depth": depth, "level": CHAIN[depth], "probability": 0.5}
        at = (seconds or [0.01 * i for i in range(len(texts))])[i]
        choice = {
            "index": 0,
            "delta": {"content": text},
            "finish_reason": "stop" if i == len(texts) - 1 else None,
            "token_ids": [i],
            "origins": [origin],
            "progress": {"seconds": at, "is_shared": False, "levels": []},
        }
        events.append(f"data: {json.dumps({'choices': [choice]})}\n\n")
    return "".join([*events, "data: [DONE]\n\n"])


def reading_of(read: int, total: int) -> str:
    """Returns the event of a stream that says how far the prompt is read."""
    progress = {"total": total, "cache": 0, "processed": read, "time_ms": read}
    choice = {"index": 0, "delta": {}, "finish_reason": None}
    return f"data: {json.dumps({'choices': [choice], 'prompt_progress': progress})}\n\n"


class HeldChat:
    """Sends a message, and answers it with the parts of one stream that a test gives."""

    def __init__(self, visit: Visit, text: str) -> None:
        self._page = visit.page
        self._page.locator("#welcome").wait_for()  # until then, the page sends nothing
        self._page.evaluate(HELD)
        self._page.locator("#prompt").fill(text)
        self._page.keyboard.press("Enter")

    def send(self, part: str) -> None:
        send = "async (part) => (await held).enqueue(new TextEncoder().encode(part))"
        self._page.evaluate(send, part)


def answer(visit: Visit, *bodies: str) -> list[dict[str, Any]]:
    """Answers chats with these streams, repeating the last one. Returns the requests' bodies."""
    asked: list[dict[str, Any]] = []

    def fulfill(route: Any) -> None:
        asked.append(route.request.post_data_json)
        body = bodies[min(len(asked), len(bodies)) - 1]
        route.fulfill(body=body, content_type="text/event-stream")

    visit.page.route(CHATS, fulfill)
    return asked
