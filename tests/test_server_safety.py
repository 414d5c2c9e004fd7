"""The server rejects requests without access and bad bodies, and survives disconnections."""

import json
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from specqd.cli import main
from specqd.extras import install_command
from support.command_line import Refuse, Run
from support.fixtures import a_model, a_server
from support.openai_client import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from support.random_models import Shape, make_model
from support.served import TEMPLATE, Served, add_template, serving

KEY = "a-key"
LONG = {"prompt": "x", "max_tokens": 1900, "ignore_eos": True, "temperature": 0}


directory = a_model(Shape(is_peaked=True, context=2048), TEMPLATE)
roomy_directory = a_model(Shape(is_peaked=True, context=1 << 15))
served = a_server("directory", "--allow-host", "model.example", key=KEY)


def test_everything_but_health_needs_the_key(served: Served) -> None:
    for path in ("/v1/models", "/metrics", "/nowhere"):
        for header in ("", "Bearer", "Bearer wrong", f"Basic {KEY}", f"Bearer {KEY}x", "Bearer é"):
            reply = served.ask("GET", path, headers={"Authorization": header})
            assert reply.status == 401
            assert reply.error["code"] == "invalid_api_key"
    for method in ("GET", "HEAD"):  # balancers send either
        assert served.ask(method, "/health", headers={"Authorization": ""}).status == 200
    assert served.ask("GET", "/v1/models", headers={"Authorization": f"bearer {KEY}"}).status == 200


def test_file_paths_are_logged_but_never_sent_to_clients(tmp_path: Path, seed: int) -> None:
    model = make_model(tmp_path / "unpacked", Shape(), seed)
    add_template(model, "{{ messages[0].content + 1 }}")
    packed = tmp_path / "packed"
    assert main(["pack", str(model), str(packed)]) == 0
    with serving(str(packed)) as served:
        chat = {"messages": [{"role": "user", "content": "a-secret"}], "max_tokens": 2}
        failed = [served.ask("POST", CHAT, chat)]
        failed.append(served.ask("POST", "/tokenize", {"messages": chat["messages"]}))
        for reply in failed:
            assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
            assert "the chat template fails: TypeError" in reply.error["message"]
        [weights] = packed.glob("*.safetensors")
        weights.write_bytes(weights.read_bytes())  # the same bytes at another time
        failed.append(served.ask("POST", COMPLETIONS, {"prompt": "x"}))
        assert (failed[-1].status, failed[-1].error["type"]) == (500, "server_error")
        for reply in failed:
            assert str(tmp_path) not in reply.body.decode()
        served.process.send_signal(signal.SIGTERM)
        assert served.process.stderr is not None
        log = served.process.stderr.read()
    assert log.count(f"{packed / 'tokenizer_config.json'}: the chat template failed") == 2
    assert str(weights) in log
    assert "a-secret" not in log


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_host_of_two_colons_listens_on_ipv4_and_ipv6(directory: Path) -> None:
    with serving(str(directory), "--host", "::", "--draft", "none") as served:
        for address in ("127.0.0.1", "::1"):
            with socket.create_connection((address, served.port)) as client:
                host = f"[{address}]" if ":" in address else address
                client.sendall(f"GET /health HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
                assert client.recv(100).startswith(b"HTTP/1.1 200 ")


def test_cached_prompts_are_shared_only_within_one_key_and_salt(
    directory: Path, rng: np.random.Generator
) -> None:
    body = {"prompt": rng.integers(0, 256, 200).tolist(), "max_tokens": 1, "temperature": 0}
    asked = [(key, salt) for key in ("one", "two") for salt in (None, "a", "b", "two\n", "\na")]

    with serving(str(directory), key="one two") as served:
        texts = set()
        for held in (0, 192):  # whole pages of 64
            for key, salt in asked:
                salted = body if salt is None else body | {"cache_salt": salt}
                header = {"Authorization": f"Bearer {key}"}
                answer = served.ask("POST", COMPLETIONS, salted, header).content
                assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == held
                texts.add(answer["choices"][0]["text"])
        assert len(texts) == 1
        for wrong in ("one two", "three", ""):
            header = {"Authorization": f"Bearer {wrong}"}
            assert served.ask("POST", COMPLETIONS, body, header).status == 401
        header = {"Authorization": "Bearer one"}
        assert served.ask("POST", COMPLETIONS, body | {"cache_salt": ""}, header).status == 400


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "[", "127.0.0.1.x"])
def test_other_host_names_are_rejected(served: Served, host: str) -> None:
    assert served.ask("GET", "/health", headers={"Host": host}).status in (400, 403)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "[::1]:8000", "Model.example:80"])
