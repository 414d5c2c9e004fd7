"""Each family's traits are read as transformers reads them."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specqd.config import ExpertsConfig, RopeConfig, read_config
from specqd.config.decoder import LatentConfig, SigmoidChoice
from specqd.config.mtp import MtpConfig
from support.config_files import FULL, GRANITE_DENSE, SHAPE, SLIDING, YARN, read
from support.recurrent_traits import RECURRENT_TRAITS

GPT_OSS = {"quantization_config": {"quant_method": "mxfp4"}, "intermediate_size": 96}
LATENT = {"num_key_value_heads": 8}
MOONLIGHT = LATENT | {
    "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "n_routed_experts": 64, "num_experts_per_tok": 6, "n_shared_experts": 2,
    "moe_intermediate_size": 1408, "first_k_dense_replace": 1, "moe_layer_freq": 1, "n_group": 1,
    "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.446, "rope_theta": 50000.0,
    "rope_scaling": None, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    "num_nextn_predict_layers": 0,
}  # fmt: skip
FAMILY_TRAITS: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "olmo2": [({}, {"norms": "after", "qk_norm": "row", "norm_eps": 1e-5})],
    "olmo3": [
        (
            {"num_hidden_layers": 5, "rope_theta": 1e6, "rope_scaling": YARN},
            {
                "norms": "after", "qk_norm": "row", "norm_eps": 1e-5,
                "windows": (4096, 4096, 4096, 0, 4096),
                "ropes": (
                    *(RopeConfig("default", 1e6),) * 3, RopeConfig("yarn", 1e6, 8.0, 64),
                    RopeConfig("default", 1e6),
                ),
            },
        ),
        (
            {
                "layer_types": [FULL, SLIDING, SLIDING, FULL], "sliding_window": 7,
                "rope_parameters": {FULL: YARN, SLIDING: {"rope_theta": 10.0}},
            },
            {
                "windows": (0, 7, 7, 0),
                "ropes": (
                    RopeConfig("yarn", 5e5, 8.0, 64), *(RopeConfig("default", 10.0),) * 2,
                    RopeConfig("yarn", 5e5, 8.0, 64),
                ),
            },
        ),
    ],
    "ministral3": [
        (
            {},
            {
                "ropes": (
                    RopeConfig(
                        "yarn", 1e6, 16.0, 16384, mscale=1.0, mscale_all_dim=1.0, query_growth=0.1
                    ),
                ) * 4,
                "windows": (0,) * 4, "head_dim": 128, "norm_eps": 1e-5, "eos_token_ids": (2,),
            },
        ),
        (
            {"rope_parameters": YARN | {"llama_4_scaling_beta": None}, "sliding_window": 7},
            {"ropes": (RopeConfig("yarn", 1e4, 8.0, 64),) * 4, "windows": (7,) * 4},
        ),
        (
            {
                "rope_parameters": {
                    "rope_type": "default", "llama_4_scaling_beta": 0.5,
                    "original_max_position_embeddings": 9,
                },
            },
            {
                "ropes": (
                    RopeConfig("default", 1e4, original_max_positions=9, query_growth=0.5),
                ) * 4,
            },
        ),
    ],
    "granitemoehybrid": [
        (
            GRANITE_DENSE | {"position_embedding_type": "rope", "attention_multiplier": 0.5},
            {
                "intermediate_size": 33, "attention_scale": 0.5, "windows": (0,) * 4,
                "ropes": (RopeConfig("default", 1e4),) * 4, "mlp_bias": False,
            },
        ),
        (
            GRANITE_DENSE | {"layer_types": None, "layers_block_type": [FULL] * 4},
            {"ropes": (None,) * 4, "norm_eps": 1e-6},
        ),
    ],
    "glm4": [
        (
            {"attention_bias": False},
            {
                "norms": "both", "norm_offset": 0.0, "rope_pairs": "neighbours", "head_dim": 128,
                "ropes": (RopeConfig("default", 1e4, share=0.5),) * 4, "qkv_bias": False,
                "eos_token_ids": (151329, 151336, 151338), "norm_eps": 1.5625e-07,
            },
        ),
        (
            {"partial_rotary_factor": 0.25},
            {
                "ropes": (RopeConfig("default", 1e4, share=0.25),) * 4,
                "qkv_bias": True, "output_bias": False,
            },
        ),
    ],
    "granite": [
        (
            {"residual_multiplier": 0.22, "attention_multiplier": 0.5, "logits_scaling": 4},
            {"residual_scale": 0.22, "attention_scale": 0.5, "logit_scale": 0.25},
        ),
        ({}, {"attention_scale": 1.0, "embedding_scale": 1.0}),
    ],
    "smollm3": [
        ({}, {"ropes": (RopeConfig("default", 2e6),) * 3 + (None,), "tied_embeddings": True}),
        (
            {"no_rope_layers": [0, 1, 1, 1], "use_sliding_window": True, "sliding_window": 9},
            {"windows": (9, 0, 0, 0), "ropes": (None, *(RopeConfig("default", 2e6),) * 3)},
        ),
    ],
    "gemma2": [
        (
            {"hidden_act": "anything"},
            {
                "norms": "both", "norm_offset": 1.0, "head_dim": 256, "embedding_scale": 8.0,
                "attention_scale": 1 / 16, "attention_softcap": 50.0, "logit_softcap": 30.0,
                "activation": "gelu_tanh", "windows": (4096, 0, 4096, 0), "tied_embeddings": True,
            },
        ),
        ({"attn_logit_softcapping": None}, {"attention_softcap": None, "logit_softcap": 30.0}),
    ],
    "gemma3_text": [
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "sliding_window": 512},
            {
                "ropes": (RopeConfig("default", 1e4),) * 4, "windows": (512,) * 4,
                "qk_norm": "one", "attention_softcap": None, "logit_softcap": None,
            },
        ),
        (
            {
                "sliding_window_pattern": 2, "rope_local_base_freq": 100.0,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            },
            {"ropes": (RopeConfig("default", 100.0), RopeConfig("linear", 1e6, 8.0)) * 2},
        ),
        (
            {
                "layer_types": [FULL, SLIDING, SLIDING, FULL],
                "rope_parameters": {
                    FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e5},
                    SLIDING: {"rope_type": "default", "rope_theta": 10.0},
                },
            },
            {
                "ropes": (
                    RopeConfig("linear", 1e5, 8.0), *(RopeConfig("default", 10.0),) * 2,
                    RopeConfig("linear", 1e5, 8.0),
                ),
                "windows": (0, 4096, 4096, 0),
            },
        ),
    ],
    "phi3": [
        (
            {"partial_rotary_factor": 0.75, "sliding_window": 17},
            {"ropes": (RopeConfig("default", 1e4, share=0.75),) * 4, "windows": (17,) * 4},
        ),
    ],
    "starcoder2": [
        (
            {"num_key_value_heads": None},
            {
                "norm": "layer", "is_gated": False, "activation": "gelu_tanh", "qkv_bias": True,
                "mlp_bias": True, "windows": (0,) * 4, "num_kv_heads": 8, "norm_eps": 1e-5,
            },
        ),
        ({"use_bias": False, "norm_epsilon": 0.5}, {"output_bias": False, "norm_eps": 0.5}),
    ],
    "gpt_neox": [
        (
            {"rotary_pct": 0.5, "rotary_emb_base": 500, "num_key_value_heads": 8},
            {
                "norm": "layer", "is_gated": False, "activation": "gelu", "is_parallel": True,
                "ropes": (RopeConfig("default", 500.0, share=0.5),) * 4, "mlp_bias": True,
            },
        ),
        (
            {
                "rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 7.0},
                "num_key_value_heads": None,
            },
            {"ropes": (RopeConfig("default", 7.0, share=0.25),) * 4},
        ),
        (
            {
                "use_parallel_residual": False, "attention_bias": False,
                "num_key_value_heads": None,
            },
            {"is_parallel": False},
        ),
    ],
    "stablelm": [
        (
            {"qk_layernorm": True, "use_qkv_bias": True},
            {
                "norm": "layer", "qk_norm": "each", "qkv_bias": True, "output_bias": False,
                "mlp_bias": False, "is_parallel": False,
                "ropes": (RopeConfig("default", 1e4, share=0.25),) * 4,
            },
        ),
    ],
    "mixtral": [
        (
            {},
            {
                "ropes": (RopeConfig("default", 1e6),) * 4, "windows": (0,) * 4, "norm_eps": 1e-5,
                "experts": ExpertsConfig(8, 2, 172, (True,) * 4),
            },
        ),
        (
            {"num_local_experts": 5, "num_experts_per_tok": 3, "sliding_window": 7},
            {"experts": ExpertsConfig(5, 3, 172, (True,) * 4), "windows": (7,) * 4},
        ),
    ],
    "qwen3_moe": [
        (
            {"sliding_window": 7},
            {
                "qk_norm": "one", "head_dim": 8, "windows": (0,) * 4,
                "experts": ExpertsConfig(128, 8, 768, (True,) * 4, shares_of_chosen=False),
            },
        ),
        (
            {
                "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 33,
                "decoder_sparse_step": 2, "mlp_only_layers": [1], "norm_topk_prob": True,
                "use_sliding_window": True, "sliding_window": 7,
            },
            {
                "experts": ExpertsConfig(6, 2, 33, (False, False, False, True)),
                "windows": (7,) * 4,
            },
        ),
    ],
    "glm4_moe": [
        (
            {"head_dim": 24, "use_qk_norm": True, "attention_bias": True},
            {
                "num_kv_heads": 2, "head_dim": 24, "norm_eps": 1e-5, "qk_norm": "one",
                "qkv_bias": True, "output_bias": False, "rope_pairs": "halves", "latent": None,
                "ropes": (RopeConfig("default", 1e4, share=0.5),) * 4,
                "experts": ExpertsConfig(
                    128, 8, 1408, (False, True, True, True), has_shared=True,
                    sigmoids=SigmoidChoice(),
                ),
                "intermediate_sizes": (172, 1408, 1408, 1408),
                "mtp": MtpConfig(blanks_first=True),
            },
        ),
    ],
    "glm4_moe_lite": [
        (
            LATENT,
            {
                "latent": LatentConfig(512, 64, 192, 256, 768), "head_dim": 576,
                "num_kv_heads": 1, "norm_eps": 1e-5, "attention_scale": 1 / 16,
                "experts": ExpertsConfig(
                    64, 4, 1536, (False, True, True, True), has_shared=True,
                    sigmoids=SigmoidChoice(scale=1.8),
                ),
            },
        ),
        (
            LATENT | {"mlp_layer_types": ["sparse", "dense"] * 2, "rope_interleave": False},
            {"intermediate_sizes": (1536, 172, 1536, 172), "rope_pairs": "halves"},
        ),
    ],
    "deepseek_v3": [
        (
            LATENT,
            {
                "latent": LatentConfig(512, 64, 128, 128, 1536), "head_dim": 576,
                "num_kv_heads": 1, "norm_eps": 1e-6, "attention_scale": 192**-0.5,
                "rope_pairs": "neighbours", "ropes": (RopeConfig("default", 1e4),) * 4,
                "experts": ExpertsConfig(
                    256, 8, 2048, (False, False, False, True), has_shared=True,
                    sigmoids=SigmoidChoice(8, 4, 2.5),
                ),
                "intermediate_sizes": (172, 172, 172, 2048), "eos_token_ids": (1,),
            },
        ),
        (
            MOONLIGHT,
            {
                "latent": LatentConfig(512, 64, 128, 128),
                "ropes": (RopeConfig("default", 5e4),) * 4,
                "experts": ExpertsConfig(
                    64, 6, 1408, (False, True, True, True), has_shared=True,
                    sigmoids=SigmoidChoice(1, 1, 2.446),
                ),
                "intermediate_sizes": (172, 2816, 2816, 2816),
                "mtp": MtpConfig(blanks_first=True),
            },
        ),
        (
            LATENT | {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
            {"attention_scale": 192**-0.5 * (0.1 * math.log(8.0) + 1.0) ** 2},
        ),
    ],
    "gpt_oss": [
        (
            GPT_OSS,
            {
                "has_sinks": True, "head_dim": 64, "windows": (128, 0, 128, 0),
                "activation": "clamped_swiglu", "qkv_bias": True, "output_bias": True,
                "ropes": (
                    RopeConfig("yarn", 150_000.0, 32.0, 4096, truncate=False),
                ) * 4,
                "experts": ExpertsConfig(
                    128, 4, 96, (True,) * 4, has_router_bias=True, is_mxfp4=True
                ),
            },
        ),
        (
            GPT_OSS | {"num_local_experts": 32, "sliding_window": 7, "attention_bias": False},
            {"windows": (7, 0, 7, 0), "qkv_bias": False},
        ),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("model_type", "changes", "traits"),
    [(name, *case) for name, cases in (FAMILY_TRAITS | RECURRENT_TRAITS).items() for case in cases],
)
def test_families_have_their_traits(
    tmp_path: Path, model_type: str, changes: dict[str, Any], traits: dict[str, Any]
) -> None:
    config = read(tmp_path, {"model_type": model_type, **SHAPE}, **changes)
    assert {name: getattr(config, name) for name in traits} == traits


def test_longrope_takes_the_factors_of_the_context(tmp_path: Path) -> None:
    scaling = {"type": "su", "short_factor": [1, 1, 1, 1], "long_factor": [1.0, 2, 3, 4]}
    changes = {"rope_scaling": scaling, "original_max_position_embeddings": 128}
    config = read(tmp_path, {"model_type": "phi3", **SHAPE}, **changes)
    assert config.max_positions == 512
    assert config.ropes[0] == RopeConfig(
        "longrope", 1e4, factor=4.0, original_max_positions=128, factors=(1.0, 2.0, 3.0, 4.0)
    )
    short = read_config(tmp_path, context=128)
    assert short.max_positions == 128
    assert short.ropes[0] == replace(config.ropes[0], factors=(1.0,) * 4)


DYNAMIC = {"type": "dynamic", "factor": 2.0}


def test_dynamic_rope_is_plain_rope_within_the_context(tmp_path: Path) -> None:
    config = read(
        tmp_path, {"model_type": "llama", **SHAPE}, rope_scaling={"type": "dynamic", "factor": 2.0}
    )
    assert config.ropes[0] == RopeConfig("default", 10_000.0)
    assert config.max_positions == 512
