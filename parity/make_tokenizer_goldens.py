"""Writes tests/goldens/tokenizers: small vocabularies of each kind, and token ids and decoded texts
by their own libraries: sentencepiece for its models and GGUF's llama kind, transformers for GGUF's
gpt2 kind.
"""

import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import sentencepiece
import tokenizers
import transformers
from tokenizers import pre_tokenizers
from transformers.integrations.gguf import gguf_tokenizer_mapping

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from support.gguf_files import write_gguf

ROOT = Path(__file__).resolve().parent.parent
GOLDENS = ROOT / "tests" / "goldens" / "tokenizers"
VOCABULARY = 700
SPLITS = ("gpt-2", "llama-bpe", "qwen2", "tekken", "smollm")
RULES = {"ﬁ": "fi", "ﬂ": "fl", "\u00a0": " ", "\u3000": " ", "½": "1/2", "\uff11": "1"}
SPECIAL, USER_DEFINED = "<|end|>", "<tool>"

Encode = Callable[[str], list[int]]
Decode = Callable[[list[int]], str]


def main() -> None:
    strings = json.loads((GOLDENS / "texts.json").read_text())
    for name in ("bpe", "unigram"):
        directory = GOLDENS / name
        directory.mkdir(exist_ok=True)
        model = directory / "tokenizer.model"
        model.write_bytes(train_pieces(strings, name))
        processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
        record(directory / "expected.npz", strings, processor.encode, processor.decode)
        if name == "bpe":
            write_gguf(GOLDENS / "llama.gguf", pieces_metadata(processor), {})
            record(GOLDENS / "llama.npz", strings, processor.encode, processor.decode)
    for split in SPLITS:
        vocabulary, merges = train_byte_level(strings, split)
        path = GOLDENS / f"{split}.gguf"
        write_gguf(path, byte_level_metadata(vocabulary, merges, split), {})
        theirs = their_byte_level(path, vocabulary, merges, split)
        record(
            path.with_suffix(".npz"),
            strings,
            lambda text, t=theirs: t.encode(text, add_special_tokens=False),
            theirs.decode,
        )


def corpus(strings: Sequence[str]) -> list[str]:
    """Our documents and code, and the texts."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    files += sorted((ROOT / "src" / "specqd").rglob("*.py"))
    return [*(path.read_text() for path in files), *strings]


def train_pieces(strings: Sequence[str], kind: str) -> bytes:
    lines = [line for text in corpus(strings) for line in text.splitlines() if line]
    rules = GOLDENS / "rules.tsv"
    spelled = (" ".join(f"{ord(c):X}" for c in text) for pair in RULES.items() for text in pair)
    rules.write_text("".join(f"{a}\t{b}\n" for a, b in zip(spelled, spelled, strict=False)))
    model = io.BytesIO()
    as_llama = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    options = as_llama if kind == "bpe" else {"normalization_rule_tsv": str(rules)}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type=kind,
        vocab_size=VOCABULARY + 300,
        character_coverage=0.98,
        byte_fallback=True,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        user_defined_symbols=[USER_DEFINED],
        minloglevel=2,
        **options,
    )
    rules.unlink()
    return model.getvalue()


def pieces_metadata(processor: sentencepiece.SentencePieceProcessor) -> dict[str, object]:
    ids = range(processor.get_piece_size())
    kinds = [
        2 if processor.is_unknown(i) else 3 if processor.is_control(i)
        else 6 if processor.is_byte(i) else 4 if processor.id_to_piece(i) == USER_DEFINED else 1
        for i in ids
    ]  # fmt: skip
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [processor.id_to_piece(i) for i in ids],
        "tokenizer.ggml.scores": [float(processor.get_score(i)) for i in ids],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": processor.bos_id(),
        "tokenizer.ggml.eos_token_id": processor.eos_id(),
        "tokenizer.ggml.unknown_token_id": processor.unk_id(),
    }


def train_byte_level(strings: Sequence[str], split: str) -> tuple[dict[str, int], list[str]]:
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    pattern = gguf_tokenizer_mapping.GGUF_PRE_TOKENIZER_SPLITS.get(split)
    steps = [] if pattern is None else [
        pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    ]  # fmt: skip
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[SPECIAL],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    backend.train_from_iterator(corpus(strings), trainer)
    model = json.loads(backend.to_str())["model"]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    return model["vocab"], merges


def byte_level_metadata(
    vocabulary: dict[str, int], merges: Sequence[str], split: str
) -> dict[str, object]:
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": split,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token == SPECIAL else 1 for token in tokens],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": vocabulary[SPECIAL],
        "tokenizer.ggml.eos_token_id": vocabulary[SPECIAL],
    }


def their_byte_level(
    path: Path, vocabulary: dict[str, int], merges: Sequence[str], split: str
) -> transformers.PreTrainedTokenizerBase:
    """transformers' tokenizer: the model's own class where its GGUF reader lacks a step."""
    pairs = [tuple(merge.split(" ")) for merge in merges]
    if split == "qwen2":
        return transformers.Qwen2Tokenizer(vocabulary, pairs, eos_token=SPECIAL)
    if split == "smollm":  # like its tokenizer.json; the reader does not know the name
        theirs = transformers.GPT2Tokenizer(vocabulary, pairs, eos_token=SPECIAL)
        steps = [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
        theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
        return theirs
    return transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


def record(path: Path, strings: Sequence[str], encode: Encode, decode: Decode) -> None:
    """Writes the ids of all texts, the end of each, and the decoded texts."""
    encoded = [encode(text) for text in strings]
    ids = np.concatenate([np.array(each, np.uint16) for each in encoded])
    decoded = json.dumps([decode(each) for each in encoded])
    np.savez_compressed(
        path, ids=ids, ends=np.cumsum([len(each) for each in encoded]), decoded=decoded
    )
    print(f"{path.relative_to(ROOT)}: {len(ids)} ids")


if __name__ == "__main__":
    main()
