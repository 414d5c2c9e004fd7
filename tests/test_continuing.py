"""Answers that continue a message, and middles that fill a gap, have the bits of plain prompts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specqd import LLM, SamplingParams
from specqd.errors import FieldError, RequestError
from specqd.text.infill import infill
from specqd.text.reasoning import answer_begun
from specqd.text.tokenizer import Tokenizer
from support.openai_client import CHAT, COMPLETIONS, MESSAGES
from support.random_models import write_tokenizer
from support.refusals import refused
from support.scripted_models import make_scripted_model
from support.served import Served, add_template, serving

MARKS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
SCRIPTS = {"A": " and so on.", "C": "".join(MARKS) + "the middle"}
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
ASKED = [{"role": "user", "content": "Say."}]
BEGUN = [*ASKED, {"role": "assistant", "content": "One A"}]
GREEDY = {"temperature": 0, "max_tokens": 50}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    directory = tmp_path_factory.mktemp("models") / "small"
    return make_scripted_model(directory, SCRIPTS, TEMPLATE, seed, MARKS)


@pytest.fixture(scope="module", params=["fp4:k=4", "none"])
def served(model: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    with serving(str(model), "--draft", request.param) as served:
        yield served


def choice_of(served: Served, path: str, body: dict[str, Any]) -> Any:
    reply = served.ask("POST", path, GREEDY | {"return_token_ids": True} | body)
    assert reply.status == 200, reply.content
    return reply.content["choices"][0]


def test_an_answer_continues_the_last_message(served: Served, model: Path) -> None:
    plain = choice_of(served, COMPLETIONS, {"prompt": "[user]Say.[assistant]One A"})
    assert plain["text"] == " and so on."
    for more in ({}, {"add_generation_prompt": False}):
        body = {"messages": BEGUN, "continue_final_message": True, **more}
        choice = choice_of(served, CHAT, body)
        assert choice["message"]["content"] == " and so on."
        assert choice["token_ids"] == plain["token_ids"]
    body = {"messages": BEGUN, **GREEDY}
    [block] = served.ask("POST", MESSAGES, body).content["content"]
    assert (block["type"], block["text"]) == ("text", " and so on.")
    llm = LLM(model, "none", threads=1)
    result = llm.chat(BEGUN, SamplingParams(50, temperature=0), continue_final_message=True)
    assert result.text == " and so on."
    assert result.tokens == plain["token_ids"]
    said = refused(FieldError, llm.chat, ASKED, continue_final_message=True)
    assert said.startswith("continue_final_message: ")


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("continue_final_message", {"messages": ASKED, "continue_final_message": True}),
        ("continue_final_message", {"messages": BEGUN[1:], "continue_final_message": True}),
        (
            "continue_final_message",
            {"messages": BEGUN, "continue_final_message": True, "add_generation_prompt": True},
        ),
        ("add_generation_prompt", {"messages": ASKED, "add_generation_prompt": False}),
    ],
)
def test_what_cannot_be_continued_is_refused(
    served: Served, field: str, body: dict[str, Any]
) -> None:
    reply = served.ask("POST", CHAT, body)
    assert (reply.status, reply.error["param"]) == (400, field)


def test_reasoning_that_the_template_begins_is_closed_before_the_answer(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, 320)
    template = "{{ '</think>' }}{% if add_generation_prompt %}<think>\n{% endif %}"
    tokenizer = Tokenizer.open(add_template(tmp_path, template))
    begun = answer_begun(tokenizer, "[assistant]<think>\n", "Yes")
    assert begun == "[assistant]<think>\n\n</think>\n\nYes"
    thought = "Hm.</think>Yes"  # the client's own reasoning
    assert answer_begun(tokenizer, "<think>\n", thought) == f"<think>\n{thought}"
    assert answer_begun(tokenizer, "[assistant]", "Yes") == "[assistant]Yes"


def test_a_middle_is_filled(served: Served, model: Path) -> None:
    tokenizer = Tokenizer.open(model)
    before, after = (tokenizer.encode(text, add_special_tokens=False) for text in ("ab", "cd"))
    begin, hole, end = (tokenizer.id_of(mark) for mark in MARKS)
    choice = choice_of(served, COMPLETIONS, {"prompt": "ab", "suffix": "cd"})
    assert choice["text"] == "the middle"
    assert choice["prompt_token_ids"] == [begin, *before, hole, *after, end]
    plain = choice_of(served, COMPLETIONS, {"prompt": choice["prompt_token_ids"]})
    assert choice["token_ids"] == plain["token_ids"]
    found = infill(tokenizer, "ab", "cd")
    assert found is not None
    assert set(found.stop_token_ids) == {begin, hole, end}


@pytest.mark.parametrize("body", [{"prompt": [1]}, {"prompt": "a", "echo": True}])
def test_a_suffix_needs_texts_without_an_echo(served: Served, body: dict[str, Any]) -> None:
    reply = served.ask("POST", COMPLETIONS, {"suffix": "x", **body})
    assert (reply.status, reply.error["param"]) == (400, "suffix")


def test_a_model_without_such_tokens_refuses_a_suffix(tmp_path: Path) -> None:
    from specqd.openai.requests import Prepared, completion_request

    write_tokenizer(tmp_path, 320)
    request = completion_request({"prompt": "a", "suffix": "b"})
    said = refused(RequestError, Prepared.of, request, Tokenizer.open(tmp_path))
    assert said.startswith("suffix: this model has no tokens")
