"""Families that are Llama but for a feed forward without a gate."""

from dataclasses import replace

from specqd.config import RopeConfig
from support.families.family import Family
from support.shapes import HEADS_40, HEADS_72, ROPE_SCALINGS, SMALL

FAMILIES = {
    "arcee": Family(
        shapes={
            "": replace(SMALL, hidden=56, heads=7, head_dim=40, vocab=263, has_biases=True),
        },
        parity={
            "7:1 heads of 40, rope yarn": replace(HEADS_40, rope_scaling=ROPE_SCALINGS["yarn"]),
            "72 tied, biases": replace(HEADS_72, is_tied=True, has_biases=True),
        },
        traits=[
            (
                {"hidden_act": "relu2", "num_key_value_heads": None, "head_dim": None},
                {
                    "activation": "relu_squared", "is_gated": False, "num_kv_heads": 8,
                    "head_dim": 8, "norm_eps": 1e-5, "bos_token_id": 128000,
                    "eos_token_ids": (128001,), "mlp_bias": False, "tied_embeddings": False,
                },
            ),
            ({"mlp_bias": True, "attention_bias": True}, {"mlp_bias": True, "output_bias": True}),
        ],
        refusals=[
            ({"hidden_act": "silu"}, ["hidden_act is 'silu'; relu2 is needed"]),
        ],
    ),
    "apertus": Family(
        shapes={
            "": replace(SMALL, hidden=56, heads=4, vocab=267, rope_theta=1e6),
        },
        parity={
            "7:1 heads of 40, biases, own rope": replace(
                HEADS_40, has_biases=True, rope_theta=None,
            ),
            "72 tied, rope llama3": replace(
                HEADS_72, is_tied=True, rope_theta=5e5, rope_scaling=ROPE_SCALINGS["llama3"],
            ),
        },
        traits=[
            (
                {"rope_theta": 1e4, "rope_scaling": None},
                {
                    "activation": "xielu", "is_gated": False, "qk_norm": "one", "norm_eps": 1e-5,
                    "ropes": (RopeConfig("llama3", 1.2e7, 8.0, 8192),) * 4,
                    "bos_token_id": 1, "eos_token_ids": (2,), "mlp_bias": False,
                },
            ),
            (
                {"rope_parameters": {"rope_type": "default"}},
                {"ropes": (RopeConfig("default", 1.2e7),) * 4},
            ),
        ],
        refusals=[
            ({"hidden_act": "silu"}, ["hidden_act is 'silu'; xielu is needed"]),
        ],
    ),
}  # fmt: skip
