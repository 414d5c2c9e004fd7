"""Schemas and patterns in Python and on the command line; the bits do not depend on drafts."""

import asyncio
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest

from specqd import LLM, SamplingParams
from specqd.errors import FieldError, RequestError
from specqd.extras import install_command
from specqd.llm.async_llm import AsyncLLM
from specqd.text.json_schema import prepared
from support.command_line import Run, run_program
from support.fixtures import an_llm
from support.openai_client import NO_WHITE_SPACE, closed
from support.refusals import refused

pytest.importorskip("llguidance", reason="needs specqd[structured]")
pydantic = pytest.importorskip("pydantic", reason="needs pydantic")

COMPACT = {int(token): bias for token, bias in NO_WHITE_SPACE.items()}
SCHEMA = closed(
    kind={"enum": ["circle", "square"]},
    sizes={"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
)

drafted = an_llm("chat_model", "fp4:k=4")


class Shape(pydantic.BaseModel, extra="forbid"):  # type: ignore[name-defined,misc]
    is_round: bool
    corners: list[bool] = pydantic.Field(max_length=3)


def sampled(rng: np.random.Generator, **more: Any) -> SamplingParams:
    temperature = float(rng.choice([0.0, 1.0]))
    seed = int(rng.integers(1 << 40))
    return SamplingParams(
        max_tokens=300, temperature=temperature, seed=seed, logit_bias=COMPACT, **more
    )


def test_held_texts_have_the_same_bits_with_and_without_drafts(
    llm: LLM, drafted: LLM, rng: np.random.Generator
) -> None:
    accepted = 0
    for _ in range(6):
        params = sampled(rng, schema=SCHEMA, n=2)
        prompts = [rng.integers(0, 256, int(rng.integers(1, 50))).tolist() for _ in range(3)]
        plain, fast = llm.generate(prompts, params), drafted.generate(prompts, params)
        for one, other in zip(plain, fast, strict=True):
            assert one.completions == other.completions
            for each in one.completions:
                value = json.loads(each.text)
                assert set(value) == {"kind", "sizes"}
                assert 1 <= len(value["sizes"]) <= 3
        completions = [each for result in fast for each in result.completions]
        accepted += sum(origin.depth > 0 for each in completions for origin in each.origins)
    assert accepted > 0


def test_a_schema_is_a_dict_json_or_a_pydantic_model(llm: LLM, rng: np.random.Generator) -> None:
    given = (Shape, Shape.model_json_schema(), json.dumps(Shape.model_json_schema()))
    params = sampled(rng)
    texts = set()
    for schema in given:
        held = SamplingParams(max_tokens=300, seed=params.seed, logit_bias=COMPACT, schema=schema)
        assert held.schema == Shape.model_json_schema()
        texts.add(llm.chat([{"role": "user", "content": "?"}], held).text)
    [text] = texts
    Shape.model_validate_json(text)


def test_white_space_between_the_tokens_of_json_is_bounded(llm: LLM, seed: int) -> None:
    """With a bias that makes the model write white space wherever it may."""
    spaces = dict.fromkeys(COMPACT, 100.0)
    params = SamplingParams(max_tokens=480, seed=seed, logit_bias=spaces, schema=Shape)
    text = llm.generate("x", params)[0].text
    Shape.model_validate_json(text)
    assert len(text) > len(json.dumps(json.loads(text)))


def test_formats_and_minima_that_cannot_be_enforced_are_left_out(llm: LLM) -> None:
    class Named(pydantic.BaseModel):
        path: Path
        secret: pydantic.SecretStr
        number: Annotated[int, pydantic.Field(ge=-(2**63), le=2**63 - 1)]

    llm.generate("x", SamplingParams(max_tokens=1, schema=Named))  # nothing is refused
    held = prepared({"properties": {"format": {"enum": [{"format": "path"}], "format": "path"}}})
    assert held["properties"] == {"format": {"enum": [{"format": "path"}]}}
    dates = {"items": {"format": "date"}, "minimum": -(2**63), "default": {"format": "path"}}
    held = prepared({"anyOf": [dates, {"minimum": -5}]})
    kept = {"items": {"format": "date"}, "default": {"format": "path"}}
    assert held["anyOf"] == [kept, {"minimum": -5}]


def test_a_stream_and_asyncio_give_the_held_text(llm: LLM, rng: np.random.Generator) -> None:
    params = sampled(rng, pattern=r"[0-9]{3}-(a|bc){1,4}\.")
    [result] = llm.generate("x", params)
    assert re.fullmatch(r"[0-9]{3}-(a|bc){1,4}\.", result.text)
    assert "".join(llm.stream("x", params)) == result.text

    async def both() -> list[str]:
        async with AsyncLLM(llm) as model:
            whole = await model.generate("x", params)
            return [whole[0].text, "".join([piece async for piece in model.stream("x", params)])]

    assert asyncio.run(both()) == [result.text] * 2


NESTED: dict[str, Any] = {"type": "boolean"}
for _ in range(40):
    NESTED = {"type": "array", "items": NESTED}


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("schema", {"schema": {"type": "banana"}}),
        ("schema", {"schema": {"$ref": "https://example.org/schema"}}),
        ("schema", {"schema": NESTED}),
        ("schema", {"schema": {"enum": ["x" * 70_000]}}),
        ("schema", {"schema": {"type": "string", "pattern": "("}}),
        ("pattern", {"pattern": "("}),
        ("pattern", {"pattern": "(?=a)b"}),
        ("pattern", {"pattern": "a" * 65_537}),
    ],
)
def test_what_cannot_be_enforced_is_refused_in_one_line(
    llm: LLM, field: str, given: dict[str, Any]
) -> None:
    said = refused(FieldError, llm.generate, "x", SamplingParams(**given))
    assert said.startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("schema", {"schema": "{"}),
        ("schema", {"schema": "[]"}),
        ("schema", {"schema": 3}),
        ("schema", {"schema": object()}),
        ("schema", {"schema": {1j: 2}}),
        ("pattern", {"pattern": 3}),
        ("pattern", {"pattern": "a", "schema": {}}),
        ("ignore_eos", {"pattern": "a", "ignore_eos": True}),
    ],
)
def test_wrong_schemas_and_patterns_are_refused_at_once(field: str, given: dict[str, Any]) -> None:
    assert refused(FieldError, SamplingParams, **given).startswith(f"{field}: ")


