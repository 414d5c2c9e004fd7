"""Families that are Llama but for a feed forward without a gate."""

from dataclasses import replace

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
}  # fmt: skip
