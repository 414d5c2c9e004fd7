"""Families whose feed forwards are a mixture of experts."""

from dataclasses import replace

from specqd.config import ExpertsConfig, RopeConfig
from specqd.config.decoder import SigmoidChoice
from support.families.family import Family
from support.shapes import FULL, HEADS_40, HEADS_72, ROPE_SCALINGS, SLIDING, SMALL, Shape

GPT_OSS = {"quantization_config": {"quant_method": "mxfp4"}, "intermediate_size": 96}
AFMOE = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "num_dense_layers": 1,
    "num_shared_experts": 2,
    "route_scale": 1.7,
    "intermediate_size": 84,
}

QWEN2_MOE = {
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "shared_expert_intermediate_size": 52,
    "intermediate_size": 84,
}

FAMILIES = {
    "mixtral": Family(
        shapes={
            "": replace(
                SMALL, hidden=48, heads=2, ffn=36, vocab=263, window=60,
                extra={"num_local_experts": 5, "num_experts_per_tok": 2},
            ),
        },
        parity={
            "40, 2 of 5 experts, window 17": replace(
                HEADS_40, ffn=76, window=17, rope_theta=1e6,
                extra={"num_local_experts": 5, "num_experts_per_tok": 2},
            ),
            "72, 3 of 33 experts": replace(
                HEADS_72, ffn=36, extra={"num_local_experts": 33, "num_experts_per_tok": 3},
            ),
        },
        traits=[
            (
                {},
                {
                    "ropes": (RopeConfig("default", 1e6),) * 4, "windows": (0,) * 4,
                    "norm_eps": 1e-5, "experts": ExpertsConfig(8, 2, 172, (True,) * 4),
                },
            ),
            (
                {"num_local_experts": 5, "num_experts_per_tok": 3, "sliding_window": 7},
                {"experts": ExpertsConfig(5, 3, 172, (True,) * 4), "windows": (7,) * 4},
            ),
        ],
        refusals=[
            ({"num_experts_per_tok": 9}, ["num_experts_per_tok is 9", "experts (8)"]),
        ],
    ),
    "qwen3_moe": Family(
        shapes={
            "": replace(
                SMALL, hidden=56, heads=7, head_dim=40, ffn=36, layers=3, vocab=261,
                extra={"num_experts": 9, "num_experts_per_tok": 4, "mlp_only_layers": [1]},
            ),
        },
        parity={
            "40, 4 of 9 experts": replace(
                HEADS_40, ffn=76, extra={"num_experts": 9, "num_experts_per_tok": 4},
            ),
            "8:1 heads of 128, 8 of 16 experts": Shape(
                hidden=128, heads=8, kv_heads=1, head_dim=128, ffn=48, vocab=283,
                extra={"num_experts": 16, "num_experts_per_tok": 8, "norm_topk_prob": True},
            ),
            "96, routing weights of chosen, plain layers": Shape(
                hidden=100, heads=4, kv_heads=2, head_dim=96, ffn=60, layers=4, vocab=283,
                window=21, has_biases=True,
                extra={
                    "num_experts": 6, "num_experts_per_tok": 3, "norm_topk_prob": True,
                    "decoder_sparse_step": 2, "mlp_only_layers": [1],
                },
            ),
        },
        traits=[
            (
                {"sliding_window": 7},
                {
                    "qk_norm": "one", "head_dim": 8, "windows": (0,) * 4,
                    "experts": ExpertsConfig(
                        128, 8, 768, (True,) * 4, normalizes_routing_weights=False
                    ),
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
    ),
    "gpt_oss": Family(
        entries={"quantization_config": {"quant_method": "mxfp4"}},
        shapes={
            "": replace(
                SMALL, hidden=64, heads=7, head_dim=40, ffn=96, vocab=263, window=60,
                has_biases=True, rope_scaling=ROPE_SCALINGS["yarn"],
                extra={"num_local_experts": 5, "num_experts_per_tok": 2},
            ),
        },
        parity={
            "40, 2 of 5 experts, window 17": Shape(
                hidden=288, heads=7, kv_heads=1, head_dim=40, ffn=96, vocab=301, window=17,
                has_biases=True, rope_scaling=ROPE_SCALINGS["yarn"] | {"truncate": False},
                extra={"num_local_experts": 5, "num_experts_per_tok": 2},
            ),
            "8:1 heads of 64, 4 of 8 experts": Shape(
                hidden=192, heads=8, kv_heads=1, head_dim=64, ffn=192, vocab=301, window=33,
                has_biases=True, rope_scaling=ROPE_SCALINGS["yarn"] | {"truncate": False},
                extra={"num_local_experts": 8, "num_experts_per_tok": 4},
            ),
            "72, 4 of 33 experts": Shape(
                hidden=160, heads=2, kv_heads=2, head_dim=72, ffn=32, vocab=333, window=33,
                rope_scaling=ROPE_SCALINGS["yarn"],
                extra={"num_local_experts": 33, "num_experts_per_tok": 4},
            ),
        },
        traits=[
            (
                GPT_OSS,
                {
                    "has_sinks": True, "head_dim": 64, "windows": (128, 0, 128, 0),
                    "activation": "clamped_swiglu", "qkv_bias": True, "output_bias": True,
                    "ropes": (RopeConfig("yarn", 150_000.0, 32.0, 4096, truncate=False),) * 4,
                    "experts": ExpertsConfig(
                        128, 4, 96, (True,) * 4, has_router_bias=True, is_mxfp4=True,
                    ),
                },
            ),
            (
                GPT_OSS | {"num_local_experts": 32, "sliding_window": 7, "attention_bias": False},
                {"windows": (7, 0, 7, 0), "qkv_bias": False},
            ),
        ],
    ),
    "olmoe": Family(
        shapes={
            "": replace(
                SMALL, hidden=48, heads=2, kv_heads=2, ffn=36, vocab=273,
                extra={"num_experts": 5, "num_experts_per_tok": 2},
            ),
        },
        parity={
            "40, 3 of 9 experts, biases": Shape(
                hidden=280, heads=7, kv_heads=7, head_dim=40, ffn=44, vocab=301, has_biases=True,
                extra={"num_experts": 9, "num_experts_per_tok": 3},
            ),
            "72, tied, routing weights of chosen": replace(
                HEADS_72, ffn=36, is_tied=True,
                extra={"num_experts": 6, "num_experts_per_tok": 4, "norm_topk_prob": True},
            ),
        },
        traits=[
            (
                {},
                {
                    "qk_norm": "row", "norms": "before", "norm_eps": 1e-5,
                    "eos_token_ids": (50279,),
                    "experts": ExpertsConfig(
                        64, 8, 172, (True,) * 4, normalizes_routing_weights=False,
                    ),
                },
            ),
        ],
        refusals=[
            ({"clip_qkv": 8.0}, ["clip_qkv is 8.0; null is needed"]),
        ],
    ),
    "mellum": Family(
        has_ropes_by_type=True,
        shapes={
            "": replace(
                SMALL, ffn=36, layers=3, vocab=281, window=50, rope_theta=5e5,
                spells_rope_parameters=True,
                extra={
                    "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 84,
                    "layer_types": [SLIDING, FULL, SLIDING],
                    "mlp_layer_types": ["dense", "sparse", "sparse"],
                },
            ),
        },
        parity={
            "40, 3 of 9 experts, window 17, biases": replace(
                HEADS_40, ffn=44, layers=3, window=17, has_biases=True, rope_theta=None,
                extra={
                    "num_local_experts": 9, "num_experts_per_tok": 3, "norm_topk_prob": False,
                    "layer_types": [SLIDING, SLIDING, FULL],
                },
            ),
            "72 tied, 4 of 6 experts, plain layers": replace(
                HEADS_72, ffn=36, layers=3, window=33, is_tied=True, rope_theta=1e4,
                spells_rope_parameters=True,
                extra={
                    "num_local_experts": 6, "num_experts_per_tok": 4, "intermediate_size": 100,
                    "layer_types": [FULL, SLIDING, SLIDING],
                    "mlp_layer_types": ["sparse", "dense", "sparse"],
                },
            ),
        },
        traits=[
            (
                {"layer_types": [SLIDING, FULL] * 2},
                {
                    "qk_norm": "one", "head_dim": 128, "windows": (1024, 0) * 2,
                    "ropes": (RopeConfig("default", 1e4), RopeConfig("default", 5e5)) * 2,
                    "experts": ExpertsConfig(64, 8, 896, (True,) * 4),
                },
            ),
            ({}, {"windows": (0,) * 4, "ropes": (RopeConfig("default", 5e5),) * 4}),
        ],
        refusals=[
            ({"mlp_layer_types": ["dense"]}, ["a list of 4 names"]),
        ],
    ),
    "afmoe": Family(
        shapes={
            "": replace(
                SMALL, heads=4, kv_heads=2, ffn=36, layers=4, vocab=283, window=50, extra=AFMOE,
            ),
        },
        parity={
            "40, 3 of 8 experts, window 17": replace(
                HEADS_40, ffn=44, layers=4, window=17, extra=AFMOE,
            ),
            "72 tied, 4 of 9 experts, biases, scaled": replace(
                HEADS_72, ffn=36, layers=3, window=33, is_tied=True, has_biases=True,
                extra=AFMOE | {
                    "num_experts": 9, "num_experts_per_tok": 4, "num_dense_layers": 0,
                    "num_shared_experts": 1, "mup_enabled": True,
                    "layer_types": [FULL, SLIDING, FULL],
                },
            ),
        },
        traits=[
            (
                {"num_key_value_heads": None},
                {
                    "norms": "both", "qk_norm": "one", "attention_gates": "values",
                    "norm_eps": 1e-5, "num_kv_heads": 8, "head_dim": 128, "embedding_scale": 1.0,
                    "ropes": (*(RopeConfig("default", 1e4),) * 3, None),
                    "windows": (1024, 1024, 1024, 0),
                    "experts": ExpertsConfig(
                        64, 6, 1408, (False, True, True, True), has_shared=True,
                        sigmoids=SigmoidChoice(),
                    ),
                    "intermediate_sizes": (172, 2816, 2816, 2816),
                },
            ),
            ({"mup_enabled": True}, {"embedding_scale": 8.0}),
        ],
        refusals=[
            ({"num_shared_experts": 0}, ["num_shared_experts is 0; an integer from 1"]),
            ({"sliding_window": None}, ["sliding_window is off"]),
        ],
    ),
    "qwen2_moe": Family(
        shapes={
            "": replace(
                SMALL, hidden=48, heads=2, ffn=36, layers=3, vocab=269, window=60,
                extra=QWEN2_MOE | {"mlp_only_layers": [1]},
            ),
        },
        parity={
            "40, 3 of 9 experts, window 17": replace(
                HEADS_40, ffn=44, layers=4, window=17,
                extra=QWEN2_MOE | {
                    "num_experts": 9, "num_experts_per_tok": 3, "norm_topk_prob": True,
                    "max_window_layers": 3,
                },
            ),
            "72 tied, every other layer, no biases": replace(
                HEADS_72, ffn=36, is_tied=True,
                extra=QWEN2_MOE | {"decoder_sparse_step": 2, "qkv_bias": False},
            ),
        },
        traits=[
            (
                {"num_key_value_heads": 2},
                {
                    "qkv_bias": True, "output_bias": False, "windows": (0,) * 4, "head_dim": 8,
                    "experts": ExpertsConfig(
                        60, 4, 1408, (True,) * 4, normalizes_routing_weights=False, has_shared=True,
                    ),
                    "intermediate_sizes": (5632,) * 4, "eos_token_ids": (),
                },
            ),
            (
                {
                    "num_key_value_heads": 2, "use_sliding_window": True, "max_window_layers": 3,
                    "mlp_only_layers": [0], "shared_expert_intermediate_size": 44,
                },
                {"windows": (4096, 0, 4096, 0), "intermediate_sizes": (172, 44, 44, 44)},
            ),
        ],
    ),
}  # fmt: skip
