"""Gemma's families."""

from dataclasses import replace

from specqd.config import AttentionConfig, ExpertsConfig, PerLayerConfig, RopeConfig
from support.families.family import Family
from support.shapes import FULL, HEADS_40, HEADS_72, ROPE_SCALINGS, SLIDING, SMALL, Shape

# The last three layers share keys and values, and have wider feed forwards.
GEMMA4 = {
    "layer_types": [SLIDING, SLIDING, FULL, SLIDING, SLIDING, FULL],
    "global_head_dim": 48,
    "num_kv_shared_layers": 3,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 8,
}
# The largest dense one: full layers take their values from keys; nothing is shared.
GEMMA4_KEYS = {
    "layer_types": [SLIDING, FULL, SLIDING, FULL],
    "global_head_dim": 48,
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 30.0,
}
GEMMA4_UNIFIED = {"layer_types": [SLIDING, FULL] * 2, "global_head_dim": 48}
GEMMA4_EXPERTS = GEMMA4_KEYS | {
    "enable_moe_block": True,
    "num_experts": 5,
    "top_k_experts": 2,
    "moe_intermediate_size": 36,
}
PROPORTIONAL = {"rope_type": "proportional", "partial_rotary_factor": 0.25}

EXPERTS = {
    "enable_moe_block": True,
    "num_experts": 8,
    "top_k_experts": 3,
    "moe_intermediate_size": 44,
}
LOCAL = RopeConfig("default", 1e4)

