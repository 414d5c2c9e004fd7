"""Texts that continue others: the pieces are what the new tokens add to the text before."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specqd.text.tokenizer import Tokenizer
from support.small_tokenizers import BUILT, CHARACTER_OF

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
