"""Texts that continue others: the pieces are what the new tokens add to the text before."""

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specqd import LLM, SamplingParams
from specqd.cli.explain import explained
from specqd.llm.async_llm import AsyncLLM
from specqd.text.tokenizer import Tokenizer
from support.command_line import run_program
from support.openai_client import CHAT, COMPLETIONS, MESSAGES
from support.random_models import (
    Shape,
    bf16_bits,
    make_model,
    make_tensors,
    write_safetensors,
)
from support.served import Served, add_template, serving
from support.small_tokenizers import BUILT, CHARACTER_OF, byte_fallback_bpe

EURO = "€".encode()


def continued(
    tokenizer: Tokenizer, before: list[int], ids: list[int], *, skips: bool = True
) -> list[str]:
    stream = tokenizer.stream(after=before, skip_special_tokens=skips)
    return [*(stream.feed([i]) for i in ids), stream.finish()]


def bytes_in(tokenizer: Tokenizer, text: bytes) -> list[int]:
    is_byte_level = tokenizer.id_of("<0x00>") is None
    names = [CHARACTER_OF[byte] if is_byte_level else f"<0x{byte:02X}>" for byte in text]
    ids = [tokenizer.id_of(name) for name in names]
    return [token for token in ids if token is not None]


@pytest.mark.parametrize("skips", [True, False])
@pytest.mark.parametrize("name", BUILT)
@given(data=st.data())
@settings(max_examples=300)
def test_a_continued_text_gets_what_the_tokens_add_to_it(
    name: str, skips: bool, data: st.DataObject
) -> None:
    tokenizer = BUILT[name]
    ids = st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=40)
    before, new = data.draw(ids), data.draw(ids)
    earlier = tokenizer.decode(before, skip_special_tokens=skips)
    whole = tokenizer.decode([*before, *new], skip_special_tokens=skips)
    text = "".join(continued(tokenizer, before, new, skips=skips))
    if all(token in tokenizer.special_ids for token in before):
        assert text == tokenizer.decode(new, skip_special_tokens=skips)
    elif whole.startswith(earlier):
        assert text == whole[len(earlier) :], (before, new)


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback_bpe", "byte_fallback_unigram"])
@given(before=st.text("aé€ \n", min_size=1), new=st.text("aé€ \n"), cut=st.integers(0, 3))
@settings(max_examples=150)
@example("a\n", "€", 1)
@example("€€", "€", 2)
@example("€", "a", 2)
def test_a_prompt_may_end_within_a_character(name: str, before: str, new: str, cut: int) -> None:
    """The answer gets the whole character. Characters of the prompt are never written again."""
    tokenizer = BUILT[name]
    both = (before + new).encode()
    at = max(len(before.encode()) - cut, 0)
    known, added = bytes_in(tokenizer, both[:at]), bytes_in(tokenizer, both[at:])
    if known:
        whole = both[:at].decode(errors="ignore")
        assert "".join(continued(tokenizer, known, added)) == both.decode()[len(whole) :]


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback_bpe"])
def test_bytes_that_are_no_character_leave_the_prompt_alone(name: str) -> None:
    tokenizer = BUILT[name]
    euro, a = bytes_in(tokenizer, EURO), tokenizer.id_of("a")
    assert a is not None
    for before in (euro, [a, *euro], 40 * euro):
        text = "".join(continued(tokenizer, before, euro[:1]))
        assert text == "\ufffd"
        assert continued(tokenizer, before[:-1], [a]) == ["a", ""]


def test_wrong_bytes_at_the_end_of_a_prompt_spoil_those_that_follow() -> None:
    """As in `decode`, where adjacent bytes are one text or no text."""
    tokenizer = BUILT["byte_fallback_bpe"]
    euro, a = bytes_in(tokenizer, EURO), tokenizer.id_of("a")
    assert a is not None
    before = [euro[0], a, *euro[1:]]
    assert tokenizer.decode([*before, *euro]) == "\ufffda" + 5 * "\ufffd"
    assert "".join(continued(tokenizer, before, euro)) == 3 * "\ufffd"


def test_a_prompt_without_text_leaves_the_first_spaces_to_be_stripped() -> None:
    tokenizer = BUILT["two_spaces_stripped"]
    word = tokenizer.id_of("▁a")
    assert word is not None
    before = bytes_in(tokenizer, b" ")
    assert tokenizer.decode([*before, word, word]) == "a a"
    assert continued(tokenizer, before, [word, word]) == ["a", " a", ""]


