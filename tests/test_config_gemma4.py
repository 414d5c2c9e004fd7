"""Gemma 4's traits are read as transformers reads them."""

from pathlib import Path
from typing import Any

import pytest

from specqd.config import AttentionConfig, ExpertsConfig, PerLayerConfig, RopeConfig
from support.config_files import FULL, SHAPE, SLIDING, read, refusal

GEMMA4 = {"model_type": "gemma4_text", **SHAPE}
EXPERTS = {
    "enable_moe_block": True,
    "num_experts": 8,
    "top_k_experts": 3,
    "moe_intermediate_size": 44,
}
LOCAL = RopeConfig("default", 1e4)
TRAITS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"num_hidden_layers": 7},
        {
            "norms": "both", "norm_offset": 0.0, "qk_norm": "one", "norms_values": True,
            "attention_scale": 1.0, "embedding_scale": 8.0, "activation": "gelu_tanh",
            "windows": (*(512,) * 5, 0, 0), "tied_embeddings": True, "scales_layers": True,
            "logit_softcap": None, "per_layer": PerLayerConfig(256, 262_144),
            "attentions": (*(AttentionConfig(2, 256),) * 5, *(AttentionConfig(2, 512),) * 2),
            "ropes": (*(LOCAL,) * 5, *(RopeConfig("proportional", 1e6, share=0.25),) * 2),
            "intermediate_sizes": (172,) * 7,
        },
    ),
    (
        {
            "layer_types": [SLIDING, FULL, SLIDING, SLIDING], "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True, "head_dim": 24, "global_head_dim": 40,
            "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 501,
        },
        {
            "attentions": (
                AttentionConfig(2, 24), AttentionConfig(2, 40),
                AttentionConfig(2, 24, kv_layer=0), AttentionConfig(2, 40, kv_layer=1),
            ),
            "windows": (512, 0, 512, 0), "intermediate_sizes": (172, 172, 344, 344),
            "per_layer": PerLayerConfig(8, 501),
        },
    ),
    (
        {
            "layer_types": [SLIDING, FULL] * 2, "attention_k_eq_v": True, "head_dim": 24,
            "num_global_key_value_heads": 1, "hidden_size_per_layer_input": None,
            "final_logit_softcapping": 30.0, "use_bidirectional_attention": "vision",
            "rope_parameters": {
                FULL: {"rope_type": "proportional", "rope_theta": 10.0, "factor": 2.0},
                SLIDING: {"rope_type": "default", "rope_theta": 20.0},
            },
        },
        {
            "attentions": (
                AttentionConfig(2, 24), AttentionConfig(1, 512, values_are_keys=True),
            ) * 2,
            "ropes": (RopeConfig("default", 20.0), RopeConfig("proportional", 10.0, 2.0)) * 2,
            "per_layer": None, "logit_softcap": 30.0,
        },
    ),
    (
        EXPERTS,
        {
            "experts": ExpertsConfig(
                8, 3, 44, (True,) * 4, has_shared=True, has_own_norms=True
            ),
            "intermediate_sizes": (172,) * 4,
        },
    ),
    ({**EXPERTS, "enable_moe_block": False}, {"experts": None}),
    (
        {
            "layer_types": [SLIDING, FULL] * 2, "head_dim": 24,
            "per_layer_config": {"1": {"head_dim": 40, "num_key_value_heads": 4}},
        },
        {
            "attentions": (
                AttentionConfig(2, 24), AttentionConfig(4, 40), *(AttentionConfig(2, 24),) * 2,
            ),
        },
    ),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "traits"), TRAITS)
def test_traits_are_read(tmp_path: Path, changes: dict[str, Any], traits: dict[str, Any]) -> None:
    config = read(tmp_path, GEMMA4, **changes)
    assert {name: getattr(config, name) for name in traits} == traits


@pytest.mark.parametrize(
    ("changes", "mentions"),
    [
        ({"enable_moe_block": True}, ["moe_intermediate_size is missing; an integer from 1"]),
        (EXPERTS | {"num_experts": None}, ["num_experts is missing; an integer from 1 to 10000"]),
        (EXPERTS | {"num_experts": 10**9}, ["num_experts is 1000000000; an integer from 1 to"]),
        (EXPERTS | {"top_k_experts": None}, ["top_k_experts is missing; an integer from 1"]),
        (EXPERTS | {"top_k_experts": 9}, ["top_k_experts is 9; at most the number of experts (8)"]),
        (
            {"use_bidirectional_attention": "all"},
            ["use_bidirectional_attention is 'all'; null or 'vision' is needed"],
        ),
        (
            {"rope_scaling": {"rope_type": "yarn"}},
            ["rope_scaling", "rope_parameters by layer type"],
        ),
        (
            {"rope_parameters": {FULL: {"partial_rotary_factor": 0.5}}},
            ["rope_parameters.full_attention.rope_type is missing; 'proportional'"],
        ),
        (
            {"num_kv_shared_layers": 4},
            ["num_kv_shared_layers is 4, but layer 0 has no like layer before"],
        ),
        (
            {"layer_types": [SLIDING, SLIDING, FULL, FULL], "num_kv_shared_layers": 2},
            ["num_kv_shared_layers is 2, but layer 2 has no like layer before"],
        ),
        ({"num_kv_shared_layers": 5}, ["an integer from 0 to 4"]),
        ({"global_head_dim": 513}, ["head_dim 513 is odd"]),
        (
            {"attention_k_eq_v": True, "num_global_key_value_heads": 3},
            ["8 is not a multiple of 3 kv heads"],
        ),
        (
            {"vocab_size_per_layer_input": 499},
            ["vocab_size_per_layer_input is 499; at least vocab_size (500) is needed"],
        ),
        ({"model_type": "gemma4_assistant"}, ["'gemma4_assistant' is not supported"]),
        ({"model_type": "gemma4_unified"}, ["'gemma4_unified' is not supported"]),
    ],
)
def test_what_is_not_supported_is_named(
    tmp_path: Path, changes: dict[str, Any], mentions: list[str]
) -> None:
    message = refusal(tmp_path, GEMMA4, **changes)
    for mention in mentions:
        assert mention in message
