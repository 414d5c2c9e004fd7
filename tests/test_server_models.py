"""Several models on one server: each answer has the bits that it has alone, whatever is loaded and
unloaded meanwhile."""

import json
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from specqd import LLM, SamplingParams
from specqd.llm.checked import CheckedModel
from specqd.model.model import Precision
from support.command_line import Refuse
from support.openai_client import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from support.served import Served, serving
from support.several_models import (
    NAMES,
    each_alone,
    samples_of,
    several_models,
    their_words,
)

pytest.importorskip("llguidance", reason="needs specqd[serve]")

AT_ONCE = 12
Json = dict[str, Any]


directories = several_models()
alone = each_alone()
words = their_words()


@pytest.fixture(scope="module")
def weight_bytes(words: list[str]) -> int:
    options: Json = {"context": None, "small": None, "chat_template": None}
    return CheckedModel.of(words[0], "auto", Precision.EXACT, **options).weight_bytes


@pytest.fixture(scope="module")
def for_two(weight_bytes: int) -> list[str]:
    """Memory for two of the models: each takes its weights, and up to a sixth of it for a cache."""
    return ["--memory", str(4 * weight_bytes)]


@pytest.fixture(scope="module")
def served(words: list[str]) -> Iterator[Served]:
    with serving(*words) as served:
        yield served
        assert served.process.poll() is None


# --- Names --------------------------------------------------------------------------------------


def test_all_models_are_listed_in_the_order_of_the_command_line(served: Served) -> None:
    models = served.ask("GET", "/v1/models").content["data"]
    assert [each["id"] for each in models] == list(NAMES)
    assert all(each["context_length"] == each["max_model_len"] == 2048 for each in models)
    for name, listed in zip(NAMES, models, strict=True):
        assert served.ask("GET", f"/v1/models/{name}").content == listed


BODIES: list[tuple[str, Json]] = [
    (COMPLETIONS, {"prompt": "a"}),
    (CHAT, {"messages": [{"role": "user", "content": "a"}]}),
    (RESPONSES, {"input": "a"}),
    (MESSAGES, {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4}),
    (f"{MESSAGES}/count_tokens", {"messages": [{"role": "user", "content": "a"}]}),
    ("/tokenize", {"prompt": "a"}),
    ("/detokenize", {"tokens": [97]}),
]


@pytest.mark.parametrize(("path", "body"), BODIES, ids=[path for path, _ in BODIES])
def test_every_path_has_all_models_and_refuses_other_names(
    served: Served, path: str, body: Json
) -> None:
    for name in NAMES:
        reply = served.ask("POST", path, body | {"model": name})
        assert reply.status == 200, reply.body
        assert reply.content.get("model", name) == name
    other = served.ask("POST", path, body | {"model": "other"})
    assert other.status == 404
    assert "there is no model of that name; this server has one, two, three" in other.body.decode()
    if path not in (MESSAGES, f"{MESSAGES}/count_tokens"):
        assert other.error["code"] == "model_not_found"
    unnamed = served.ask("POST", path, body)
    assert unnamed.status in (400, 404)
    assert "model" in unnamed.error["message"]


def test_an_unknown_name_is_refused_as_by_a_server_with_one_model(
    served: Served, directories: dict[str, Path]
) -> None:
    body = {"model": "other", "prompt": "a"}
    of_three = served.ask("POST", COMPLETIONS, body)
    with serving(str(directories["one"])) as single:
        of_one = single.ask("POST", COMPLETIONS, body)
        assert single.ask("POST", COMPLETIONS, {"prompt": "a"}).status == 200
    assert of_three.status == of_one.status == 404
    message = of_three.error["message"].replace("one, two, three", "one")
    assert of_one.error == of_three.error | {"message": message}


def test_two_models_of_one_name_are_refused(words: list[str], refuse: Refuse) -> None:
    said = refuse("serve", words[0], words[1], words[0], "--port", "0")
    assert said == f"{words[0]}: is called one in the API, and so is {words[0]}; rename one"


