"""Impossible traits of a family are refused by name."""

from pathlib import Path
from typing import Any

import pytest

from support.config_files import FULL, GRANITE_DENSE, SHAPE, YARN, refusal

LATENT = {"num_key_value_heads": 8}


@pytest.mark.parametrize(
    ("model_type", "changes", "mentions"),
    [
        ("olmo2", {"clip_qkv": 8.0}, ["clip_qkv is 8.0"]),
        ("olmo3", {"sliding_window": None}, ["sliding_window is off"]),
        (
            "olmo3",
            {"rope_parameters": YARN},
            ["rope_parameters.rope_type stands outside full_attention"],
        ),
        (
            "ministral3",
            {"rope_parameters": {"llama_4_scaling_beta": 0.1}},
            ["original_max_position_embeddings is missing"],
        ),
        ("granitemoehybrid", {}, ["layer_types has None", "only full_attention"]),
        (
            "granitemoehybrid",
            GRANITE_DENSE | {"layer_types": [FULL, "mamba", FULL, FULL]},
            ["layer_types has 'mamba'; only full_attention is supported, no recurrent layers"],
        ),
        ("granitemoehybrid", GRANITE_DENSE | {"layer_types": [FULL]}, ["a list of 4 names"]),
        (
            "granitemoehybrid",
            GRANITE_DENSE | {"num_local_experts": 8},
            ["num_local_experts is 8; 0 (no experts"],
        ),
        (
            "granitemoehybrid",
            GRANITE_DENSE | {"position_embedding_type": "alibi"},
            ["position_embedding_type is 'alibi'; rope, nope or null is needed"],
        ),
        (
            "glm4",
            {"partial_rotary_factor": 0.01},
            ["is 0.01", "share of head_dim 128 that is even"],
        ),
        ("smollm3", {"no_rope_layers": [1]}, ["no_rope_layers", "4 numbers"]),
        ("gemma3_text", {"use_bidirectional_attention": True}, ["use_bidirectional"]),
        ("gemma2", {"sliding_window": None}, ["sliding_window is off"]),
        ("mixtral", {"num_experts_per_tok": 9}, ["num_experts_per_tok is 9", "experts (8)"]),
        ("gpt_neox", {"rotary_pct": 0.1}, ["rotary_pct is 0.1", "even"]),
        ("gpt_neox", {"hidden_act": "silu"}, ["hidden_act is 'silu'", "gelu_new"]),
        ("starcoder2", {"hidden_act": "swish"}, ["hidden_act is 'swish'", "gelu_new"]),
        ("gpt_neox", {"num_key_value_heads": 2}, ["num_key_value_heads is 2", "8"]),
        ("qwen3_5_text", {"attn_output_gate": False}, ["attn_output_gate is False; true is"]),
        ("qwen3_5_text", {"output_gate_type": "sigmoid"}, ["output_gate_type", "swish is needed"]),
        ("qwen3_5_text", {"hidden_act": "gelu"}, ["hidden_act is 'gelu'; silu is needed"]),
        ("qwen3_5_text", {"linear_num_value_heads": 24}, ["24 is not a multiple of 16 key heads"]),
        ("qwen3_5_text", {"linear_key_head_dim": 23}, ["linear_key_head_dim is 23", "even"]),
        ("qwen3_5_text", {"linear_value_head_dim": 24}, ["is 24; a multiple of 16 is needed"]),
        ("qwen3_5_text", {"layer_types": [FULL, "conv", FULL, FULL]}, ["has 'conv'; known"]),
        ("qwen3_5_text", {"layer_types": ["mamba"] * 4}, ["has no full_attention"]),
        ("qwen3_5_text", {"layer_types": [FULL]}, ["layer_types", "a list of 4 names"]),
        ("phi3", {"rope_scaling": {"type": "longrope", "long_factor": [1, -1]}}, ["short_factor"]),
        ("lfm2", {"layer_types": ["conv"] * 4}, ["layer_types has no full_attention"]),
        ("lfm2", {"layer_types": []}, ["layer_types is []; a list of 4 names is needed"]),
        (
            "lfm2",
            {"layer_types": [FULL, "mamba", FULL, FULL]},
            ["layer_types has 'mamba'; known: full_attention, conv"],
        ),
        ("lfm2", {"full_attn_idxs": "2"}, ["full_attn_idxs is '2'; a list of layers is needed"]),
        ("lfm2", {"full_attn_idxs": [True]}, ["full_attn_idxs is [True]; a list of layers"]),
        ("lfm2", {"full_attn_idxs": [4, -1]}, ["full_attn_idxs has no layer; one layer at least"]),
        ("lfm2", {"conv_L_cache": 1}, ["conv_L_cache is 1; an integer from 2 to 8 is needed"]),
        ("lfm2", {"conv_bias": "no"}, ["conv_bias is 'no'; true or false is needed"]),
        ("lfm2", {"tie_embedding": 1}, ["tie_embedding is 1; true or false is needed"]),
        ("lfm2", {"block_ff_dim": 1}, ["block_ff_dim is adjusted to 0; an integer from 1"]),
        (
            "lfm2",
            {"block_ffn_dim_multiplier": 1e30},
            ["intermediate_size is adjusted to 1139", "an integer from 1 to 2147483647 is needed"],
        ),
        ("lfm2", {"block_multiple_of": 0}, ["block_multiple_of is 0; an integer from 1"]),
        ("lfm2", {"norm_eps": 0}, ["norm_eps is 0; a number from 1e-30"]),
        ("lfm2_moe", {}, ["layer_types is missing; a list of 4 names is needed"]),
        (
            "lfm2_moe",
            {"layer_types": [FULL] * 4, "num_dense_layers": -1},
            ["num_dense_layers is -1; an integer from 0"],
        ),
        (
            "lfm2_moe",
            {"layer_types": [FULL] * 4, "num_experts_per_tok": 33},
            ["num_experts_per_tok is 33; at most the number of experts (32)"],
        ),
        (
            "lfm2_moe",
            {"layer_types": [FULL] * 4, "routed_scaling_factor": 0},
            ["routed_scaling_factor is 0; a number from 1e-30"],
        ),
        (
            "lfm2_moe",
            {"layer_types": [FULL] * 4, "use_expert_bias": 1},
            ["use_expert_bias is 1; true or false is needed"],
        ),
        ("qwen3_5_moe_text", {"num_experts": 10**9}, ["num_experts", "from 1 to 10000"]),
        ("qwen3_5_moe_text", {"num_experts_per_tok": 257}, ["257", "number of experts (256)"]),
        (
            "qwen3_5_moe_text",
            {"shared_expert_intermediate_size": 0},
            ["shared_expert_intermediate_size is 0; an integer from 1"],
        ),
        ("qwen3_5_moe_text", {"moe_intermediate_size": "512"}, ["moe_intermediate_size is '512'"]),
        ("qwen3_next", {"mlp_only_layers": 3}, ["mlp_only_layers is 3; a list of layers"]),
        ("qwen3_next", {"decoder_sparse_step": 0}, ["decoder_sparse_step is 0; an integer from 1"]),
        ("qwen3_next", {"num_experts": 0}, ["num_experts is 0; an integer from 1"]),
        ("deepseek_v3", {}, ["num_key_value_heads is 2", "query heads (8)"]),
        ("deepseek_v3", LATENT | {"attention_bias": True}, ["attention_bias is True; false is"]),
        ("deepseek_v3", LATENT | {"kv_lora_rank": 40}, ["is 40; a multiple of 16 is needed"]),
        ("deepseek_v3", LATENT | {"kv_lora_rank": 1024}, ["1088 is above 1024, the largest"]),
        ("deepseek_v3", LATENT | {"v_head_dim": 8}, ["v_head_dim is 8; a multiple of 16"]),
        ("deepseek_v3", LATENT | {"qk_rope_head_dim": 7}, ["7 is odd"]),
        ("deepseek_v3", LATENT | {"q_lora_rank": 0}, ["q_lora_rank is 0; an integer from 1"]),
        ("deepseek_v3", LATENT | {"scoring_func": "softmax"}, ["is 'softmax'; 'sigmoid' is"]),
        ("deepseek_v3", LATENT | {"topk_method": "greedy"}, ["topk_method is 'greedy'"]),
        ("deepseek_v3", LATENT | {"moe_layer_freq": 2}, ["moe_layer_freq is 2; 1 is needed"]),
        ("deepseek_v3", LATENT | {"n_group": 7}, ["n_group is 7", "256 experts"]),
        ("deepseek_v3", LATENT | {"n_group": 256}, ["groups of two or more"]),
        ("deepseek_v3", LATENT | {"topk_group": 9}, ["topk_group is 9; at most n_group (8)"]),
        ("deepseek_v3", LATENT | {"num_experts_per_tok": 129}, ["is 129", "(128)"]),
        ("deepseek_v3", LATENT | {"n_routed_experts": 10**9}, ["n_routed_experts", "to 10000"]),
        ("deepseek_v3", LATENT | {"n_shared_experts": 0}, ["n_shared_experts is 0; an integer"]),
        (
            "deepseek_v3",
            LATENT | {"quantization_config": {"quant_method": "fp8"}},
            ["quantised checkpoint (FP8)", "BF16 checkpoint"],
        ),
        ("glm4_moe_lite", LATENT | {"mlp_layer_types": ["dense"]}, ["a list of 4 names"]),
        (
            "glm4_moe_lite",
            LATENT | {"mlp_layer_types": ["dense", "moe", "dense", "dense"]},
            ["has 'moe'; known: dense, sparse"],
        ),
    ],
)
def test_impossible_trait_of_a_family_is_named(
    tmp_path: Path, model_type: str, changes: dict[str, Any], mentions: list[str]
) -> None:
    message = refusal(tmp_path, {"model_type": model_type, **SHAPE}, **changes)
    for mention in mentions:
        assert mention in message
