"""The server with OpenAI's own client: answers equal those of the Python API."""

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specqd import LLM, SamplingParams
from specqd.engine.generation import TokenLogprob
from specqd.llm import Completion
from support.batches import answered, line
from support.fixtures import a_server
from support.openai_client import CHAT, COMPLETIONS, client_of
from support.served import Served, serving

openai = pytest.importorskip("openai", reason="needs OpenAI's client")

MODEL = "small"
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
]
PLAIN_MESSAGES = [MESSAGES[0], {"role": "user", "content": "Hello"}]


served = a_server("chat_model", "--max-batch", "8")


def test_context_shortens_the_context(chat_model: Path) -> None:
    with serving(str(chat_model), "--context", "100", "--draft", "none") as served:
        [model] = served.ask("GET", "/v1/models").content["data"]
        assert model["max_model_len"] == 100
        reply = served.ask("POST", COMPLETIONS, {"prompt": [1] * 100})
        assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")


def test_a_request_for_more_tokens_than_fit_gets_those_that_do(chat_model: Path) -> None:
    """Here the cache is smaller than the context. The Python API has the same rule."""
    with serving(str(chat_model), "--cache-positions", "256", "--draft", "none") as served:
        [model] = served.ask("GET", "/v1/models").content["data"]
        assert model["max_model_len"] == 128
        assert served.ask("GET", "/page/facts").content["max_context"] == 128
        open_ended = [
            (COMPLETIONS, {"prompt": [1] * 120}),  # OpenAI's default: 16 new ones
            (CHAT, {"messages": [{"role": "user", "content": "x" * 80}]}),
        ]
        for path, body in open_ended:
            answer = served.ask("POST", path, body | {"ignore_eos": True}).content
            assert answer["usage"]["total_tokens"] == 128
            assert answer["choices"][0]["finish_reason"] == "length"
            bounded = body | {"max_tokens": 100_000, "ignore_eos": True}
            bounded_answer = served.ask("POST", path, bounded).content
            assert bounded_answer["usage"]["total_tokens"] == 128
            assert bounded_answer["choices"][0]["finish_reason"] == "length"
        reply = served.ask("POST", COMPLETIONS, {"prompt": [1] * 128})
        assert reply.error["code"] == "context_length_exceeded"
        assert "shorten the prompt" in reply.error["message"]
    with LLM(chat_model, "none", cache_positions=256) as llm:
        params = SamplingParams(max_tokens=100_000, ignore_eos=True)
        [completion] = llm.generate([[1] * 120], params)[0].completions
        assert (len(completion.tokens), completion.finish_reason) == (8, "length")


def logprobs_of(choice: Any) -> list[tuple[float, dict[str, float]]]:
    logprobs = choice.logprobs
    return list(zip(logprobs.token_logprobs, logprobs.top_logprobs, strict=True))


def check_logprobs(choice: Any, expected: list[TokenLogprob] | None) -> None:
    """Compares all bits: a float survives JSON."""
    assert expected is not None
    for (logprob, top), each in zip(logprobs_of(choice), expected, strict=True):
        assert logprob == each.logprob
        assert sorted(top.values()) == sorted({each.logprob, *(p for _, p in each.top)})


def check_equal(choice: Any, completion: Completion) -> None:
    assert choice.text == completion.text
    assert choice.token_ids == completion.tokens
    assert choice.finish_reason == completion.finish_reason


def request_of(rng: np.random.Generator) -> dict[str, Any]:
    request: dict[str, Any] = {
        "prompt": rng.integers(0, 256, int(rng.choice([1, 30, 65, 300]))).tolist(),
        "max_tokens": int(rng.integers(1, 80)),
        "temperature": float(rng.choice([0.0, 0.9])),
        "seed": int(rng.integers(1 << 40)),
        "n": int(rng.choice([1, 1, 2])),
        "stop": [chr(int(rng.integers(97, 123)))] if rng.random() < 0.3 else [],
        "presence_penalty": float(rng.choice([0.0, 1.0])),
        "frequency_penalty": float(rng.choice([0.0, -0.5])),
        "logit_bias": {str(rng.integers(256)): 5.0} if rng.random() < 0.3 else {},
        "top_p": float(rng.choice([1.0, 0.9])),
        "logprobs": 2,
    }
    extra = {
        "min_p": float(rng.choice([0.0, 0.05])),
        "top_k": int(rng.choice([-1, 40])),
        "repetition_penalty": float(rng.choice([1.0, 1.2])),
        "ignore_eos": bool(rng.random() < 0.5),
    }
    return request | {"extra_body": extra}


