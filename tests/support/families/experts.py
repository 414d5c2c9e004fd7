"""Families whose feed forwards are a mixture of experts."""

from dataclasses import replace

from specqd.config import ExpertsConfig, RopeConfig
from support.families.family import Family
from support.shapes import HEADS_40, HEADS_72, ROPE_SCALINGS, SMALL, Shape

GPT_OSS = {"quantization_config": {"quant_method": "mxfp4"}, "intermediate_size": 96}

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
}  # fmt: skip
