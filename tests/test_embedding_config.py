"""What files of sentence-transformers and GGUF files say about embeddings, and what is refused."""

import json
from pathlib import Path

import pytest

from specqd.config.embedding import EmbeddingConfig, read_embedding_config
from specqd.errors import ConfigError
from specqd.hub.catalogue import is_shortenable
from support.embedding_models import write_modules, write_prompts
from support.refusals import refused


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def write_pooling(directory: Path, **config: object) -> None:
    write_modules(directory, "mean")
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(config))


def test_without_files_the_last_row_is_normalised(directory: Path) -> None:
    assert read_embedding_config(directory) == EmbeddingConfig("last", normalizes=True)


def test_the_modules_say_what_is_pooled_and_normalised(directory: Path) -> None:
    write_modules(directory, "mean", normalizes=False, config={"include_prompt": False})
    read = read_embedding_config(directory)
    assert (read.pooling, read.normalizes, read.pools_prompt) == ("mean", False, False)
    write_modules(directory, "lasttoken")
    assert read_embedding_config(directory).pooling == "last"
    for mode, pooling in (("lasttoken", "last"), ("mean", "mean")):
        write_pooling(directory, pooling_mode=mode)
        assert read_embedding_config(directory).pooling == pooling


def test_lengths_sizes_and_prompts_are_read(directory: Path) -> None:
    write_prompts(directory, {"query": "q: "}, "query")
    (directory / "sentence_bert_config.json").write_text('{"max_seq_length": 512}')
    (directory / "config.json").write_text('{"matryoshka_dimensions": [32, 64]}')
    read = read_embedding_config(directory)
    assert (read.prompts, read.default_prompt, read.max_tokens) == ({"query": "q: "}, "query", 512)
    assert (read.is_shortenable, read.sizes) == (True, (32, 64))


@pytest.mark.parametrize(
    "name", ["cls_token", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens"]
)
def test_other_poolings_are_refused_by_name(directory: Path, name: str) -> None:
    write_pooling(directory, **{f"pooling_mode_{name}": True})
    problem = refused(ConfigError, read_embedding_config, directory)
    assert name.removesuffix("_tokens").removesuffix("_token") in problem
    assert "lasttoken or mean" in problem


def test_two_poolings_at_once_are_refused(directory: Path) -> None:
    write_pooling(directory, pooling_mode_mean_tokens=True, pooling_mode_lasttoken=True)
    assert "mean+lasttoken" in refused(ConfigError, read_embedding_config, directory)


@pytest.mark.parametrize(
    "kinds",
    [
        ["Transformer", "Pooling", "Dense", "Normalize"],
        ["Transformer", "Pooling", "Normalize", "Dense"],
        ["Transformer"],
        ["WordEmbeddings", "Pooling"],
        [],
    ],
)
def test_other_modules_are_refused_by_name(directory: Path, kinds: list[str]) -> None:
    modules = [{"path": "", "type": f"sentence_transformers.models.{kind}"} for kind in kinds]
    (directory / "modules.json").write_text(json.dumps(modules))
    problem = refused(ConfigError, read_embedding_config, directory)
    assert ", ".join(kinds) in problem
    assert "known: Transformer, Pooling, Normalize" in problem


@pytest.mark.parametrize(
    "text",
    ["", "{", "7", "[7]", '[{"type": "a.Pooling"}]', '[{"path": "../x", "type": "Pooling"}]'],
)
def test_damaged_and_hostile_modules_are_refused(directory: Path, text: str) -> None:
    (directory / "modules.json").write_text(text)
    assert "modules.json" in refused(ConfigError, read_embedding_config, directory)


@pytest.mark.parametrize(
    "content",
    [{"prompts": {"query": 7}}, {"prompts": 7}, {"prompts": {}, "default_prompt_name": "query"}],
)
def test_damaged_prompts_are_refused(directory: Path, content: object) -> None:
    (directory / "config_sentence_transformers.json").write_text(json.dumps(content))
    refused(ConfigError, read_embedding_config, directory)


def test_models_that_are_known_to_be_trained_for_it_are_shortened() -> None:
    assert is_shortenable("Qwen/Qwen3-Embedding-0.6B")
    assert is_shortenable("Qwen/Qwen3-Embedding-8B-GGUF:Q8_0")
    assert not is_shortenable("Qwen/Qwen3-0.6B")
