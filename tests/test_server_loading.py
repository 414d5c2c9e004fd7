"""When the models of one server are loaded and unloaded, and what others do meanwhile."""

import json
import re
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from specqd import LLM, SamplingParams
from support import held_loads
from support.openai_client import COMPLETIONS
from support.random_models import EOS, Shape, make_model
from support.served import Served, add_template, serving
from support.several_models import (
    SHAPE,
    each_alone,
    samples_of,
    several_models,
    their_words,
    until,
)

pytest.importorskip("llguidance", reason="needs specqd[serve]")


@dataclass(frozen=True, slots=True)
class Held:
    """A model whose load begins and then waits until the gate is opened."""

    directory: Path
    gate: Path

    @property
    def program(self) -> list[str]:
        return [sys.executable, held_loads.__file__, str(self.gate)]

    def wait(self) -> None:
        until(self.gate.with_suffix(".begun").exists)


@pytest.fixture
def held(tmp_path: Path, seed: int) -> Held:
    directory = add_template(make_model(tmp_path / "held", SHAPE, seed + 9))
    return Held(directory, tmp_path / "gate")


directories = several_models()
alone = each_alone()
words = their_words()


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")
def test_an_unloaded_model_returns_its_memory(
    directories: dict[str, Path], tmp_path: Path, seed: int
) -> None:
    shape = Shape(hidden=512, heads=8, kv_heads=4, head_dim=64, vocab=32_000)
    large = make_model(tmp_path / "large", shape, seed)

    def megabytes(served: Served) -> int:
        """Returns the server's own memory, without mapped files."""
        text = Path(f"/proc/{served.process.pid}/smaps_rollup").read_text()
        [found] = re.findall(r"^Anonymous:\s+(\d+) kB$", text, re.MULTILINE)
        return int(found) // 1000

    with serving(str(directories["one"]), str(large), "--keep-alive", "0.5") as served:
        loaded, unloaded = [], []
        for _ in range(3):
            body = {"model": "large", "prompt": "a", "max_tokens": 4}
            assert served.ask("POST", COMPLETIONS, body).status == 200
            loaded.append(megabytes(served))
            until(lambda: served.metric("specqd:model_loaded") == 0)
            time.sleep(0.5)
            unloaded.append(megabytes(served))
    weights = large.joinpath("model.safetensors").stat().st_size * 0.8 / 1e6
    assert min(loaded) - max(unloaded) > weights * 0.8, (loaded, unloaded)
    assert unloaded[2] - unloaded[0] < weights * 0.3, (loaded, unloaded)


def test_while_one_model_loads_others_answer(
    directories: dict[str, Path], alone: dict[str, LLM], held: Held
) -> None:
    body = {"prompt": "ab", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    with serving(str(directories["one"]), str(held.directory), program=held.program) as served:
        assert served.ask("POST", COMPLETIONS, body | {"model": "one"}).status == 200
        with ThreadPoolExecutor(3) as pool:
            waiting = [
                pool.submit(served.ask, "POST", COMPLETIONS, body | {"model": "held"})
                for _ in range(3)
            ]
            for _ in range(5):
                reply = served.ask("POST", COMPLETIONS, body | {"model": "one"})
                text = alone["one"].generate("ab", params)[0].text
                assert reply.content["choices"][0]["text"] == text
                assert served.ask("GET", "/health").status == 200
                assert len(served.ask("GET", "/v1/models").content["data"]) == 2
            held.wait()
            assert samples_of(served, "specqd:model_loaded") == {"one": 1, "held": 0}
            assert not any(each.done() for each in waiting)
            held.gate.touch()
            texts = {each.result().content["choices"][0]["text"] for each in waiting}
        assert texts == {LLM(held.directory, "none", threads=1).generate("ab", params)[0].text}
        assert samples_of(served, "specqd:model_loads_total") == {"one": 1, "held": 1}


def test_nothing_is_loaded_for_a_client_that_left(directories: dict[str, Path], held: Held) -> None:
    """Its request waits behind another load."""
    with serving(str(held.directory), str(directories["one"]), program=held.program) as served:
        with ThreadPoolExecutor(1) as pool:
            body = {"prompt": "a", "max_tokens": 2}
            waiting = pool.submit(served.ask, "POST", COMPLETIONS, body | {"model": "held"})
            held.wait()
            connection = served.connect()
            left = json.dumps(body | {"model": "one"})
            connection.request("POST", COMPLETIONS, left, {"Content-Type": "application/json"})
            assert served.ask("GET", "/health").status == 200
            connection.close()
            for _ in range(5):
                assert served.ask("GET", "/health").status == 200
            held.gate.touch()
            assert waiting.result().status == 200
        assert samples_of(served, "specqd:model_loads_total") == {"held": 1, "one": 0}


@pytest.mark.parametrize("count", [1, 2])
def test_a_model_is_unloaded_when_nobody_has_used_it_for_a_while(
    words: list[str], count: int, alone: dict[str, LLM]
) -> None:
    body = {"model": "one", "prompt": "ab", "max_tokens": 8, "temperature": 0}
    text = alone["one"].generate("ab", SamplingParams(max_tokens=8, temperature=0))[0].text
    with serving(*words[:count], "--keep-alive", "0.3") as served:
        for loads in (1, 2):
            reply = served.ask("POST", COMPLETIONS, body)
            assert reply.content["choices"][0]["text"] == text
            assert samples_of(served, "specqd:model_loads_total")["one"] >= loads
            until(lambda: served.metric("specqd:model_loaded") == 0)
            assert served.ask("GET", "/health").status == 200
        [model] = [m for m in served.ask("GET", "/v1/models").content["data"] if m["id"] == "one"]
        assert model["max_model_len"] == 2048
        assert served.metric("vllm:request_success_total") == 2


def test_a_server_ends_while_a_request_waits_for_a_load(
    directories: dict[str, Path], held: Held
) -> None:
    with serving(str(held.directory), str(directories["one"]), program=held.program) as served:
        with ThreadPoolExecutor(1) as pool:
            body = {"model": "held", "prompt": "a", "max_tokens": 2}
            waiting = pool.submit(served.ask, "POST", COMPLETIONS, body)
            held.wait()
            served.process.send_signal(signal.SIGTERM)
            served.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            held.gate.touch()
            assert waiting.result().status in (200, 503)
        assert served.process.wait(60) == -signal.SIGTERM


def test_an_engine_that_fails_ends_a_server_with_several_models(words: list[str]) -> None:
    from support import faults

    program = [sys.executable, faults.__file__, "raise"]
    with serving(*words, program=program) as served:
        body = {"model": "two", "prompt": "x", "max_tokens": 100, "ignore_eos": True}
        reply = served.ask("POST", COMPLETIONS, body | {"logit_bias": {str(EOS): -100}})
        assert (reply.status, reply.error["type"]) == (503, "server_error")
        assert served.process.wait(60) == 1
        assert served.process.stderr is not None
        assert served.process.stderr.read().count("specqd: error: ") == 1
