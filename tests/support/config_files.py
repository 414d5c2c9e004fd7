"""config.json files that tests write and read back."""

import json
from pathlib import Path
from typing import Any

from specqd.config import DecoderConfig, read_config
from specqd.errors import ConfigError
from support.refusals import refused

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 500,
    "max_position_embeddings": 512,
}


def read(directory: Path, config: Any, **changes: Any) -> DecoderConfig:
    text = json.dumps({**config, **changes})
    (directory / "config.json").write_text(text)
    return read_config(directory)


def refusal(directory: Path, config: Any, **changes: Any) -> str:
    message = refused(ConfigError, read, directory, config, **changes)
    assert str(directory / "config.json") in message
    return message
