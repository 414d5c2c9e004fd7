"""Families with short convolutions."""

from dataclasses import replace

from specqd.config import ExpertsConfig, RopeConfig
from specqd.config.decoder import SigmoidChoice
from specqd.config.recurrent import ConvolutionConfig
from support.families.family import Family
from support.shapes import FULL, HEADS_40, HEADS_72, SLIDING, SMALL, Shape

# Of LFM3's full attention.
PROPORTIONAL = {"rope_type": "proportional", "partial_rotary_factor": 0.5}

FAMILIES = {
    "lfm2": Family(
        entries={"norm_eps": 1e-3, "block_auto_adjust_ff_dim": False},
        shapes={
            "": replace(
                SMALL, hidden=136, layers=4, rope_theta=1e6, has_biases=True,
                extra={"layer_types": ["conv", "full_attention", "conv", "conv"]},
            ),
        },
        parity={
            "24, biases, adjusted width": Shape(
                hidden=72, heads=3, kv_heads=1, head_dim=24, ffn=112, layers=4, vocab=301,
                rope_theta=1e6, has_biases=True,
                extra={
                    "layer_types": ["conv", "full_attention", "conv", "conv"],
                    "block_auto_adjust_ff_dim": True, "block_ff_dim": 150, "block_multiple_of": 16,
                    "block_ffn_dim_multiplier": 1.1,
                },
            ),
            "7:1 heads of 40 tied, 5 taps": replace(
                HEADS_40, layers=3, is_tied=True, rope_theta=1e6, spells_rope_parameters=True,
                extra={"layer_types": ["full_attention", "conv", "conv"], "conv_L_cache": 5},
            ),
        },
        traits=[
            (
                {},
                {
                    "recurrent": ConvolutionConfig(64, 3, (False,) * 4), "qk_norm": "one",
                    "ropes": (RopeConfig("default", 1e6),) * 4, "norm_eps": 1e-5, "head_dim": 8,
                    "tied_embeddings": True, "intermediate_size": 256, "bos_token_id": 1,
                    "eos_token_ids": (2,),
                },
            ),
            (
                {
                    "full_attn_idxs": [1, 3], "conv_L_cache": 4, "conv_bias": True,
                    "norm_eps": 1e-6, "block_ff_dim": 121, "block_multiple_of": 20,
                    "block_ffn_dim_multiplier": 1.1, "tie_embedding": False,
                    "tie_word_embeddings": True, "rope_theta": 5e5,
                },
                {
                    "recurrent": ConvolutionConfig(
                        64, 4, (True, False, True, False), has_bias=True,
                    ),
                    "ropes": (RopeConfig("default", 5e5),) * 4, "norm_eps": 1e-6,
                    "tied_embeddings": False, "intermediate_size": 100,
                },
            ),
            (
                {
                    "layer_types": ["conv", "conv", "full_attention", "conv"],
                    "full_attn_idxs": [0], "block_auto_adjust_ff_dim": False,
                },
                {
                    "recurrent": ConvolutionConfig(64, 3, (True, True, False, True)),
                    "intermediate_size": 172,
                },
            ),
        ],
        refusals=[
            ({"layer_types": ["conv"] * 4}, ["layer_types has no full_attention"]),
            ({"layer_types": []}, ["layer_types is []; a list of 4 names is needed"]),
            (
                {"layer_types": [FULL, "mamba", FULL, FULL]},
                ["layer_types has 'mamba'; known: full_attention, conv"],
            ),
            ({"full_attn_idxs": "2"}, ["full_attn_idxs is '2'; a list of layers is needed"]),
            ({"full_attn_idxs": [True]}, ["full_attn_idxs is [True]; a list of layers"]),
            ({"full_attn_idxs": [4, -1]}, ["full_attn_idxs has no layer; one layer at least"]),
            ({"conv_L_cache": 1}, ["conv_L_cache is 1; an integer from 2 to 8 is needed"]),
            ({"conv_bias": "no"}, ["conv_bias is 'no'; true or false is needed"]),
            ({"tie_embedding": 1}, ["tie_embedding is 1; true or false is needed"]),
            ({"block_ff_dim": 1}, ["block_ff_dim is adjusted to 0; an integer from 1"]),
            (
                {"block_ffn_dim_multiplier": 1e30},
                [
                    "intermediate_size is adjusted to 1139",
                    "an integer from 1 to 2147483647 is needed",
                ],
            ),
            ({"block_multiple_of": 0}, ["block_multiple_of is 0; an integer from 1"]),
            ({"norm_eps": 0}, ["norm_eps is 0; a number from 1e-30"]),
        ],
    ),
    "lfm2_moe": Family(
        entries={"norm_eps": 1e-3},
        shapes={
            "": replace(
                SMALL, ffn=36, layers=4, rope_theta=1e6,
                extra={
                    "layer_types": ["conv", "full_attention", "conv", "conv"],
                    "num_dense_layers": 1, "intermediate_size": 84, "num_experts": 9,
                    "num_experts_per_tok": 2, "routed_scaling_factor": 1.5,
                },
            ),
        },
        parity={
            "24, 2 of 5 experts, biases": Shape(
                hidden=72, heads=3, kv_heads=1, head_dim=24, ffn=36, layers=4, vocab=301,
                rope_theta=1e6, has_biases=True,
                extra={
                    "layer_types": ["conv", "full_attention", "conv", "conv"],
                    "num_dense_layers": 2, "intermediate_size": 100, "num_experts": 5,
                    "num_experts_per_tok": 2, "routed_scaling_factor": 1.5,
                },
            ),
            "40 tied, 3 of 9 experts, no biases": replace(
                HEADS_40, ffn=52, layers=3, is_tied=True, rope_theta=1e6,
                spells_rope_parameters=True,
                extra={
                    "layer_types": ["full_attention", "conv", "conv"], "num_dense_layers": 0,
                    "intermediate_size": 100, "num_experts": 9, "num_experts_per_tok": 3,
                    "use_expert_bias": False, "norm_topk_prob": False,
                },
            ),
        },
        traits=[
            (
                {"layer_types": ["conv", "conv", FULL, "conv"]},
                {
                    "recurrent": ConvolutionConfig(64, 3, (True, True, False, True)),
                    "qk_norm": "one", "norm_eps": 1e-5, "tied_embeddings": True,
                    "ropes": (RopeConfig("default", 1e6),) * 4, "intermediate_size": 172,
                    "experts": ExpertsConfig(
                        32, 4, 1792, (False, False, True, True),
                        sigmoids=SigmoidChoice(weight_sum_epsilon=1e-6),
                    ),
                },
            ),
            (
                {
                    "layer_types": [FULL] * 4, "num_dense_layers": 1, "num_experts": 6,
                    "num_experts_per_tok": 2, "moe_intermediate_size": 33, "norm_topk_prob": False,
                    "use_expert_bias": False, "routed_scaling_factor": 2.5, "tie_embedding": False,
                },
                {
                    "experts": ExpertsConfig(
                        6, 2, 33, (False, True, True, True), normalizes_routing_weights=False,
                        sigmoids=SigmoidChoice(scale=2.5, weight_sum_epsilon=1e-6, has_bias=False),
                    ),
                    "tied_embeddings": False,
                },
            ),
        ],
        refusals=[
            ({}, ["layer_types is missing; a list of 4 names is needed"]),
            (
                {"layer_types": [FULL] * 4, "num_dense_layers": -1},
                ["num_dense_layers is -1; an integer from 0"],
            ),
            (
                {"layer_types": [FULL] * 4, "num_experts_per_tok": 33},
                ["num_experts_per_tok is 33; at most the number of experts (32)"],
            ),
            (
                {"layer_types": [FULL] * 4, "routed_scaling_factor": 0},
                ["routed_scaling_factor is 0; a number from 1e-30"],
            ),
            (
                {"layer_types": [FULL] * 4, "use_expert_bias": 1},
                ["use_expert_bias is 1; true or false is needed"],
            ),
        ],
    ),
    "lfm3": Family(
        has_ropes_by_type=True,
        entries={"norm_eps": 1e-3, "rms_norm_eps": 1e-3},
        shapes={
            "": replace(
                SMALL, layers=4, window=50, rope_theta=1e6, rope_scaling=PROPORTIONAL,
                spells_rope_parameters=True,
                extra={"layer_types": ["conv", SLIDING, FULL, "conv"]},
            ),
        },
        parity={
            "24, 17 gates, biases, tied, window 17": Shape(
                hidden=72, heads=17, kv_heads=1, head_dim=24, ffn=112, layers=5, vocab=301,
                window=17, rope_theta=None, has_biases=True, is_tied=True,
            ),
            "7:1 heads of 40, window 33, 3 taps": replace(
                HEADS_40, layers=3, window=33, rope_theta=1e5, rope_scaling=PROPORTIONAL,
                spells_rope_parameters=True,
                extra={"layer_types": [FULL, "conv", SLIDING], "conv_L_cache": 3},
            ),
            "72, no gates": replace(
                HEADS_72, layers=3, window=9, rope_theta=None, extra={"use_attention_gate": False},
            ),
        },
        traits=[
            (
                {"num_key_value_heads": None, "head_dim": None, "tie_word_embeddings": None},
                {
                    "norms": "both", "norm_eps": 1e-5, "qk_norm": "one", "attention_gates": "heads",
                    "recurrent": ConvolutionConfig(64, 7, (True, True, False, True)),
                    "ropes": (RopeConfig("proportional", 1e6, share=0.5),) * 4,
                    "windows": (0,) * 4, "bos_token_id": 124_894, "eos_token_ids": (124_900,),
                    "tied_embeddings": True,
                },
            ),
            (
                {
                    "layer_types": [SLIDING, "conv", FULL, SLIDING], "sliding_window": 9,
                    "conv_L_cache": 4, "conv_bias": True, "attention_bias": True,
                    "use_attention_gate": False, "tie_word_embeddings": False,
                    "rope_parameters": {
                        FULL: {"rope_type": "default", "rope_theta": 10.0},
                        SLIDING: {"rope_type": "default", "rope_theta": 20.0},
                    },
                },
                {
                    "recurrent": ConvolutionConfig(
                        64, 4, (False, True, False, False), has_bias=True,
                    ),
                    "ropes": (
                        RopeConfig("default", 20.0), *(RopeConfig("default", 10.0),) * 2,
                        RopeConfig("default", 20.0),
                    ),
                    "windows": (9, 0, 0, 9), "attention_gates": None, "qkv_bias": True,
                    "output_bias": True, "tied_embeddings": False,
                },
            ),
            ({"num_hidden_layers": 5}, {"windows": (0, 0, 0, 0, 256)}),
        ],
        refusals=[
            ({"use_sandwich_norm": False}, ["use_sandwich_norm is False; true is needed"]),
            ({"layer_types": ["conv"] * 4}, ["layer_types has no full_attention"]),
            (
                {"layer_types": [FULL, "mamba", FULL, FULL]},
                ["layer_types has 'mamba'; known: full_attention, sliding_attention, conv"],
            ),
            (
                {"layer_types": [FULL, SLIDING, "conv", "conv"], "sliding_window": None},
                ["sliding_window is off"],
            ),
            ({"conv_L_cache": 9}, ["conv_L_cache is 9; an integer from 2 to 8 is needed"]),
            ({"use_attention_gate": 1}, ["use_attention_gate is 1; true or false is needed"]),
            (
                {
                    "rope_parameters": {
                        FULL: {"rope_type": "default", "partial_rotary_factor": 0.5},
                    },
                },
                ["rope_parameters.full_attention.rope_type is 'default'; 'proportional'"],
            ),
        ],
    ),
}  # fmt: skip
