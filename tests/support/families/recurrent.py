"""Families with recurrent layers."""

from dataclasses import replace

from specqd.config import ExpertsConfig, RopeConfig
from specqd.config.decoder import SigmoidChoice
from specqd.config.recurrent import ConvolutionConfig, DeltaConfig
from support.families.family import Family
from support.shapes import FULL, HEADS_40, HEADS_72, SMALL, Shape

# Two value heads per key head, so that their order matters.
DELTA_NET = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
}

FAMILIES = {
    "qwen3_5_text": Family(
        shapes={
            "": replace(
                SMALL, heads=4, kv_heads=2, layers=4, rope_theta=1e6, spells_rope_parameters=True,
                extra=DELTA_NET | {"full_attention_interval": 2},
            ),
        },
        parity={
            "24, two value heads per key head": Shape(
                hidden=72, heads=4, kv_heads=2, head_dim=24, ffn=84, layers=4, vocab=301,
                rope_theta=1e7, spells_rope_parameters=True, extra=DELTA_NET,
            ),
            "72 tied, one value head per key head": replace(
                HEADS_72, kv_heads=1, layers=4, is_tied=True, rope_theta=1e6,
                spells_rope_parameters=True,
                extra=DELTA_NET | {"linear_num_value_heads": 2, "linear_key_head_dim": 40},
            ),
            "40, three value heads per key head, every other layer": replace(
                HEADS_40, layers=4, rope_theta=1e6, spells_rope_parameters=True,
                extra=DELTA_NET | {
                    "linear_num_value_heads": 6, "linear_value_head_dim": 48,
                    "full_attention_interval": 2,
                },
            ),
        },
        traits=[
            (
                {},
                {
                    "norm_offset": 1.0, "qk_norm": "one", "gates_attention": True, "head_dim": 256,
                    "ropes": (RopeConfig("default", 10_000.0, share=0.25),) * 4,
                    "recurrent": DeltaConfig(16, 32, 128, 128, 4, (True, True, True, False)),
                    "tied_embeddings": False,
                },
            ),
            (
                {
                    "layer_types": ["mamba", "attention", "linear_attention", "full_attention"],
                    "linear_num_key_heads": 2, "linear_num_value_heads": 6,
                    "linear_key_head_dim": 24, "linear_value_head_dim": 48,
                    "linear_conv_kernel_dim": 3, "head_dim": 24,
                    "rope_parameters": {
                        "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.5,
                        "mrope_section": [1, 1, 1], "mrope_interleaved": True,
                    },
                },
                {
                    "ropes": (RopeConfig("default", 1e7, share=0.5),) * 4,
                    "recurrent": DeltaConfig(2, 6, 24, 48, 3, (True, False, True, False)),
                },
            ),
        ],
        refusals=[
            ({"attn_output_gate": False}, ["attn_output_gate is False; true is"]),
            ({"output_gate_type": "sigmoid"}, ["output_gate_type", "swish is needed"]),
            ({"hidden_act": "gelu"}, ["hidden_act is 'gelu'; silu is needed"]),
            ({"linear_num_value_heads": 24}, ["24 is not a multiple of 16 key heads"]),
            ({"linear_key_head_dim": 23}, ["linear_key_head_dim is 23", "even"]),
            ({"linear_value_head_dim": 24}, ["is 24; a multiple of 16 is needed"]),
            ({"layer_types": [FULL, "conv", FULL, FULL]}, ["has 'conv'; known"]),
            ({"layer_types": ["mamba"] * 4}, ["has no full_attention"]),
            ({"layer_types": [FULL]}, ["layer_types", "a list of 4 names"]),
        ],
    ),
    "qwen3_5_moe_text": Family(
        shapes={
            "": replace(
                SMALL, heads=4, kv_heads=2, ffn=36, layers=4, rope_theta=1e6,
                spells_rope_parameters=True,
                extra=DELTA_NET | {
                    "full_attention_interval": 2, "num_experts": 9, "num_experts_per_tok": 4,
                    "shared_expert_intermediate_size": 52,
                },
            ),
        },
        parity={
            "24, 2 of 5 experts": Shape(
                hidden=72, heads=4, kv_heads=2, head_dim=24, ffn=36, layers=4, vocab=301,
                rope_theta=1e7, spells_rope_parameters=True,
                extra=DELTA_NET | {
                    "num_experts": 5, "num_experts_per_tok": 2,
                    "shared_expert_intermediate_size": 60,
                },
            ),
            "72 tied, 8 of 33 experts": replace(
                HEADS_72, kv_heads=1, ffn=52, layers=4, is_tied=True, rope_theta=1e6,
                spells_rope_parameters=True,
                extra=DELTA_NET | {
                    "linear_key_head_dim": 40, "num_experts": 33, "num_experts_per_tok": 8,
                    "shared_expert_intermediate_size": 52,
                },
            ),
        },
        traits=[
            (
                {"intermediate_size": None},
                {
                    "norm_offset": 1.0, "qk_norm": "one", "gates_attention": True, "head_dim": 256,
                    "recurrent": DeltaConfig(16, 32, 128, 128, 4, (True, True, True, False)),
                    "experts": ExpertsConfig(256, 8, 512, (True,) * 4, has_shared=True),
                    "intermediate_size": 512,
                },
            ),
            (
                {
                    "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 33,
                    "shared_expert_intermediate_size": 44,
                },
                {
                    "experts": ExpertsConfig(6, 2, 33, (True,) * 4, has_shared=True),
                    "intermediate_size": 44,
                },
            ),
        ],
        refusals=[
            ({"num_experts": 10**9}, ["num_experts", "from 1 to 10000"]),
            ({"num_experts_per_tok": 257}, ["257", "number of experts (256)"]),
            (
                {"shared_expert_intermediate_size": 0},
                ["shared_expert_intermediate_size is 0; an integer from 1"],
            ),
            ({"moe_intermediate_size": "512"}, ["moe_intermediate_size is '512'"]),
        ],
    ),
    "qwen3_next": Family(
        shapes={
            "": replace(
                SMALL, heads=4, kv_heads=2, ffn=36, layers=4, rope_theta=1e6,
                extra=DELTA_NET | {
                    "full_attention_interval": 2, "num_experts": 5, "num_experts_per_tok": 2,
                    "shared_expert_intermediate_size": 36, "intermediate_size": 84,
                    "mlp_only_layers": [1],
                },
            ),
        },
        parity={
            "24, 2 of 5 experts, plain layers": Shape(
                hidden=72, heads=4, kv_heads=2, head_dim=24, ffn=36, layers=4, vocab=301,
                rope_theta=1e7,
                extra=DELTA_NET | {
                    "intermediate_size": 84, "num_experts": 5, "num_experts_per_tok": 2,
                    "shared_expert_intermediate_size": 60, "mlp_only_layers": [1],
                },
            ),
            "40, three value heads per key head, routing weights of all": replace(
                HEADS_40, ffn=36, layers=4, rope_theta=1e6,
                extra=DELTA_NET | {
                    "linear_num_value_heads": 6, "linear_value_head_dim": 48,
                    "norm_topk_prob": False, "full_attention_interval": 2, "decoder_sparse_step": 2,
                    "num_experts": 17, "num_experts_per_tok": 4,
                    "shared_expert_intermediate_size": 44, "intermediate_size": 100,
                },
            ),
        },
        traits=[
            (
                {},
                {
                    "norm_offset": 1.0, "qk_norm": "one", "gates_attention": True, "head_dim": 256,
                    "recurrent": DeltaConfig(16, 32, 128, 128, 4, (True, True, True, False)),
                    "experts": ExpertsConfig(512, 10, 512, (True,) * 4, has_shared=True),
                    "intermediate_sizes": (512,) * 4,
                },
            ),
            (
                {
                    "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 33,
                    "shared_expert_intermediate_size": 44, "norm_topk_prob": False,
                    "decoder_sparse_step": 2, "mlp_only_layers": [1],
                },
                {
                    "experts": ExpertsConfig(
                        6, 2, 33, (False, False, False, True), normalizes_routing_weights=False,
                        has_shared=True,
                    ),
                    "intermediate_sizes": (172, 172, 172, 44),
                },
            ),
        ],
        refusals=[
            ({"mlp_only_layers": 3}, ["mlp_only_layers is 3; a list of layers"]),
            ({"decoder_sparse_step": 0}, ["decoder_sparse_step is 0; an integer from 1"]),
            ({"num_experts": 0}, ["num_experts is 0; an integer from 1"]),
        ],
    ),
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
}  # fmt: skip
