"""What a prompt store keeps: within its bounds, in order, and in forked processes too."""

import errno
import os
import re
import time
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from specqd import LLM, SamplingParams
from specqd.engine.generation import GenerationRequest
from specqd.errors import FieldError, MachineError, SpecqdWarning
from specqd.model import prompt_store
from specqd.model.prompt_files import PromptFiles
from specqd.model.prompt_store import PromptStore
from support.cached_models import PAGE
from support.engines import run_to_end
from support.fixtures import a_model
from support.kept_prompts import SHAPE, an_llm, assert_bits, pages, run, same_bits, tokens_of

llama = a_model(SHAPE)


def store_of(llm: LLM) -> PromptStore:
    assert llm.model.prompt_store is not None
    return llm.model.prompt_store


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "prompts"


def test_the_size_is_bounded(llama: Path, kept: Path, rng: np.random.Generator) -> None:
    with an_llm(llama, None) as plain:
        most = 7 * plain.model.cache.page_bytes
        prompts = [tokens_of(rng, 200) for _ in range(5)]
        expected = [run(plain, prompt) for prompt in prompts]
    with an_llm(llama, kept, size=most) as llm:
        for prompt, before in zip(prompts, expected, strict=True):
            assert same_bits(run(llm, prompt), before)
    assert 0 < sum(each.stat().st_size for each in kept.iterdir()) <= most
    with an_llm(llama, kept, size=most) as llm:
        assert run(llm, prompts[-1]).cached_prompt_tokens == 192  # the latest is kept


def test_a_prompt_that_is_only_used_from_memory_stays_on_disk(
    llama: Path, kept: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now)
    common, others = tokens_of(rng, 130), [tokens_of(rng, 130) for _ in range(6)]
    with an_llm(llama, None) as plain:
        most = 6 * plain.model.cache.page_bytes
    with an_llm(llama, kept, size=most) as llm:
        for other in others:
            run(llm, common)
            now += 100 * 10**9
            run(llm, other)
            now += 100 * 10**9
    with an_llm(llama, kept, size=most) as llm:
        assert run(llm, common).cached_prompt_tokens == 128


