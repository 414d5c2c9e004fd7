"""Small files in the layout of Mistral's `tekken.json`, one for each version. Knows no tests."""

import base64
import json
from functools import cache
from pathlib import Path
from typing import Any

from specqd.formats.gguf import GgufFile
from specqd.text.backends import WORD_SPLITS
from specqd.text.stream import token_bytes

GOLDENS = Path(__file__).resolve().parent.parent / "goldens"
NUM_SPECIAL, UNUSED_WORDS = 40, 3
LISTED = [
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]",
    "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
]  # fmt: skip
_CALLS, _THOUGHTS = ["[ARGS]", "[CALL_ID]"], ["[THINK]", "[/THINK]"]
# By name: the version that the file states, and its special tokens; None: they are not listed.
VERSIONS: dict[str, tuple[str, list[str] | None]] = {
    "v3": ("v3", None),
    "v7": ("v7", LISTED),
    "v11": ("v11", [*LISTED, *_CALLS]),
    "v13": ("v13", [*LISTED, *_CALLS]),
    "v13-thoughts": ("v13", [*LISTED, *_CALLS, *_THOUGHTS]),
    "v15": (
        "v15",
        [*LISTED, *_CALLS, *_THOUGHTS, "[MODEL_SETTINGS]", "[/MODEL_SETTINGS]"],
    ),
}
_EFFORT = {"type": "enum", "accepts_none": True, "values": ["none", "high"], "default": "none"}


def tekken_content(name: str) -> dict[str, Any]:
    """Returns the content of a file of the version with this name."""
    version, special = VERSIONS[name]
    words = _words()
    listed = None
    if special is not None:
        listed = [
            {"rank": rank, "token_str": text, "is_control": True}
            for rank, text in enumerate(special)
        ]
    content = {
        "config": {
            "pattern": WORD_SPLITS["tekken"].pattern,
            "num_vocab_tokens": len(words),
            "default_vocab_size": NUM_SPECIAL + len(words) - UNUSED_WORDS,
            "default_num_special_tokens": NUM_SPECIAL,
            "version": version,
        },
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(word).decode(), "token_str": None}
            for rank, word in enumerate(words)
        ],
        "special_tokens": listed,
        "version": 1,
        "type": "Tekken",
    }
    if version == "v15":
        content["model_settings_builder"] = {"reasoning_effort": _EFFORT}
    return content


def write_tekken(directory: Path, content: object) -> Path:
    """Writes a file into a directory, which may be new, and returns the directory."""
    directory.mkdir(exist_ok=True)
    (directory / "tekken.json").write_text(json.dumps(content), "utf-8")
    return directory


@cache
def _words() -> list[bytes]:
    """Returns all bytes, and the longer words of the vocabulary in tokenizers/tekken.gguf."""
    gguf = GgufFile.open(GOLDENS / "tokenizers" / "tekken.gguf")
    texts = gguf.get("tokenizer.ggml.tokens")
    kinds = gguf.get("tokenizer.ggml.token_type")
    assert isinstance(texts, list)
    assert isinstance(kinds, list)
    words = [token_bytes(text) for text, kind in zip(texts, kinds, strict=True) if kind == 1]
    return [*(bytes([byte]) for byte in range(256)), *(word for word in words if len(word) > 1)]
