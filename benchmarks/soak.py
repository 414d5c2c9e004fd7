"""Tests that a server keeps its memory, pages and request slots over many requests of every kind.

    python benchmarks/soak.py [MODEL] [--requests 2000] [--at-once 16] [--seed 0] [--serve OPTIONS]

Runs `specqd serve` with 2 threads, its default drafts and a chat template that calls tools. 10 % of
requests disconnect before their end, 5 % are malformed, 5 % are too large. 5 % of clients stall:
they send nothing, half a header or half a body, or read nothing of a stream; the server must
disconnect them. The others are completions and chats: whole and streamed, free and held to schemas,
with tools, log-probabilities of prompts and the fields that the page uses; some prompts begin alike
and some do not. `--serve "--max-gap 0.01 --prompt-cache DIR"` reads prompts in small parts and
keeps them in a directory, whose disk may be full.

Prints the server's memory and counts after each quarter. The exit status is 1 if a reply has an
unexpected status, a stalled client is not disconnected, or pages, slots or memory are not given
back.
"""

import argparse
import json
import random
import re
import shlex
import shutil
import signal
import socket
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from specqd.hub import shipped_model
from support.served import Served, add_template, serving

Json = dict[str, Any]

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}"
    '<tool_call>{{ "\\n" }}{"name": "{{ c.function.name }}", "arguments": '
    '{{ c.function.arguments | tojson }}}{{ "\\n" }}</tool_call>{% endfor %}{% endfor %}'
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
SCHEMA: Json = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "is_big": {"type": "boolean"}},
    "required": ["name", "is_big"],
    "additionalProperties": False,
}
FORM: Json = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA}}
TOOLS: list[Json] = [{"type": "function", "function": {"name": "take", "parameters": SCHEMA}}]
PLACES = 1024  # samples that a server accepts at once
OVER_CONTEXT = b'{"prompt": "%b"}' % (b"import os; " * 2_000)
MOST_GROWTH_KB = 8192  # memory over the second half, for allocators

CUT_WITHIN_S = 120  # a body may take 60 s

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
UNREAD = b'{"prompt": ["x", "y"], "n": 8, "stream": true, "max_tokens": 400, "ignore_eos": true}'
HEAD = (
    f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    f"Content-Length: {len(UNREAD)}\r\n\r\n"
).encode()
STALLS = (b"", HEAD[:40], HEAD, HEAD + UNREAD[:40], HEAD + UNREAD)
MALFORMED: list[tuple[int, str, bytes]] = [
    (400, COMPLETIONS, b'{"prompt": 5'),
    (400, COMPLETIONS, b'{"prompt": 5}'),
    (400, COMPLETIONS, b'{"prompt": [-1]}'),
    (400, COMPLETIONS, b'{"prompt": "x", "temperature": "hot"}'),
    (400, COMPLETIONS, b'{"prompt": "x", "wonders": 1}'),
    (400, CHAT, b'{"messages": []}'),
    (400, CHAT, b'{"messages": [{"role": "user", "content": "x"}], "tools": [{}]}'),
    (404, COMPLETIONS, b'{"prompt": "x", "model": "another"}'),
    (404, "/v1/nothing", b"{}"),
]


def post(server: Served, path: str, body: object) -> int:
    return server.ask("POST", path, body).status


def leave(server: Served, path: str, body: bytes, patience_s: float) -> None:
    connection = server.connect()
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    time.sleep(patience_s)
    connection.close()


def stall(server: Served, sends: bytes) -> socket.socket:
    """Opens a connection, sends this, and then neither sends nor reads."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", server.port))
    client.sendall(sends)
    return client


def is_cut(client: socket.socket) -> bool:
    """Whether the server ends the connection."""
    client.settimeout(CUT_WITHIN_S)
    try:
        while client.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


def rss_kb(server: Served) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.findall(r"^VmRSS:\s+(\d+)", status, re.MULTILINE)[0])


def copied(model: Path, folder: Path) -> Path:
    """Links to the model's files, with our chat template."""
    for file in model.iterdir():
        if file.name != "tokenizer_config.json":
            (folder / file.name).symlink_to(file.resolve())
    shutil.copy(model / "tokenizer_config.json", folder)
    return add_template(folder, TEMPLATE)


