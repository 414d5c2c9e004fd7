"""Families with a gated delta rule."""

from dataclasses import replace

from specqd.config import ExpertsConfig, RopeConfig
from specqd.config.recurrent import DeltaConfig
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
            "24, biases of queries, keys, values and gates": Shape(
                hidden=72, heads=4, kv_heads=2, head_dim=24, ffn=84, layers=4, vocab=301,
                rope_theta=1e7, spells_rope_parameters=True, has_biases=True,
                extra=DELTA_NET | {"full_attention_interval": 2},
            ),
        },
        traits=[
            (
                {},
                {
                    "norm_offset": 1.0, "qk_norm": "one", "attention_gates": "values",
                    "head_dim": 256,
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
                    "norm_offset": 1.0, "qk_norm": "one", "attention_gates": "values",
                    "head_dim": 256,
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
                    "norm_offset": 1.0, "qk_norm": "one", "attention_gates": "values",
                    "head_dim": 256,
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
}  # fmt: skip
