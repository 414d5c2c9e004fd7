"""/v1/embeddings: the vectors of the Python API, also while others generate."""

import asyncio
import base64
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specqd import LLM, SamplingParams
from specqd.engine.thread import EngineThread
from specqd.server.embeddings import CacheMemory, _finish
from specqd.server.opening import open_service
from support.embedding_models import as_base_model, write_prompts
from support.engine_threads import (
    engine_of,
    job_of,
    most_between_rounds,
    queued_together,
    rounds_without_tokens,
    run,
)
from support.fixtures import a_server
from support.openai_client import COMPLETIONS, client_of
from support.random_models import make_model
from support.served import Served
from support.shapes import Shape

PATH = "/v1/embeddings"
TEXTS = ["a text", "another text, which is longer than the first", "x" * 300]


@pytest.fixture(scope="module")
def embedding_model(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    shape = Shape(model_type="qwen3", is_tied=True, is_peaked=True)
    directory = as_base_model(make_model(tmp_path_factory.mktemp("embed") / "small", shape, seed))
    write_prompts(directory, {"query": "find: "}, None)
    return directory


@pytest.fixture(scope="module")
def llm(embedding_model: Path) -> LLM:
    return LLM(embedding_model, "none", threads=1)


served = a_server("embedding_model", "--max-batch", "4")


def vectors_of(answer: Any) -> Any:
    assert answer["object"] == "list"
    assert [each["index"] for each in answer["data"]] == list(range(len(answer["data"])))
    return np.array([each["embedding"] for each in answer["data"]], np.float32)


def test_vectors_are_those_of_the_python_api(served: Served, llm: LLM) -> None:
    answer = served.ask("POST", PATH, {"input": TEXTS}).content
    assert np.array_equal(vectors_of(answer), llm.embed(TEXTS))
    tokens = sum(len(llm.encode(text)) for text in TEXTS)
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert answer["model"] == "small"


@pytest.mark.parametrize(
    "given", ["a text", ["a text"], [97, 32], [[97, 32], [98]], ["a", [98, 99]]], ids=str
)
def test_inputs_are_texts_and_token_ids(served: Served, llm: LLM, given: Any) -> None:
    answer = served.ask("POST", PATH, {"input": given}).content
    assert np.array_equal(vectors_of(answer), llm.embed(given))


def test_base64_has_the_same_bits(served: Served, llm: LLM) -> None:
    body = {"input": TEXTS, "encoding_format": "base64", "user": "someone"}
    answer = served.ask("POST", PATH, body).content
    rows = [np.frombuffer(base64.b64decode(each["embedding"]), "<f4") for each in answer["data"]]
    assert np.array_equal(np.stack(rows), llm.embed(TEXTS))


def test_the_openai_client_reads_them(served: Served, llm: LLM) -> None:
    pytest.importorskip("openai", reason="needs OpenAI's client")
    answer = client_of(served).embeddings.create(model="small", input=TEXTS)  # in base64
    found = np.array([each.embedding for each in answer.data], np.float32)
    assert np.array_equal(found, llm.embed(TEXTS))


def test_prompts_are_those_of_the_model(served: Served, llm: LLM) -> None:
    answer = served.ask("POST", PATH, {"input": "x", "prompt_name": "query"}).content
    assert np.array_equal(vectors_of(answer), llm.embed("find: x"))


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({}, 400, "input: is missing"),
        ({"input": []}, 400, "a list of them"),
        ({"input": [1.5]}, 400, "input"),
        ({"input": [["a"]]}, 400, "input[0]"),
        ({"input": ["x"] * 2049}, 400, "at most 2048"),
        ({"input": ""}, 400, "empty"),
        ({"input": [100_000]}, 400, "vocabulary"),
        ({"input": "x" * 2000}, 400, "shorten the text"),
        ({"input": "x", "encoding_format": "hex"}, 400, "float or base64"),
        ({"input": "x", "dimensions": 8}, 400, "may be shortened"),
        ({"input": "x", "dimensions": 0}, 400, "dimensions"),
        ({"input": "x", "prompt_name": "other"}, 400, "not a prompt"),
        ({"input": "x", "temperature": 1}, 400, "temperature"),
        ({"input": "x", "model": "other"}, 404, "no model"),
    ],
    ids=str,
)
def test_wrong_requests_are_refused(
    served: Served, body: dict[str, Any], status: int, words: str
) -> None:
    reply = served.ask("POST", PATH, body)
    assert reply.status == status
    assert words in reply.error["message"]


