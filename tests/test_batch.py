"""Batch files: answers equal those of single requests, and files stay complete."""

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from specqd import LLM, SamplingParams
from specqd.errors import RequestError
from specqd.extras import install_command
from specqd.openai.batch import answer_batch, open_answers, read_batch
from support.batches import TEMPLATE, answer_file, answers_by_id, random_requests, request
from support.faults import PANIC_TEXT, add_panics
from support.fixtures import a_model, an_llm
from support.openai_client import NO_WHITE_SPACE
from support.random_models import Shape, make_model
from support.refusals import refused
from support.writers import write_lines as write

model = a_model(Shape(is_peaked=True, context=256), TEMPLATE)
llm = an_llm("model")


def test_answers_are_those_of_each_request_alone(tmp_path: Path, llm: LLM, seed: int) -> None:
    lines = random_requests(random.Random(seed), 40)
    out = tmp_path / "out.jsonl"
    answer_file(llm, write(tmp_path / "in.jsonl", lines), out)
    answers = answers_by_id(out)
    assert set(answers) == {each["custom_id"] for each in lines}
    for each in lines:
        asked, got = each["body"], answers[each["custom_id"]]["response"]["body"]
        names = ("max_tokens", "temperature", "seed", "n")
        params = SamplingParams(**{name: asked[name] for name in names if name in asked})
        is_chat = "messages" in asked
        one = llm.chat(asked["messages"], params) if is_chat else None
        expected = one or llm.generate(asked["prompt"], params)[0]
        texts = [c["message"]["content"] if is_chat else c["text"] for c in got["choices"]]
        assert texts == [completion.text for completion in expected.completions]
        reasons = [completion.finish_reason for completion in expected.completions]
        assert [choice["finish_reason"] for choice in got["choices"]] == reasons
        made = sum(len(completion.tokens) for completion in expected.completions)
        read_tokens = len(expected.prompt_tokens)
        assert got["usage"] == {
            "prompt_tokens": read_tokens,
            "completion_tokens": made,
            "total_tokens": read_tokens + made,
        }


def test_a_response_is_the_answer_of_its_chat(tmp_path: Path, llm: LLM) -> None:
    shared = {"temperature": 0.9, "seed": 7}
    messages = [{"role": "system", "content": "xy"}, {"role": "user", "content": "ab"}]
    source = write(
        tmp_path / "in.jsonl",
        [
            request("chat", "/v1/chat/completions", messages=messages, max_tokens=6, **shared),
            request(
                *("response", "/v1/responses"),
                **{"instructions": "xy", "input": "ab", "max_output_tokens": 6, **shared},
            ),
            request("too long", "/v1/responses", input="ab" * 200),
        ],
    )
    out = tmp_path / "out.jsonl"
    assert answer_file(llm, source, out) == 1
    answers = {name: each["response"] for name, each in answers_by_id(out).items()}
    chat, response = (answers[name]["body"] for name in ("chat", "response"))
    key = answers["response"]["request_id"].removeprefix("req_")
    assert (response["object"], response["id"]) == ("response", f"resp_{key}")
    assert (response["model"], response["created_at"]) == ("small", int(source.stat().st_mtime))
    [item] = response["output"]
    assert item["content"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert response["usage"]["output_tokens"] == chat["usage"]["completion_tokens"]
    assert (response["instructions"], response["seed"]) == ("xy", 7)
    assert "metrics" not in response  # it would differ between runs
    assert answers["too long"]["status_code"] == 400


def test_output_lines_have_openais_fields(tmp_path: Path, llm: LLM) -> None:
    chat = request("b", "/v1/chat/completions", messages=[{"role": "user", "content": "x"}])
    chat["body"] |= {"max_tokens": 3, "logprobs": True, "top_logprobs": 2, "seed": 6}
    out = tmp_path / "out.jsonl"
    source = write(tmp_path / "in.jsonl", [request("a", logprobs=2, seed=5, temperature=0.7), chat])
    answer_file(llm, source, out)
    answers = answers_by_id(out)
    for answer in answers.values():
        assert set(answer) == {"id", "custom_id", "response", "error"}
        assert answer["error"] is None
        assert set(answer["response"]) == {"status_code", "request_id", "body"}
        assert answer["response"]["status_code"] == 200
        body = answer["response"]["body"]
        assert set(body) == {"id", "object", "created", "model", "choices", "usage"}
        assert (body["model"], body["created"]) == ("small", int(source.stat().st_mtime))
    text, chat_body = (answers[name]["response"]["body"] for name in "ab")
    assert (text["object"], chat_body["object"]) == ("text_completion", "chat.completion")
    logprobs = text["choices"][0]["logprobs"]
    assert {len(values) for values in logprobs.values()} == {4}
    assert text["choices"][0]["seed"] == 5
    content = chat_body["choices"][0]["logprobs"]["content"]
    assert len(content) == 3
    assert all(len(each["top_logprobs"]) == 2 for each in content)
    assert chat_body["choices"][0]["message"]["role"] == "assistant"


def test_a_line_without_a_seed_has_the_same_answer_in_each_run(tmp_path: Path, llm: LLM) -> None:
    source = write(
        tmp_path / "in.jsonl", [request("a", max_tokens=30, n=2), request("b", max_tokens=30)]
    )
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    answer_file(llm, source, first)
    answer_file(llm, source, second)
    answers = answers_by_id(first)
    assert answers == answers_by_id(second)
    bodies = [answers[name]["response"]["body"] for name in "ab"]
    seeds = [body["choices"][0]["seed"] for body in bodies]
    assert seeds[0] != seeds[1]
    assert all(1 << 40 < each < 1 << 53 for each in seeds), "not exact as doubles, or too few bits"


def test_texts_follow_a_schema(tmp_path: Path, llm: LLM) -> None:
    pytest.importorskip("llguidance", reason="needs specqd[serve]")
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "boolean"}}}
    bad = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "banana"}}}
    asked = {"max_tokens": 20, "response_format": form, "logit_bias": NO_WHITE_SPACE}
    out = tmp_path / "out.jsonl"
    lines = [
        request("a", **asked, n=2),
        request("b"),
        request("c", **asked | {"response_format": bad}),
    ]
    answer_file(llm, write(tmp_path / "in.jsonl", lines), out)
    answers = answers_by_id(out)
    choices = answers["a"]["response"]["body"]["choices"]
    assert all(isinstance(json.loads(choice["text"]), bool) for choice in choices)
    assert answers["b"]["response"]["status_code"] == 200
    error = answers["c"]["response"]["body"]["error"]
    assert (answers["c"]["response"]["status_code"], error["param"]) == (400, "response_format")


