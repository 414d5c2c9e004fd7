"""Reasoning before an answer: found by the template's marks, kept apart, limited, switched off."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specqd import LLM, SamplingParams
from specqd.engine.thinking import Thinking, ThinkingGrammar
from specqd.text.reasoning import Reasoning, ThoughtReader, reasoning_of, switched
from specqd.text.tokenizer import Tokenizer
from support.command_line import run_program
from support.openai_client import CHAT, MESSAGES, NO_WHITE_SPACE, RESPONSES
from support.random_models import write_tokenizer
from support.scripted_models import make_scripted_model
from support.served import Served, add_template, serving

MARKS = ("<think>", "</think>")
SCRIPTS = {"A": "<think>Let me see, it is four.\n</think>\n\nFour."}
# The script's letter comes before the marks, and the last mark selects the rest of the script.
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ (m.content or '').split('</think>') | last }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]A"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>"
    "{% elif opens %}<think>{% endif %}{% endif %}"
)
ASKED = [{"role": "user", "content": "2 + 2?"}]
THOUGHT, ANSWER = "Let me see, it is four.", "Four."


@pytest.mark.parametrize(
    ("text", "is_open", "answer", "thought"),
    [
        ("<think>\nHm < so.\n</think>\n\nYes </b>.", False, "Yes </b>.", "Hm < so."),
        ("\n <think> a\n\n b </think>c", False, "c", "a\n\n b"),
        ("Hm.</think> Yes.\n", True, "Yes.\n", "Hm."),
        ("<think></think>Yes.", False, "Yes.", ""),
        (" Yes <think>no</think>", False, " Yes <think>no</think>", ""),
        ("<thin", False, "<thin", ""),
        ("<think>cut </thin", False, "", "cut </thin"),
        ("cut", True, "", "cut"),
    ],
)
def test_a_text_is_split_wherever_it_is_cut(
    text: str, is_open: bool, answer: str, thought: str, rng: np.random.Generator
) -> None:
    for _ in range(20):
        reader, answers, thoughts = ThoughtReader(*MARKS, is_open=is_open), "", ""
        cuts = sorted(rng.integers(0, len(text) + 1, int(rng.integers(0, 8))).tolist())
        for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            more = reader.split(text[begin:end], is_last=False)
            answers, thoughts = answers + more[0], thoughts + more[1]
        more = reader.split("", is_last=True)
        assert (answers + more[0], thoughts + more[1]) == (answer, thought)


@pytest.mark.parametrize(
    ("template", "marks"),
    [
        ("{{ m.content.split('</think>')[-1] }}", MARKS),
        ("{{ '</seed:think>' }}", ("<seed:think>", "</seed:think>")),
        ("{{ '[/THINK]' }}", ("[THINK]", "[/THINK]")),
        ("{{ '<channel|>' }}", ("<|channel>thought", "<channel|>")),
        ("{{ 'think' }}", None),
        ("{{ '</thin' }}", None),
    ],
)
def test_the_marks_are_those_of_the_template(
    tmp_path: Path, template: str, marks: tuple[str, str] | None
) -> None:
    write_tokenizer(tmp_path, 320)
    tokenizer = Tokenizer.open(add_template(tmp_path, template))
    if marks is None:
        assert reasoning_of(tokenizer, tokenizer.encode("<think>")) is None
        return
    opener, closer = marks
    for end, expected in (
        ("x", Reasoning(marks)),
        (f"{opener}\n", Reasoning(marks, is_open=True)),
        (f"{opener}\n\n{closer}\n\n", Reasoning(marks, is_off=True)),
    ):
        assert reasoning_of(tokenizer, tokenizer.encode(f"Hello {end}")) == expected


def test_a_template_that_begins_the_reasoning_need_not_end_it(tmp_path: Path) -> None:
    """Olmo 3's does not."""
    write_tokenizer(tmp_path, 320)
    tokenizer = Tokenizer.open(add_template(tmp_path, "{{ '[assistant]<think>' }}"))
    found = reasoning_of(tokenizer, tokenizer.encode("Hello<think>"))
    assert found == Reasoning(MARKS, is_open=True)
    assert reasoning_of(tokenizer, tokenizer.encode("Hello")) is None