def test_local_and_allowed_host_names_are_accepted(served: Served, host: str) -> None:
    assert served.ask("GET", "/health", headers={"Host": host}).status == 200


def test_other_origins_are_rejected_without_cors_headers(served: Served) -> None:
    for origin in ("https://evil.example", "null", f"http://127.0.0.1:{served.port + 1}"):
        reply = served.ask("GET", "/v1/models", headers={"Origin": origin})
        assert reply.status == 403
        assert not any(name.startswith("access-control") for name in reply.headers)
    assert served.ask("GET", "/v1/models", headers={"Origin": served.url}).status == 200
    preflight = served.ask("OPTIONS", COMPLETIONS, headers={"Origin": "https://evil.example"})
    assert preflight.status == 403
    assert "--allow-origin" in preflight.error["message"]


def test_pages_of_an_allowed_origin_may_use_the_server(directory: Path) -> None:
    ours, allowed = "http://localhost:3000", "access-control-allow-origin"
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-a"}
    with serving(str(directory), "--allow-origin", f"{ours}/", key=KEY) as served:
        preflight = served.ask(
            "OPTIONS", COMPLETIONS, headers={"Origin": ours, "Authorization": "", **asked}
        )
        assert (preflight.status, preflight.headers[allowed]) == (200, ours)
        assert preflight.headers["access-control-allow-headers"] == "x-a"
        body = {"prompt": "x", "max_tokens": 2}
        answer = served.ask("POST", COMPLETIONS, body, {"Origin": ours})
        assert (answer.status, answer.headers[allowed]) == (200, ours)
        refused = served.ask("POST", COMPLETIONS, body, {"Origin": ours, "Authorization": ""})
        assert (refused.status, refused.headers[allowed]) == (401, ours)
        for other in ("http://localhost:3001", "https://localhost:3000", "null"):
            reply = served.ask("POST", COMPLETIONS, body, {"Origin": other})
            assert reply.status == 403
            assert allowed not in reply.headers


@pytest.mark.parametrize("origin", ["localhost:3000", "http://a/b", "a", "http://"])
def test_a_text_that_is_not_an_origin_is_rejected(run: Run, origin: str) -> None:
    status, _, err = run("serve", "--allow-origin", origin)
    assert status == 2
    assert "is not an origin such as http://localhost:3000" in err


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_only_json_bodies_are_accepted(served: Served, kind: str) -> None:
    reply = served.ask("POST", COMPLETIONS, b'{"prompt": "x"}', {"Content-Type": kind})
    assert reply.status == 415


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "body"),
        (b"{", "not valid JSON"),
        (b'{"prompt": "x",\n "n": 1,}', "not valid JSON in UTF-8 (line 2, column "),
        (b"[" * 100_000, "body"),
        (b'{"prompt": "x", "metadata": {"a": NaN}}', "not valid JSON"),
        (b'{"prompt": "x", "metadata": {"a": -1e999}}', "not valid JSON"),
        (b"\xff\xfe", "body"),
        (b"[]", "body"),
        (b"{}", "prompt"),
        (b'{"prompt": 5}', "prompt"),
        (b'{"prompt": ""}', "prompt"),
        (b'{"prompt": [[1], []]}', "empty"),
        (b'{"prompt": [-1]}', "token id -1"),
        (b'{"prompt": [100000]}', "token id 100000"),
        (b'{"prompt": [-1], "echo": true}', "token id -1"),
        (b'{"prompt": "x", "temperature": 1' + b"0" * 400 + b"}", "temperature"),
        (b'{"prompt": [99999999999999999999]}', "token id"),
        (b'{"prompt": "x", "n": true}', "n:"),
        (b'{"prompt": "x", "seed": 1.5}', "seed"),
        (b'{"prompt": "x", "stop": [""]}', "stop"),
        (b'{"prompt": "x", "logit_bias": {"900000": 1}}', "logit_bias"),
        (b'{"prompt": [-1], "echo": true, "logprobs": 1}', "token id -1"),
        (b'{"prompt": "x", "wonders": 1}', "wonders: this field is not known"),
        (b'{"prompt": "\\ud800"}', "surrogate"),
        (b'{"prompt": "x", "cache_salt": "\\ud83d"}', "surrogate"),
        (b'{"prompt": "x", "stop": ["\\ude00\\ud83d"]}', "surrogate"),
        (b'{"prompt": "x", "metadata": {"\\udfff": 1}}', "surrogate"),
        (b'{"prompt": "\xed\xa0\xbd"}', "UTF-8"),
    ],
)
def test_malformed_bodies_are_400_in_one_line(served: Served, body: bytes, says: str) -> None:
    reply = served.ask("POST", COMPLETIONS, body)
    assert reply.status == 400, reply.body
    assert says in reply.error["message"]
    assert "\n" not in reply.error["message"]
    assert set(reply.error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "path", [CHAT, "/tokenize", RESPONSES, MESSAGES, f"{MESSAGES}/count_tokens"]
)
def test_an_unknown_role_is_400_and_names_the_known_ones(served: Served, path: str) -> None:
    message = {"role": "banana", "content": "Hi"}
    most = {"max_tokens": 9} if path == MESSAGES else {}
    body = {"input": [message]} if path == RESPONSES else {"messages": [message]}
    reply = served.ask("POST", path, body | most)
    assert reply.status == 400, reply.body
    assert "[0].role: is 'banana'; " in reply.error["message"]
    assert all(role in reply.error["message"] for role in ("system", "user", "assistant"))


