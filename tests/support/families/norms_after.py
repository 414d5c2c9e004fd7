"""Families with norms after their blocks or with scales: OLMo, Granite, GLM 4."""

from dataclasses import replace

from specqd.config import ExpertsConfig, RopeConfig
from support.families.family import Family
from support.shapes import FULL, HEADS_40, HEADS_72, ROPE_SCALINGS, SLIDING, SMALL, YARN

GRANITE = {
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.02,
    "residual_multiplier": 0.22,
    "logits_scaling": 0.25,
}
GRANITE_DENSE = {
    "num_local_experts": 0,
    "shared_intermediate_size": 33,
    "layer_types": ["attention"] * 4,
    "mlp_bias": True,  # means nothing here
}

FAMILIES = {
    "olmo2": Family(
        shapes={
            "": SMALL,
        },
        parity={
            "7:1 heads of 40": replace(HEADS_40, rope_theta=500000.0),
            "72, biases, rope yarn": replace(
                HEADS_72, has_biases=True, rope_scaling=ROPE_SCALINGS["yarn"],
                spells_rope_parameters=True,
            ),
        },
        traits=[
            ({}, {"norms": "after", "qk_norm": "row", "norm_eps": 1e-5}),
        ],
        refusals=[
            ({"clip_qkv": 8.0}, ["clip_qkv is 8.0"]),
        ],
    ),
    "olmo3": Family(
        has_ropes_by_type=True,
        shapes={
            "": replace(
                SMALL, layers=4, window=50, rope_theta=5e5, rope_scaling=ROPE_SCALINGS["yarn"],
            ),
        },
        parity={
            "7:1 heads of 40, rope yarn, window 17": replace(
                HEADS_40, layers=4, window=17, rope_theta=500000.0,
                rope_scaling=ROPE_SCALINGS["yarn"],
            ),
            "72, biases, rope parameters by layer type": replace(
                HEADS_72, layers=3, window=33, has_biases=True, rope_theta=1e6,
                rope_scaling=ROPE_SCALINGS["llama3"], spells_rope_parameters=True,
                extra={"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
            ),
        },
        traits=[
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
        refusals=[
            ({"sliding_window": None}, ["sliding_window is off"]),
            (
                {"rope_parameters": YARN},
                ["rope_parameters.rope_type is outside full_attention"],
            ),
        ],
    ),
    "granite": Family(
        shapes={
            "": replace(
                SMALL, hidden=56, heads=7, head_dim=40, vocab=263, has_biases=True,
                extra=GRANITE | {"logits_scaling": 1.5},
            ),
        },
        parity={
            "40 tied": replace(HEADS_40, is_tied=True, extra=GRANITE),
            "72, biases": replace(
                HEADS_72, has_biases=True, extra={**GRANITE, "logits_scaling": 3.0},
            ),
        },
        traits=[
            (
                {"residual_multiplier": 0.22, "attention_multiplier": 0.5, "logits_scaling": 4},
                {"residual_scale": 0.22, "attention_scale": 0.5, "logit_scale": 0.25},
            ),
            ({}, {"attention_scale": 1.0, "embedding_scale": 1.0}),
        ],
    ),
    "granite_swa": Family(
        shapes={
            "": replace(
                SMALL, heads=4, kv_heads=2, vocab=269, is_tied=True, window=40,
                extra=GRANITE | {"layer_rope_theta": [0, 500.0]},
            ),
        },
        parity={
            "40, window 17": replace(
                HEADS_40, layers=5, is_tied=True, window=17,
                extra=GRANITE | {"layer_rope_theta": [0, 1e4, 300.0, 1e4, 0.0]},
            ),
            "72, biases, window 33": replace(
                HEADS_72, layers=3, window=33, has_biases=True, spells_rope_parameters=True,
                extra=GRANITE | {"layer_types": [SLIDING, FULL, SLIDING]},
            ),
        },
        traits=[
            (
                {"rms_norm_eps": None, "layer_rope_theta": [0, 1e4, 5, 0]},
                {
                    "windows": (0, 128, 128, 128), "has_sinks": True, "norm_eps": 1e-5,
                    "ropes": (None, RopeConfig("default", 1e4), RopeConfig("default", 5.0), None),
                    "tied_embeddings": True, "eos_token_ids": (100_257,),
                },
            ),
        ],
        refusals=[
            ({"layer_rope_theta": [1e4]}, ["layer_rope_theta", "a list of 4 numbers"]),
            ({"layer_rope_theta": ["x", 1, 1, 1]}, ["rope_theta"]),
        ],
    ),
    "granitemoehybrid": Family(
        entries={
            "intermediate_size": 1, "num_local_experts": 0, "position_embedding_type": "rope",
            "layer_types": ["attention"] * 2, "mamba_expand": 2, "mamba_n_heads": 2,
            "mamba_d_head": "auto",
        },
        shapes={
            "": replace(
                SMALL, hidden=56, heads=7, head_dim=8, vocab=263,
                extra=GRANITE | {"logits_scaling": 1.5},
            ),
        },
        parity={
            "40 tied": replace(HEADS_40, is_tied=True, extra=GRANITE),
            "72, biases, no positions": replace(
                HEADS_72, has_biases=True, extra={**GRANITE, "position_embedding_type": None},
            ),
        },
        traits=[
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
        refusals=[
            ({}, ["layer_types has None", "only full_attention"]),
            (
                GRANITE_DENSE | {"layer_types": [FULL, "mamba", FULL, FULL]},
                ["layer_types has 'mamba'; only full_attention is supported, no recurrent layers"],
            ),
            (GRANITE_DENSE | {"layer_types": [FULL]}, ["a list of 4 names"]),
            (GRANITE_DENSE | {"num_local_experts": 8}, ["num_local_experts is 8; 0 (no experts"]),
            (
                GRANITE_DENSE | {"position_embedding_type": "alibi"},
                ["position_embedding_type is 'alibi'; rope, nope or null is needed"],
            ),
        ],
    ),
    "glm4": Family(
        shapes={
            "": replace(SMALL, hidden=56, heads=7, head_dim=40, vocab=263, has_biases=True),
        },
        parity={
            "7:1 heads of 40, biases": replace(HEADS_40, has_biases=True),
            "72 tied, a quarter rotated": replace(
                HEADS_72, is_tied=True, rope_theta=1e6, extra={"partial_rotary_factor": 0.25},
            ),
        },
        traits=[
            (
                {"attention_bias": False},
                {
                    "norms": "both", "norm_offset": 0.0, "rope_pairs": "neighbours",
                    "head_dim": 128, "ropes": (RopeConfig("default", 1e4, share=0.5),) * 4,
                    "qkv_bias": False, "eos_token_ids": (151329, 151336, 151338),
                    "norm_eps": 1.5625e-07,
                },
            ),
            (
                {"partial_rotary_factor": 0.25, "eos_token_id": None},
                {
                    "ropes": (RopeConfig("default", 1e4, share=0.25),) * 4, "qkv_bias": True,
                    "output_bias": False, "eos_token_ids": (151329, 151336, 151338),
                },
            ),
        ],
        refusals=[
            ({"partial_rotary_factor": 0.01}, ["is 0.01", "fraction of head_dim 128 that is even"]),
        ],
    ),
    "glm": Family(
        shapes={
            "": replace(SMALL, hidden=56, heads=7, head_dim=40, vocab=267, has_biases=True),
        },
        parity={
            "7:1 heads of 40, biases": replace(HEADS_40, has_biases=True),
            "72 tied, a quarter rotated": replace(
                HEADS_72, is_tied=True, rope_theta=1e6, extra={"partial_rotary_factor": 0.25},
            ),
        },
        traits=[
            (
                {},
                {
                    "norms": "before", "rope_pairs": "neighbours", "head_dim": 128,
                    "ropes": (RopeConfig("default", 1e4, share=0.5),) * 4, "qkv_bias": True,
                    "eos_token_ids": (151329, 151336, 151338),
                },
            ),
        ],
    ),
    "granitemoe": Family(
        shapes={
            "": replace(
                SMALL, heads=4, kv_heads=2, ffn=36, vocab=287, is_tied=True,
                extra=GRANITE | {"num_local_experts": 5, "num_experts_per_tok": 2},
            ),
        },
        parity={
            "40, 3 of 9 experts, biases": replace(
                HEADS_40, ffn=44, has_biases=True,
                extra=GRANITE | {"num_local_experts": 9, "num_experts_per_tok": 3},
            ),
            "72 tied, 4 of 6 experts": replace(
                HEADS_72, ffn=36, is_tied=True,
                extra=GRANITE | {"num_local_experts": 6, "num_experts_per_tok": 4},
            ),
        },
        traits=[
            (
                {"residual_multiplier": 0.5},
                {"residual_scale": 0.5, "experts": ExpertsConfig(8, 2, 172, (True,) * 4)},
            ),
        ],
    ),
    "granitemoeshared": Family(
        shapes={
            "": replace(
                SMALL, heads=4, kv_heads=2, ffn=36, vocab=291, is_tied=True,
                extra=GRANITE | {
                    "num_local_experts": 5, "num_experts_per_tok": 2,
                    "shared_intermediate_size": 52,
                },
            ),
        },
        parity={
            "40, 3 of 9 experts": replace(
                HEADS_40, ffn=44,
                extra=GRANITE | {
                    "num_local_experts": 9, "num_experts_per_tok": 3,
                    "shared_intermediate_size": 60,
                },
            ),
            "72 tied, no shared expert": replace(
                HEADS_72, ffn=36, is_tied=True,
                extra=GRANITE | {
                    "num_local_experts": 6, "num_experts_per_tok": 4, "shared_intermediate_size": 0,
                },
            ),
        },
        traits=[
            (
                {"shared_intermediate_size": 99},
                {
                    "experts": ExpertsConfig(8, 2, 172, (True,) * 4, has_shared=True),
                    "intermediate_sizes": (99,) * 4,
                },
            ),
            ({"shared_intermediate_size": 0}, {"experts": ExpertsConfig(8, 2, 172, (True,) * 4)}),
        ],
    ),
}  # fmt: skip
