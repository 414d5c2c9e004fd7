"""Families with layer norms."""

from dataclasses import replace

from specqd.config import RopeConfig
from support.families.family import Family
from support.shapes import FULL, HEADS_40, HEADS_72, SLIDING, SMALL, Shape

FAMILIES = {
    "starcoder2": Family(
        shapes={
            "": replace(SMALL, window=60, is_tied=True, has_biases=True),
        },
        parity={
            "40, window 17": replace(HEADS_40, window=17, is_tied=True, has_biases=True),
            "72 without biases": HEADS_72,
        },
        traits=[
            (
                {"num_key_value_heads": None},
                {
                    "norm": "layer", "is_gated": False, "activation": "gelu_tanh", "qkv_bias": True,
                    "mlp_bias": True, "windows": (0,) * 4, "num_kv_heads": 8, "norm_eps": 1e-5,
                },
            ),
            ({"use_bias": False, "norm_epsilon": 0.5}, {"output_bias": False, "norm_eps": 0.5}),
        ],
        refusals=[
            ({"hidden_act": "swish"}, ["hidden_act is 'swish'", "gelu_new"]),
        ],
    ),
    "gpt_neox": Family(
        shapes={
            "": replace(SMALL, kv_heads=3, has_biases=True, extra={"rotary_pct": 0.25}),
        },
        parity={
            "40, a quarter rotated": replace(
                HEADS_40, kv_heads=7, has_biases=True, extra={"rotary_pct": 0.25},
            ),
            "72, serial, tied": replace(
                HEADS_72, is_tied=True, extra={"use_parallel_residual": False, "rotary_pct": 0.5},
            ),
        },
        traits=[
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
        refusals=[
            ({"rotary_pct": 0.1}, ["rotary_pct is 0.1", "even"]),
            ({"hidden_act": "silu"}, ["hidden_act is 'silu'", "gelu_new"]),
            ({"num_key_value_heads": 2}, ["num_key_value_heads is 2", "8"]),
        ],
    ),
    "stablelm": Family(
        shapes={
            "": replace(
                SMALL, kv_heads=3,
                extra={
                    "use_parallel_residual": True, "qk_layernorm": True,
                    "partial_rotary_factor": 0.25,
                },
            ),
        },
        parity={
            "40": replace(HEADS_40, has_biases=True, extra={"partial_rotary_factor": 0.25}),
            "4:1 heads of 160, norms by head": Shape(
                hidden=640, heads=4, kv_heads=1, head_dim=160, ffn=432, vocab=301,
                extra={
                    "use_parallel_residual": True, "qk_layernorm": True,
                    "partial_rotary_factor": 0.25,
                },
            ),
            "72, parallel, norms by head": replace(
                HEADS_72, hidden=288, heads=4,
                extra={
                    "use_parallel_residual": True, "qk_layernorm": True,
                    "partial_rotary_factor": 0.5,
                },
            ),
        },
        traits=[
            (
                {"qk_layernorm": True, "use_qkv_bias": True},
                {
                    "norm": "layer", "qk_norm": "each", "qkv_bias": True, "output_bias": False,
                    "mlp_bias": False, "is_parallel": False,
                    "ropes": (RopeConfig("default", 1e4, share=0.25),) * 4,
                },
            ),
        ],
    ),
    "cohere": Family(
        entries={"layer_norm_eps": 1e-4},
        shapes={
            "": replace(SMALL, vocab=267, is_tied=True, extra={"logit_scale": 0.5}),
        },
        parity={
            "7:1 heads of 40, biases": replace(HEADS_40, has_biases=True),
            "72 tied": replace(HEADS_72, is_tied=True, rope_theta=None),
        },
        traits=[
            (
                {"num_key_value_heads": None},
                {
                    "norm": "layer", "norm_bias": False, "is_parallel": True, "norm_eps": 1e-5,
                    "rope_pairs": "neighbours", "logit_scale": 0.0625, "tied_embeddings": True,
                    "ropes": (RopeConfig("default", 5e5),) * 4, "windows": (0,) * 4,
                    "num_kv_heads": 8, "bos_token_id": 5, "eos_token_ids": (255_001,),
                },
            ),
        ],
        refusals=[
            ({"use_qk_norm": True}, ["use_qk_norm is True; false is needed"]),
        ],
    ),
    "cohere2": Family(
        entries={"layer_norm_eps": 1e-4},
        shapes={
            "": replace(
                SMALL, layers=4, vocab=269, window=50, is_tied=True, rope_theta=5e4,
                extra={"logit_scale": 0.5},
            ),
        },
        parity={
            "7:1 heads of 24, window 17, biases": replace(
                HEADS_40, head_dim=24, layers=4, window=17, has_biases=True,
                extra={"logit_scale": 0.25},
            ),
            "72 tied, window 9": replace(
                HEADS_72, layers=3, window=9, is_tied=True, rope_theta=None,
                extra={"layer_types": [FULL, SLIDING, FULL]},
            ),
            "72, no positions": replace(HEADS_72, window=9, extra={"layer_types": [FULL, FULL]}),
        },
        traits=[
            (
                {"num_hidden_layers": 5, "num_key_value_heads": None},
                {
                    "norm": "layer", "norm_bias": False, "is_parallel": True, "norm_eps": 1e-5,
                    "rope_pairs": "neighbours", "logit_scale": 0.0625, "tied_embeddings": True,
                    "windows": (4096, 4096, 4096, 0, 4096), "num_kv_heads": 8, "head_dim": 8,
                    "ropes": (
                        *(RopeConfig("default", 1e4),) * 3, None, RopeConfig("default", 1e4),
                    ),
                    "bos_token_id": 5, "eos_token_ids": (255_001,),
                },
            ),
            (
                {"sliding_window_pattern": 2, "sliding_window": 7, "logit_scale": 0.25},
                {"windows": (7, 0, 7, 0), "logit_scale": 0.25},
            ),
        ],
        refusals=[
            ({"sliding_window": None}, ["sliding_window is off"]),
            ({"logit_scale": 0}, ["logit_scale is 0; a number from 1e-30"]),
        ],
    ),
}  # fmt: skip