def test_a_lone_surrogate_in_a_message_is_400_and_a_pair_is_not(served: Served) -> None:
    for path in (CHAT, "/tokenize"):
        for text in ("\ud83d", "\ude00\ud83d"):
            message = {"role": f"user{text}", "content": "x"}
            reply = served.ask("POST", path, {"messages": [message]})
            assert reply.status == 400, reply.body
            assert "surrogate" in reply.error["message"]
        message = {"role": "user", "content": "\U0001f600 \\ud83d"}  # the latter as six characters
        assert served.ask("POST", path, {"messages": [message]}).status == 200


@pytest.mark.parametrize(
    ("status", "method", "path", "body", "headers"),
    [
        (400, "POST", COMPLETIONS, {"prompt": 5}, {}),
        (401, "GET", "/v1/models", None, {"Authorization": "Bearer wrong"}),
        (403, "GET", "/v1/models", None, {"Origin": "https://evil.example"}),
        (404, "GET", "/v1/nowhere", None, {}),
        (404, "GET", "/v1/models/another", None, {}),
        (404, "POST", COMPLETIONS, {"prompt": "x", "model": "another"}, {}),
        (405, "GET", COMPLETIONS, None, {}),
        (405, "POST", "/v1/models", {}, {}),
        (413, "POST", COMPLETIONS, b" " * (5 << 20), {}),
        (415, "POST", COMPLETIONS, b"{}", {"Content-Type": "text/plain"}),
    ],
)
def test_every_error_has_openais_form(
    served: Served,
    status: int,
    method: str,
    path: str,
    body: object,
    headers: dict[str, str],
) -> None:
    reply = served.ask(method, path, body, headers)
    assert reply.status == status
    assert reply.headers["content-type"] == "application/json"
    assert list(reply.content) == ["error"]
    assert set(reply.error) == {"message", "type", "param", "code"}
    assert reply.error["message"]
    assert reply.error["type"] == "invalid_request_error"
    assert ("www-authenticate" in reply.headers) == (status == 401)
    assert ("allow" in reply.headers) == (status == 405)
    if status == 405:
        assert reply.error["message"].endswith(f"; send {reply.headers['allow']}")


def test_too_long_prompts_and_too_many_samples_are_400(served: Served) -> None:
    for body in ({"prompt": "x" * 3000}, {"prompt": ["x"] * 200, "n": 128}):
        assert served.ask("POST", COMPLETIONS, body).status == 400