@pytest.mark.parametrize(
    ("template", "switches"),
    [
        ("{% if enable_thinking %}a{% endif %}", ["enable_thinking"]),
        ("{%- if not thinking is defined %}a{% endif %}", ["thinking"]),
        ("{{ m.thinking }}{{ m['thinking'] }}{{ 'thinking' in m }} thinking", []),
    ],
)
def test_a_switch_is_a_variable_of_the_template(
    tmp_path: Path, template: str, switches: list[str]
) -> None:
    write_tokenizer(tmp_path, 320)
    tokenizer = Tokenizer.open(add_template(tmp_path, template))
    assert switched(tokenizer, False) == dict.fromkeys(switches, False)


# --- The grammar ----------------------------------------------------------------------------------

OPENER, CLOSER, EOS, VOCABULARY = 5, 6, 0, 40


class Counted:
    """A grammar that allows the tokens 10, 11, 12, ... in this order."""

    def __init__(self) -> None:
        self.next = 10

    def accept(self, token: int) -> None:
        assert token == self.next
        self.next += 1

    def masks(self, proposal: Any) -> np.ndarray[Any, Any]:
        rows = np.zeros((len(proposal) + 1, 2), np.uint32)
        for i in range(len(proposal) + 1):
            token = self.next + i
            rows[i, token // 32] = 1 << token % 32
        return rows


def allowed(mask: Any) -> list[int]:
    return [i for i in range(VOCABULARY) if mask[i // 32] >> (i % 32) & 1]


def spelling(token: int) -> str:
    """The closing mark is one token, or several."""
    return {CLOSER: "</think>", 7: "</", 8: "think", 9: ".</th", 10: "ink>"}.get(token, "?")


def of_budget(
    budget: int | None,
    *,
    is_open: bool,
    has_answer: bool = True,
    closing: tuple[int, ...] = (CLOSER,),
) -> ThinkingGrammar:
    opener = None if is_open else OPENER
    thinking = Thinking(opener, "</think>", closing, is_open, spelling, budget)
    return ThinkingGrammar(Counted() if has_answer else None, thinking, VOCABULARY, [EOS])


def test_the_answers_grammar_begins_after_the_reasoning() -> None:
    every, text = list(range(VOCABULARY)), [OPENER, 30, 31, CLOSER, 10, 11]
    thoughts = every[1:]  # no end before the answer
    rows = [[OPENER, 10], thoughts, thoughts, thoughts, [10], [11], [12]]
    assert [allowed(m) for m in of_budget(None, is_open=False).masks(text)] == rows
    assert [allowed(m) for m in of_budget(None, is_open=True).masks(text[1:])] == rows[1:]
    assert [allowed(m) for m in of_budget(None, is_open=False).masks([10])] == [[5, 10], [11]]
    free = of_budget(None, is_open=True, has_answer=False).masks(text[1:])
    assert [allowed(m) for m in free] == [every] * 6


def test_the_budget_forces_the_closing_mark() -> None:
    forced = of_budget(2, is_open=False, has_answer=False).masks([OPENER, 30, 31, CLOSER, 7])
    assert [len(allowed(m)) for m in forced] == [VOCABULARY] * 3 + [1] + [VOCABULARY] * 2
    assert allowed(forced[3]) == [CLOSER]
    assert allowed(of_budget(0, is_open=True).masks([])[0]) == [CLOSER]


def test_the_budget_forces_a_closing_mark_of_several_tokens() -> None:
    closing = (9, 10)
    thinking = of_budget(1, is_open=True, closing=closing)
    masks = thinking.masks([30, *closing, 10])
    assert [allowed(m) for m in masks[1:]] == [[9], [10], [10], [11]]
    for token in (30, *closing):
        thinking.accept(token)
    assert allowed(thinking.masks([])[0]) == [10]


def test_the_reasoning_ends_however_the_closing_mark_is_spelled() -> None:
    for closing in ((CLOSER,), (9, 10)):
        thinking = of_budget(None, is_open=True, closing=(7, 8, 20))
        masks = thinking.masks([30, *closing, 10])
        assert [allowed(m) for m in masks[-2:]] == [[10], [11]]


def test_each_mask_of_a_proposal_is_that_of_its_prefix(rng: np.random.Generator) -> None:
    for _ in range(50):
        is_open, budget = bool(rng.random() < 0.5), int(rng.integers(0, 6))
        looking, plain = (of_budget(budget, is_open=is_open) for _ in range(2))
        text: list[int] = [] if is_open else [OPENER]
        thoughts = rng.integers(20, 30, int(rng.integers(0, budget + 1))).tolist()
        text += [*thoughts, CLOSER, 10, 11, 12]
        at = 0
        while at < len(text):
            proposal = text[at : at + int(rng.integers(1, 6))]
            looking.masks([*proposal[:1], CLOSER, 10])  # leaves no trace
            masks = looking.masks(proposal)
            for mask, token in zip(masks, proposal, strict=False):
                assert np.array_equal(mask, plain.masks([])[0])
                plain.accept(token)
                looking.accept(token)
            at += len(proposal)


# --- Answers --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    directory = tmp_path_factory.mktemp("models") / "small"
    return make_scripted_model(directory, SCRIPTS, TEMPLATE, seed, MARKS)


@pytest.fixture(scope="module", params=["fp4:k=4", "none"])
def served(model: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    pytest.importorskip("llguidance", reason="needs specqd[structured]")
    with serving(str(model), "--draft", request.param) as served:
        yield served


def ask(served: Served, **fields: Any) -> tuple[str, str]:
    """Returns the reasoning and the content. Those of a stream must be equal."""
    body = {"messages": ASKED, "temperature": 0, "max_tokens": 200} | fields
    reply = served.ask("POST", CHAT, body)
    assert reply.status == 200, reply.content
    message = reply.content["choices"][0]["message"]
    whole = {"reasoning_content": "", "content": ""}
    for chunk in served.ask("POST", CHAT, body | {"stream": True}).chunks:
        for choice in chunk["choices"]:
            for name in whole:
                whole[name] += choice["delta"].get(name) or ""
    found = message.get("reasoning_content", ""), message["content"]
    assert found == (whole["reasoning_content"], whole["content"])
    return found


def test_a_chat_has_the_reasoning_in_a_field_of_its_own(served: Served) -> None:
    assert ask(served) == (THOUGHT, ANSWER)
    assert ask(served, chat_template_kwargs={"opens": True}) == (THOUGHT, ANSWER)
    assert ask(served, max_tokens=3)[1] == ""


def test_effort_none_switches_the_reasoning_off(served: Served) -> None:
    assert ask(served, reasoning_effort="none") == ("", ANSWER)
    assert ask(served, reasoning_effort="high") == (THOUGHT, ANSWER)


@pytest.mark.parametrize("opens", [False, True])
def test_a_budget_ends_the_reasoning(served: Served, opens: bool) -> None:
    thoughts = []
    for budget in (0, 1, 3, 100):
        fields = {"thinking_token_budget": budget, "chat_template_kwargs": {"opens": opens}}
        thought, answer = ask(served, **fields)
        assert answer == ANSWER
        assert THOUGHT.startswith(thought)
        thoughts.append(len(thought))
    assert thoughts == sorted(thoughts)
    assert (thoughts[0], thoughts[-1]) == (0, len(THOUGHT))
    assert 0 < thoughts[1] < thoughts[2] < len(THOUGHT)


def test_a_schema_holds_the_answer_after_the_reasoning(served: Served) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["l", "r"]}}}
    fields = {"response_format": schema, "logit_bias": NO_WHITE_SPACE}
    for opens in (False, True):
        thought, answer = ask(served, **fields, chat_template_kwargs={"opens": opens})
        assert thought == THOUGHT
        assert json.loads(answer) in ("l", "r")
    thought, answer = ask(served, **fields, reasoning_effort="none")
    assert (thought, json.loads(answer) in ("l", "r")) == ("", True)


def test_anthropics_answers_have_thinking_blocks(served: Served) -> None:
    def blocks(**fields: Any) -> list[tuple[str, str]]:
        body = {"messages": ASKED, "max_tokens": 200, "temperature": 0} | fields
        content = served.ask("POST", MESSAGES, body).content["content"]
        return [(block["type"], block[block["type"]]) for block in content]

    assert blocks() == [("thinking", THOUGHT), ("text", ANSWER)]
    assert blocks(thinking={"type": "disabled"}) == [("text", ANSWER)]
    [(_, thought), answer] = blocks(thinking={"type": "enabled", "budget_tokens": 2})
    assert THOUGHT.startswith(thought)
    assert thought != THOUGHT
    assert answer == ("text", ANSWER)


def test_responses_have_reasoning_items(served: Served) -> None:
    body = {"input": "2 + 2?", "temperature": 0, "max_output_tokens": 200}
    reasoning, message = served.ask("POST", RESPONSES, body).content["output"]
    assert reasoning["content"][0]["text"] == THOUGHT
    assert message["content"][0]["text"] == ANSWER


def test_a_budget_in_python_has_the_same_bits_with_and_without_drafts(model: Path) -> None:
    drafted = LLM(model, "fp4:k=4", threads=1)
    params = SamplingParams(max_tokens=200, temperature=0, seed=1, thinking_token_budget=2)
    fast = drafted.chat(ASKED, params)
    assert fast.text.endswith(ANSWER)
    assert len(fast.text) < len(SCRIPTS["A"])
    plain = drafted.with_draft("none").chat(ASKED, params)
    assert plain.completions == fast.completions


def test_a_budget_ends_reasoning_whose_marks_are_no_tokens(tmp_path: Path, seed: int) -> None:
    pytest.importorskip("llguidance", reason="needs specqd[structured]")
    # The last character of each mark, which is a token when the mark is forced, begins the script.
    script = SCRIPTS["A"].removeprefix("<think>")
    llm = LLM(make_scripted_model(tmp_path / "small", {">": script}, TEMPLATE, seed), threads=1)
    for budget, answer in ((2, script), (200, ANSWER)):
        params = SamplingParams(max_tokens=200, temperature=0, thinking_token_budget=budget)
        result = llm.chat(ASKED, params, opens=True)
        assert result.reply is not None
        assert result.reply.content == answer
        thought = result.reply.reasoning or ""
        assert THOUGHT.startswith(thought)
        assert (thought == THOUGHT) == (budget == 200)
        assert llm.with_draft(None).chat(ASKED, params, opens=True).tokens == result.tokens


def test_a_conversation_shows_and_keeps_the_answer_alone(model: Path) -> None:
    ran = run_program("chat", model, "--temperature", "0", input=b"hi\nho\n")
    assert (ran.returncode, ran.stdout) == (0, f"{ANSWER}\n".encode() * 2)
    ran = run_program("generate", model, "--chat", "-p", "hi", "--temperature", "0")
    assert (ran.returncode, ran.stdout) == (0, f"{ANSWER}\n".encode())
    budget = ("--thinking-token-budget", "1", "--temperature", "0")
    assert run_program("chat", model, "hi", *budget).stdout == f"{ANSWER}\n".encode()
    ran = run_program("chat", model, "hi", "--no-think", "--temperature", "0")
    assert ran.stdout == f"{ANSWER}\n".encode()
