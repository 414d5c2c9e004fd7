"""Streamed answers that tests of the page give instead of the server."""

import json
from typing import Any

from support.browser import Visit

CHATS = "**/v1/chat/completions"
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


def answer(visit: Visit, *bodies: str) -> list[dict[str, Any]]:
    """Answers chats with these streams, repeating the last one. Returns the requests' bodies."""
    asked: list[dict[str, Any]] = []

    def fulfill(route: Any) -> None:
        asked.append(route.request.post_data_json)
        body = bodies[min(len(asked), len(bodies)) - 1]
        route.fulfill(body=body, content_type="text/event-stream")

    visit.page.route(CHATS, fulfill)
    return asked