def params_of(request: dict[str, Any]) -> SamplingParams:
    fields = {**request, **request["extra_body"]}
    del fields["prompt"], fields["extra_body"]
    fields["top_k"] = max(fields["top_k"], 0)
    fields["logit_bias"] = {int(token): bias for token, bias in fields["logit_bias"].items()}
    return SamplingParams(**fields)


@pytest.mark.parametrize("draft", ["none", "fp4", "auto"])
def test_concurrent_requests_equal_the_python_api_alone_in_all_bits(
    chat_model: Path, llm: LLM, rng: np.random.Generator, draft: str
) -> None:
    requests = [request_of(rng) for _ in range(24)]
    leaves = rng.random(len(requests)) < 0.2

    with serving(str(chat_model), "--draft", draft, "--max-batch", "8") as served:
        client = client_of(served)

        def ask(i: int) -> Any:
            if leaves[i]:
                with client.completions.create(
                    model=MODEL, stream=True, **requests[i] | {"max_tokens": 150}
                ) as stream:
                    return next(iter(stream), None) and None
            asked = requests[i] | {
                "extra_body": requests[i]["extra_body"] | {"return_token_ids": True}
            }
            return client.completions.create(model=MODEL, **asked)

        with ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(ask, range(len(requests))))

    for request, answer in zip(requests, answers, strict=True):
        if answer is None:
            continue
        expected = llm.generate([request["prompt"]], params_of(request))[0].completions
        for choice, completion in zip(answer.choices, expected, strict=True):
            check_equal(choice, completion)
            check_logprobs(choice, completion.logprobs)
        assert answer.usage.prompt_tokens == len(request["prompt"])
        assert answer.usage.completion_tokens == sum(len(each.tokens) for each in expected)