def test_a_full_disk_changes_no_answer(
    llama: Path, kept: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = tokens_of(rng, 300)
    with an_llm(llama, None) as plain:
        expected = run(plain, prompt)
    rename, left = os.rename, 2

    def full(*arguments: object, **options: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rename(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "rename", full)
    with pytest.warns(SpecqdWarning, match="cannot be written: No space left"):
        assert_bits(llama, kept, prompt, expected)
    assert len(pages(kept)) == 2
    monkeypatch.undo()
    with an_llm(llama, kept) as llm:
        found = run(llm, prompt)
    assert (same_bits(found, expected), found.cached_prompt_tokens) == (True, 128)
    assert len(pages(kept)) == 4


def test_copies_that_wait_are_bounded_and_the_rest_is_kept_later(
    llama: Path, kept: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, may_write, written = tokens_of(rng, 640), Event(), []
    write = PromptFiles.write

    def slow(files: PromptFiles, name: str, content: memoryview, when: int) -> None:
        may_write.wait()
        written.append(name)
        write(files, name, content, when)

    monkeypatch.setattr(PromptFiles, "write", slow)
    with an_llm(llama, kept) as llm:
        most = 2 * llm.model.cache.page_bytes
        monkeypatch.setattr(store_of(llm).writer, "_most_waiting", most)
        run(llm, prompt)
        run(llm, prompt)
        may_write.set()
    assert len(written) == len({*written}) == len(pages(kept)) == 3
    monkeypatch.undo()
    with an_llm(llama, kept) as llm:
        run(llm, prompt)
    with an_llm(llama, kept) as llm:
        assert run(llm, prompt).cached_prompt_tokens == 576


def test_a_page_that_waits_is_not_copied_again(
    llama: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write, written = Event(), []

    def wait(_: PromptFiles, name: str, *__: object) -> None:
        may_write.wait()
        written.append(name)

    monkeypatch.setattr(PromptFiles, "write", wait)
    with an_llm(llama, kept) as llm:
        for _ in range(3):
            run(llm, list(range(200)))
        may_write.set()
    assert len(written) == len({*written}) == 3


def test_of_a_prompt_that_does_not_fit_the_beginning_is_kept(
    llama: Path, kept: Path, rng: np.random.Generator
) -> None:
    prompt = tokens_of(rng, 640)
    with an_llm(llama, None) as plain:
        most = 6 * plain.model.cache.page_bytes
    with an_llm(llama, kept, size=most) as llm:
        run(llm, prompt)
    with an_llm(llama, kept, size=most) as llm:
        assert run(llm, prompt).cached_prompt_tokens >= 3 * 64


def test_a_prompt_that_waits_for_pages_is_looked_up_once(
    llama: Path, kept: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, waiting = tokens_of(rng, 300), tokens_of(rng, 300)
    with an_llm(llama, kept) as llm:
        run(llm, waiting)
    with an_llm(llama, kept, cache_positions=11 * PAGE) as llm:
        store, loads = store_of(llm), []
        load = store._load
        monkeypatch.setattr(store, "_load", lambda *given: loads.append(given) or load(*given))
        params = SamplingParams(max_tokens=100, temperature=0, ignore_eos=True)
        llm.engine.submit(GenerationRequest([running], params))
        llm.engine.submit(GenerationRequest([waiting], params))
        run_to_end(llm.engine)
        assert len(loads) == 2


def test_a_prompt_that_has_waited_for_pages_continues_all_that_is_kept(
    llama: Path, kept: Path, rng: np.random.Generator
) -> None:
    running, waiting = tokens_of(rng, 9 * PAGE), tokens_of(rng, 8 * PAGE + 5)
    with an_llm(llama, kept) as llm:
        run(llm, waiting)
    with an_llm(llama, kept, cache_positions=14 * PAGE) as llm:
        params = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True)
        llm.engine.submit(GenerationRequest([running], params))
        for _ in range(2):
            llm.engine.step()
        [waited] = llm.engine.submit(GenerationRequest([waiting], params))
        run_to_end(llm.engine)
        assert waited.cached_prompt_tokens == 8 * PAGE


def test_sequences_that_were_looked_up_are_forgotten_in_the_end(
    llama: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_store, "_REMEMBERED", 2)
    with an_llm(llama, kept) as llm:
        store = store_of(llm)
        assert not any(store._is_looked_up(key, 4) for key in (1, 2, 3))
        assert store._is_looked_up(3, 4)
        assert not store._is_looked_up(2, 5)  # it was preempted, and has more tokens
        assert not store._is_looked_up(1, 4)  # forgotten
        assert store._is_looked_up(2, 5)


def test_a_forked_process_keeps_prompts(llama: Path, kept: Path, rng: np.random.Generator) -> None:
    with an_llm(llama, kept) as llm:
        run(llm, tokens_of(rng, 100))
        prompt = tokens_of(rng, 200)
        child = os.fork()
        if child == 0:
            run(llm, prompt)
            llm.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    with an_llm(llama, kept) as llm:
        assert run(llm, prompt).cached_prompt_tokens == 192


def test_a_forked_process_that_keeps_nothing_ends(
    llama: Path, kept: Path, rng: np.random.Generator
) -> None:
    with an_llm(llama, kept) as llm:
        run(llm, tokens_of(rng, 100))
        child = os.fork()
        if child == 0:
            llm.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


def test_a_cache_smaller_than_two_pages_is_refused(llama: Path, kept: Path) -> None:
    with pytest.raises(MachineError, match=r"^prompt_cache_size 1000: is too small for two pages"):
        an_llm(llama, kept, size=1000)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt_cache": ""}, "prompt_cache: '' is not the path of a directory"),
        ({"prompt_cache": 7}, "prompt_cache: 7 is not the path of a directory"),
        ({"prompt_cache_size": "10g"}, "prompt_cache_size: '10g' is not a whole number"),
    ],
)
def test_wrong_arguments_are_named(llama: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(FieldError, match=f"^{re.escape(message)}$"):
        LLM(llama, **arguments)


def test_the_size_may_be_left_open(llama: Path, kept: Path) -> None:
    with LLM(llama, "none", threads=1, prompt_cache=str(kept), prompt_cache_size=None) as llm:
        run(llm, list(range(100)))
    assert len(pages(kept)) == 1