@pytest.mark.parametrize("name", ["byte_fallback_bpe", "metaspace_unigram"])
def test_a_long_prompt_is_read_at_its_end_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, decoded = BUILT[name], 0
    decode = tokenizer._pieces._decode

    def counting(ids: list[int]) -> str:
        nonlocal decoded
        decoded += len(ids)
        return decode(ids)

    monkeypatch.setattr(tokenizer._pieces, "_decode", counting)
    [word] = [token for token in range(tokenizer.vocab_size) if tokenizer.token_text(token) == "▁a"]
    assert continued(tokenizer, 50_000 * [word], [word]) == [" a", ""]
    assert decoded < 200


# --- Answers ----------------------------------------------------------------------------------

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
ASKED = [{"role": "user", "content": "Say."}]
BEGUN = [*ASKED, {"role": "assistant", "content": "a a"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    """A model with sentencepiece's decoder, which removes the space of a text's first token. Each
    token is followed by "▁a"."""
    directory = make_model(tmp_path_factory.mktemp("models") / "small", Shape(), seed)
    byte_fallback_bpe().save(str(directory / "tokenizer.json"))
    tensors = make_tensors(Shape(), seed)
    for name, bits in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight", "lm_head.weight")):
            bits[...] = 0
    for bits in (tensors["model.embed_tokens.weight"], tensors["model.norm.weight"]):
        bits[...] = bf16_bits(np.ones(bits.shape, np.float32))
    tensors["lm_head.weight"][Tokenizer.open(directory).id_of("▁a")] = 0x3F80  # 1
    write_safetensors(directory / "model.safetensors", tensors)
    return add_template(directory, TEMPLATE)


@pytest.fixture(scope="module")
def word(model: Path) -> int:
    token = Tokenizer.open(model).id_of("▁a")
    assert token is not None
    return token


GREEDY = SamplingParams(3, temperature=0)


def test_the_text_of_a_completion_keeps_its_first_space(model: Path, word: int) -> None:
    llm = LLM(model, "none", threads=1)
    [result] = llm.generate("a a", GREEDY)
    assert (result.text, result.tokens) == (" a a a", 3 * [word])
    assert result.prompt is not None
    assert result.prompt + result.text == llm.decode(result.prompt_tokens + result.tokens)
    spans = explained(result.completions[0], llm.tokenizer, result.continued)
    assert [span.text for span in spans] == [" a", " a", " a"]
    assert "> a</span>" in result._repr_html_()
    assert list(llm.stream("a a", GREEDY)) == [" a", " a", " a"]
    for stop, text in ((" a a", ""), ("a a", " ")):
        [cut] = llm.generate("a a", replace(GREEDY, stop=[stop]))
        assert (cut.text, cut.completions[0].finish_reason) == (text, "stop")
    assert [each.text for each in llm.generate(["", [1], [1, 2]], GREEDY)] == 3 * ["a a a"]
    kept = replace(GREEDY, skip_special_tokens=False)
    assert [each.text for each in llm.generate([[1], [word, 2]], kept)] == ["a a a", " a a a"]


def test_a_chats_answer_begins_with_its_first_word_unless_it_is_continued(model: Path) -> None:
    llm = LLM(model, "none", threads=1)
    begun = [*ASKED, {"role": "assistant", "content": ""}]
    for messages, text in ((BEGUN, " a a a"), (begun, "a a a")):
        result = llm.chat(messages, GREEDY, continue_final_message=True)
        assert result.text == text
        assert result.reply is not None
        assert result.reply.content == text
        stream = llm.stream_chat(messages, GREEDY, continue_final_message=True)
        assert "".join(stream) == text
    answer = llm.chat(ASKED, GREEDY)
    assert answer.text == "a a a"
    assert "> a</span>" in answer._repr_html_()
    assert list(llm.stream_chat(ASKED, GREEDY)) == ["a", " a", " a"]
    prompt = answer.prompt_tokens
    assert list(llm.stream(prompt, GREEDY, is_answer=True)) == ["a", " a", " a"]
    assert list(llm.stream(prompt, GREEDY)) == [" a", " a", " a"]


def test_awaited_answers_have_the_same_texts(model: Path) -> None:
    async def texts() -> list[str]:
        async with AsyncLLM(LLM(model, "none", threads=1)) as llm:
            found = [each.text for each in await llm.generate(["a a", ""], GREEDY)]
            for stream in (llm.stream("a a", GREEDY), llm.stream("a", GREEDY, is_answer=True)):
                found.append("".join([piece async for piece in stream]))
                assert stream.result is not None
                assert stream.result.text == found[-1]
            for continues, messages in ((True, BEGUN), (False, ASKED)):
                chat = await llm.chat(messages, GREEDY, continue_final_message=continues)
                stream = llm.stream_chat(messages, GREEDY, continue_final_message=continues)
                assert "".join([piece async for piece in stream]) == chat.text
                found.append(chat.text)
            return found

    continued, answer = " a a a", "a a a"
    assert asyncio.run(texts()) == [continued, answer, continued, answer, continued, answer]


def test_commands_print_the_space_that_continues_a_text(model: Path, tmp_path: Path) -> None:
    options = ("-n", "2", "--temperature", "0", "--draft", "none")
    for chat, text in (([], " a a"), (["--chat"], "a a")):
        ran = run_program("generate", model, *chat, "-p", "a", *options, "--explain")
        assert ran.stdout.decode() == f"<0>{text}\n"
        page = tmp_path / "page.html"
        ran = run_program("generate", model, *chat, "-p", "a", *options, "--explain-html", page)
        assert ran.stdout.decode() == text
        assert f">{text[:-2]}</span>" in page.read_text()
    bare = Path(shutil.copytree(model, tmp_path / "bare"))
    (bare / "tokenizer_config.json").unlink()
    for directory, text in ((model, "a a"), (bare, " a a")):  # one answers, one continues
        ran = run_program("chat", directory, *options, input=b"a\n")
        assert ran.stdout.decode() == f"{text}\n"


@pytest.fixture(scope="module")
def served(model: Path) -> Iterator[Served]:
    for name in ("fastapi", "uvicorn", "llguidance"):
        pytest.importorskip(name, reason="needs specqd[serve]")
    with serving(str(model), "--draft", "none") as served:
        yield served


def streamed(served: Served, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    chunks = served.ask("POST", path, body | {"stream": True}).chunks
    return [choice for chunk in chunks for choice in chunk["choices"]]


BODY = {"max_tokens": 3, "temperature": 0}


def test_an_echoed_text_is_that_of_its_tokens(served: Served, model: Path, word: int) -> None:
    tokenizer = Tokenizer.open(model)
    body = BODY | {"return_token_ids": True, "return_origins": True}
    for prompt in ("a a", [word, word], [1, word, word, 2]):
        for has_echo in (False, True):
            asked = body | {"prompt": prompt, "echo": has_echo, "logprobs": 0}
            choice = served.ask("POST", COMPLETIONS, asked).content["choices"][0]
            ids = choice["prompt_token_ids"] + choice["token_ids"]
            whole = tokenizer.decode(ids)
            assert choice["text"] == (whole if has_echo else " a a a")
            assert whole == "a a a a a"
            offsets = choice["logprobs"]["text_offset"][-3:]
            assert offsets == ([3, 5, 7] if has_echo else [0, 2, 4])
            assert [each["text"] for each in choice["origins"]] == 3 * [" a"]
            chunks = streamed(served, COMPLETIONS, asked)
            assert "".join(chunk["text"] for chunk in chunks) == choice["text"]
            origins = [each for chunk in chunks for each in chunk["origins"]]
            assert [each["text"] for each in origins] == 3 * [" a"]
            places = [at for c in chunks if c["logprobs"] for at in c["logprobs"]["text_offset"]]
            assert places == choice["logprobs"]["text_offset"]


def test_a_continued_message_is_continued_with_its_space(served: Served) -> None:
    for messages, continues, text in ((BEGUN, True, " a a a"), (ASKED, False, "a a a")):
        body = BODY | {"messages": messages, "return_origins": True}
        body |= {"continue_final_message": continues}
        choice = served.ask("POST", CHAT, body).content["choices"][0]
        assert choice["message"]["content"] == text
        assert "".join(each["text"] for each in choice["origins"]) == text
        parts = [each["delta"].get("content", "") for each in streamed(served, CHAT, body)]
        assert "".join(parts) == text
        [block] = served.ask("POST", MESSAGES, BODY | {"messages": messages}).content["content"]
        assert block["text"] == text
