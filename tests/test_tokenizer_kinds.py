"""Every kind of vocabulary, compared with its own library, and damaged files of each.

parity/make_tokenizer_goldens.py recorded the answers of sentencepiece and transformers.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from specqd.errors import SpecqdError, TokenizerError
from specqd.hub import shipped_model
from specqd.text.backends import (
    CONTROL,
    NORMAL,
    WORD_SPLITS,
    Pieces,
    WordSplit,
    byte_level_backend,
)
from specqd.text.backends import _merges as merges_of
from specqd.text.gguf_tokenizer import read_gguf_tokenizer, tokenizer_files
from specqd.text.tokenizer import Tokenizer
from support.gguf_files import write_gguf
from support.small_tokenizers import byte_fallback_bpe
from support.trained_models import SHARED_MODELS

GOLDENS = Path(__file__).parent / "goldens" / "tokenizers"
TEXTS: list[str] = json.loads((GOLDENS / "texts.json").read_text())
KINDS = {
    **{path.stem: (path, path.with_suffix(".npz")) for path in sorted(GOLDENS.glob("*.gguf"))},
    **{
        f"{name}.model": (GOLDENS / name, GOLDENS / name / "expected.npz")
        for name in ("bpe", "unigram")
    },
}
each_kind = pytest.mark.parametrize("kind", KINDS)
each_that_keeps_text = pytest.mark.parametrize("kind", [k for k in KINDS if "unigram" not in k])


def recorded(kind: str) -> Iterator[tuple[str, list[int], str]]:
    """Returns each text, its ids, and the decoded ids."""
    golden = np.load(KINDS[kind][1])
    decoded = json.loads(str(golden["decoded"]))
    starts = [0, *golden["ends"][:-1]]
    for text, start, end, again in zip(TEXTS, starts, golden["ends"], decoded, strict=True):
        yield text, golden["ids"][start:end].tolist(), again


@each_kind
def test_ids_and_decoded_texts_are_those_of_the_reference(kind: str) -> None:
    tokenizer = Tokenizer.open(KINDS[kind][0])
    assert len(TEXTS) == 200
    wrong = []
    for text, ids, again in recorded(kind):
        if tokenizer.encode(text, add_special_tokens=False) != ids:
            wrong.append((text, tokenizer.encode(text, add_special_tokens=False), ids))
        elif tokenizer.decode(ids) != again:
            wrong.append((text, tokenizer.decode(ids), again))
    assert wrong == []


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.endswith(".model")])
def test_a_gguf_file_and_the_files_that_packing_writes_are_one_tokenizer(
    kind: str, tmp_path: Path
) -> None:
    for name, text in tokenizer_files(KINDS[kind][0]).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    ours, theirs = Tokenizer.open(tmp_path), Tokenizer.open(KINDS[kind][0])
    assert ours.to_json() == theirs.to_json()
    assert ours.named_tokens == theirs.named_tokens
    assert ours.special_ids == theirs.special_ids
    for text, ids, again in recorded(kind):
        assert ours.encode(text, add_special_tokens=False) == ids
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ids) == again


@each_that_keeps_text
def test_texts_survive_encoding_and_decoding(kind: str) -> None:
    tokenizer = Tokenizer.open(KINDS[kind][0])
    composes = kind == "qwen2"
    for text, _, again in recorded(kind):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == (again if composes else text)
        stream = tokenizer.stream()
        assert "".join([*(stream.feed([i]) for i in ids), stream.finish()]) == tokenizer.decode(ids)


@pytest.mark.parametrize("name", ["shipped", "tiny1m", "stories260k"])
def test_ids_and_decoded_texts_are_those_of_the_library(name: str) -> None:
    directory = shipped_model() if name == "shipped" else SHARED_MODELS / name
    if not directory.is_dir():
        pytest.skip(f"no model {name} beside the repository")
    tokenizer = Tokenizer.open(directory)
    theirs = Backend.from_file(str(directory / "tokenizer.json"))
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == theirs.encode(text).ids
        assert tokenizer.decode(ids) == theirs.decode(ids) == text


@pytest.fixture
def pieces(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDENS / "bpe", tmp_path / "bpe"))


def test_a_sentencepiece_model_begins_texts_with_bos(pieces: Path) -> None:
    tokenizer = Tokenizer.open(pieces)
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    assert tokenizer.named_tokens == named
    assert tokenizer.encode("a") == [1, *tokenizer.encode("a", add_special_tokens=False)]
    settings = {"add_bos_token": False, "add_eos_token": True}
    (pieces / "tokenizer_config.json").write_text(json.dumps(settings))
    assert Tokenizer.open(pieces).encode("a")[-1] == 2


def test_user_defined_and_control_pieces_are_found_in_text(pieces: Path) -> None:
    tokenizer = Tokenizer.open(pieces)
    assert tokenizer.id_of("<tool>") in tokenizer.encode("x<tool>y")
    assert tokenizer.encode("x</s>")[-1] == 2
    assert tokenizer.decode(tokenizer.encode("x<tool>y</s>")) == "x<tool> y"


def test_added_tokens_follow_the_pieces(pieces: Path) -> None:
    size = Tokenizer.open(pieces).vocab_size
    added = {
        str(size): {"content": "<|im_end|>", "special": True},
        str(size + 1): {"content": "<x>"},
    }
    (pieces / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    tokenizer = Tokenizer.open(pieces)
    assert tokenizer.encode("a<|im_end|><x>")[-2:] == [size, size + 1]
    assert tokenizer.decode([size, size + 1]) == "<x>"
    added[str(size + 5)] = {"content": "<y>"}
    (pieces / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    with pytest.raises(TokenizerError, match=r"'<y>' is not token"):
        Tokenizer.open(pieces)


def test_added_tokens_are_read_from_the_file_of_older_models(pieces: Path) -> None:
    size = Tokenizer.open(pieces).vocab_size
    added = {"<|im_end|>": size + 1, "<|im_start|>": size}
    (pieces / "added_tokens.json").write_text(json.dumps(added))
    (pieces / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    tokenizer = Tokenizer.open(pieces)
    assert tokenizer.encode("<|im_start|>a<|im_end|>")[1::2] == [size, size + 1]
    assert tokenizer.special_ids >= {size + 1}
    assert size not in tokenizer.special_ids


@pytest.mark.parametrize("stated", [False, True])
@pytest.mark.parametrize("is_special", [False, True])
def test_added_tokens_keep_or_get_their_traits(
    tmp_path: Path, *, stated: bool, is_special: bool
) -> None:
    """Those of tokenizer_config.json hold; a name there makes a token special, and no more."""
    backend = byte_fallback_bpe()
    token = AddedToken("<|x|>", rstrip=not stated, special=is_special, normalized=False)
    backend.add_tokens([token])
    backend.save(str(tmp_path / "tokenizer.json"))
    [x] = backend.encode("<|x|>", add_special_tokens=False).ids
    traits = {"content": "<|x|>", "rstrip": True, "normalized": False, "special": True}
    settings = {"added_tokens_decoder": {str(x): traits}} if stated else {"pad_token": "<|x|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = Tokenizer.open(tmp_path)
    ids = tokenizer.encode("<|x|> \n a", add_special_tokens=False)
    assert ids[ids.index(x) :] == [x, *tokenizer.encode("a", add_special_tokens=False)]
    assert x in tokenizer.special_ids


@pytest.mark.parametrize(
    ("content", "mention"),
    [
        (b"", "0 pieces"),
        (b"\xff" * 40, "malformed"),
        (b"\x0a\x7f", "truncated"),
        (b"IQ== 0\nIg== 1\n", "tokenizer.model"),  # the format of tiktoken's vocabularies
    ],
)
def test_a_file_that_is_not_a_sentencepiece_model_is_rejected(
    pieces: Path, content: bytes, mention: str
) -> None:
    (pieces / "tokenizer.model").write_bytes(content)
    with pytest.raises(TokenizerError, match=r"tokenizer\.model: not a") as caught:
        Tokenizer.open(pieces)
    assert mention in str(caught.value)


def test_a_damaged_sentencepiece_model_is_read_or_rejected(
    pieces: Path, rng: np.random.Generator
) -> None:
    whole = (pieces / "tokenizer.model").read_bytes()
    for _ in range(60):
        content = bytearray(whole[: rng.choice([len(whole), rng.integers(len(whole))])])
        for at in rng.integers(0, max(len(content), 1), 3 if content else 0):
            content[at] = rng.integers(256)
        (pieces / "tokenizer.model").write_bytes(content)
        problem = ""
        try:
            Tokenizer.open(pieces)
        except SpecqdError as error:
            problem = str(error)
        assert "\n" not in problem


class CountingVocabulary(dict[str, int]):
    """Counts the pieces that are looked up."""

    lookups = 0

    def __contains__(self, piece: object) -> bool:
        self.lookups += 1
        return super().__contains__(piece)


@pytest.mark.parametrize("length", [4_000, 80_000])
def test_a_long_piece_is_split_only_where_two_pieces_can_meet(length: int) -> None:
    texts = [*"abc", "ab", "abc", "abcab", "c" * length]
    vocabulary = CountingVocabulary((text, i) for i, text in enumerate(texts))
    pieces = Pieces("bpe", texts, [-float(i) for i in range(len(texts))], [NORMAL] * len(texts))
    assert merges_of(vocabulary, pieces) == [("a", "b"), ("ab", "c"), ("abc", "ab")]
    assert vocabulary.lookups < 50


def test_merges_are_all_pairs_that_form_a_piece(rng: np.random.Generator) -> None:
    texts = list({"".join(rng.choice(["a", "b"], rng.integers(1, 9))) for _ in range(200)})
    pieces = Pieces("bpe", texts, [-float(i) for i in range(len(texts))], [NORMAL] * len(texts))
    expected = {
        (text[:at], text[at:])
        for text in texts
        for at in range(1, len(text))
        if text[:at] in texts and text[at:] in texts
    }
    found = merges_of({text: i for i, text in enumerate(texts)}, pieces)
    assert len(found) == len(expected)
    assert set(found) == expected


def test_special_tokens_of_phi3_take_the_white_space_after_them(tmp_path: Path) -> None:
    backend = byte_fallback_bpe()
    path = tmp_path / "m.gguf"
    tokens = [*(backend.id_to_token(i) for i in range(backend.get_vocab_size())), "<|user|>"]
    kinds = [NORMAL] * (len(tokens) - 1) + [CONTROL]
    found = []
    for architecture in ("llama", "phi3"):
        metadata = {
            "general.architecture": architecture,
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.scores": [0.0] * len(tokens),
            "tokenizer.ggml.token_type": kinds,
        }
        write_gguf(path, metadata, {})
        found.append(read_gguf_tokenizer(path).backend.encode("<|user|>\n  a").tokens[1:])
    assert len(found[0]) > 1
    assert found[1] == ["▁a"]


@pytest.mark.parametrize("mark", ["[AVAILABLE_TOOLS]", "[TOOLS]"])
def test_mistrals_converted_vocabulary_splits_text_as_it_was_trained(
    tmp_path: Path, mark: str
) -> None:
    """Its first conversions state a pattern that keeps `oW` of `HelloWorld` in one word."""
    tokens = [*"HeloWrd", "oW", *(f"<unused {i}>" for i in range(100_000))]
    split = WordSplit(WORD_SPLITS["llama3"].pattern)
    backend = byte_level_backend(tokens, [NORMAL] * len(tokens), [("o", "W")], split)
    backend.add_special_tokens([mark])
    backend.save(str(tmp_path / "tokenizer.json"))
    ids = Tokenizer.open(tmp_path).encode("HelloWorld")
    is_mistrals = mark == "[AVAILABLE_TOOLS]"
    assert [tokens[i] for i in ids] == [
        *"Hell", *(["o", "W"] if is_mistrals else ["oW"]), *"orld"
    ]  # fmt: skip