def test_the_error_for_an_unknown_path_names_the_known_ones(served: Served) -> None:
    missing = served.ask("GET", "/nowhere")
    assert missing.status == 404
    assert "there is no path '/nowhere'; known: /v1/completions, " in missing.error["message"]


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def open_stream(served: Served) -> socket.socket:
    """Starts a long completion, and waits for its first bytes."""
    body = json.dumps({**LONG, "stream": True}).encode()
    head = (
        f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    connection = socket.create_connection(("127.0.0.1", served.port), timeout=60)
    connection.sendall(head.encode() + body)
    assert connection.recv(100).startswith(b"HTTP/1.1 200")
    return connection


def test_clients_that_disconnect_or_do_not_read_delay_no_other_client(
    served: Served, rng: np.random.Generator
) -> None:
    connections = [open_stream(served) for _ in range(12)]
    order = rng.permutation(12)
    for i in order[:8]:
        connections[i].close()
    with ThreadPoolExecutor(4) as pool:
        replies = pool.map(
            lambda _: served.ask("POST", COMPLETIONS, {"prompt": "y", "max_tokens": 5}), range(8)
        )
        assert all(reply.status == 200 for reply in replies)
    for i in order[8:]:
        connections[i].close()
    wait_for(lambda: served.metric("vllm:num_requests_running") == 0)
    assert served.metric("vllm:num_requests_waiting") == 0
    assert served.metric("vllm:kv_cache_usage_perc") == 0


def test_a_long_prompt_delays_no_other_request(served: Served) -> None:
    """Others are answered while it is encoded. If they waited for it, they would be last."""
    text, answered = {"prompt": "import os; " * 300_000}, 0
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(served.ask, "POST", COMPLETIONS, text)
        while not pending.done():
            assert served.ask("POST", COMPLETIONS, {"prompt": "y", "max_tokens": 2}).status == 200
            answered += 1
        assert pending.result().error["code"] == "context_length_exceeded"
    assert answered > 5


def num_begun(served: Served) -> float:
    """Returns the number of requests so far, without one that changes state between two reads."""
    finished = served.metric("vllm:e2e_request_latency_seconds_count")
    return finished + served.metric("vllm:num_requests_running")


def test_open_requests_finish_after_sigterm(directory: Path) -> None:
    streamed = {**LONG, "stream": True, "stream_options": {"include_usage": True}}
    with serving(str(directory)) as served, ThreadPoolExecutor(3) as pool:
        whole, *streams = [
            pool.submit(served.ask, "POST", COMPLETIONS, body)
            for body in (LONG, streamed, streamed)
        ]
        wait_for(lambda: num_begun(served) == 3)
        served.process.send_signal(signal.SIGTERM)
        reply = whole.result(60)
        assert reply.status == 200
        assert reply.content["usage"]["completion_tokens"] == 1900
        for stream in streams:
            assert stream.result(60).chunks[-1]["usage"]["completion_tokens"] == 1900
        assert served.process.wait(60) in (0, -signal.SIGTERM)


@pytest.mark.parametrize("signals", [2, 3])
def test_a_second_signal_cancels_open_requests_at_once(roomy_directory: Path, signals: int) -> None:
    endless = LONG | {"max_tokens": 32_000}
    with serving(str(roomy_directory), "--draft", "none") as served, ThreadPoolExecutor(4) as pool:
        asked = [endless, *[endless | {"stream": True}] * 3]
        replies = [pool.submit(served.ask, "POST", COMPLETIONS, body) for body in asked]
        wait_for(lambda: served.metric("vllm:num_requests_running") == 4)
        served.process.send_signal(signal.SIGINT)
        assert served.process.stderr is not None
        assert "open requests have 60 seconds" in served.process.stderr.readline()
        for _ in range(signals - 1):
            served.process.send_signal(signal.SIGINT)
            time.sleep(0.05)  # two signals at once would count as one
        if signals == 2:
            whole, *streams = [reply.result(60) for reply in replies]
            assert (whole.status, whole.error["type"]) == (503, "server_error")
            assert "the server is shutting down" in whole.error["message"]
            for stream in streams:
                *_, last, rest = stream.body.decode().split("\n\n")
                assert "the server is shutting down" in last
                assert rest == ""
        assert served.process.wait(60) == 130
        assert served.process.stderr.read().strip() == ""


def test_no_prompt_is_logged(directory: Path) -> None:
    secret = "a text that nobody else should see"
    with serving(str(directory)) as served:
        served.ask("POST", COMPLETIONS, {"prompt": secret, "max_tokens": 2})
        served.ask("POST", COMPLETIONS, {"prompt": secret, "temperature": 1000})
        served.ask("POST", COMPLETIONS, {"prompt": secret, secret: 1})
        served.process.send_signal(signal.SIGTERM)
        served.process.wait(60)
        assert served.process.stderr is not None
        assert secret not in served.process.stderr.read()


def test_the_error_for_a_missing_extra_names_it_in_one_line(
    monkeypatch: pytest.MonkeyPatch, refuse: Refuse
) -> None:
    monkeypatch.setattr("specqd.cli.serve.find_spec", lambda name: None)
    assert refuse("serve").endswith(install_command("serve"))


def test_the_error_for_an_address_in_use_is_one_line(served: Served, refuse: Refuse) -> None:
    assert "in use" in refuse("serve", "--port", str(served.port))


def test_the_server_listens_only_on_loopback(served: Served) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing, only finds our address
            address = probe.getsockname()[0]
        except OSError:
            pytest.skip("this machine has no address but loopback")
    if address.startswith("127."):
        pytest.skip("this machine has no address but loopback")
    with pytest.raises(OSError):  # noqa: PT011  # refused, or not reachable at all
        socket.create_connection((address, served.port), timeout=2)
