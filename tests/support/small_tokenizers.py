"""Small tokenizers of every kind of backend, and their files. Knows nothing of tests."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from specqd.text.stream import BYTE_OF
from specqd.text.tokenizer import Tokenizer

BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
CHARACTER_OF = {byte: character for character, byte in BYTE_OF.items()}
CONFIG = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": None}


def spelled(text: str) -> str:
    """Returns the byte-level token of a text."""
    return "".join(CHARACTER_OF[byte] for byte in text.encode())


def byte_level() -> Backend:
    tokens = ["<s>", "</s>", *sorted(BYTE_OF), spelled(" th"), spelled("né"), spelled("😀")]
    tokens += [
        spelled("é")[:1] + "a",
        spelled("\u0301b")[1:],
        spelled("\ufffd"),
        spelled("👩\u200d"),
    ]
    backend = Backend(models.BPE({token: i for i, token in enumerate(dict.fromkeys(tokens))}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    backend.add_tokens([AddedToken("<a tool>"), AddedToken("日本"), AddedToken("Ġ")])
    return with_bos(backend)


def sentencepiece_decoder(stripped: int = 1) -> decoders.Decoder:
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*parts, decoders.Strip(" ", stripped, 0)])


def byte_fallback_bpe() -> Backend:
    tokens = ["<unk>", "<s>", "</s>", *BYTE_TOKENS, "▁", "a", "b", "▁a", "▁▁", "ab", "é", "\u0301"]
    vocabulary = {token: i for i, token in enumerate([*tokens, "\ufffd", "😀", "<0xZZ>", "<0x+5>"])}
    backend = Backend(
        models.BPE(vocabulary, [("▁", "a"), ("▁", "▁"), ("a", "b")], byte_fallback=True)
    )
    spaces = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces])
    backend.decoder = sentencepiece_decoder()
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return with_bos(backend)


def byte_fallback_unigram() -> Backend:
    tokens = ["<unk>", "<s>", "</s>", *BYTE_TOKENS]
    tokens += ["▁", "▁a", "b", "\ufffd", ".", "▁.", "n't", "▁n"]
    backend = Backend(models.Unigram([(token, -1.0) for token in tokens], 0, True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = sentencepiece_decoder()
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return with_bos(backend)


def metaspace_unigram() -> Backend:
    tokens = ["<unk>", "<s>", "</s>", "▁", "▁a", "b", "'", "▁'", ".", "s", "▁s", "ve", "t", "▁▁"]
    backend = Backend(models.Unigram([(token, -1.0) for token in tokens], 0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return with_bos(backend)


def undecoded() -> Backend:
    backend = Backend(models.WordLevel({"<s>": 0, "</s>": 1, "a": 2, "b": 3, "c c": 4}, "a"))
    backend.add_special_tokens(["<s>", "</s>"])
    return with_bos(backend)


def two_spaces_stripped() -> Backend:
    backend = byte_fallback_bpe()
    backend.decoder = sentencepiece_decoder(2)
    return backend


def repeats_joined() -> Backend:
    backend = undecoded()
    backend.decoder = decoders.CTC(pad_token="b", word_delimiter_token="c c")
    return backend


def with_bos(backend: Backend) -> Backend:
    bos = ("<s>", backend.token_to_id("<s>"))
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[bos])
    return backend


BUILT = {
    maker.__name__: Tokenizer(maker(), CONFIG, {})
    for maker in (
        byte_level,
        byte_fallback_bpe,
        byte_fallback_unigram,
        metaspace_unigram,
        undecoded,
        two_spaces_stripped,
        repeats_joined,
    )
}
BUILT["cleaned_up"] = Tokenizer(
    metaspace_unigram(), {**CONFIG, "clean_up_tokenization_spaces": True}, {}
)


def saved(directory: Path, backend: Backend, **files: Any) -> Path:
    backend.save(str(directory / "tokenizer.json"))
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (directory / name.replace("_json", ".json").replace("_jinja", ".jinja")).write_text(text)
    return directory
