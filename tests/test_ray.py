"""Several processes with Ray, as far as this needs no cluster. `benchmarks/replicas.py` and
`batch_kills.py` start clusters."""

import importlib.util
import json
import random
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specqd.errors import RequestError
from specqd.extras import install_command
from support.batches import answer_file, line
from support.command_line import Refuse
from support.refusals import refused
from support.writers import write_lines

PACKAGE = Path(importlib.util.find_spec("specqd").origin).parent  # type: ignore[union-attr]
PAGE = 256  # characters


def test_nothing_else_imports_ray() -> None:
    """Imports every other module while `import ray` fails."""
    paths = [path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py")]
    names = sorted(
        "specqd." + ".".join(path.parts).removesuffix(".__init__")
        for path in paths
        if path.parts[0] not in ("ray", "lm_eval", "__main__", "__init__")
        and path.name not in ("template_worker", "level_plot")
    )
    program = (
        "import importlib, sys\n"
        "sys.modules |= dict.fromkeys(('ray', 'pyarrow'))\n"
        f"for name in {names!r}:\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "    except ModuleNotFoundError as error:\n"
        "        assert error.name not in ('ray', 'pyarrow'), (name, error)\n"
        "assert not any(name.startswith('specqd.ray') for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_error_of_batches_without_ray_says_what_to_install(
    tmp_path: Path, refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "specqd.cli.batch.find_spec", lambda name: None if name == "ray" else find_spec(name)
    )
    source = tmp_path / "in.jsonl"
    source.write_text("")
    problem = refuse("batch", source, "-o", tmp_path / "out.jsonl", "--ray", "auto")
    assert problem == f"--ray needs ray; {install_command('ray')}"


# --- With Ray ------------------------------------------------------------------------------------


@pytest.fixture
def with_ray() -> None:
    pytest.importorskip("ray.serve", reason="needs specqd[ray]")
    pytest.importorskip("ray.data", reason="needs specqd[ray]")


@pytest.mark.usefixtures("with_ray")
def test_serving_needs_no_pyarrow() -> None:
    program = (
        "import sys\n"
        "sys.modules['pyarrow'] = None\n"
        "from specqd.ray import app\n"
        "assert callable(app)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.usefixtures("with_ray")
def test_arguments_are_strings_or_values() -> None:
    from specqd.ray.options import Options

    texts = {"model": "m", "draft": "fp4, ngram", "replicas": "2", "pin": "true", "threads": "3"}
    values = {"model": "m", "draft": ["fp4", "ngram"], "replicas": 2, "pin": True, "threads": 3}
    assert Options.of(texts) == Options.of(values)
    assert (Options.of(texts).draft, Options.of(texts).cores) == (("fp4", "ngram"), 3)


@pytest.mark.usefixtures("with_ray")
@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"replica": "2"}, "'replica' is not an argument; known: model, draft, replicas"),
        ({"replicas": "two"}, "replicas='two' is not a whole number of at least 1"),
        ({"replicas": "0"}, "replicas='0' is not a whole number of at least 1"),
        ({"replicas": "2", "max_replicas": "1"}, "max_replicas=1 is below replicas=2"),
        ({"pin": "yes"}, "pin='yes' is not true or false"),
        ({"model": ""}, "model='' is empty or not a string"),
        ({"routing": "best"}, "routing='best' is unknown; use prefix or random"),
    ],
)
def test_the_error_for_a_wrong_argument_is_one_line(given: dict[str, Any], problem: str) -> None:
    from specqd.ray.options import Options

    assert refused(RequestError, Options.of, given).startswith(problem)


@pytest.mark.usefixtures("with_ray")
def test_prompts_with_the_same_beginning_share_pages(chance: random.Random) -> None:
    from specqd.ray.routing import pages_of

    begin = "".join(chance.choices("abc é\U0001f600", k=chance.randrange(PAGE, 3 * PAGE)))
    tails = [mark + begin[: chance.randrange(3 * PAGE)] for mark in "xy"]
    first, second = (pages_of({"prompt": begin + tail}, "key") for tail in tails)
    whole = len(begin) // PAGE
    assert first[:whole] == second[:whole]
    assert not set(first[whole:]) & set(second[whole:])
    assert len(first) == len(begin + tails[0]) // PAGE
    others = [({"prompt": begin}, "other key"), ({"prompt": begin, "cache_salt": "s"}, "key")]
    for body, client in others:
        assert not set(pages_of(body, client)) & set(first)