FAMILIES = {
    "gemma": Family(
        shapes={
            "": replace(SMALL, hidden=48, heads=4, kv_heads=2, vocab=265, is_tied=True),
        },
        parity={
            "40, legacy gelu, biases": replace(
                HEADS_40, is_tied=True, has_biases=True, extra={"hidden_act": "gelu"},
            ),
            "72, not tied": replace(HEADS_72, rope_theta=None),
            "4:1 heads of 256": Shape(
                hidden=160, heads=4, kv_heads=1, head_dim=256, ffn=344, vocab=307, is_tied=True,
            ),
        },
        traits=[
            (
                {"hidden_act": "gelu", "hidden_activation": "silu"},
                {
                    "norms": "before", "norm_offset": 1.0, "head_dim": 256, "embedding_scale": 8.0,
                    "attention_scale": None, "activation": "gelu_tanh", "windows": (0,) * 4,
                    "tied_embeddings": True, "bos_token_id": 2, "eos_token_ids": (1,),
                },
            ),
        ],
        refusals=[
            (
                {"use_bidirectional_attention": True},
                ["use_bidirectional_attention is True; false is needed"],
            ),
        ],
    ),
    "gemma2": Family(
        shapes={
            "": replace(
                SMALL, hidden=48, heads=4, kv_heads=2, head_dim=256, vocab=263, window=70,
                extra={"query_pre_attn_scalar": 20, "attn_logit_softcapping": 3.0}, is_tied=True,
            ),
        },
        parity={
            "40, window 17": replace(
                HEADS_40, window=17, is_tied=True,
                extra={"query_pre_attn_scalar": 30, "attn_logit_softcapping": 3.0},
            ),
            "72, 3 layers": replace(
                HEADS_72, heads=4, layers=3, window=33, is_tied=True, spells_rope_parameters=True,
                extra={"final_logit_softcapping": 5.0},
            ),
            "256, window 17": Shape(
                hidden=288, heads=4, kv_heads=2, head_dim=256, ffn=380, vocab=301, window=17,
                is_tied=True, extra={"query_pre_attn_scalar": 256, "attn_logit_softcapping": 3.0},
            ),
        },
        traits=[
            (
                {"hidden_act": "anything"},
                {
                    "norms": "both", "norm_offset": 1.0, "head_dim": 256, "embedding_scale": 8.0,
                    "attention_scale": 1 / 16, "attention_softcap": 50.0, "logit_softcap": 30.0,
                    "activation": "gelu_tanh", "windows": (4096, 0, 4096, 0),
                    "tied_embeddings": True,
                },
            ),
            ({"attn_logit_softcapping": None}, {"attention_softcap": None, "logit_softcap": 30.0}),
        ],
        refusals=[
            ({"sliding_window": None}, ["sliding_window is off"]),
        ],
    ),
    "gemma3_text": Family(
        has_ropes_by_type=True,
        shapes={
            "": replace(
                SMALL, hidden=48, heads=4, layers=3, vocab=263, is_tied=True, window=50,
                rope_theta=1e6, rope_scaling=ROPE_SCALINGS["linear"], spells_rope_parameters=True,
                extra={"sliding_window_pattern": 2},
            ),
        },
        parity={
            "40, window 9": replace(
                HEADS_40, layers=3, window=9, is_tied=True, rope_theta=1e6,
                rope_scaling=ROPE_SCALINGS["linear"],
                extra={"sliding_window_pattern": 2, "rope_local_base_freq": 300.0},
            ),
            "4:1 heads of 256, window 9": Shape(
                hidden=160, heads=4, kv_heads=1, head_dim=256, ffn=344, layers=3, vocab=307,
                window=9, is_tied=True, rope_theta=1e6, extra={"sliding_window_pattern": 2},
            ),
            "72, rope parameters": replace(
                HEADS_72, heads=4, layers=3, window=33, is_tied=True, rope_theta=1e6,
                spells_rope_parameters=True,
                extra={"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
            ),
        },
        traits=[
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
        refusals=[
            ({"use_bidirectional_attention": True}, ["use_bidirectional"]),
        ],
    ),
    "gemma4_text": Family(
        has_ropes_by_type=True,
        shapes={
            "": replace(
                SMALL, hidden=48, heads=4, layers=6, vocab=263, is_tied=True, window=50,
                rope_theta=None, extra=GEMMA4,
            ),
            "values are keys": replace(
                SMALL, heads=4, kv_heads=2, layers=4, vocab=263, is_tied=True, window=70,
                rope_theta=1e6, rope_scaling=PROPORTIONAL, spells_rope_parameters=True,
                extra=GEMMA4_KEYS,
            ),
            "experts": replace(
                SMALL, heads=4, kv_heads=2, layers=4, vocab=263, is_tied=True, window=70,
                rope_theta=1e6, rope_scaling=PROPORTIONAL, spells_rope_parameters=True,
                extra=GEMMA4_EXPERTS,
            ),
        },
        parity={
            "24 and 48, 3 of 6 layers share, window 17": Shape(
                hidden=144, heads=4, kv_heads=1, head_dim=24, ffn=172, layers=6, vocab=301,
                is_tied=True, window=17, rope_theta=None, extra=GEMMA4,
            ),
            "24 and 48, values are keys, capped": Shape(
                hidden=200, heads=4, kv_heads=2, head_dim=24, ffn=260, layers=4, vocab=307,
                is_tied=True, window=33, rope_theta=1e6, rope_scaling=PROPORTIONAL,
                spells_rope_parameters=True, extra=GEMMA4_KEYS | {"final_logit_softcapping": 5.0},
            ),
            "8:1 heads of 256 and 512, shared, values are keys, biases": Shape(
                hidden=160, heads=8, kv_heads=1, head_dim=256, ffn=130, layers=6, vocab=301,
                is_tied=True, window=9, has_biases=True, rope_theta=300.0,
                spells_rope_parameters=True,
                rope_scaling=PROPORTIONAL | {"partial_rotary_factor": 0.5, "factor": 2.0},
                extra=GEMMA4 | {
                    "global_head_dim": 512, "attention_k_eq_v": True,
                    "num_global_key_value_heads": 2, "hidden_size_per_layer_input": 40,
                    "use_double_wide_mlp": False,
                },
            ),
            "24 and 48, 2 of 5 experts": Shape(
                hidden=144, heads=4, kv_heads=2, head_dim=24, ffn=172, layers=4, vocab=301,
                is_tied=True, window=33, rope_theta=1e6, rope_scaling=PROPORTIONAL,
                spells_rope_parameters=True, extra=GEMMA4_EXPERTS,
            ),
            "24 and 48, 4 of 9 experts, 2 of 4 layers share": Shape(
                hidden=144, heads=4, kv_heads=1, head_dim=24, ffn=100, layers=4, vocab=307,
                is_tied=True, window=17, rope_theta=None,
                extra=GEMMA4 | {
                    "layer_types": ["sliding_attention", "full_attention"] * 2,
                    "num_kv_shared_layers": 2, "enable_moe_block": True, "num_experts": 9,
                    "top_k_experts": 4, "moe_intermediate_size": 52,
                },
            ),
        },
        traits=[
            (
                {"num_hidden_layers": 7},
                {
                    "norms": "both", "norm_offset": 0.0, "qk_norm": "one", "norms_values": True,
                    "attention_scale": 1.0, "embedding_scale": 8.0, "activation": "gelu_tanh",
                    "windows": (*(512,) * 5, 0, 0), "tied_embeddings": True, "scales_layers": True,
                    "logit_softcap": None, "per_layer": PerLayerConfig(256, 262_144),
                    "attentions": (
                        *(AttentionConfig(2, 256),) * 5, *(AttentionConfig(2, 512),) * 2,
                    ),
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
                    "ropes": (
                        RopeConfig("default", 20.0), RopeConfig("proportional", 10.0, 2.0),
                    ) * 2,
                    "per_layer": None, "logit_softcap": 30.0,
                },
            ),
            (
                EXPERTS,
                {
                    "experts": ExpertsConfig(
                        8, 3, 44, (True,) * 4, has_shared=True, has_own_norms=True,
                    ),
                    "intermediate_sizes": (172,) * 4,
                },
            ),
            ({**EXPERTS, "enable_moe_block": False}, {"experts": None}),
            (
                {
                    "layer_types": [SLIDING, FULL] * 2, "head_dim": 24,
                    "per_layer_config": {"01": {"head_dim": 40, "num_key_value_heads": 4}},
                },
                {
                    "attentions": (
                        AttentionConfig(2, 24), AttentionConfig(4, 40),
                        *(AttentionConfig(2, 24),) * 2,
                    ),
                },
            ),
            (  # all heads are alike
                {"layer_types": [SLIDING, FULL] * 2, "head_dim": 24, "per_layer_config": {}},
                {"attentions": (AttentionConfig(2, 24),) * 4},
            ),
        ],
        refusals=[
            ({"enable_moe_block": True}, ["moe_intermediate_size is missing; an integer from 1"]),
            (
                EXPERTS | {"num_experts": None},
                ["num_experts is missing; an integer from 1 to 10000"],
            ),
            (EXPERTS | {"num_experts": 10**9}, ["num_experts is 1000000000; an integer from 1 to"]),
            (EXPERTS | {"top_k_experts": None}, ["top_k_experts is missing; an integer from 1"]),
            (
                EXPERTS | {"top_k_experts": 9},
                ["top_k_experts is 9; at most the number of experts (8)"],
            ),
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
                ["num_kv_shared_layers is 4, but no layer before those that share is like layer 0"],
            ),
            (
                {"layer_types": [SLIDING, SLIDING, FULL, FULL], "num_kv_shared_layers": 2},
                ["num_kv_shared_layers is 2, but no layer before those that share is like layer 2"],
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
        ],
    ),
    "gemma4_unified_text": Family(
        has_ropes_by_type=True,
        shapes={
            "": replace(
                SMALL, hidden=48, heads=4, layers=4, vocab=263, is_tied=True, window=50,
                rope_theta=None, extra=GEMMA4_UNIFIED,
            ),
        },
        parity={
            "24 and 48, window 17": Shape(
                hidden=144, heads=4, kv_heads=1, head_dim=24, ffn=172, layers=4, vocab=301,
                is_tied=True, window=17, rope_theta=None, extra=GEMMA4_UNIFIED,
            ),
            "24 and 48, values are keys, 2 of 4 layers share": Shape(
                hidden=200, heads=4, kv_heads=2, head_dim=24, ffn=260, layers=4, vocab=307,
                is_tied=True, window=33, rope_theta=1e6, rope_scaling=PROPORTIONAL,
                spells_rope_parameters=True,
                extra=GEMMA4_UNIFIED | {
                    "attention_k_eq_v": True, "num_global_key_value_heads": 1,
                    "num_kv_shared_layers": 2,
                },
            ),
        },
        traits=[
            (
                {"use_bidirectional_attention": "vision"},
                {"windows": (*(1024,) * 3, 0), "per_layer": None, "experts": None},
            ),
        ],
        refusals=[
            ({"use_bidirectional_attention": "all"}, ["use_bidirectional_attention is 'all'"]),
        ],
    ),
}  # fmt: skip