def test_embeddings_and_completions_at_once_get_what_they_get_alone(
    served: Served, llm: LLM
) -> None:
    completion = {"prompt": "one", "max_tokens": 80, "temperature": 0, "ignore_eos": True}
    alone = served.ask("POST", COMPLETIONS, completion).content["choices"]
    wanted = llm.embed(TEXTS)

    def ask(at: int) -> bool:
        if at % 2:
            found = served.ask("POST", COMPLETIONS, completion).content["choices"]
            return bool(found[0]["text"] == alone[0]["text"])
        answer = served.ask("POST", PATH, {"input": TEXTS}).content
        return np.array_equal(vectors_of(answer), wanted)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(24)))


def test_a_model_that_only_embeds_builds_no_tables_for_grammars(
    llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[object] = []
    monkeypatch.setattr("specqd.grammars.Grammars.prepare", lambda own: prepared.append(own))
    base = as_base_model(make_model(tmp_path, Shape(), seed=7))
    open_service(LLM(base, "none", threads=1), max_batch=1)
    assert not prepared
    open_service(llm, max_batch=1)  # its output head is its embedding
    assert len(prepared) == 1


def test_between_two_rounds_there_is_a_forward_of_one_client(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(llm)
    log = rounds_without_tokens(engine, monkeypatch)

    class Run:
        """Three forwards."""

        cache_bytes = 0
        left = 3

        @property
        def is_done(self) -> bool:
            return not self.left

        def step(self, most_rows: int | None) -> None:
            log.append("forward")
            self.left -= 1

    async def work(thread: EngineThread) -> None:
        job = job_of([[1]], SamplingParams(max_tokens=8))
        await thread.submit(job)
        service, memory = SimpleNamespace(thread=thread, engine=engine), CacheMemory()
        runs: list[Any] = [Run() for _ in range(4)]
        await queued_together(thread, [_finish(service, each, memory) for each in runs])
        thread.close(job)

    run(engine, work)
    assert log.count("forward") == 12
    assert most_between_rounds(log) == 1


def test_runs_wait_in_order_until_their_keys_and_values_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("specqd.server.embeddings.usable_memory", lambda: 100)
    begun: list[int] = []

    async def hold(memory: CacheMemory, size: int, until: asyncio.Event) -> None:
        async with memory.held(size):
            begun.append(size)
            await until.wait()

    async def run() -> None:
        memory, ends = CacheMemory(), [asyncio.Event() for _ in range(4)]
        sizes = (60, 30, 70, 5)
        tasks = [
            asyncio.create_task(hold(memory, size, end))
            for size, end in zip(sizes, ends, strict=True)
        ]
        await asyncio.sleep(0.01)
        assert begun == [60, 30]
        ends[1].set()
        await asyncio.sleep(0.01)
        assert begun == [60, 30]
        tasks[2].cancel()
        await asyncio.sleep(0.01)
        assert begun == [60, 30, 5]
        tasks[2] = asyncio.create_task(hold(memory, 200, ends[2]))
        ends[0].set()
        ends[3].set()
        await asyncio.sleep(0.01)
        assert begun == [60, 30, 5, 200]  # alone it begins, and may be refused
        ends[2].set()
        await asyncio.gather(*tasks)

    asyncio.run(run())