def test_batches_do_not_need_the_servers_packages(
    tmp_path: Path, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import sys; sys.modules |= dict.fromkeys(('fastapi', 'starlette', 'pydantic', "
        "'uvicorn', 'llguidance')); import specqd.openai.batch"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    monkeypatch.setitem(sys.modules, "llguidance", None)
    monkeypatch.delitem(sys.modules, "specqd.grammars", raising=False)
    monkeypatch.setattr(llm.rules, "_grammars", None)
    form = request("a", response_format={"type": "json_object"})
    with pytest.raises(RequestError, match=re.escape(install_command("structured"))):
        answer_file(llm, write(tmp_path / "in.jsonl", [form]), tmp_path / "out.jsonl")


def test_a_request_that_the_model_cannot_run_gets_an_error_as_answer(
    tmp_path: Path, llm: LLM
) -> None:
    out = tmp_path / "out.jsonl"
    lines = [request("long", prompt="a" * 300), request("id", prompt=[1, 999999]), request("good")]
    lines.append(request("half", prompt=["a", "a" * 300]))
    lines.append(request("more", max_tokens=256))
    answer_file(llm, write(tmp_path / "in.jsonl", lines), out)
    answers = answers_by_id(out)
    statuses = {name: each["response"]["status_code"] for name, each in answers.items()}
    assert statuses == {"long": 400, "id": 400, "half": 400, "more": 200, "good": 200}
    for name in ("long", "half"):
        error = answers[name]["response"]["body"]["error"]
        assert error["code"] == "context_length_exceeded"
    error = answers["long"]["response"]["body"]["error"]
    assert "context" in error["message"]
    assert error["type"] == "invalid_request_error"


def test_a_tokenizer_that_panics_fails_only_its_own_requests(tmp_path: Path, seed: int) -> None:
    llm = LLM(add_panics(make_model(tmp_path / "small", Shape(), seed)))
    [x] = llm.encode("x")
    requests = [
        request("encode", prompt=PANIC_TEXT),
        request("decode", ignore_eos=True, logit_bias={str(x): 100}),
        request("spell", prompt=[x], ignore_eos=True, echo=True, logprobs=0, max_tokens=1),
        request("works", prompt="a", ignore_eos=True, logit_bias={str(x): -100}),
    ]
    source = write(tmp_path / "in.jsonl", requests)
    assert answer_file(llm, source, tmp_path / "out.jsonl") == 3
    answers = answers_by_id(tmp_path / "out.jsonl")
    statuses = {name: answer["response"]["status_code"] for name, answer in answers.items()}
    assert statuses == {"encode": 400, "decode": 400, "spell": 400, "works": 200}
    for name in ("encode", "decode", "spell"):
        problem = answers[name]["response"]["body"]["error"]["message"]
        assert problem.startswith("the tokenizer cannot")


def test_a_lone_surrogate_gets_an_error_as_answer(tmp_path: Path, llm: LLM) -> None:
    half = "\ud83d"
    chat = {"messages": [{"role": "user", "content": half}]}
    requests = [
        request("salt", cache_salt=half),
        request("chat", "/v1/chat/completions", **chat),
        request("prompt", prompt=half),
        request(f"{half} in the id"),
    ]
    source, out = write(tmp_path / "in.jsonl", requests), tmp_path / "out.jsonl"
    assert answer_file(llm, source, out) == 3
    statuses = {name: each["response"]["status_code"] for name, each in answers_by_id(out).items()}
    assert statuses == {"salt": 400, "chat": 400, "prompt": 400, f"{half} in the id": 200}
    assert answer_file(llm, source, out) == 0  # all are answered


def test_chats_are_rejected_without_a_chat_template(tmp_path: Path, seed: int) -> None:
    bare = LLM(make_model(tmp_path / "bare", Shape(), seed))
    chat = request("b", "/v1/chat/completions", messages=[{"role": "user", "content": "x"}])
    batch = read_batch(write(tmp_path / "in.jsonl", [request("a"), chat]), "bare")
    with (
        open_answers(tmp_path / "out.jsonl", batch) as answers,
        pytest.raises(RequestError, match="no chat template"),
    ):
        answer_batch(bare, batch, answers, lambda done, total: None)


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (b"not json", "is not JSON"),
        (b"\xff{}", "is not JSON"),
        (b"[" * 100000, "is not JSON"),
        (b"3", "is not an object"),
        (json.dumps(request("a")).encode(), "custom_id: 'a' is used by line 1 too"),
        (json.dumps(request("")).encode(), "custom_id"),
        (json.dumps(request("b") | {"url": "/v1/embeddings"}).encode(), "url"),
        (json.dumps(request("b") | {"method": "GET"}).encode(), "method"),
        (json.dumps(request("b") | {"extra": 1}).encode(), "'extra'"),
        (json.dumps(request("b", suffix="x", echo=True)).encode(), "body.suffix"),
        (json.dumps(request("b", temperature="hot")).encode(), "body.temperature"),
        (json.dumps(request("b", stream=True)).encode(), "body.stream"),
        (json.dumps(request("b") | {"body": 3}).encode(), "body: 3"),
    ],
)
def test_a_bad_line_is_rejected_before_any_work(tmp_path: Path, bad: bytes, problem: str) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(json.dumps(request("a")).encode() + b"\n\n" + bad + b"\n")
    assert refused(RequestError, read_batch, source, "small").startswith(f"{source}:3: {problem}")


def test_a_line_cut_off_anywhere_is_written_again(tmp_path: Path, llm: LLM) -> None:
    source = write(
        tmp_path / "in.jsonl", [request("a", seed=1), request("b", seed=2, max_tokens=1)]
    )
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    answer_file(llm, source, whole)
    content = whole.read_bytes()
    first = content.index(b"\n") + 1
    for cut in [*range(40), *range(40, len(content), 97), first - 1, first, len(content) - 1]:
        out.write_bytes(content[:cut])
        answer_file(llm, source, out)
        assert answers_by_id(out) == answers_by_id(whole)
        assert out.read_bytes().startswith(content[: first * (cut >= first)])


@pytest.mark.parametrize(
    "content", [b"precious", b"precious\n", b'{"id": "batch', b'{"id": "batch_req_1"}\n', b"\0\n"]
)
def test_a_file_with_other_content_is_not_changed(tmp_path: Path, content: bytes) -> None:
    out = tmp_path / "out.jsonl"
    out.write_bytes(content)
    batch = read_batch(write(tmp_path / "in.jsonl", [request("a")]), "small")
    if b'{"id": "batch_req_'.startswith(content):
        with open_answers(out, batch) as answers:
            assert not answers.done
        return
    with pytest.raises(RequestError, match="name another file"), open_answers(out, batch):
        pass
    assert out.read_bytes() == content


def test_a_file_without_requests_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="has no request"):
        read_batch(write(tmp_path / "in.jsonl", []), "small")


def test_an_output_file_of_other_requests_or_another_model_is_rejected(
    tmp_path: Path, llm: LLM
) -> None:
    source, out = write(tmp_path / "in.jsonl", [request("a")]), tmp_path / "out.jsonl"
    answer_file(llm, source, out)
    others = [read_batch(source, "another")]
    others.append(read_batch(write(source, [request("a", max_tokens=5)]), "small"))
    others.append(read_batch(write(source, [request("b")]), "small"))
    for batch in others:
        with (
            pytest.raises(RequestError, match="answers a request 'a' that is not in"),
            open_answers(out, batch),
        ):
            pass


def test_only_one_process_writes_at_a_time(tmp_path: Path) -> None:
    batch = read_batch(write(tmp_path / "in.jsonl", [request("a")]), "small")
    with (
        open_answers(tmp_path / "out.jsonl", batch),
        pytest.raises(RequestError, match="another process"),
        open_answers(tmp_path / "out.jsonl", batch),
    ):
        pass