def test_streamed_pieces_join_to_the_whole_answer(client: Any, rng: np.random.Generator) -> None:
    request = request_of(rng) | {"n": 2}
    whole = client.completions.create(model=MODEL, **request)
    options = {"include_usage": True}
    texts, reasons, usage = ["", ""], [None, None], None
    logprobs: list[list[Any]] = [[], []]
    for chunk in client.completions.create(
        model=MODEL, stream=True, stream_options=options, **request
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason
            logprobs[choice.index] += logprobs_of(choice)
        usage = chunk.usage
    assert texts == [choice.text for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert logprobs == [logprobs_of(choice) for choice in whole.choices]
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert usage.total_tokens == whole.usage.total_tokens


def test_choices_are_in_the_order_of_the_prompts(client: Any, llm: LLM) -> None:
    answer = client.completions.create(
        model=MODEL, prompt=["one", "two"], n=2, max_tokens=8, seed=5, temperature=1.0
    )
    params = SamplingParams(n=2, max_tokens=8, seed=5, temperature=1.0)
    expected = [
        c.text for result in llm.generate(["one", "two"], params) for c in result.completions
    ]
    assert [choice.text for choice in answer.choices] == expected
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]


@pytest.mark.parametrize("is_stream", [False, True])
def test_echo_repeats_the_prompt_before_the_completion(
    client: Any, llm: LLM, is_stream: bool
) -> None:
    request = {"model": MODEL, "prompt": "one", "max_tokens": 8, "temperature": 0, "echo": True}
    answer = client.completions.create(stream=is_stream, **request)
    pieces = (chunk.choices[0].text for chunk in (answer if is_stream else [answer]))
    text = llm.generate("one", SamplingParams(max_tokens=8, temperature=0))[0].text
    assert "".join(pieces) == "one" + text


def test_completions_have_16_tokens_by_default(client: Any) -> None:
    answer = client.completions.create(model=MODEL, prompt="one", extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 16
    assert answer.choices[0].finish_reason == "length"


def test_a_chat_equals_the_python_api(client: Any, llm: LLM) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_completion_tokens=20,
        temperature=0.8,
        seed=3,
        logprobs=True,
        top_logprobs=3,
    )
    params = SamplingParams(max_tokens=20, temperature=0.8, seed=3, logprobs=3)
    expected = llm.chat(PLAIN_MESSAGES, params).completions[0]
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    assert choice.message.content == expected.text
    assert choice.finish_reason == expected.finish_reason
    assert expected.logprobs is not None
    for entry, each in zip(choice.logprobs.content, expected.logprobs, strict=True):
        assert entry.logprob == each.logprob
        assert [top.logprob for top in entry.top_logprobs] == [logprob for _, logprob in each.top]
        assert not entry.token.startswith("bytes:") or len(entry.bytes) > 0
    text = b"".join(bytes(entry.bytes) for entry in choice.logprobs.content)
    assert text.decode(errors="replace") == expected.text


def test_a_streamed_chat_joins_to_the_whole_one(client: Any) -> None:
    request = {"model": MODEL, "messages": MESSAGES, "max_tokens": 30, "temperature": 0, "n": 2}
    whole = client.chat.completions.create(**request)
    chunks = list(client.chat.completions.create(stream=True, **request))
    for index in (0, 1):
        deltas = [c.choices[0].delta for c in chunks if c.choices[0].index == index]
        assert deltas[0].role == "assistant"
        text = "".join(delta.content or "" for delta in deltas)
        assert text == whole.choices[index].message.content
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_batch_file_has_the_same_answers(
    served: Served, llm: LLM, rng: np.random.Generator, tmp_path: Path
) -> None:
    bodies: list[dict[str, Any]] = []
    for i in range(6):
        body = request_of(rng)
        bodies.append(body | body.pop("extra_body") | {"return_token_ids": bool(i % 2)})
    bodies += [{"prompt": "a", "echo": True, "seed": 1}, {"prompt": [-1]}]
    chat = {"messages": MESSAGES, "max_tokens": 9, "seed": 3, "logprobs": True, "top_logprobs": 2}
    lines = [line(str(i), COMPLETIONS, body) for i, body in enumerate(bodies)]
    lines.append(line(str(len(lines)), CHAT, chat))
    for answer in answered(llm, tmp_path, lines):
        asked = lines[int(answer["custom_id"])]
        reply = served.ask("POST", asked["url"], asked["body"])
        given = answer["response"]
        assert reply.status == given["status_code"]
        for name in ("choices", "object", "model", "error"):
            assert reply.content.get(name) == given["body"].get(name), name


def test_models_and_health_are_served(client: Any, served: Served) -> None:
    [model] = client.models.list().data
    assert model.id == MODEL
    assert client.models.retrieve(MODEL).id == MODEL
    assert served.ask("GET", "/health").status == 200


def test_tokenize_and_detokenize_use_the_models_tokenizer(served: Served, llm: LLM) -> None:
    ids = served.ask("POST", "/tokenize", {"prompt": "Hello é"}).content["tokens"]
    assert ids == llm.encode("Hello é")
    assert served.ask("POST", "/detokenize", {"tokens": ids}).content == {"prompt": "Hello é"}
    chat = served.ask("POST", "/tokenize", {"messages": PLAIN_MESSAGES}).content
    assert chat["tokens"] == llm.tokenizer.chat(PLAIN_MESSAGES)
    assert chat["count"] == len(chat["tokens"])


def test_openais_client_raises_its_own_error_types(client: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="there is no model of that name") as missing:
        client.completions.create(model="other", prompt="x")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="temperature") as wrong:
        client.completions.create(model=MODEL, prompt="x", temperature=1000)
    assert (wrong.value.type, wrong.value.param) == ("invalid_request_error", "temperature")
    with pytest.raises(openai.BadRequestError, match="this field is not known") as unknown:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body={"beam": 3})
    assert unknown.value.param == "beam"
    with pytest.raises(
        openai.BadRequestError,
        match=r"prompt is too long: with 512 tokens .* as the context has 512; shorten the prompt",
    ) as long:
        client.completions.create(model=MODEL, prompt=[1] * 512)
    assert long.value.code == "context_length_exceeded"


@pytest.mark.parametrize("host", ["127.0.0.1", "::"])
def test_accepted_connections_have_tcp_nodelay(host: str) -> None:
    pytest.importorskip("uvicorn", reason="needs specqd[serve]")
    from specqd.server.listening import listen

    with listen(host, 0) as listening:
        address = ("127.0.0.1", listening.getsockname()[1])
        with socket.create_connection(address), listening.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
