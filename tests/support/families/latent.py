"""Families with DeepSeek's latent attention, its experts, or both."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from specqd.config import ExpertsConfig, RopeConfig
from specqd.config.decoder import LatentConfig, SigmoidChoice
from specqd.config.mtp import MtpConfig
from support.families.family import Family
from support.shapes import HEADS_40, HEADS_72, SMALL, YARN, Shape

DEEPSEEK_ROPE = {
    "rope_type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "mscale": 0.7,
    "mscale_all_dim": 1.0,
}

# Heads whose key, value and rotated part differ in size, so that their order matters.
_LATENT = {
    "q_lora_rank": 48,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 8,
    "v_head_dim": 48,
    "rms_norm_eps": 1e-2,  # norms of latents have an eps of their own
}
_SIGMOID = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.7,
    "first_k_dense_replace": 1,
    "intermediate_size": 84,
}
DEEPSEEK: Mapping[str, Any] = _LATENT | _SIGMOID | {"n_group": 4, "topk_group": 2}
PLAIN_QUERIES: Mapping[str, Any] = _LATENT | _SIGMOID | {"q_lora_rank": None}
DEEPSEEK_V2: Mapping[str, Any] = _LATENT | _SIGMOID | {"routed_scaling_factor": 1.0}
GLM4_MOE: Mapping[str, Any] = _SIGMOID | {"n_shared_experts": 1, "use_qk_norm": True}
GLM4_MOE_LITE: Mapping[str, Any] = {
    name: value for name, value in (_LATENT | _SIGMOID).items() if name != "first_k_dense_replace"
} | {"n_shared_experts": 1, "v_head_dim": 64}


LATENT = {"num_key_value_heads": 8}
MOONLIGHT = LATENT | {
    "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "n_routed_experts": 64, "num_experts_per_tok": 6, "n_shared_experts": 2,
    "moe_intermediate_size": 1408, "first_k_dense_replace": 1, "moe_layer_freq": 1, "n_group": 1,
    "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.446, "rope_theta": 50000.0,
    "rope_scaling": None, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    "num_nextn_predict_layers": 0,
}  # fmt: skip

FAMILIES = {
    "glm4_moe": Family(
        shapes={
            "": replace(
                SMALL, hidden=56, heads=7, head_dim=40, ffn=36, layers=3, vocab=261,
                has_biases=True, extra=GLM4_MOE,
            ),
        },
        parity={
            "40, 3 of 8 experts, biases, norms of heads": replace(
                HEADS_40, ffn=36, layers=3, rope_theta=1e6, has_biases=True, extra=GLM4_MOE,
            ),
            "72 tied, 4 of 12 experts in 2 of 3 groups": replace(
                HEADS_72, ffn=28, layers=3, is_tied=True,
                extra=GLM4_MOE | {
                    "n_routed_experts": 12, "n_group": 3, "topk_group": 2, "num_experts_per_tok": 4,
                    "use_qk_norm": False, "norm_topk_prob": False, "first_k_dense_replace": 0,
                },
            ),
        },
        traits=[
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
    ),
    "glm4_moe_lite": Family(
        shapes={
            "": replace(
                SMALL, heads=5, kv_heads=5, head_dim=8, ffn=36, layers=3, vocab=263, rope_theta=1e6,
                extra=GLM4_MOE_LITE,
            ),
        },
        parity={
            "24 and 8, 3 of 8 experts": Shape(
                hidden=144, heads=5, kv_heads=5, head_dim=8, ffn=36, layers=3, vocab=301,
                rope_theta=1e6, extra=GLM4_MOE_LITE,
            ),
            "192 and 64, halves rotate, plain layers": Shape(
                hidden=160, heads=4, kv_heads=4, head_dim=64, ffn=36, layers=4, vocab=307,
                rope_theta=1e6, spells_rope_parameters=True,
                extra=GLM4_MOE_LITE | {
                    "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256,
                    "kv_lora_rank": 112, "rope_interleave": False,
                    "mlp_layer_types": ["sparse", "dense", "sparse", "dense"],
                },
            ),
        },
        traits=[
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
        refusals=[
            (LATENT | {"mlp_layer_types": ["dense"]}, ["a list of 4 names"]),
            (
                LATENT | {"mlp_layer_types": ["dense", "moe", "dense", "dense"]},
                ["has 'moe'; known: dense, sparse"],
            ),
        ],
    ),
    "deepseek_v3": Family(
        shapes={
            "": replace(
                SMALL, kv_heads=3, head_dim=8, ffn=36, layers=3, rope_scaling=DEEPSEEK_ROPE,
                extra=DEEPSEEK,
            ),
            "queries without a latent": replace(
                SMALL, hidden=56, heads=4, kv_heads=4, head_dim=8, ffn=36, layers=3, vocab=269,
                extra=PLAIN_QUERIES,
            ),
        },
        parity={
            "24 and 8, 3 of 8 experts in 2 of 4 groups, rope yarn": Shape(
                hidden=72, heads=4, kv_heads=4, head_dim=8, ffn=36, layers=4, vocab=301,
                rope_scaling=DEEPSEEK_ROPE, extra=DEEPSEEK,
            ),
            "24 and 8, queries without a latent, tied": Shape(
                hidden=144, heads=7, kv_heads=7, head_dim=8, ffn=36, layers=3, vocab=299,
                is_tied=True, rope_theta=5e4, extra=PLAIN_QUERIES,
            ),
            "128 and 64, latent of 512, 6 of 33 experts": Shape(
                hidden=200, heads=5, kv_heads=5, head_dim=64, ffn=44, layers=2, vocab=307,
                rope_theta=5e4,
                extra=PLAIN_QUERIES | {
                    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
                    "v_head_dim": 128, "n_routed_experts": 33, "num_experts_per_tok": 6,
                },
            ),
        },
        traits=[
            (
                LATENT,
                {
                    "latent": LatentConfig(512, 64, 128, 128, 1536), "head_dim": 576,
                    "num_kv_heads": 1, "norm_eps": 1e-6, "attention_scale": 1 / math.sqrt(192),
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
                {"attention_scale": 1 / math.sqrt(192) * (0.1 * math.log(8.0) + 1.0) ** 2},
            ),
        ],
        refusals=[
            ({}, ["num_key_value_heads is 2", "query heads (8)"]),
            (LATENT | {"attention_bias": True}, ["attention_bias is True; false is"]),
            (LATENT | {"kv_lora_rank": 40}, ["is 40; a multiple of 16 is needed"]),
            (LATENT | {"kv_lora_rank": 1024}, ["1088 is above 1024, the largest"]),
            (LATENT | {"v_head_dim": 8}, ["v_head_dim is 8; a multiple of 16"]),
            (LATENT | {"qk_rope_head_dim": 7}, ["7 is odd"]),
            (LATENT | {"q_lora_rank": 0}, ["q_lora_rank is 0; an integer from 1"]),
            (LATENT | {"scoring_func": "softmax"}, ["is 'softmax'; 'sigmoid' is"]),
            (LATENT | {"topk_method": "greedy"}, ["topk_method is 'greedy'"]),
            (LATENT | {"moe_layer_freq": 2}, ["moe_layer_freq is 2; 1 is needed"]),
            (LATENT | {"n_group": 7}, ["n_group is 7", "256 experts"]),
            (LATENT | {"n_group": 256}, ["groups of two or more"]),
            (LATENT | {"topk_group": 9}, ["topk_group is 9; at most n_group (8)"]),
            (LATENT | {"num_experts_per_tok": 129}, ["is 129", "(128)"]),
            (LATENT | {"n_routed_experts": 10**9}, ["n_routed_experts", "to 10000"]),
            (LATENT | {"n_shared_experts": 0}, ["n_shared_experts is 0; an integer"]),
            (
                LATENT | {"quantization_config": {"quant_method": "fp8"}},
                ["quantised checkpoint (FP8)", "BF16 checkpoint"],
            ),
        ],
    ),
    "deepseek_v2": Family(
        shapes={
            "": replace(
                SMALL, kv_heads=3, head_dim=8, ffn=36, layers=3, vocab=277,
                rope_scaling=DEEPSEEK_ROPE, extra=DEEPSEEK_V2 | {"q_lora_rank": None},
            ),
        },
        parity={
            "24 and 8, 3 of 8 experts, rope yarn": Shape(
                hidden=72, heads=4, kv_heads=4, head_dim=8, ffn=36, layers=3, vocab=301,
                rope_scaling=DEEPSEEK_ROPE, extra=DEEPSEEK_V2,
            ),
            "128 and 64, queries without a latent, 6 of 33 experts, tied": Shape(
                hidden=200, heads=5, kv_heads=5, head_dim=64, ffn=44, layers=2, vocab=307,
                is_tied=True,
                extra=DEEPSEEK_V2 | {
                    "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
                    "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 33,
                    "num_experts_per_tok": 6, "first_k_dense_replace": 0,
                },
            ),
        },
        traits=[
            (
                LATENT | {"num_experts_per_tok": 6},
                {
                    "latent": LatentConfig(512, 64, 128, 128, 1536), "norm_eps": 1e-6,
                    "rope_pairs": "neighbours", "bos_token_id": 1, "eos_token_ids": (2,),
                    "experts": ExpertsConfig(
                        64, 6, 1407, (True,) * 4, normalizes_routing_weights=False, has_shared=True,
                    ),
                    "intermediate_sizes": (2814,) * 4,
                },
            ),
        ],
        refusals=[
            (LATENT, ["num_experts_per_tok is missing"]),
            (LATENT | {"topk_method": "group_limited_greedy"}, ["'greedy' is needed"]),
            (LATENT | {"routed_scaling_factor": 16.0}, ["routed_scaling_factor is 16.0; 1.0 is"]),
            (LATENT | {"norm_topk_prob": True}, ["norm_topk_prob is True; false is"]),
            (LATENT | {"mlp_bias": True}, ["mlp_bias is True; false is"]),
        ],
    ),
    "youtu": Family(
        shapes={
            "": replace(
                SMALL, kv_heads=3, head_dim=8, vocab=277, is_tied=True, rope_theta=5e5,
                extra=_LATENT,
            ),
        },
        parity={
            "yarn": replace(
                HEADS_40, kv_heads=7, head_dim=8, rope_scaling=DEEPSEEK_ROPE, extra=_LATENT,
            ),
            "tied, plain queries, halves": replace(
                HEADS_72, head_dim=8, is_tied=True,
                extra=_LATENT | {"q_lora_rank": None, "rope_interleave": False},
            ),
        },
        traits=[
            (
                LATENT,
                {
                    "latent": LatentConfig(512, 64, 128, 128, 1536), "head_dim": 576,
                    "rope_pairs": "neighbours", "norm_eps": 1e-6, "tied_embeddings": True,
                    "bos_token_id": 128_000, "eos_token_ids": (128_001,), "experts": None,
                },
            ),
        ],
    ),
}  # fmt: skip
