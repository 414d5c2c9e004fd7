"""config.json of each model type is read as transformers does; unsupported fields are named."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specqd.config import (
    DecoderConfig,
    GenerationDefaults,
    RopeConfig,
    read_config,
    read_generation_defaults,
)
from specqd.errors import ConfigError
from support.config_files import SHAPE, read, refusal
from support.families import FAMILIES
from support.refusals import done_or_refused
from support.shapes import FULL, SLIDING

LLAMA = {"model_type": "llama", **SHAPE}
QWEN2 = {"model_type": "qwen2", **SHAPE}
QWEN3 = {"model_type": "qwen3", **SHAPE}
MISTRAL = {"model_type": "mistral", **SHAPE}


def test_all_fields_of_a_llama_are_read(tmp_path):
    config = read(
        tmp_path,
        LLAMA,
        rms_norm_eps=1e-5,
        rope_theta=5e5,
        tie_word_embeddings=True,
        eos_token_id=[7, 9],
        torch_dtype="bfloat16",
        sliding_window=16,  # means nothing to a llama
    )
    assert config == DecoderConfig(
        model_type="llama",
        hidden_size=64,
        intermediate_size=172,
        num_layers=4,
        num_heads=8,
        num_kv_heads=2,
        head_dim=8,
        vocab_size=500,
        max_positions=512,
        norm_eps=1e-5,
        ropes=(RopeConfig("default", 5e5),) * 4,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        windows=(0, 0, 0, 0),
        tied_embeddings=True,
        bos_token_id=1,
        eos_token_ids=(7, 9),
    )


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3"])
def test_absent_fields_take_the_defaults_of_transformers(tmp_path, model_type):
    shape = {**SHAPE, "num_attention_heads": 32}
    for name in ("num_key_value_heads", "max_position_embeddings"):
        del shape[name]
    config = read(tmp_path, {"model_type": model_type, **shape})
    expected = {  # kv heads, head_dim, positions, window, bos, eos
        "llama": (32, 2, 2048, 0, 1, (2,)),
        "mistral": (8, 2, 131072, 4096, 1, (2,)),
        "qwen2": (32, 2, 32768, 0, None, ()),
        "qwen3": (32, 128, 32768, 0, None, ()),
    }[model_type]
    assert (
        config.num_kv_heads,
        config.head_dim,
        config.max_positions,
        config.windows[0],
        config.bos_token_id,
        config.eos_token_ids,
    ) == expected
    assert config.norm_eps == 1e-6
    assert config.ropes[0] == RopeConfig("default", 10_000.0)
    assert not config.tied_embeddings


def test_null_kv_heads_means_as_many_as_query_heads(tmp_path):
    for config in (LLAMA, MISTRAL, QWEN2, QWEN3):
        assert read(tmp_path, config, num_key_value_heads=None).num_kv_heads == 8


def test_null_end_of_text_means_no_token(tmp_path):
    config = read(tmp_path, LLAMA, eos_token_id=None, bos_token_id=None)
    assert config.eos_token_ids == ()
    assert config.bos_token_id is None


@pytest.mark.parametrize(
    ("config", "changes", "biases"),
    [
        (LLAMA, {"attention_bias": True}, (True, True, False)),
        (LLAMA, {"mlp_bias": True}, (False, False, True)),
        (MISTRAL, {"attention_bias": True}, (False, False, False)),
        (QWEN2, {}, (True, False, False)),
        (QWEN2, {"attention_bias": False}, (True, False, False)),
        (QWEN3, {}, (False, False, False)),
        (QWEN3, {"attention_bias": True}, (True, True, False)),
    ],
)
def test_biases_are_where_the_model_type_has_them(tmp_path, config, changes, biases):
    read_back = read(tmp_path, config, **changes)
    assert (read_back.qkv_bias, read_back.output_bias, read_back.mlp_bias) == biases
    assert read_back.qk_norm == ("one" if config is QWEN3 else None)


@pytest.mark.parametrize(
    ("config", "changes", "windows"),
    [
        (MISTRAL, {"sliding_window": 32}, (32, 32, 32, 32)),
        (MISTRAL, {"sliding_window": None}, (0, 0, 0, 0)),
        (QWEN2, {"sliding_window": 32}, (0, 0, 0, 0)),
        (QWEN2, {"use_sliding_window": True, "sliding_window": 32}, (0, 0, 0, 0)),
        (
            QWEN2,
            {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 3},
            (0, 0, 0, 32),
        ),
        (
            QWEN3,
            {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0},
            (0, 0, 0, 0),
        ),
        (QWEN3, {"use_sliding_window": True, "max_window_layers": 0}, (4096,) * 4),
        (
            QWEN3,
            {
                "use_sliding_window": True,
                "sliding_window": 32,
                "max_window_layers": 0,
                "layer_types": [SLIDING, FULL, FULL, SLIDING],
            },
            (32, 0, 0, 32),
        ),
        (QWEN2, {"layer_types": ["attention"] * 4}, (0, 0, 0, 0)),
        (QWEN2, {"layer_types": [FULL] * 4, "use_sliding_window": False}, (0, 0, 0, 0)),
    ],
)
def test_windows_are_on_the_layers_that_have_them(tmp_path, config, changes, windows):
    assert read(tmp_path, config, **changes).windows == windows


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


@pytest.mark.parametrize("kind", ["type", "rope_type"])
@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
def test_old_and_new_spellings_of_rope_are_the_same(tmp_path, kind, place):
    theta: dict[str, Any] = {"rope_theta": 5e5}
    scaling = {kind: "llama3", **LLAMA3}
    changes = theta | {place: scaling} if place == "rope_scaling" else {place: scaling | theta}
    expected = RopeConfig("llama3", 5e5, factor=8.0, original_max_positions=128)
    assert read(tmp_path, LLAMA, **changes).ropes[0] == expected


YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 20,
    "beta_slow": 2,
    "mscale": 0.7,
    "mscale_all_dim": 0.8,
    "attention_factor": 1.25,
    "truncate": False,
}
# By fact: entries of config.json, and the rope that is read.
ROPES = {
    "rope_parameters win over a theta beside them": (
        {"rope_theta": 10.0, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
        RopeConfig("default", 1e6),
    ),
    "linear": ({"rope_scaling": {"type": "linear", "factor": 2}}, RopeConfig("linear", 1e4, 2.0)),
    "yarn with defaults": (
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, RopeConfig("yarn", 1e4, 4.0, 512),
    ),
    "yarn with all fields": (
        {"rope_scaling": YARN},
        RopeConfig(
            "yarn", 1e4, 4.0, 64, beta_fast=20.0, beta_slow=2.0, attention_factor=1.25, mscale=0.7,
            mscale_all_dim=0.8, truncate=False,
        ),
    ),
    "yarn without a factor stretches to the context": (
        {"rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": 64}},
        RopeConfig("yarn", 1e4, 8.0, 64),
    ),
    "an original context beside the rope wins over the one inside": (
        {"rope_scaling": LLAMA3 | {"type": "llama3"}, "original_max_position_embeddings": 256},
        RopeConfig("llama3", 1e4, 8.0, 256),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "rope"), ROPES.values(), ids=ROPES)
def test_ropes_are_read(tmp_path, changes, rope):
    assert read(tmp_path, LLAMA, **changes).ropes[0] == rope


def test_yarn_that_was_added_to_a_configuration_makes_the_context_longer(tmp_path):
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    for stated, longest in ((512, 2048), (2048, 2048), (4096, 4096)):
        changes = {"max_position_embeddings": stated, "rope_scaling": scaling}
        assert read(tmp_path, LLAMA, **changes).max_positions == longest


@pytest.mark.parametrize(
    ("changes", "mentions"),
    [
        ({"model_type": "gpt2"}, ["'gpt2'", "llama, mistral, ministral, ministral3, qwen2, qwen3"]),
        ({"model_type": None}, ["model_type", "known"]),
        ({"model_type": ["llama"]}, ["model_type", "known"]),
        ({"quantization_config": {"bits": 4}}, ["quantised", "quantization_config", "BF16"]),
        ({"quantization_config": {"quant_method": "gptq"}}, ["(GPTQ)"]),
        ({"quantization_config": {"quant_method": "awq"}}, ["(AWQ)"]),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, ["(bitsandbytes)"]),
        ({"quantization_config": {"quant_method": "fp8"}}, ["(FP8)"]),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, ["compressed-tensors"]),
        ({"quantization_config": {"quant_method": "\x1b[2J"}}, ["'\\x1b[2J'"]),
        ({"compression_config": {}}, ["quantised"]),
        ({"hidden_act": "relu"}, ["hidden_act", "'relu'", "silu"]),
        ({"hidden_size": None}, ["hidden_size is missing"]),
        ({"hidden_size": 0}, ["hidden_size is 0"]),
        ({"hidden_size": 64.0}, ["hidden_size is 64.0"]),
        ({"hidden_size": "64"}, ["hidden_size is '64'"]),
        ({"hidden_size": 60}, ["60 is not a multiple of 8"]),
        ({"hidden_size": True}, ["hidden_size is True"]),
        ({"num_hidden_layers": 10**12}, ["num_hidden_layers"]),
        ({"num_key_value_heads": 3}, ["8 is not a multiple of 3"]),
        ({"head_dim": 7}, ["head_dim 7 is odd"]),
        ({"head_dim": 2048}, ["head_dim 2048 is above 1024"]),
        ({"vocab_size": -5}, ["vocab_size is -5"]),
        ({"rms_norm_eps": 0}, ["rms_norm_eps is 0"]),
        ({"rms_norm_eps": float("nan")}, ["rms_norm_eps is nan"]),
        ({"rms_norm_eps": 10**400}, ["rms_norm_eps is 1000"]),
        ({"attention_bias": 1}, ["attention_bias is 1"]),
        ({"eos_token_id": "</s>"}, ["eos_token_id"]),
        ({"eos_token_id": [1, -1]}, ["eos_token_id"]),
        ({"rope_scaling": "linear"}, ["rope_scaling is 'linear'"]),
        ({"rope_scaling": {"type": "proportional"}}, ["'proportional'", "yarn"]),
        ({"rope_scaling": {"rope_type": "longrope"}}, ["short_factor is missing", "4 numbers"]),
        ({"rope_scaling": {"rope_type": ["yarn"]}}, ["not supported"]),
        ({"rope_parameters": {FULL: {"rope_type": "default"}}}, ["several kinds"]),
        ({"rope_scaling": {"type": "linear"}}, ["rope_scaling.factor is missing"]),
        ({"rope_scaling": {"type": "linear", "factor": -1}}, ["rope_scaling.factor is -1"]),
        ({"rope_scaling": {"type": "llama3", "factor": 8}}, ["low_freq_factor is missing"]),
        ({"rope_scaling": {"type": "llama3", **LLAMA3, "high_freq_factor": 1}}, ["high_freq"]),
        ({"rope_scaling": {"type": "yarn"}, "rope_theta": 1.0}, ["rope_theta"]),
        ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor is 0.5"]),
        ({"rope_theta": 1e-8}, ["the rope turns by more than 2^30 radians within 512 positions"]),
        ({"rope_scaling": {"type": "linear", "factor": 1e-8}}, ["more than 2^30 radians"]),
        ({"rope_scaling": {"type": "llama3", **LLAMA3, "factor": 1e-8}}, ["more than 2^30"]),
        ({"max_position_embeddings": 2**30}, ["more than 2^30 radians"]),
        (
            {"rope_scaling": {"type": "su", "original_max_position_embeddings": 1}},
            ["original_max_position_embeddings is 1"],
        ),
    ],
)
def test_unsupported_or_impossible_field_is_named(tmp_path, changes, mentions):
    message = refusal(tmp_path, LLAMA, **changes)
    for mention in mentions:
        assert mention in message


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_types": [SLIDING, FULL, FULL, FULL]},  # no window is in use
        {"layer_types": [FULL] * 3},
        {"layer_types": ["linear_attention"] * 4},
        {"layer_types": "full_attention"},
        {"use_sliding_window": True, "sliding_window": 0},
    ],
)
def test_impossible_windows_are_refused(tmp_path, changes):
    refusal(tmp_path, QWEN3, **changes)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_file_that_is_not_a_json_object_is_refused(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"config\.json: is not"):
        read_config(tmp_path)


def test_missing_config_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"config\.json: is missing"):
        read_config(tmp_path)


def test_generation_defaults_are_those_of_the_file(tmp_path):
    assert read_generation_defaults(tmp_path) == GenerationDefaults()
    stated = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": None}
    stated |= {"repetition_penalty": 1.05, "eos_token_id": [3, 4], "pad_token_id": 0}
    (tmp_path / "generation_config.json").write_text(json.dumps(stated))
    assert read_generation_defaults(tmp_path) == GenerationDefaults(
        do_sample=True,
        temperature=0.6,
        top_p=0.95,
        top_k=20,
        repetition_penalty=1.05,
        eos_token_ids=(3, 4),
    )


def test_a_top_k_of_minus_one_is_off(tmp_path):
    (tmp_path / "generation_config.json").write_text('{"top_k": -1}')
    assert read_generation_defaults(tmp_path).top_k == 0


def test_temperature_counts_only_with_sampling():
    assert GenerationDefaults(temperature=0.7).effective_temperature == 0.0
    assert GenerationDefaults(do_sample=False, temperature=0.7).effective_temperature == 0.0
    assert GenerationDefaults(do_sample=True, temperature=0.7).effective_temperature == 0.7
    assert GenerationDefaults(do_sample=True).effective_temperature == 1.0


@pytest.mark.parametrize(
    ("stated", "temperature"),
    [
        ({}, 1.0),
        ({"top_p": 0.9}, 1.0),
        ({"do_sample": False}, 0.0),
        ({"temperature": 0.7}, 0.0),
        ({"do_sample": True, "temperature": 0.7}, 0.7),
    ],
)
def test_openais_temperature_applies_where_none_is_stated(stated, temperature):
    defaults = GenerationDefaults(**stated).with_openai_temperature()
    assert defaults.effective_temperature == temperature


def test_impossible_generation_default_is_refused(tmp_path):
    (tmp_path / "generation_config.json").write_text('{"top_p": 1.5}')
    with pytest.raises(ConfigError, match=r"generation_config\.json: top_p is 1\.5"):
        read_generation_defaults(tmp_path)


FIELDS = [*SHAPE, "head_dim", "rope_scaling", "rope_parameters", "rope_theta", "layer_types"]
FIELDS += ["no_rope_layers", "rotary_pct", "partial_rotary_factor", "hidden_act", "rms_norm_eps"]
FIELDS += ["sliding_window", "use_sliding_window", "max_window_layers", "eos_token_id"]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["rope_type", "type", "factor", "rope_theta"]), inner)
    ),
    max_leaves=6,
)


@settings(max_examples=200)
@given(
    model_type=st.sampled_from([*FAMILIES]),
    changes=st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=3),
)
def test_any_field_values_are_read_or_refused(tmp_path, model_type, changes):
    done_or_refused(ConfigError, read, tmp_path, {**SHAPE, "model_type": model_type}, **changes)
