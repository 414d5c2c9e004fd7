"""Texts follow their schema, and their bits depend neither on drafts nor on other requests."""

import json
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from specqd import LLM, SamplingParams
from specqd.engine.engine import Engine
from specqd.engine.generation import GenerationRequest
from support.engines import run_to_end
from support.faults import FaultError
from support.fixtures import a_server
from support.openai_client import COMPLETIONS, NO_WHITE_SPACE, closed
from support.random_models import EOS
from support.served import Served

llguidance = pytest.importorskip("llguidance", reason="needs specqd[serve]")
pydantic = pytest.importorskip("pydantic", reason="needs specqd[serve]")

from specqd.errors import FieldError  # noqa: E402
from specqd.grammars import (  # noqa: E402
    MOST_SCHEMA_CHARACTERS,
    Grammars,
    TextGrammar,
    check_bounds,
)
from specqd.llm.rules import Rules  # noqa: E402
from specqd.server.opening import open_service  # noqa: E402

SCHEMA = closed(
    kind={"enum": ["circle", "square"]},
    sizes={"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    inner={"$ref": "#/$defs/inner"},
) | {"$defs": {"inner": closed(x={"type": "string", "maxLength": 5})}}


served = a_server("chat_model", "--draft", "fp4:k=4", "--max-batch", "8")


def grammars_of(llm: LLM) -> Grammars:
    return Grammars(llm.tokenizer, llm.model.vocabulary, llm.model.config.eos_token_ids)


def alone(llm: LLM, prompt: list[int], params: SamplingParams, schema: dict[str, Any]) -> list[int]:
    engine = Engine(llm.engine.level, llm.tokenizer, eos_token_ids=[EOS])
    make = grammars_of(llm).of_schema(schema)
    [generation] = engine.submit(GenerationRequest([prompt], params.resolved(llm.defaults), make))
    run_to_end(engine)
    return generation.tokens


def check_follows(content: str) -> None:
    value = json.loads(content)
    assert set(value) == {"kind", "sizes", "inner"}
    assert value["kind"] in ("circle", "square")
    assert 2 <= len(value["sizes"]) <= 4
    assert all(isinstance(each, bool) for each in value["sizes"])
    assert set(value["inner"]) == {"x"}
    assert len(value["inner"]["x"]) <= 5


def test_texts_follow_the_schema_and_have_the_same_bits_as_alone(
    client: Any, served: Served, llm: LLM, rng: np.random.Generator
) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "shape", "schema": SCHEMA}}
    requests = [
        {
            "prompt": rng.integers(0, 256, int(rng.integers(1, 100))).tolist(),
            "max_tokens": 300,
            "temperature": float(rng.choice([0.0, 1.0])),
            "seed": int(rng.integers(1 << 40)),
            "logit_bias": NO_WHITE_SPACE,
        }
        for _ in range(12)
    ]
    extra = {"response_format": form, "return_token_ids": True}

    def ask(i: int) -> Any:
        if i % 3 == 2:  # another request without a schema
            return client.completions.create(model="small", **requests[i])
        return client.completions.create(model="small", extra_body=extra, **requests[i])

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(len(requests))))
    for i, (request, answer) in enumerate(zip(requests, answers, strict=True)):
        choice = answer.choices[0]
        fields = {name: value for name, value in request.items() if name != "prompt"}
        fields["logit_bias"] = {int(token): -100.0 for token in NO_WHITE_SPACE}
        if i % 3 == 2:
            expected = llm.generate([request["prompt"]], SamplingParams(**fields))[0]
            assert choice.text == expected.text
            continue
        assert choice.token_ids == alone(llm, request["prompt"], SamplingParams(**fields), SCHEMA)
        assert choice.finish_reason == "stop"
        check_follows(choice.text)
    assert served.metric("vllm:spec_decode_num_accepted_tokens_total") > 0