def good_request(rng: random.Random) -> tuple[str, Json]:
    body: Json = {
        "max_tokens": rng.randint(1, 48),
        "temperature": rng.choice([0, 1]),
        "n": rng.choice([1, 1, 2]),
    }
    if rng.random() < 0.5:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        body["return_progress"] = rng.random() < 0.5
    if rng.random() < 0.3:
        body |= {"return_origins": True, "return_token_ids": True}
    if rng.random() < 0.2:
        body["draft"] = "none"
    if rng.random() < 0.2:
        body["cache_salt"] = str(rng.randrange(3))
    name = rng.choice(["area", f"area_{rng.randrange(10_000)}"])
    prompt = f"def {name}(r):\n" * rng.randint(1, 40)
    messages = [{"role": "user", "content": prompt[:200]}]
    kinds: list[tuple[str, Json]] = [
        (COMPLETIONS, {"prompt": prompt, "ignore_eos": True}),
        (COMPLETIONS, {"prompt": prompt, "echo": True, "logprobs": 2}),
        (COMPLETIONS, {"prompt": prompt, "response_format": FORM}),
        (CHAT, {"messages": messages, "logprobs": True, "top_logprobs": 2}),
        (CHAT, {"messages": messages, "tools": TOOLS, "tool_choice": "required"}),
        (CHAT, {"messages": messages, "tools": TOOLS}),
    ]
    path, more = rng.choice(kinds)
    return path, body | more


def request(server: Served, seed: int, stalled: list[socket.socket]) -> str:
    """Sends one request and returns a description of its outcome. Adds a client that stalls to
    `stalled`."""
    rng = random.Random(seed)
    kind = rng.random()
    if kind < 0.05:
        expected, path, body = rng.choice(MALFORMED)
        return judged("malformed", expected, post(server, path, body))
    if kind < 0.075:
        return judged("over the context", 400, post(server, COMPLETIONS, OVER_CONTEXT))
    if kind < 0.1:
        return judged("a body of 5 MB", 413, post(server, COMPLETIONS, b" " * (5 << 20)))
    if kind < 0.15:
        stalled.append(stall(server, rng.choice(STALLS)))
        return "stalled"
    path, asked = good_request(rng)
    if kind < 0.25:
        asked |= {"max_tokens": 400} | ({"ignore_eos": True} if "prompt" in asked else {})
        asked.pop("response_format", None)
        leave(server, path, json.dumps(asked).encode(), rng.random() * 0.2)
        return "left"
    return judged("answered", 200, post(server, path, asked))


def judged(kind: str, expected: int, status: int) -> str:
    return f"{kind}: {status}" if status == expected else f"WRONG, {kind}: {status}"


def state(server: Served) -> Json:
    """The server's state, once no request is running."""
    deadline = time.monotonic() + 60
    running = "vllm:num_requests_running"
    while server.metric(running) and time.monotonic() < deadline:
        time.sleep(0.05)
    return {
        "rss_kb": rss_kb(server),
        "running": server.metric(running),
        "waiting": server.metric("vllm:num_requests_waiting"),
        "cache_share": server.metric("vllm:kv_cache_usage_perc"),
        "tokens": server.metric("vllm:generation_tokens_total"),
        "preemptions": server.metric("vllm:num_preemptions_total"),
    }


def all_places_are_free(server: Served) -> bool:
    body = {"prompt": ["x"] * 8, "n": PLACES // 8, "max_tokens": 1}
    return post(server, COMPLETIONS, body) == 200


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--serve", type=shlex.split, default=[], metavar="OPTIONS")
    options = parser.parse_args()
    outcomes: Counter[str] = Counter()
    stalled: list[socket.socket] = []
    with (
        TemporaryDirectory() as folder,
        serving(
            str(copied(options.model or shipped_model(), Path(folder))), *options.serve
        ) as server,
    ):
        server.timeout_s = 300
        states = [state(server)]
        print(json.dumps(states[0]), flush=True)
        ends = [options.requests * quarter // 4 for quarter in range(5)]
        with ThreadPoolExecutor(options.at_once) as clients:
            for first, end in pairwise(ends):
                seeds = range(options.seed + first, options.seed + end)
                outcomes.update(clients.map(lambda seed: request(server, seed, stalled), seeds))
                states.append(state(server))
                print(json.dumps({"requests": end, **states[-1]}), flush=True)
        has_places = all_places_are_free(server)
        are_cut = all(map(is_cut, stalled))
    ended = server.process.returncode
    last = states[-1]
    growth = last["rss_kb"] - states[2]["rss_kb"]
    problems = [outcome for outcome in outcomes if outcome.startswith("WRONG")]
    problems += [name for name in ("running", "waiting", "cache_share") if last[name]]
    problems += [] if has_places else ["places"]
    problems += [] if are_cut else ["stalled clients"]
    problems += [] if growth <= MOST_GROWTH_KB else ["memory"]
    problems += [] if ended in (0, -signal.SIGTERM) else [f"ended with status {ended}"]
    print(json.dumps({"outcomes": outcomes, "growth_kb": growth, "problems": problems}))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
