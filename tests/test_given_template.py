"""A chat template in a file replaces the model's own, in Python and in all commands that chat."""

from pathlib import Path

import pytest

from specqd import LLM, SamplingParams
from specqd.errors import FieldError, TokenizerError
from support.batches import answers_by_id, request
from support.command_line import Refuse, run_program
from support.openai_client import CHAT
from support.refusals import refused
from support.served import serving
from support.writers import write_lines

TEMPLATE = "{% for m in messages %}<{{ m.role }}> {{ m.content }}{% endfor %}<answer>"
GREEDY = ("--temperature", "0")
PARAMS = SamplingParams(max_tokens=20, temperature=0)
ASKED = [{"role": "user", "content": "ab"}]


@pytest.fixture
def template(tmp_path: Path) -> Path:
    path = tmp_path / "template.jinja"
    path.write_text(TEMPLATE)
    return path


@pytest.mark.parametrize("name", ["small_model", "chat_model"])
def test_chats_use_the_given_template(
    name: str, template: Path, request: pytest.FixtureRequest
) -> None:
    """Also with a model that has none."""
    model = request.getfixturevalue(name)
    llm = LLM(model, "none", threads=1, chat_template=template)
    ids = llm.tokenizer.encode("<user> ab<answer>", add_special_tokens=False)
    expected = llm.generate([ids], PARAMS)[0]
    assert llm.chat(ASKED, PARAMS).completions[0].tokens == expected.tokens
    options = ("--chat-template", template, "-n", "20", *GREEDY)
    ran = run_program("chat", model, "ab", *options)
    assert ran.stdout.decode(errors="replace").rstrip("\n") == expected.text.rstrip("\n")
    ran = run_program("generate", model, "--chat", "-p", "ab", *options)
    assert ran.stdout.decode(errors="replace") == expected.text
    with serving(str(model), "--chat-template", str(template)) as served:
        body = {"messages": ASKED, "temperature": 0, "max_tokens": 20, "return_token_ids": True}
        assert served.ask("POST", CHAT, body).content["choices"][0]["token_ids"] == expected.tokens


def test_batches_use_the_given_template_and_answers_of_another_are_refused(
    small_model: Path, template: Path, tmp_path: Path
) -> None:
    expected = LLM(small_model, "none", threads=1, chat_template=template).chat(ASKED, PARAMS)
    body = {"messages": ASKED, "temperature": 0, "max_tokens": 20}
    source = write_lines(tmp_path / "in.jsonl", [request("a", CHAT, **body)])
    command = ("batch", source, small_model, "-o", tmp_path / "out.jsonl", "--chat-template")
    assert run_program(*command, template).returncode == 0
    [answer] = answers_by_id(tmp_path / "out.jsonl").values()
    [choice] = answer["response"]["body"]["choices"]
    assert choice["message"]["content"] == expected.text
    assert b"answered already" in run_program(*command, template).stderr
    other = tmp_path / "other.jinja"
    other.write_text(TEMPLATE + "!")
    refusal = run_program(*command, other)
    assert (refusal.returncode, b"name another file" in refusal.stderr) == (1, True)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{% for %}", "fails"),
        (b"{% if %}" * 20_000, "is longer than"),
        (b"{% for i in range(10**9) %}{% endfor %}", "fails"),
        (
            b"{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
            "stopped",
        ),
        (b"{{ ''.__class__.__mro__[1].__subclasses__() }}", "fails"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_a_hostile_template_is_refused_in_one_line_before_the_weights_are_read(
    small_model: Path, template: Path, content: bytes, says: str
) -> None:
    template.write_bytes(content)
    said = refused(TokenizerError, LLM, small_model, chat_template=template)
    assert str(template) in said
    assert says in said


def test_a_template_that_rejects_some_chats_is_used_for_others(
    small_model: Path, template: Path
) -> None:
    template.write_text("{% if messages | length < 2 %}{{ raise_exception('no') }}{% endif %}ab")
    llm = LLM(small_model, "none", threads=1, chat_template=template)
    assert len(llm.chat(ASKED * 2, PARAMS).prompt_tokens) == 2


def test_a_missing_file_is_named(small_model: Path, refuse: Refuse, tmp_path: Path) -> None:
    said = refused(TokenizerError, LLM, small_model, chat_template=tmp_path / "x.jinja")
    assert said == f"{tmp_path / 'x.jinja'}: not found; name a file with a chat template"
    assert refused(FieldError, LLM, small_model, chat_template=3).startswith("chat_template: ")
    (tmp_path / "bad.jinja").write_text("{% for %}")
    said = refuse(
        "generate", small_model, "--chat", "-p", "x", "--chat-template", tmp_path / "bad.jinja"
    )
    assert "bad.jinja: the chat template fails" in said
