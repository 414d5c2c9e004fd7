"""Vectors of texts: those of transformers, with the same bits alone, in batches and in parts."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specqd import LLM, AsyncLLM, SamplingParams
from specqd.config.embedding import Pooling
from specqd.errors import ConfigError, FieldError, RequestError, TensorError, TooLongError
from specqd.formats.bf16 import widened
from specqd.model.embedding import EmbeddingRun
from specqd.model.model import Model
from support.command_line import Run
from support.embedding_models import as_base_model, write_modules, write_prompts
from support.engine_threads import most_between_rounds, rounds_without_tokens
from support.families import FAMILY_SHAPES
from support.gguf_files import convert
from support.random_models import change_model, make_model, read_model
from support.reference import rms_error
from support.refusals import refused
from support.shapes import SMALL, Shape

GOLDENS = sorted((Path(__file__).parent / "goldens" / "embeddings").iterdir())
each_golden = pytest.mark.parametrize("directory", GOLDENS, ids=lambda path: path.name)
POOLINGS: tuple[Pooling, ...] = ("last", "mean")


def vectors_of(
    model: Model, texts: Sequence[Sequence[int]], pooling: Pooling, rows: int | None = None
) -> NDArray[np.float32]:
    run = EmbeddingRun(model, texts, pooling)
    while not run.is_done:
        run.step(rows)
    return run.vectors(None, normalizes=True)


@each_golden
def test_vectors_err_no_more_than_those_of_transformers_in_bf16(directory: Path) -> None:
    golden = np.load(directory / "golden.npz")
    texts = np.split(golden["tokens"], np.cumsum(golden["lengths"])[:-1])
    vectors = LLM(directory, "none", threads=1).embed([text.tolist() for text in texts])
    assert vectors.dtype == np.float32
    assert rms_error(vectors, golden["vectors"]) <= golden["bf16_error"]


def test_three_families_and_both_poolings_have_goldens() -> None:
    assert {path.name for path in GOLDENS} == {"gemma3_text", "llama", "mistral", "qwen2", "qwen3"}


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("name", ["small", *FAMILY_SHAPES])
def test_a_vector_has_the_same_bits_alone_in_a_batch_and_in_parts(
    tmp_path: Path, seed: int, rng: np.random.Generator, name: str, pooling: Pooling
) -> None:
    shape = SMALL if name == "small" else FAMILY_SHAPES[name]
    directory = make_model(tmp_path, shape, seed)
    model = Model.open(directory, cache_positions=256)
    narrow = Model.open(directory, cache_positions=256, max_rows=16)
    most = min(600, shape.context)
    lengths = [1, 2, 33, 64, 65, most, *rng.integers(1, 90, 6).tolist()]
    texts = [rng.integers(0, shape.vocab, length).tolist() for length in lengths]
    together = vectors_of(model, texts, pooling)
    alone = np.concatenate([vectors_of(model, [text], pooling) for text in texts])
    assert np.array_equal(together, alone)
    for rows in (None, 7):
        assert np.array_equal(together, vectors_of(narrow, texts, pooling, rows))
    assert np.array_equal(together[::-1], vectors_of(model, texts[::-1], pooling, 50))


def test_threads_drafts_and_instruction_sets_change_no_bit(
    small_model: Path, rng: np.random.Generator
) -> None:
    texts = [rng.integers(0, 256, length).tolist() for length in (1, 40, 200)]
    first = LLM(small_model, "none", threads=1).embed(texts)
    for others in ({"threads": 2}, {"isa": "portable"}, {"precision": "fp4"}):
        assert np.array_equal(LLM(small_model, **others).embed(texts), first)  # type: ignore[arg-type]


def test_the_rows_that_are_pooled_are_those_that_the_output_head_reads(
    small_model: Path, rng: np.random.Generator
) -> None:
    model, text = Model.open(small_model), rng.integers(0, 256, 50).tolist()
    run = EmbeddingRun(model, [text], "last")
    run.step()
    assert len(model.decoder.logits()) == 0
    [row] = run.vectors(None, normalizes=False)
    logits = model.logits(text)[-1]
    assert len(model.decoder.hidden()) == 0
    head = widened(read_model(small_model)[1]["lm_head.weight"])
    assert rms_error(head @ row, logits) < 0.01


def test_a_run_takes_no_page_of_the_cache(small_model: Path) -> None:
    llm = LLM(small_model, "none", threads=1, cache_positions=192)
    run = EmbeddingRun(llm.model, [[1] * 200] * 3, "mean")
    run.step(150)
    assert not run.is_done
    assert llm.model.cache.free_pages == llm.model.cache.total_pages


def test_texts_are_embedded_while_others_generate(small_model: Path) -> None:
    texts = ["a text", "another text that is longer", "x" * 200]
    prompts, params = ["one", "two"], SamplingParams(max_tokens=60, temperature=0, ignore_eos=True)
    alone = LLM(small_model, threads=1)
    vectors, written = alone.embed(texts), alone.generate(prompts, params)

    async def both() -> tuple[NDArray[np.float32], list[Any]]:
        async with AsyncLLM(LLM(small_model, threads=1)) as llm:
            return await asyncio.gather(llm.embed(texts), llm.generate(prompts, params))

    found, results = asyncio.run(both())
    assert np.array_equal(found, vectors)
    assert [each.text for each in results] == [each.text for each in written]


def test_forwards_of_calls_at_once_have_a_round_between_them(
    small_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["x" * 200, "y" * 200]
    own = LLM(small_model, "none", threads=1)
    vectors, step = own.embed(texts), EmbeddingRun.step
    log = rounds_without_tokens(own.engine, monkeypatch)

    async def together() -> list[NDArray[np.float32]]:
        async with AsyncLLM(own) as llm:
            loop = asyncio.get_running_loop()

            def forward(run: EmbeddingRun, most_rows: int | None) -> None:
                log.append("forward")
                step(run, most_rows)
                for _ in range(5):  # so that the other calls ask for their forwards
                    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(60)

            monkeypatch.setattr(EmbeddingRun, "step", forward)
            waiting = asyncio.create_task(llm.generate("one"))
            while own.engine.is_idle:
                await asyncio.sleep(0)
            found = await asyncio.gather(*(llm.embed(texts) for _ in range(3)))
            waiting.cancel()
            return found

    for found in asyncio.run(together()):
        assert np.array_equal(found, vectors)
    assert log.count("forward") >= 3
    assert most_between_rounds(log) == 1


def test_forwards_of_threads_at_once_have_a_round_between_them(
    small_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, most_rows = ["x" * 200, "y" * 200], 100
    llm = LLM(small_model, "none", threads=1)
    vectors, forward, step = llm.embed(texts), EmbeddingRun.step, llm.engine.step
    log: list[str] = []
    threads: list[Future[NDArray[np.float32]]] = []
    num_done = 0

    def waiting(count: int) -> None:
        """Returns once so many threads wait for their turns."""
        end = monotonic() + 60
        while len(llm.turns._askers) + len(llm.turns._runners) < count:
            Event().wait(0)
            assert monotonic() < end

    def forward_while_others_wait(run: EmbeddingRun, _: int | None) -> None:
        nonlocal num_done
        log.append("forward")
        forward(run, most_rows)
        num_done += run.is_done
        waiting(3 - num_done - (not run.is_done))  # the runner, and the other one

    def round_of_embeddings() -> None:
        log.append("round")
        if not threads:
            threads.extend(pool.submit(llm.embed, texts) for _ in range(2))
            waiting(2)
        if num_done == 2:
            step()

    monkeypatch.setattr(EmbeddingRun, "step", forward_while_others_wait)
    monkeypatch.setattr(llm.engine, "step", round_of_embeddings)
    with ThreadPoolExecutor(2) as pool:
        llm.generate("one", SamplingParams(max_tokens=2, ignore_eos=True))
        for each in threads:
            assert np.array_equal(each.result(60), vectors)
    assert log.count("forward") >= 8
    assert most_between_rounds(log) == 1


def test_a_base_model_embeds_and_is_refused_for_generation(tmp_path: Path, run: Run) -> None:
    """e5-mistral and Qwen3-Embedding are published so."""
    whole = make_model(tmp_path / "whole", Shape(model_type="mistral"), 7)
    base = as_base_model(make_model(tmp_path / "base", Shape(model_type="mistral"), 7))
    llm, texts = LLM(base, threads=1), [[1, 2, 3], [4] * 70]
    vectors = LLM(whole, threads=1).embed(texts)
    assert np.array_equal(llm.embed(texts), vectors)
    for call in (llm.generate, llm.logprobs):
        problem = refused(RequestError, call, [1, 2])
        assert "no output head" in problem
    status, _, _ = run("pack", base, tmp_path / "packed", "--calibrate", "none")
    assert status == 0
    packed = LLM(tmp_path / "packed", threads=1)
    assert np.array_equal(packed.embed(texts), vectors)
    assert "no output head" in refused(RequestError, packed.generate, "x")


def test_a_model_that_lacks_its_output_head_is_still_refused(tmp_path: Path) -> None:
    directory = make_model(tmp_path, Shape(model_type="mistral"), 7)
    change_model(directory, lambda tensors: tensors.pop("lm_head.weight"))
    assert "lm_head.weight" in refused(TensorError, LLM, directory)


def test_a_tied_base_model_generates_as_the_whole_one(tmp_path: Path) -> None:
    shape = Shape(model_type="qwen3", is_tied=True, is_peaked=True)
    whole = make_model(tmp_path / "whole", shape, 7)
    base = as_base_model(make_model(tmp_path / "base", shape, 7))
    params = SamplingParams(max_tokens=20, temperature=0)
    texts = [LLM(each, threads=1).generate("Hello", params)[0].text for each in (whole, base)]
    assert texts[0] == texts[1]


def test_a_model_that_attends_in_both_directions_embeds_whole_texts_only(tmp_path: Path) -> None:
    shape = Shape(model_type="qwen2", context=4096)
    directory = change_model(make_model(tmp_path, shape, 7), is_causal=False)
    llm, texts = LLM(directory, threads=1), [[1, 2, 3], list(range(256)) * 5, [9] * 100]
    together = llm.embed(texts)
    assert np.array_equal(together, np.concatenate([llm.embed([text]) for text in texts]))
    early = llm.embed([[1, 2, 3]]), llm.embed([[1, 2, 3, 4]])
    assert not np.array_equal(*early)
    assert "both directions" in refused(TooLongError, llm.embed, [[1] * 2049])
    assert "both directions" in refused(RequestError, llm.generate, "x")


def test_a_gguf_file_says_how_it_pools(tmp_path: Path, run: Run) -> None:
    directory = make_model(tmp_path / "model", Shape(model_type="qwen3", is_tied=True), 7)
    write_modules(directory, "mean")
    texts = [[1, 2, 3], [4] * 70]
    vectors = LLM(directory, threads=1).embed(texts)
    file = convert(directory, tmp_path / "mean.gguf", "BF16", qwen3__pooling_type=1)
    assert np.array_equal(LLM(file, threads=1).embed(texts), vectors)
    status, _, _ = run("pack", file, tmp_path / "packed", "--calibrate", "none")
    assert status == 0
    assert np.array_equal(LLM(tmp_path / "packed", threads=1).embed(texts), vectors)
    ranks = convert(directory, tmp_path / "rank.gguf", "BF16", qwen3__pooling_type=4)
    problem = refused(ConfigError, LLM(ranks, threads=1).embed, texts)
    assert "pooling_type 'rank' is not supported" in problem


def test_prompts_come_before_texts(tmp_path: Path) -> None:
    directory = make_model(tmp_path, Shape(context=64), 7)
    write_prompts(directory, {"query": "find: ", "document": ""}, None)
    llm = LLM(directory, threads=1)
    assert np.array_equal(llm.embed("x", prompt_name="query"), llm.embed("find: x"))
    assert np.array_equal(llm.embed("x", prompt_name="document"), llm.embed("x"))
    problem = refused(FieldError, llm.embed, "x", prompt_name="other")
    assert (
        problem == "prompt_name: 'other' is not a prompt of the model; known: 'query', 'document'"
    )
    assert "needs texts" in refused(FieldError, llm.embed, [1, 2], prompt_name="query")
    wanted = llm.embed("find: x")
    write_prompts(directory, {"query": "find: "}, "query")
    assert np.array_equal(LLM(directory, threads=1).embed("x"), wanted)


def test_shorter_vectors_are_the_beginnings_of_long_ones(tmp_path: Path) -> None:
    directory = make_model(tmp_path, Shape(), 7)
    llm = LLM(directory, threads=1)
    whole = llm.embed("x")
    assert np.array_equal(llm.embed("x", dimensions=64), whole)
    problem = refused(FieldError, llm.embed, "x", dimensions=8)
    assert "may be shortened" in problem
    change_model(directory, is_matryoshka=True)
    llm = LLM(directory, threads=1)
    short = llm.embed(["x"], dimensions=8)
    assert short.shape == (1, 8)
    assert np.linalg.norm(short) == pytest.approx(1, abs=1e-6)
    assert short == pytest.approx(whole[:, :8] / np.linalg.norm(whole[:, :8]), abs=1e-6)
    for wrong in (0, 65, "8", -1):
        assert "from 1 to 64" in refused(FieldError, llm.embed, "x", dimensions=wrong)
    change_model(directory, matryoshka_dimensions=[16, 32])
    llm = LLM(directory, threads=1)
    assert llm.embed("x", dimensions=32).shape == (1, 32)
    assert "16, 32" in refused(FieldError, llm.embed, "x", dimensions=8)
    change_model(directory, matryoshka_dimensions="x")
    assert str(directory / "config.json") in refused(
        ConfigError, LLM(directory, threads=1).embed, "x"
    )


def test_texts_of_no_tokens_and_long_ones_are_refused(tmp_path: Path) -> None:
    directory = make_model(tmp_path, Shape(context=64), 7)
    llm = LLM(directory, threads=1)
    assert llm.embed([]).shape == (0, 64)
    assert llm.embed([[1] * 64]).shape == (1, 64)
    assert "at most 64" in refused(TooLongError, llm.embed, [[1], [1] * 65])
    assert "empty" in refused(RequestError, llm.embed, "")
    (directory / "sentence_bert_config.json").write_text('{"max_seq_length": 20}')
    assert "at most 20" in refused(TooLongError, LLM(directory, threads=1).embed, [[1] * 21])


def test_a_closed_llm_embeds_nothing(small_model: Path) -> None:
    llm = LLM(small_model, "none", threads=1)
    llm.close()
    assert "is closed" in refused(RequestError, llm.embed, "x")


def test_the_mean_of_normalised_files_is_what_the_files_say(tmp_path: Path) -> None:
    directory = make_model(tmp_path, Shape(), 7)
    last = LLM(directory, threads=1).embed("a text")
    write_modules(directory, "mean", normalizes=False)
    mean = LLM(directory, threads=1).embed("a text")
    assert np.linalg.norm(last) == pytest.approx(1, abs=1e-6)
    assert np.linalg.norm(mean) != pytest.approx(1, abs=1e-3)
