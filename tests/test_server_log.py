"""A line for each request, without its text."""

import re
import signal
from pathlib import Path

from support.openai_client import CHAT, COMPLETIONS
from support.served import serving

SECRET = "a secret text"


def test_each_request_has_one_line_without_its_text(chat_model: Path) -> None:
    chat = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 4, "ignore_eos": True}
    with serving(str(chat_model), "--log-requests") as served:
        assert served.ask("POST", CHAT, chat).status == 200
        assert served.ask("POST", COMPLETIONS, {"prompt": SECRET, "stream": True}).status == 200
        assert served.ask("POST", CHAT, {"x": SECRET}).status == 400
        assert served.ask("GET", "/health").status == 200
        assert served.ask("GET", f"/%0A{'x' * 300}").status == 404
        served.process.send_signal(signal.SIGTERM)
        _, log = served.process.communicate(timeout=60)
    lines = [line for line in log.splitlines() if " s" in line and "/" in line]
    counts = r"\d+\.\d{3} s, \d+ prompt tokens( \(\d+ cached\))?, \d+ new"
    patterns = [
        rf"specqd: POST {CHAT} 200, \d+\.\d{{3}} s, \d+ prompt tokens, 4 new",
        rf"specqd: POST {COMPLETIONS} 200, {counts}",
        rf"specqd: POST {CHAT} 400, \d+\.\d{{3}} s",
        r"specqd: GET /health 200, \d+\.\d{3} s",
        r"specqd: GET /.{1,110} 404, \d+\.\d{3} s",
    ]
    assert len(lines) == len(patterns), log
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.fullmatch(pattern, line)
    assert SECRET not in log


def test_nothing_is_logged_by_default(chat_model: Path) -> None:
    with serving(str(chat_model)) as served:
        assert served.ask("GET", "/health").status == 200
        served.process.send_signal(signal.SIGTERM)
        _, log = served.process.communicate(timeout=60)
    assert "/health" not in log
