"""The files of a tokenizer: missing, unreadable and malformed ones, and chat templates."""

import json
from pathlib import Path

import pytest

from specqd.errors import RequestError, TokenizerError
from specqd.text.tokenizer import Tokenizer
from support.refusals import refused
from support.small_tokenizers import BUILT, CONFIG, byte_level, saved


def one_line_of(directory: Path) -> str:
    message = refused(TokenizerError, Tokenizer.open, directory)
    assert str(directory) in message
    return message


def test_the_error_for_a_missing_tokenizer_names_it(tmp_path: Path) -> None:
    assert "tokenizer.json: not found" in one_line_of(tmp_path)
    assert "tokenizer.json: not found" in one_line_of(tmp_path / "nowhere")


UNREADABLE = [b"", b"{", b"[]", b'{"version": "1.0"}', b'{"model": {"type": "Nonsense"}}', b"null"]


@pytest.mark.parametrize(
    ("content", "mention"), [*((c, "not a tokenizer") for c in UNREADABLE), (b"\xff\xfe", "")]
)
def test_the_error_for_an_unreadable_tokenizer_names_it(
    tmp_path: Path, content: bytes, mention: str
) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    assert f"tokenizer.json: {mention}" in one_line_of(tmp_path)


@pytest.mark.parametrize("token_id", [(1 << 24) + 1, (1 << 32) - 1])
def test_a_huge_id_is_rejected_before_memory_is_allocated(tmp_path: Path, token_id: int) -> None:
    path = saved(tmp_path, byte_level()) / "tokenizer.json"
    read = json.loads(path.read_text())
    read["model"]["vocab"]["huge"] = token_id
    path.write_text(json.dumps(read))
    assert f"the id {token_id} is larger than 16777216" in one_line_of(tmp_path)


@pytest.mark.parametrize(
    "settings_text",
    [
        "{",
        "[1]",
        "[" * 100_000,
        '{"bos_token": 3}',
        '{"added_tokens_decoder": [1]}',
        '{"added_tokens_decoder": {"1": 2}}',
        '{"additional_special_tokens": 7}',
        '{"chat_template": 3}',
        '{"chat_template": [{"name": "default"}]}',
        '{"chat_template": [["default"]]}',
        '{"chat_template": {"default": [1]}}',
    ],
)
def test_the_error_for_malformed_settings_names_the_file(
    tmp_path: Path, settings_text: str
) -> None:
    saved(tmp_path, byte_level(), tokenizer_config_json=settings_text)
    assert "tokenizer_config.json" in one_line_of(tmp_path)


def test_the_error_for_a_directory_in_place_of_a_file_names_it(tmp_path: Path) -> None:
    saved(tmp_path, byte_level())
    (tmp_path / "tokenizer_config.json").mkdir()
    assert "cannot be read" in one_line_of(tmp_path)


MESSAGES = [{"role": "user", "content": "ab"}]


def test_a_chat_is_encoded_without_a_second_bos(tmp_path: Path) -> None:
    template = "{{ bos_token }}{{ messages[0].content }}{{ eos_token if add_generation_prompt }}"
    config = {**CONFIG, "chat_template": template}
    tokenizer = Tokenizer.open(saved(tmp_path, byte_level(), tokenizer_config_json=config))
    assert tokenizer.has_chat_template
    assert tokenizer.render_chat(MESSAGES) == "<s>ab</s>"
    assert tokenizer.chat(MESSAGES) == tokenizer.encode("<s>ab</s>", add_special_tokens=False)
    assert tokenizer.render_chat(MESSAGES, add_generation_prompt=False) == "<s>ab"
    assert tokenizer.render_chat(MESSAGES, bos_token="B") == "Bab</s>"


def test_a_template_file_overrides_the_settings(tmp_path: Path) -> None:
    saved(tmp_path, byte_level(), chat_template_json={"chat_template": "processor"})
    assert Tokenizer.open(tmp_path).render_chat(MESSAGES) == "processor"
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "settings"}')
    assert Tokenizer.open(tmp_path).render_chat(MESSAGES) == "settings"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert Tokenizer.open(tmp_path).render_chat(MESSAGES) == "file"


def test_tools_select_the_tool_use_template(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    saved(tmp_path, byte_level(), tokenizer_config_json={"chat_template": named})
    tokenizer = Tokenizer.open(tmp_path)
    assert tokenizer.render_chat(MESSAGES) == "plain"
    assert tokenizer.render_chat(MESSAGES, tools=[{"name": "f"}]) == "tools"
    saved(tmp_path, byte_level(), tokenizer_config_json={"chat_template": named[1:]})
    with pytest.raises(TokenizerError, match="tool_use"):
        Tokenizer.open(tmp_path).render_chat(MESSAGES)


def test_a_chat_without_a_template_is_rejected() -> None:
    assert not BUILT["byte_level"].has_chat_template
    with pytest.raises(RequestError, match="no chat template"):
        BUILT["byte_level"].chat(MESSAGES)