def test_what_the_machine_lacks_is_refused_at_the_start(
    words: list[str], refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specqd._native.available_isas", lambda: ["portable"])
    said = refuse("serve", *words, "--isa", "amx", "--port", "0")
    assert said == "--isa amx: not available here; choose one of portable"


@pytest.mark.parametrize("option", ["--served-model-name", "--chat-template"])
def test_options_for_one_model_are_refused_for_several(
    words: list[str], option: str, run: Any, tmp_path: Path
) -> None:
    (tmp_path / "value").touch()
    status, _, err = run("serve", *words, option, tmp_path / "value")
    assert status == 2
    assert f"{option} is for one model; leave it out for several" in err


# --- Memory -------------------------------------------------------------------------------------


def test_a_model_that_does_not_fit_alone_is_refused_at_the_start(
    words: list[str], weight_bytes: int, refuse: Refuse
) -> None:
    for given in (words, words[:1]):
        said = refuse("serve", *given, "--memory", str(weight_bytes - 1), "--port", "0")
        assert said.startswith(f"{words[0]}: its weights need about ")
        assert said.endswith("; use a smaller model")


def asked_of(rng: np.random.Generator) -> tuple[str, Json]:
    """Returns the path and the body of a request."""
    text = "".join(map(chr, rng.integers(97, 123, int(rng.integers(1, 40)))))
    body: Json = {
        "model": str(rng.choice(NAMES)),
        "max_tokens": int(rng.integers(1, 24)),
        "temperature": float(rng.choice([0.0, 0.9])),
        "seed": int(rng.integers(1 << 40)),
        "stream": bool(rng.random() < 0.5),
        "return_token_ids": True,
    }
    if rng.random() < 0.5:
        return COMPLETIONS, body | {"prompt": text, "logprobs": 1}
    messages = [{"role": "user", "content": text}]
    return CHAT, body | {"messages": messages, "logprobs": True, "top_logprobs": 1}


def answered(served: Served, path: str, body: Json) -> tuple[list[int], str, list[float]]:
    """Returns the tokens, the text and the log-probabilities of an answer."""
    reply = served.ask("POST", path, body)
    assert reply.status == 200, reply.body
    answers = reply.chunks if body["stream"] else [reply.content]
    tokens: list[int] = []
    text, logprobs = "", []
    for choice in (each for answer in answers for each in answer["choices"]):
        tokens += choice.get("token_ids") or []
        part = choice.get("delta") or choice.get("message") or choice
        text += part.get("content") or part.get("text") or ""
        given = choice.get("logprobs") or {}
        logprobs += given.get("token_logprobs") or [
            each["logprob"] for each in given.get("content") or []
        ]
    return tokens, text, logprobs


def expected(llm: LLM, body: Json) -> tuple[list[int], str, list[float]]:
    names = ("max_tokens", "temperature", "seed")
    params = SamplingParams(**{name: body[name] for name in names}, logprobs=1)
    if "prompt" in body:
        completion = llm.generate(body["prompt"], params)[0].completions[0]
    else:
        completion = llm.chat(body["messages"], params).completions[0]
    assert completion.logprobs is not None
    return completion.tokens, completion.text, [each.logprob for each in completion.logprobs]


@pytest.mark.parametrize("draft", ["auto", "none"])
def test_200_requests_over_three_models_with_memory_for_two(
    words: list[str],
    for_two: list[str],
    alone: dict[str, LLM],
    rng: np.random.Generator,
    draft: str,
) -> None:
    requests = [asked_of(rng) for _ in range(200)]
    are_done = Event()

    def watch(served: Served) -> float:
        """Returns the most models that are loaded at once, and checks that the server is well."""
        most = 0.0
        while not are_done.is_set():
            most = max(most, served.metric("specqd:model_loaded"))
            assert served.ask("GET", "/health").status == 200
        return most

    with serving(*words, *for_two, "--draft", draft) as served:
        with ThreadPoolExecutor(AT_ONCE + 1) as pool:
            watching = pool.submit(watch, served)
            try:
                answers = list(pool.map(lambda each: answered(served, *each), requests))
            finally:
                are_done.set()
        loads, unloads, loaded, ended = (
            samples_of(served, name)
            for name in (
                "specqd:model_loads_total",
                "specqd:model_unloads_total",
                "specqd:model_loaded",
                "vllm:request_success_total",
            )
        )
        seconds = samples_of(served, "specqd:model_load_seconds_total")
        new = samples_of(served, "vllm:generation_tokens_total")
    assert watching.result() == 2
    for (_, body), answer in zip(requests, answers, strict=True):
        assert answer == expected(alone[body["model"]], body), body
    assert ended == Counter(body["model"] for _, body in requests)
    assert sum(loaded.values()) == 2
    for name in NAMES:
        assert loads[name] - unloads[name] == loaded[name]
        assert (loads[name] > 0) == (seconds[name] > 0)
        tokens = sum(
            len(a[0]) for (_, b), a in zip(requests, answers, strict=True) if b["model"] == name
        )
        assert abs(new[name] - tokens) <= len(requests)  # ends of texts are tokens, too
    assert min(loads.values()) >= 1
    assert sum(unloads.values()) >= 1


def test_a_model_has_the_same_context_and_counts_after_it_was_unloaded(
    words: list[str], for_two: list[str], alone: dict[str, LLM]
) -> None:
    body = {"prompt": "abc", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    text = alone["one"].generate(
        "abc", SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    )
    with serving(*words, *for_two) as served:
        lengths = []
        for name in ("one", "two", "three", "one"):
            reply = served.ask("POST", COMPLETIONS, body | {"model": name})
            assert reply.status == 200
            lengths.append(served.ask("GET", "/v1/models/one").content["max_model_len"])
        assert reply.content["choices"][0]["text"] == text[0].text
        assert len(set(lengths)) == 1
        assert 64 <= lengths[0] <= 2048
        assert samples_of(served, "specqd:model_loads_total") == {"one": 2, "two": 1, "three": 1}
        assert samples_of(served, "specqd:model_unloads_total") == {"one": 1, "two": 1, "three": 0}
        new = samples_of(served, "vllm:generation_tokens_total")
        assert new == {"one": 16, "two": 8, "three": 8}
        running = samples_of(served, "vllm:num_requests_running")
        assert running == dict.fromkeys(NAMES, 0)
        served.process.send_signal(signal.SIGTERM)
        _, log = served.process.communicate(timeout=60)
    changes = [line.removeprefix("specqd: ").split(" in ")[0] for line in log.splitlines()]
    expected = "loaded one, loaded two, unloaded one, loaded three, unloaded two, loaded one"
    assert ", ".join(changes) == expected


def test_no_model_leaves_in_the_middle_of_an_answer(
    words: list[str], weight_bytes: int, alone: dict[str, LLM]
) -> None:
    """There is memory for one model, and a long answer streams."""
    long = {"model": "one", "prompt": "a", "temperature": 0.9, "seed": 3, "ignore_eos": True}
    short = {"prompt": "b", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    with serving(*words, "--memory", str(weight_bytes * 3 // 2)) as served:
        context = served.ask("GET", "/v1/models/one").content["max_model_len"]
        connection = served.connect()
        body = json.dumps(long | {"max_tokens": context, "stream": True})
        connection.request("POST", COMPLETIONS, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        begun = response.read(1)
        with ThreadPoolExecutor(3) as pool:
            others = [
                pool.submit(served.ask, "POST", COMPLETIONS, short | {"model": name})
                for name in ("two", "one", "three")
            ]
            events = (begun + response.read()).decode().split("\n\n")
            assert events[-2:] == ["data: [DONE]", ""]
            answers = [each.result() for each in others]
        assert samples_of(served, "specqd:model_loaded") in (
            dict.fromkeys(NAMES, 0.0) | {name: 1.0} for name in NAMES
        )
        assert served.metric("specqd:model_loads_total") >= 3
    choices = [json.loads(each.removeprefix("data: "))["choices"][0] for each in events[:-2]]
    params = SamplingParams(max_tokens=context, temperature=0.9, seed=3, ignore_eos=True)
    whole = alone["one"].generate("a", params)[0].text
    text = "".join(choice["text"] for choice in choices)
    assert len(text) > 100
    assert whole.startswith(text)
    for name, reply in zip(("two", "one", "three"), answers, strict=True):
        params = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
        assert reply.content["choices"][0]["text"] == alone[name].generate("b", params)[0].text
