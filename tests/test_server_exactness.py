"""Requests of every kind, with disconnections and preemptions, are each answered as if alone."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specqd import LLM
from specqd.engine.engine import Engine
from specqd.engine.updates import Update
from specqd.openai.answers import form_of
from specqd.openai.requests import Prepared, chat_request, completion_request
from support.command_line import Run
from support.engines import run_to_end
from support.families import FAMILY_SHAPES
from support.fixtures import a_model
from support.openai_client import CHAT, COMPLETIONS, NO_WHITE_SPACE, closed, function
from support.random_models import EOS, Shape
from support.scripted_models import HERMES
from support.served import Served, serving

pytest.importorskip("llguidance", reason="needs specqd[serve]")

from specqd.grammars import Grammars
from specqd.openai.grammar import request_grammar

Json = dict[str, Any]

AT_ONCE = 16
CACHE = 16 * 64  # positions; too few for all requests at once


PLACE = closed(kind={"enum": ["town", "hill"]}, name={"type": "string", "maxLength": 40})
TOOLS = [
    function(name, parameters=closed(**{field: schema}))
    for name, field, schema in (
        ("weather", "city", {"type": "string", "maxLength": 40}),
        ("stop", "is_now", {"type": "boolean"}),
    )
]


@dataclass(frozen=True)
class Asked:
    path: str
    body: Json
    comes_s: float
    leaves: bool  # after its first bytes


llama = a_model(Shape(is_peaked=True, context=1024), HERMES)
hybrid = a_model(replace(FAMILY_SHAPES["qwen3_5_text"], vocab=320), HERMES)
convolutions = a_model(replace(FAMILY_SHAPES["lfm2"], vocab=320), HERMES)
CASES = ["llama auto", "llama fp4:k=5", "llama none", "hybrid auto", "convolutions auto"]


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> list[str]:
    """A model and its drafts."""
    return str(request.param).split()


@pytest.fixture(scope="module")
def directory(request: pytest.FixtureRequest, case: list[str]) -> Path:
    made: Path = request.getfixturevalue(case[0])
    return made


@pytest.fixture(scope="module")
def plain(directory: Path) -> LLM:
    return LLM(directory, "none", threads=1)


@pytest.fixture(scope="module")
def grammars(plain: LLM) -> Grammars:
    return Grammars(plain.tokenizer, plain.model.vocabulary, [EOS])


def asked_of(rng: np.random.Generator, common: list[int]) -> Asked:
    """Makes a request whose prompt may begin with `common`, which other prompts share."""
    body: Json = {
        "max_tokens": int(rng.integers(50, 340)),  # the longest prompts have about 600
        "temperature": float(rng.choice([0.0, 0.9])),
        "seed": int(rng.integers(1 << 40)),
        "n": int(rng.choice([1, 1, 2])),
        "repetition_penalty": float(rng.choice([1.0, 1.2])),
        "stream": bool(rng.random() < 0.5),
        "return_token_ids": True,
    }
    prompt = rng.integers(0, 256, int(rng.choice([1, 30, 65, 200]))).tolist()
    prompt = [*common[: int(rng.choice([0, 70, 130]))], *prompt]
    messages = [{"role": "user", "content": f"{prompt[:20]}"}]
    held = {"logit_bias": NO_WHITE_SPACE, "repetition_penalty": 1.0}
    kind = rng.choice(["free", "schema", "chat", "tools"], p=[0.4, 0.25, 0.1, 0.25])
    if kind == "free":
        path, more = COMPLETIONS, {"prompt": prompt, "logprobs": 2, "ignore_eos": True}
    elif kind == "schema":
        form = {"type": "json_schema", "json_schema": {"name": "place", "schema": PLACE}}
        path, more = COMPLETIONS, {"prompt": prompt, "response_format": form, **held}
    else:
        path, more = CHAT, {"messages": messages, "logprobs": True, "top_logprobs": 2}
    if kind == "tools":
        choice = str(rng.choice(["required", "auto"]))
        more |= {"tools": TOOLS, "tool_choice": choice, **held}
    leaves = bool(rng.random() < 0.2)
    return Asked(path, body | more, float(rng.uniform(0, 0.05)), leaves)


def answered(served: Served, asked: Asked) -> list[Json] | None:
    """Returns the choices, or None if the client disconnected."""
    time.sleep(asked.comes_s)
    if asked.leaves:
        connection = served.connect()
        data = json.dumps(asked.body | {"stream": True})
        connection.request("POST", asked.path, data, {"Content-Type": "application/json"})
        connection.getresponse().read(1)
        connection.close()
        return None
    reply = served.ask("POST", asked.path, asked.body)
    assert reply.status == 200, reply.body
    if not asked.body["stream"]:
        return reply.content["choices"]
    choices: list[Json] = [{} for _ in range(asked.body["n"])]
    for chunk in reply.chunks:
        for choice in chunk["choices"]:
            add(choices[choice["index"]], choice)
    return choices


def add(whole: Json, chunk: Json) -> None:
    """Adds a chunk of a choice to the previous ones."""
    for name, value in chunk.items():
        before = whole.get(name)
        if name == "tool_calls":
            calls = whole.setdefault(name, [])
            for call in value:
                if call["index"] == len(calls):
                    calls.append(call)
                else:
                    calls[-1]["function"]["arguments"] += call["function"]["arguments"]
        elif isinstance(value, dict):
            if before is None:
                whole[name] = {}
            add(whole[name], value)
        elif isinstance(value, str | list) and before is not None and name != "finish_reason":
            whole[name] = before + value
        elif value is not None or name not in whole:
            whole[name] = value


def shared_fields(choice: Json) -> Json:
    """Returns the fields that streamed and whole choices share."""
    message = choice.get("message") or choice.get("delta") or {}
    calls = [call["function"] for call in message.get("tool_calls") or []]
    logprobs = choice["logprobs"] and {k: v for k, v in choice["logprobs"].items() if v}
    kept = {name: choice[name] for name in ("index", "finish_reason", "token_ids")}
    text = choice.get("text") or message.get("content") or ""
    return kept | {"text": text, "calls": calls, "logprobs": logprobs}


def alone(llm: LLM, grammars: Grammars, asked: Asked) -> list[Json]:
    """Returns the choices of the request alone, from an engine without drafts."""
    read = completion_request if asked.path == COMPLETIONS else chat_request
    prepared = Prepared.of(read(asked.body), llm.tokenizer)
    engine = Engine(llm.engine.level, llm.tokenizer, eos_token_ids=[EOS])
    make_grammar = request_grammar(grammars, prepared)
    samples = engine.submit(prepared.for_engine(llm.defaults, make_grammar, ""))
    run_to_end(engine)
    form = form_of(prepared, llm.tokenizer, "key")
    return [form.whole(Update.of(i, sample)) for i, sample in enumerate(samples)]


@pytest.fixture(scope="module")
def served(directory: Path, case: list[str]) -> Iterator[Served]:
    arguments = ["--draft", case[1], "--cache-positions", str(CACHE)]
    with serving(str(directory), *arguments, "--max-batch", str(AT_ONCE), threads=2) as served:
        yield served


def test_requests_of_every_kind_get_the_same_bits_as_alone(
    served: Served, plain: LLM, grammars: Grammars, rng: np.random.Generator
) -> None:
    common = rng.integers(0, 256, 130).tolist()
    leavers = 0
    for _ in range(5):
        requests = [asked_of(rng, common) for _ in range(48)]
        with ThreadPoolExecutor(AT_ONCE) as clients:
            answers = list(clients.map(lambda asked: answered(served, asked), requests))
        for asked, choices in zip(requests, answers, strict=True):
            if choices is not None:
                assert list(map(shared_fields, choices)) == list(
                    map(shared_fields, alone(plain, grammars, asked))
                ), asked
        leavers += answers.count(None)
        if leavers and served.metric("vllm:num_preemptions_total") > 0:  # mostly at once
            break
    assert served.metric("vllm:num_preemptions_total") > 0
    assert leavers > 0
    deadline = time.monotonic() + 30
    while served.metric("vllm:num_requests_running") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert served.metric("vllm:kv_cache_usage_perc") == 0
    assert served.metric("vllm:prefix_cache_hits_total") > 0
    states = served.metric("specqd:recurrent_states")
    assert states == served.metric("specqd:recurrent_states_cached")


def test_answers_to_concurrent_requests_equal_those_of_the_command_line(
    served: Served, directory: Path, rng: np.random.Generator, run: Run
) -> None:
    prompts = [rng.integers(0, 256, 40).tolist() for _ in range(12)]
    others = {"prompt": prompts, "max_tokens": 150, "ignore_eos": True}
    with ThreadPoolExecutor(AT_ONCE) as clients:
        for temperature in (0.0, 0.9):
            seeds = [int(seed) for seed in rng.integers(1 << 40, size=3)]
            body = {"prompt": "Once", "max_tokens": 90, "temperature": temperature}
            crowd = clients.submit(served.ask, "POST", COMPLETIONS, others)
            asked = [body | {"seed": seed} for seed in seeds]
            replies = clients.map(lambda each: served.ask("POST", COMPLETIONS, each), asked)
            for seed, reply in zip(seeds, replies, strict=True):
                words = ["--temperature", str(temperature), "--seed", str(seed), "--json"]
                status, out, _ = run("generate", str(directory), "-p", "Once", "-n", "90", *words)
                assert status == 0
                assert reply.content["choices"][0]["text"] == json.loads(out)["text"]
            assert crowd.result().status == 200