def test_a_pydantic_model_without_a_schema_is_refused() -> None:
    odd = pydantic.create_model("Odd", call=(Callable[[int], int], ...))
    said = refused(FieldError, SamplingParams, schema=odd)
    assert said.startswith("schema: is not a JSON schema")


def test_the_error_without_llguidance_says_how_to_install_it(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llm.rules, "_grammars", None)
    monkeypatch.setitem(sys.modules, "llguidance", None)
    monkeypatch.delitem(sys.modules, "specqd.grammars", raising=False)
    said = refused(RequestError, llm.generate, "x", SamplingParams(pattern="a"))
    assert install_command("structured") in said


# --- On the command line --------------------------------------------------------------------------


def test_generate_and_chat_write_held_texts(
    chat_model: Path, llm: LLM, tmp_path: Path, run: Run
) -> None:
    path = tmp_path / "schema.json"
    schema = {"enum": ["left", "right"]}
    path.write_text(json.dumps(schema))
    greedy = ("--temperature", "0")
    params = SamplingParams(temperature=0, schema=schema)
    expected = llm.generate("ab", params)[0].text
    assert json.loads(expected) in ("left", "right")
    for given in (str(path), json.dumps(schema)):
        status, out, _ = run("generate", chat_model, "-p", "ab", "--schema", given, *greedy)
        assert (status, out) == (0, expected)
    chat = [{"role": "user", "content": "ab"}]
    ran = run_program("chat", chat_model, "ab", "--schema", path, *greedy)
    assert (ran.returncode, ran.stdout.decode()) == (0, llm.chat(chat, params).text + "\n")
    ran = run_program("chat", chat_model, "ab", "--pattern", "[ab]{7}", *greedy)
    assert re.fullmatch("[ab]{7}\n", ran.stdout.decode())


def test_a_conversation_changes_its_schema(chat_model: Path, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"enum": ["left", "right"]}')
    lines = b"/set schema s.json\nab\n/set schema -\n/set pattern [xy]{3}\nab\n"
    ran = run_program("chat", chat_model, "--temperature", "0", input=lines, cwd=tmp_path)
    assert re.fullmatch(r'"(left|right)"\n[xy]{3}\n', ran.stdout.decode())


@pytest.mark.parametrize(
    ("given", "status", "says"),
    [
        (("--schema", "/nowhere.json"), 2, "No such file"),
        (("--schema", "{"), 2, "is not JSON"),
        (("--schema", "/dev/null"), 2, "is not JSON"),
        (("--schema", '{"type": "banana"}'), 1, "schema: the schema cannot be enforced"),
        (("--pattern", "("), 1, "pattern: the pattern cannot be enforced"),
        (("--pattern", "a", "--schema", "{}"), 2, "cannot be combined"),
        (("--pattern", "a", "--ignore-eos"), 2, "cannot be combined"),
    ],
)
def test_the_command_line_refuses_them_in_one_line(
    chat_model: Path, run: Run, given: tuple[str, ...], status: int, says: str
) -> None:
    found, out, err = run("generate", chat_model, "-p", "x", *given)
    assert (found, out) == (status, "")
    assert says in err.splitlines()[-1]
    assert "Traceback" not in err
