"""A fault in one request fails only that request. A fault of the engine ends the server."""

import json
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support import faults
from support.faults import PANIC_TEXT, add_panics
from support.openai_client import CHAT, COMPLETIONS, RESPONSES
from support.random_models import BOS, EOS, Shape, make_model
from support.served import Reply, Served, add_template, serving

FAULTY = [sys.executable, faults.__file__]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    directory = tmp_path_factory.mktemp("models") / "small"
    return add_template(make_model(directory, Shape(is_peaked=True, context=2048), seed))


@pytest.fixture(scope="module")
def panicking(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Iterator[Served]:
    directory = make_model(tmp_path_factory.mktemp("models") / "small", Shape(), seed)
    with serving(str(add_template(add_panics(directory)))) as served:
        yield served
        assert served.process.poll() is None


def refused_in_json(reply: Reply, says: str) -> None:
    assert reply.status == 400, reply.body
    assert says in reply.error["message"]
    assert "\n" not in reply.error["message"]


def test_a_text_on_which_the_tokenizer_panics_is_400(panicking: Served) -> None:
    messages = [{"role": "user", "content": PANIC_TEXT}]
    for path, body in (
        (COMPLETIONS, {"prompt": PANIC_TEXT}),
        (CHAT, {"messages": messages}),
        ("/tokenize", {"prompt": PANIC_TEXT}),
        ("/tokenize", {"messages": messages}),
    ):
        refused_in_json(panicking.ask("POST", path, body), "the tokenizer cannot encode")


def test_a_token_on_which_the_tokenizer_panics_fails_only_its_request(panicking: Served) -> None:
    [x, a] = panicking.ask("POST", "/tokenize", {"prompt": "xa"}).content["tokens"]
    body = {"prompt": "b", "max_tokens": 3, "ignore_eos": True}
    fails, works = ({**body, "logit_bias": {str(token): 100}} for token in (x, a))
    with ThreadPoolExecutor(8) as pool:
        asked = [fails, works, fails | {"stream": True}, works | {"stream": True}] * 4
        replies = list(pool.map(lambda each: panicking.ask("POST", COMPLETIONS, each), asked))
    for failed, whole, stream, streamed in zip(*[iter(replies)] * 4, strict=True):
        refused_in_json(failed, "the tokenizer cannot decode")
        assert whole.content["choices"][0]["text"] == "aaa"
        assert "the tokenizer cannot decode" in stream.body.decode()
        assert "".join(each["choices"][0]["text"] for each in streamed.chunks) == "aaa"
    refused_in_json(panicking.ask("POST", "/detokenize", {"tokens": [x]}), "cannot decode")
    echoed = {"prompt": [x], "echo": True, "max_tokens": 1}
    refused_in_json(panicking.ask("POST", COMPLETIONS, echoed), "cannot decode")
    assert panicking.ask("GET", "/health").status == 200
    assert panicking.metric("vllm:num_requests_running") == 0


def test_an_engine_that_fails_ends_the_server_with_one_line(directory: Path) -> None:
    with serving(str(directory), program=[*FAULTY, "raise"]) as served:
        body = {"prompt": "x", "max_tokens": 100, "ignore_eos": True}
        with ThreadPoolExecutor(4) as pool:
            asked = [body, body | {"stream": True}] * 2
            replies = pool.map(lambda each: served.ask("POST", COMPLETIONS, each), asked)
            for whole, stream in zip(*[iter(replies)] * 2, strict=True):
                assert (whole.status, whole.error["type"]) == (503, "server_error")
                assert "the engine failed" in stream.body.decode()
        assert served.process.wait(60) == 1
        assert served.process.stderr is not None
        log = served.process.stderr.read()
        assert log.count("specqd: error: ") == 1
        assert "specqd: error: the engine failed: FaultError: a fault on purpose; " in log


def test_a_stream_of_an_engine_that_fails_ends_in_the_form_of_its_api(directory: Path) -> None:
    with serving(str(directory), program=[*FAULTY, "raise"]) as served:
        bias = {str(token): -100.0 for token in (BOS, EOS)}
        body = {"input": "x", "stream": True, "logit_bias": bias}
        *_, last, rest = served.ask("POST", RESPONSES, body).body.decode().split("\n\n")
        name, _, data = last.partition("\ndata: ")
        assert (name, rest) == ("event: response.failed", "")
        error = json.loads(data)["response"]["error"]
        assert error == {"code": "server_error", "message": "the engine failed: FaultError"}


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_server_whose_engine_hangs(directory: Path, sent: signal.Signals) -> None:
    with serving(str(directory), program=[*FAULTY, "hang"]) as served:
        body = {"prompt": "x", "max_tokens": 100, "ignore_eos": True, "stream": True}
        connection = served.connect()
        header = {"Content-Type": "application/json"}
        connection.request("POST", COMPLETIONS, json.dumps(body), header)
        response = connection.getresponse()
        begin = response.read(10)  # the engine works; it hangs some tokens later
        served.process.send_signal(sent)
        assert served.process.wait(60) == 1
        assert b"the server is shutting down" in begin + response.fp.read()
        assert served.process.stderr is not None
        assert "specqd: error: the server did not shut down in time" in served.process.stderr.read()