def test_each_mask_of_a_proposal_is_that_of_its_prefix(llm: LLM, rng: np.random.Generator) -> None:
    make = grammars_of(llm).of_schema(SCHEMA)
    looking, plain = make(), make()
    text = llm.encode('{"kind":"circle","sizes":[true,false],"inner":{"x":"é"}}')
    at = 0
    while at < len(text):
        count = int(rng.integers(1, 6))
        proposal = text[at : at + count]
        if rng.random() < 0.5:
            looking.masks([*proposal[:1], int(rng.integers(256))])  # leaves no trace
        masks = looking.masks(proposal)
        for i, token in enumerate(proposal):
            [row] = plain.masks([])
            assert np.array_equal(masks[i], row)
            assert row[token // 32] >> (token % 32) & 1
            plain.accept(token)
        for token in proposal[: int(rng.integers(1, count + 1))]:
            looking.accept(token)
            at += 1
        plain = make()
        for token in text[:at]:
            plain.accept(token)
    [row] = looking.masks([])
    assert [i for i in range(llm.model.vocabulary) if row[i // 32] >> (i % 32) & 1] == [EOS]


class FailingMatcher:
    """A matcher that allows token 7, and fails permanently on a text of three tokens."""

    def __init__(self, tokens: list[int], has_failed: bool = False) -> None:
        self.tokens = tokens
        self.has_failed = has_failed

    def deep_copy(self) -> "FailingMatcher":
        return FailingMatcher(list(self.tokens), self.has_failed)

    def is_error(self) -> bool:
        return self.has_failed

    def consume_tokens(self, tokens: list[int]) -> bool:
        self.tokens += tokens
        return not self.has_failed

    def consume_token(self, token: int) -> bool:
        return self.consume_tokens([token])

    def try_consume_tokens(self, tokens: list[int]) -> int:
        return len(tokens) if self.consume_tokens(tokens) else 0

    def rollback(self, count: int) -> bool:
        del self.tokens[len(self.tokens) - count :]
        return not self.has_failed

    def compute_bitmask(self) -> bytes:
        self.has_failed |= len(self.tokens) >= 3
        return np.array([1 << 7], np.uint32).tobytes()


def test_a_matcher_that_fails_ahead_of_the_text_is_replaced() -> None:
    grammar = TextGrammar(FailingMatcher([]), np.array([1 << 7], np.uint32))
    grammar.accept(7)
    assert grammar.masks([7, 7]).tolist() == [[1 << 7], [1 << 7], [0]]
    grammar.accept(7)
    assert grammar.masks([7, 7]).tolist() == [[1 << 7], [0], [0]]
    grammar.accept(7)
    assert grammar.masks([]).tolist() == [[0]]  # the text itself ends here


def test_the_first_mask_of_a_slow_schema_is_computed_before_the_engine_needs_it(llm: LLM) -> None:
    make = grammars_of(llm).of_schema({"type": "string", "pattern": "^(a{1000}){1000}$"})
    first, other = make(), make()
    for grammar in (first, other):
        grammar._matcher = None  # type: ignore[attr-defined]
        [row] = grammar.masks([])
        [quote] = llm.encode('"')
        assert [i for i in range(llm.model.vocabulary) if row[i // 32] >> (i % 32) & 1] == [quote]


def hold_tables(
    monkeypatch: pytest.MonkeyPatch, before: Callable[[], object] = lambda: None
) -> list[object]:
    """Returns a list of the tables that are built from now on. before: is called at each begin."""
    build, tables = llguidance.LLTokenizer, []

    def building(*given: Any, **named: Any) -> Any:
        before()
        tables.append(build(*given, **named))
        return tables[-1]

    monkeypatch.setattr(llguidance, "LLTokenizer", building)
    return tables


def test_the_tables_are_built_before_a_server_takes_requests(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = hold_tables(monkeypatch)
    grammars = grammars_of(llm)
    assert not tables
    service = open_service(llm, max_batch=1)
    assert len(tables) == 1
    service.grammars.of_schema(SCHEMA)
    assert len(tables) == 1
    grammars.of_schema(SCHEMA)
    assert len(tables) == 2


@pytest.mark.parametrize("fault", [ValueError, FaultError])
def test_tables_that_cannot_be_built_fail_grammars_only(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, fault: type[BaseException]
) -> None:
    def fail() -> None:
        raise fault("no such tokenizer")

    hold_tables(monkeypatch, fail)
    service = open_service(llm, max_batch=1)
    with pytest.raises((FieldError, FaultError), match="no such tokenizer"):
        service.grammars.of_schema(SCHEMA)


def test_two_first_calls_at_once_build_the_tables_once(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2)

    def wait_for_the_other() -> None:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.5)  # which is passed only if both build

    tables = hold_tables(monkeypatch, wait_for_the_other)
    rules = Rules(llm.tokenizer, llm.model.vocabulary, llm.model.config.eos_token_ids)
    with ThreadPoolExecutor(2) as pool:
        begun = [pool.submit(rules.of, SamplingParams(pattern=each), [[1]]) for each in "ab"]
        assert all(each.result(60) is not None for each in begun)
    assert len(tables) == 1


@pytest.mark.parametrize(
    ("given", "pattern"),
    [
        ({"guided_regex": r"[0-9]{3}/[a-c]{1,9}\."}, r"[0-9]{3}/[a-c]{1,9}\."),
        ({"guided_choice": ["a/b (c)", "a-b & c?\n"]}, r"a/b \(c\)|a-b & c\?\n"),
        ({"structured_outputs": {"choice": ["größer", '"x"']}}, 'größer|"x"'),
        ({"structured_outputs": {"json": {"enum": [1, "b"]}}}, '1|"b"'),
        ({"guided_json": '{"type": "boolean"}'}, "true|false"),
    ],
)
def test_texts_follow_vllms_restrictions(
    client: Any, given: dict[str, Any], pattern: str, rng: np.random.Generator
) -> None:
    answer = client.chat.completions.create(
        model="small",
        messages=[{"role": "user", "content": "?"}],
        max_tokens=200,
        temperature=1.0,
        seed=int(rng.integers(1 << 40)),
        logit_bias=NO_WHITE_SPACE if "json" in str(given) else {},
        extra_body=given,
    )
    assert answer.choices[0].finish_reason == "stop"
    assert re.fullmatch(pattern, answer.choices[0].message.content)


@pytest.mark.parametrize(
    ("pattern", "says"),
    [("(", "unclosed group"), ("(?=a)b", "look-around"), ("a" * 65_537, "longer than 65536")],
)
def test_patterns_that_cannot_be_enforced_are_400(served: Served, pattern: str, says: str) -> None:
    reply = served.ask("POST", COMPLETIONS, {"prompt": "x", "guided_regex": pattern})
    assert (reply.status, reply.error["param"]) == (400, "guided_regex")
    assert says in reply.error["message"]


def test_openais_client_parses_into_a_pydantic_model(client: Any) -> None:
    flag = pydantic.create_model("Flag", is_set=(bool, ...))
    answer = client.chat.completions.parse(
        model="small",
        messages=[{"role": "user", "content": "?"}],
        response_format=flag,
        temperature=0,
        max_tokens=200,
        logit_bias=NO_WHITE_SPACE,
    )
    assert isinstance(answer.choices[0].message.parsed.is_set, bool)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "boolean"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "banana"}, "cannot be enforced"),
        ({"$ref": "https://example.org/schema"}, "points outside the schema"),
        (nested(40), "nested deeper than 32"),
        ({"enum": ["x" * 70_000]}, "longer than 65536"),
        ({"type": "string", "pattern": "("}, "cannot be enforced"),
    ],
    ids=["type", "reference", "nesting", "size", "pattern"],
)
def test_schemas_that_cannot_be_enforced_are_400(
    served: Served, schema: dict[str, Any], says: str
) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    reply = served.ask("POST", COMPLETIONS, {"prompt": "x", "response_format": form})
    assert reply.status == 400
    assert says in reply.error["message"]
    assert "\n" not in reply.error["message"]


def test_schemas_of_one_request_share_a_limit() -> None:
    half = {"enum": ["x" * (MOST_SCHEMA_CHARACTERS // 2)]}
    check_bounds([half], "tools")
    with pytest.raises(FieldError, match="longer than"):
        check_bounds([half, half], "tools")
