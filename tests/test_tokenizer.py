"""The tokenizer, with backends built here and with trained ones where they are present."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from specqd._native import Sampler, Sequence
from specqd.engine.generation import Generation
from specqd.errors import RequestError, TokenizerError
from specqd.sampling import SamplingParams
from specqd.text.stream import WindowPieces
from specqd.text.tokenizer import TokenDifference, Tokenizer
from support.faults import SLOW_PATTERN
from support.small_tokenizers import (
    BUILT,
    CHARACTER_OF,
    CONFIG,
    byte_fallback_bpe,
    byte_level,
    saved,
)
from support.trained_models import SHARED_MODELS

REAL_NAMES = ("pycode-28m", "pycode-3m", "tiny1m", "stories260k")


def real_tokenizer(name: str) -> Tokenizer:
    if not (SHARED_MODELS / name).is_dir():
        pytest.skip(f"no model {name} beside the repository")
    return Tokenizer.open(SHARED_MODELS / name)


def streamed(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    stream = tokenizer.stream()
    return [*(stream.feed([i]) for i in ids), stream.finish()]


@pytest.mark.parametrize("name", BUILT)
@given(data=st.data())
@settings(max_examples=150)
def test_streamed_text_equals_decoded_text_for_any_tokens(name: str, data: st.DataObject) -> None:
    tokenizer = BUILT[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=40))
    assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback_bpe", "byte_fallback_unigram"])
@given(text=st.text(max_size=30))
@example("👩‍👩‍👧‍👦 e\u0301 \ufffd  né 日本 🇫🇷 \r\n")
@example("  a <s> </s> b")
def test_no_piece_of_valid_text_holds_half_a_character(name: str, text: str) -> None:
    tokenizer = BUILT[name]
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = streamed(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids)
    assert "".join(pieces).count("\ufffd") == text.count("\ufffd")


@pytest.mark.parametrize("name", REAL_NAMES)
def test_trained_tokenizers_stream_the_text_that_they_decode(name: str) -> None:
    tokenizer = real_tokenizer(name)

    @given(st.lists(st.integers(0, tokenizer.vocab_size - 1) | st.integers(0, 260), max_size=60))
    @settings(max_examples=200)
    def check(ids: list[int]) -> None:
        assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)

    check()


@pytest.mark.parametrize("name", REAL_NAMES)
@pytest.mark.parametrize("text", ["Once upon a time,\n  é 😀", " def f(x):\n\treturn x  # ñ", ""])
def test_trained_tokenizers_decode_to_the_encoded_text(name: str, text: str) -> None:
    tokenizer = real_tokenizer(name)
    ids = tokenizer.encode(text)
    assert ids[0] == tokenizer.id_of(tokenizer.named_tokens["bos_token"])
    assert ids[1:] == tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text


def test_a_character_is_streamed_with_its_last_byte() -> None:
    tokenizer = BUILT["byte_level"]
    ids = [tokenizer.id_of(CHARACTER_OF[byte]) for byte in "é😀".encode()]
    assert streamed(tokenizer, ids) == ["", "é", "", "", "", "😀", ""]


def test_bytes_that_cannot_become_a_character_are_streamed_at_once() -> None:
    tokenizer = BUILT["byte_level"]
    ids = [tokenizer.id_of(CHARACTER_OF[byte]) for byte in (0xFF, 0xE2, 0x41, 0xF0)]
    assert streamed(tokenizer, ids) == ["\ufffd", "", "\ufffdA", "", "\ufffd"]


def test_a_run_of_byte_tokens_is_streamed_when_it_ends() -> None:
    tokenizer = BUILT["byte_fallback_bpe"]
    good = [tokenizer.id_of(f"<0x{byte:02X}>") for byte in "€".encode()]
    a, bad = tokenizer.id_of("a"), tokenizer.id_of("<0xFF>")
    assert streamed(tokenizer, [a, *good, a]) == ["a", "", "", "", "€a", ""]
    assert streamed(tokenizer, [a, *good, bad]) == ["a", "", "", "", "", 4 * "\ufffd"]


def test_a_stop_string_in_the_last_token_that_was_held_back_ends_the_text() -> None:
    tokenizer = BUILT["byte_fallback_bpe"]
    a, end = tokenizer.id_of("a"), tokenizer.id_of("<0x0A>")
    for most in (2, 3):
        sequence = Sequence([a], Sampler(), 1)
        params = SamplingParams(stop=["\n"], max_tokens=most)
        generation = Generation(sequence, params, 0, 0, most, tokenizer.stream())
        tokens = [a, end, a][:most]
        reason = generation.take(tokens, [1.0] * most, [0] * most)
        generation.finish(reason)
        assert (generation.text, generation.finish_reason) == ("a", "stop")


def test_only_the_first_space_of_a_text_is_stripped() -> None:
    tokenizer = BUILT["byte_fallback_bpe"]
    space, word = tokenizer.id_of("▁"), tokenizer.id_of("▁a")
    assert streamed(tokenizer, [word, word]) == ["a", " a", ""]
    assert streamed(tokenizer, [space, word]) == ["", " a", ""]


def test_special_tokens_are_skipped_within_characters_too() -> None:
    tokenizer = BUILT["byte_level"]
    first, second = (tokenizer.id_of(CHARACTER_OF[byte]) for byte in "é".encode())
    assert streamed(tokenizer, [0, first, 1, second, 0]) == ["", "", "", "é", "", ""]


@pytest.mark.parametrize("name", BUILT)
def test_streaming_decodes_each_token_a_few_times(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, decoded = BUILT[name], 0
    ids = [i % tokenizer.vocab_size for i in range(40_000)]
    text = tokenizer.decode(ids)
    decode = tokenizer._pieces._decode

    def counting(ids: list[int]) -> str:
        nonlocal decoded
        decoded += len(ids)
        return decode(ids)

    monkeypatch.setattr(tokenizer._pieces, "_decode", counting)
    stream = tokenizer.stream()
    assert "".join(stream.feed([i]) for i in ids) + stream.finish() == text
    assert decoded <= 8 * len(ids)


def test_a_decoder_that_makes_no_text_decodes_each_token_a_few_times() -> None:
    decoded = 0

    def nothing(ids: list[int]) -> str:
        nonlocal decoded
        decoded += len(ids)
        return ""

    pieces = WindowPieces(nothing, None, falls_back_to_bytes=False)
    assert all(pieces.feed(5, "a") == "" for _ in range(4000))
    assert decoded <= 4 * 4000


def test_encoding_adds_the_tokens_of_the_post_processor() -> None:
    tokenizer = BUILT["byte_fallback_bpe"]
    plain = tokenizer.encode("ab", add_special_tokens=False)
    assert tokenizer.encode("ab") == [tokenizer.id_of("<s>"), *plain]
    assert tokenizer.encode("</s>", add_special_tokens=False)[-1] == tokenizer.id_of("</s>")


def test_special_tokens_are_read_from_the_settings(tmp_path: Path) -> None:
    backend = byte_fallback_bpe()
    directory = saved(tmp_path, backend, tokenizer_config_json={**CONFIG, "unk_token": "é"})
    tokenizer = Tokenizer.open(directory)
    assert tokenizer.named_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "é"}
    assert (tokenizer.id_of("<s>"), tokenizer.id_of("</s>")) == (1, 2)
    unknown = tokenizer.id_of(tokenizer.named_tokens["unk_token"])
    assert tokenizer.decode([unknown or 0, 0]) == ""
    (tmp_path / "special_tokens_map.json").write_text('{"bos_token": "</s>"}')
    assert Tokenizer.open(directory).named_tokens["bos_token"] == "</s>"


def test_truncation_and_padding_in_the_file_are_ignored(tmp_path: Path) -> None:
    backend = byte_level()
    backend.enable_truncation(2)
    backend.enable_padding(length=9)
    tokenizer = Tokenizer.open(saved(tmp_path, backend))
    assert len(tokenizer.encode("abcd")) == 5


def test_the_vocabulary_reaches_to_its_last_id() -> None:
    tokenizer = BUILT["byte_level"]
    assert tokenizer.token_text(tokenizer.vocab_size - 1) == "日本"
    assert tokenizer.token_text(tokenizer.vocab_size) == ""
    assert tokenizer.id_of("no such token") is None


@pytest.mark.parametrize("length", [1, 20_000])
def test_a_lone_surrogate_is_rejected(length: int) -> None:
    with pytest.raises(RequestError, match="surrogate"):
        BUILT["byte_level"].encode("a" * length + "\ud800")


def panicking(**parts: Any) -> Tokenizer:
    """Returns the tokenizer of a file with these parts."""
    described = json.loads(byte_level().to_str()) | parts
    return Tokenizer(Backend.from_str(json.dumps(described)), CONFIG, {})


@pytest.mark.parametrize("text", ["x" * 40, "x" * 20_000])
def test_a_panic_of_the_library_in_encode_is_an_error_of_one_line(text: str) -> None:
    split = {"type": "Split", "pattern": {"Regex": SLOW_PATTERN}, "behavior": "Isolated"}
    tokenizer = panicking(pre_tokenizer=split | {"invert": False})
    with pytest.raises(TokenizerError, match="cannot encode") as refused:
        tokenizer.encode(text)
    assert "\n" not in str(refused.value)


def test_a_template_of_an_unknown_token_is_an_error_of_one_line() -> None:
    single = [{"SpecialToken": {"id": "missing", "type_id": 0}}]
    single.append({"Sequence": {"id": "A", "type_id": 0}})
    template = {"type": "TemplateProcessing", "single": single, "pair": single}
    tokenizer = panicking(post_processor=template | {"special_tokens": {}})
    with pytest.raises(TokenizerError, match="cannot encode"):
        tokenizer.encode("ab")


def test_a_panic_of_the_library_in_decode_is_an_error_of_one_line() -> None:
    nothing = {"type": "Replace", "pattern": {"Regex": ".*"}, "content": ""}
    strip = {"type": "Strip", "content": " ", "start": 0, "stop": 1}
    tokenizer = panicking(decoder={"type": "Sequence", "decoders": [nothing, strip]})
    stream = tokenizer.stream()
    stream.feed([5])
    for read in (stream.finish, lambda: tokenizer.decode([5]), lambda: tokenizer.text_within(5)):
        with pytest.raises(TokenizerError, match="cannot decode") as refused:
            read()
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", BUILT)
def test_long_texts_get_the_ids_of_the_library(name: str) -> None:
    text = "Hello world, 日本 é. " * 1000
    ids = list(BUILT[name]._backend.encode(text).ids)
    assert BUILT[name].encode(text) == ids


@pytest.mark.parametrize("name", BUILT)
def test_each_token_has_a_place_in_its_text(name: str) -> None:
    tokenizer = BUILT[name]
    for text in ("", "ab</s>c", " a  é b", "<s>日本"):
        places = tokenizer.places(text)
        assert len(places) == len(tokenizer.encode(text))
        assert places == sorted(places)
        assert places[0] == 0
        assert places[-1] <= len(text)


def test_the_first_difference_is_the_lowest_id_with_different_text() -> None:
    ours = BUILT["byte_fallback_bpe"]
    changed = json.loads(byte_fallback_bpe().to_str())
    vocabulary = changed["model"]["vocab"]
    vocabulary["é"], vocabulary["😀"] = vocabulary["😀"], vocabulary["é"]
    theirs = Tokenizer(Backend.from_str(json.dumps(changed)), CONFIG, {})
    found = ours.first_difference(theirs)
    assert found == TokenDifference(ours.id_of("é") or 0, "é", "😀")


def test_additional_tokens_are_not_differences() -> None:
    padded = byte_level()
    padded.add_tokens(["<pad0>", "<pad1>"])
    ours, theirs = BUILT["byte_level"], Tokenizer(padded, CONFIG, {})
    assert theirs.vocab_size == ours.vocab_size + 2
    assert ours.first_difference(theirs) is None
    assert theirs.first_difference(ours) is None