@pytest.mark.usefixtures("with_ray")
def test_turns_of_a_chat_share_the_pages_of_earlier_turns(chance: random.Random) -> None:
    from specqd.ray.routing import pages_of

    def text() -> str:
        return "".join(chance.choices("abc ", k=chance.randrange(10, 3 * PAGE)))

    chat = [{"role": "system", "content": "s" * PAGE}, {"role": "user", "content": text()}]
    longer = [*chat, {"role": "assistant", "content": text()}, {"role": "user", "content": text()}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    before, after = (pages_of({"messages": each, "tools": tools}, "") for each in (chat, longer))
    assert before
    assert after[: len(before)] == before


@pytest.mark.usefixtures("with_ray")
@pytest.mark.parametrize(
    "body", [{}, {"prompt": ""}, {"prompt": 5}, {"prompt": None}, {"messages": {"a": 1}}]
)
def test_bodies_without_a_long_prompt_have_no_pages(body: dict[str, Any]) -> None:
    from specqd.ray.routing import pages_of

    assert pages_of(body, "") == ()


@pytest.mark.usefixtures("with_ray")
def test_metrics_of_replicas_are_merged_with_each_family_once() -> None:
    from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
    from prometheus_client.parser import text_string_to_metric_families

    from specqd.ray.metrics import labelled
    from specqd.server.model_metrics import Merged

    replicas = []
    for name, count in (("a", 3), ("b", 4)):
        registry = CollectorRegistry()
        Counter("vllm:requests", "Requests.", ["model_name"], registry=registry).labels("m").inc(
            count
        )
        Histogram("vllm:seconds", "Seconds.", registry=registry, buckets=(1,)).observe(count)
        replicas.append(labelled(registry.collect(), name))
    text = generate_latest(Merged(replicas)).decode()
    assert text.count("# TYPE vllm:requests_total") == text.count("# TYPE vllm:seconds ") == 1
    found = {
        (sample.name, sample.labels["replica"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert [found["vllm:requests_total", name] for name in "ab"] == [3, 4]
    assert [found["vllm:seconds_sum", name] for name in "ab"] == [3, 4]
    assert len(re.findall(r'vllm:seconds_bucket\{le="1.0",replica="."\}', text)) == 2


@pytest.mark.usefixtures("with_ray")
def test_replicas_on_a_machine_get_different_cores_of_one_node_each(chance: random.Random) -> None:
    from specqd.ray.cores import chosen_cores

    nodes = [set(range(8)), set(range(8, 16))]
    usable = set(range(16))
    count = chance.choice([1, 2, 3, 4, 8])
    fitting = 2 * (8 // count)
    chosen = [chosen_cores(usable, count, place, nodes) for place in range(fitting)]
    assert len(set().union(*chosen)) == fitting * count
    assert all(any(cores <= node for node in nodes) for cores in chosen)
    assert chosen_cores(usable, count, 0, nodes) == chosen_cores(usable, count, 0, nodes)
    assert len(chosen_cores(usable, 16, 0, nodes)) == 16  # from both nodes
    assert chosen_cores(usable, 17, 0, nodes) == usable


@pytest.mark.usefixtures("with_ray")
def test_open_requests_decide_how_many_replicas_run(chance: random.Random) -> None:
    """Applies Ray Serve's own rule with our settings. Its delays are not tested."""
    from ray.serve.autoscaling_policy import replica_queue_length_autoscaling_policy

    from specqd.ray.options import Options
    from specqd.ray.serving import _replicas

    least, most = sorted(chance.sample(range(1, 9), 2))
    ongoing, seconds = chance.randrange(1, 33), chance.randrange(1, 900)
    given = {"replicas": least, "max_replicas": most, "ongoing": ongoing, "idle_seconds": seconds}
    config = _replicas(Options.of({**given, "threads": 1}))._deployment_config.autoscaling_config
    assert (config.min_replicas, config.max_replicas) == (least, most)
    assert config.downscale_delay_s == seconds
    for running in (least, most):
        requests = chance.randrange(200)
        context = SimpleNamespace(
            current_num_replicas=running, total_num_requests=requests, config=config
        )
        wanted, _ = replica_queue_length_autoscaling_policy(context)
        assert wanted == pytest.approx(requests / ongoing)


def replica(name: str) -> Any:
    return SimpleNamespace(replica_id=name)


class Routes:
    """A router without Serve, to test its rules."""

    def __init__(self) -> None:
        from specqd.ray.routing import PrefixRouter

        self.router = PrefixRouter.__new__(PrefixRouter)
        self.router.initialize_state()
        self.replicas = [replica(name) for name in "abc"]
        self.number = 0

    def request(self, *pages: bytes) -> Any:
        self.number += 1
        metadata = SimpleNamespace(internal_request_id=str(self.number))
        context = SimpleNamespace(should_backoff=False)
        asked = SimpleNamespace(pages=pages)
        return SimpleNamespace(args=[asked], metadata=metadata, routing_context=context)

    async def ranks(self, request: Any) -> list[list[str]]:
        ranks = await self.router.choose_replicas(self.replicas, request)
        return [[each.replica_id for each in rank] for rank in ranks]


@pytest.mark.usefixtures("with_ray")
def test_the_replica_with_the_longest_cached_prefix_is_chosen() -> None:
    import asyncio

    async def scenario() -> None:
        routes = Routes()
        assert await routes.ranks(routes.request(b"1", b"2")) == [["a", "b", "c"]]
        first = routes.request(b"1", b"2")
        routes.router.on_request_routed(first, "a", None)
        routes.router.on_request_completed("a", first.metadata.internal_request_id)
        assert await routes.ranks(routes.request(b"1", b"3")) == [["a"], ["a", "b", "c"]]
        longer = routes.request(b"1", b"2", b"4")
        routes.router.on_request_routed(longer, "b", None)
        assert await routes.ranks(routes.request(b"1", b"2", b"4")) == [["b"], ["a", "b", "c"]]
        assert await routes.ranks(routes.request(b"1", b"2", b"9")) == [
            ["a", "b"],
            ["a", "b", "c"],
        ]
        assert await routes.ranks(routes.request()) == [["a", "b", "c"]]
        for _ in range(5):  # one more open request than the cache is worth
            routes.router.on_request_routed(routes.request(b"1"), "b", None)
        assert await routes.ranks(routes.request(b"1", b"2", b"4")) == [["a"], ["a", "b", "c"]]

    asyncio.run(scenario())


@pytest.mark.usefixtures("with_ray")
def test_rows_of_a_dataset_are_lines_of_a_batch_file() -> None:
    from specqd.openai.batch import read_request
    from specqd.ray.documents import _line

    row = {"prompt": "x", "seed": 5, "other": 1, "messages": None}
    made = _line("7", row, {"max_tokens": 3})
    assert json.loads(made)["body"] == {"max_tokens": 3, "prompt": "x", "seed": 5}
    assert read_request(made, "m").custom_id == "7"
    seeds = [json.loads(_line(i, {"prompt": "x"}, {}))["body"]["seed"] for i in "19"]
    assert seeds[0] == seeds[1], "an answer depends on the place of its row"
    assert seeds[0] < 1 << 53
    for wrong in ({"text": "x"}, {"prompt": "x", "messages": []}):
        assert "needs either" in refused(RequestError, _line, "0", wrong, {})


@pytest.mark.usefixtures("with_ray")
def test_workers_give_the_answers_of_a_batch_file_in_any_order(
    tmp_path: Path, small_model: Path, chance: random.Random
) -> None:
    import pyarrow as pa

    from specqd import LLM
    from specqd.openai.batch import read_batch
    from specqd.ray.batch_files import _Lines
    from specqd.ray.worker import Workers

    asked = [
        line(f"{i}", "/v1/completions", {"prompt": "ab" * (i + 1), "max_tokens": 8, "n": 2})
        for i in range(chance.randrange(2, 8))
    ]
    asked.append(line("long", "/v1/completions", {"prompt": "x" * 5_000}))
    source, out = write_lines(tmp_path / "in.jsonl", asked), tmp_path / "out.jsonl"
    assert answer_file(LLM(small_model, "none", threads=2), source, out) == 1
    batch = read_batch(source, "small")
    worker = _Lines(Workers(str(small_model), "small", threads=2), batch.created)
    lines = [each.line for each in chance.sample(batch.requests, len(batch.requests))]
    found = [
        answer
        for part in (lines[:1], lines[1:])
        for answer in worker(pa.table({"line": part}))["answer"].to_pylist()
    ]
    assert sorted(found) == sorted(out.read_text().splitlines())


@pytest.mark.usefixtures("with_ray")
def test_rows_get_their_text_or_an_error(small_model: Path) -> None:
    import pyarrow as pa

    from specqd import LLM, SamplingParams
    from specqd.ray.documents import _Rows
    from specqd.ray.worker import Workers

    rows = pa.Table.from_pylist(
        [
            {"prompt": None, "seed": 4, "id": 0},
            {"prompt": "ab", "seed": 5, "id": 1},
            {"prompt": "x" * 5_000, "seed": 6, "id": 2},
            {"prompt": "ab", "seed": -1, "id": 3},
        ]
    )
    answer = _Rows(Workers(str(small_model), "small", threads=2), {"max_tokens": 9})
    empty, good, bad, signed = answer(rows).to_pylist()
    assert "needs either" in empty["error"]
    llm = LLM(small_model, "none", threads=2)
    for row, seed in ((good, 5), (signed, 2**64 - 1)):
        params = SamplingParams(max_tokens=9, temperature=0.7, repetition_penalty=1.05, seed=seed)
        assert (row["text"], row["error"]) == (llm.generate("ab", params)[0].text, None)
    assert (bad["id"], bad["text"], bad["finish_reason"]) == (2, None, None)
    assert "context" in bad["error"]
