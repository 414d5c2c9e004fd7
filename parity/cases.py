"""Shapes for parity: every model type, awkward sizes, every rope scaling and trait."""

from support.family_shapes import (
    DEEPSEEK_ROPE,
    GEMMA4,
    GEMMA4_EXPERTS,
    GEMMA4_KEYS,
    GRANITE,
    MINISTRAL_ROPE,
    PROPORTIONAL,
    long_rope,
)
from support.random_latent import DEEPSEEK, GLM4_MOE, GLM4_MOE_LITE, MOONLIGHT
from support.random_models import ROPE_SCALINGS, Shape
from support.random_recurrent import DELTA_NET

PROMPT_LENGTH = 100  # beyond every window and every original context of rope scalings
SEEDS = range(5)

CASES: dict[str, Shape] = {
    "llama 7:1 heads of 40": Shape(
        "llama", hidden=280, heads=7, kv_heads=1, head_dim=40, ffn=172, vocab=301
    ),
    "llama 72, biases, rope llama3": Shape(
        "llama", hidden=144, heads=2, kv_heads=1, head_dim=72, ffn=200, vocab=333,
        has_biases=True, rope_theta=500000.0, rope_scaling=ROPE_SCALINGS["llama3"],
    ),
    "llama 96 tied, rope linear": Shape(
        "llama", hidden=192, heads=4, kv_heads=2, head_dim=96, ffn=300, vocab=290,
        is_tied=True, rope_scaling=ROPE_SCALINGS["linear"],
    ),
    "llama heads of 64": Shape(
        "llama", hidden=320, heads=5, kv_heads=5, head_dim=64, ffn=428, vocab=301,
    ),
    "llama 4:1 heads of 128": Shape(
        "llama", hidden=256, heads=8, kv_heads=2, head_dim=128, ffn=344, vocab=301,
    ),
    "mistral 40, window 17": Shape(
        "mistral", hidden=200, heads=5, kv_heads=5, head_dim=40, ffn=260, vocab=307, window=17
    ),
    "mistral 7:1 heads of 96, window 33, rope yarn": Shape(
        "mistral", hidden=168, heads=7, kv_heads=1, head_dim=96, ffn=190, vocab=270, window=33,
        rope_scaling=ROPE_SCALINGS["yarn"], spells_rope_parameters=True,
    ),
    "qwen2 72, window 9": Shape(
        "qwen2", hidden=144, heads=2, kv_heads=2, head_dim=72, ffn=210, layers=3, vocab=299,
        window=9, rope_theta=1e6,
    ),
    "qwen2 7:1 heads of 40 tied, rope yarn": Shape(
        "qwen2", hidden=280, heads=7, kv_heads=1, head_dim=40, ffn=180, vocab=311,
        is_tied=True, rope_theta=1e6, rope_scaling=ROPE_SCALINGS["yarn"],
    ),
    "qwen3 96 tied": Shape(
        "qwen3", hidden=100, heads=4, kv_heads=2, head_dim=96, ffn=230, vocab=283,
        is_tied=True, rope_theta=1e6, spells_rope_parameters=True,
    ),
    "qwen3 7:1 heads of 72, window 21": Shape(
        "qwen3", hidden=224, heads=7, kv_heads=1, head_dim=72, ffn=170, layers=3, vocab=277,
        window=21, rope_theta=1e6,
    ),
    "olmo2 7:1 heads of 40": Shape(
        "olmo2", hidden=280, heads=7, kv_heads=1, head_dim=40, ffn=172, vocab=301,
        rope_theta=500000.0,
    ),
    "olmo2 72, biases, rope yarn": Shape(
        "olmo2", hidden=144, heads=2, kv_heads=2, head_dim=72, ffn=200, vocab=333,
        has_biases=True, rope_scaling=ROPE_SCALINGS["yarn"], spells_rope_parameters=True,
    ),
    "olmo3 7:1 heads of 40, rope yarn, window 17": Shape(
        "olmo3", hidden=280, heads=7, kv_heads=1, head_dim=40, ffn=172, layers=4, vocab=301,
        window=17, rope_theta=500000.0, rope_scaling=ROPE_SCALINGS["yarn"],
    ),
    "olmo3 72, biases, rope parameters by layer type": Shape(
        "olmo3", hidden=144, heads=2, kv_heads=2, head_dim=72, ffn=200, layers=3, vocab=333,
        window=33, has_biases=True, rope_theta=1e6, rope_scaling=ROPE_SCALINGS["llama3"],
        spells_rope_parameters=True,
        extra={"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
    ),
    "ministral3 40, queries grow after 32": Shape(
        "ministral3", hidden=200, heads=5, kv_heads=1, head_dim=40, ffn=260, vocab=307,
        rope_theta=1e6, rope_scaling=MINISTRAL_ROPE, spells_rope_parameters=True,
    ),
    "ministral3 72 tied, window 21, queries grow after 16": Shape(
        "ministral3", hidden=144, heads=2, kv_heads=2, head_dim=72, ffn=172, vocab=299, window=21,
        is_tied=True, rope_theta=1e6, spells_rope_parameters=True,
        rope_scaling=MINISTRAL_ROPE
        | {"original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.1},
    ),
    "granite 40 tied": Shape(
        "granite", hidden=200, heads=5, kv_heads=1, head_dim=40, ffn=260, vocab=307, is_tied=True,
        extra=GRANITE,
    ),
    "granite 72, biases": Shape(
        "granite", hidden=144, heads=2, kv_heads=2, head_dim=72, ffn=172, vocab=299,
        has_biases=True, extra={**GRANITE, "logits_scaling": 3.0},
    ),
    "granitemoehybrid 40 tied": Shape(
        "granitemoehybrid", hidden=200, heads=5, kv_heads=1, head_dim=40, ffn=260, vocab=307,
        is_tied=True, extra=GRANITE,
    ),
    "granitemoehybrid 72, biases, no positions": Shape(
        "granitemoehybrid", hidden=144, heads=2, kv_heads=2, head_dim=72, ffn=172, vocab=299,
        has_biases=True, extra={**GRANITE, "position_embedding_type": None},
    ),
    "glm4 7:1 heads of 40, biases": Shape(
        "glm4", hidden=280, heads=7, kv_heads=1, head_dim=40, ffn=172, vocab=301, has_biases=True,
    ),
    "glm4 72 tied, a quarter rotated": Shape(
        "glm4", hidden=144, heads=2, kv_heads=2, head_dim=72, ffn=200, vocab=333, is_tied=True,
        rope_theta=1e6, extra={"partial_rotary_factor": 0.25},
    ),
    "smollm3 40, 4 layers": Shape(
        "smollm3", hidden=200, heads=5, kv_heads=1, head_dim=40, ffn=260, layers=4, vocab=307,
        rope_theta=2e6,
    ),
    "smollm3 96, window 21, tied": Shape(
        "smollm3", hidden=192, heads=2, kv_heads=1, head_dim=96, ffn=150, layers=3, vocab=299,
        is_tied=True, has_biases=True, rope_theta=2e6, spells_rope_parameters=True, extra={
            "no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": 21,
        },
    ),
    "gemma2 40, window 17": Shape(
        "gemma2", hidden=200, heads=5, kv_heads=1, head_dim=40, ffn=260, vocab=307, window=17,
        is_tied=True, extra={"query_pre_attn_scalar": 30, "attn_logit_softcapping": 3.0},
    ),
    "gemma2 72, 3 layers": Shape(
        "gemma2", hidden=144, heads=4, kv_heads=2, head_dim=72, ffn=172, layers=3, vocab=301,
        window=33, is_tied=True, spells_rope_parameters=True,
        extra={"final_logit_softcapping": 5.0},
    ),
    "gemma3 40, window 9": Shape(
        "gemma3_text", hidden=200, heads=5, kv_heads=1, head_dim=40, ffn=260, layers=3, vocab=307,
        window=9, is_tied=True, rope_theta=1e6, rope_scaling=ROPE_SCALINGS["linear"],
        extra={"sliding_window_pattern": 2, "rope_local_base_freq": 300.0},
    ),
    "gemma2 256, window 17": Shape(
        "gemma2", hidden=288, heads=4, kv_heads=2, head_dim=256, ffn=380, vocab=301, window=17,
        is_tied=True, extra={"query_pre_attn_scalar": 256, "attn_logit_softcapping": 3.0},
    ),
    "gemma3 4:1 heads of 256, window 9": Shape(
        "gemma3_text", hidden=160, heads=4, kv_heads=1, head_dim=256, ffn=344, layers=3, vocab=307,
        window=9, is_tied=True, rope_theta=1e6, extra={"sliding_window_pattern": 2},
    ),
    "gemma3 72, rope parameters": Shape(
        "gemma3_text", hidden=144, heads=4, kv_heads=2, head_dim=72, ffn=172, layers=3, vocab=301,
        window=33, is_tied=True, rope_theta=1e6, spells_rope_parameters=True,
        extra={"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "gemma4 24 and 48, 3 of 6 layers share, window 17": Shape(
        "gemma4_text", hidden=144, heads=4, kv_heads=1, head_dim=24, ffn=172, layers=6, vocab=301,
        is_tied=True, window=17, extra=GEMMA4,
    ),
    "gemma4 24 and 48, values are keys, capped": Shape(
        "gemma4_text", hidden=200, heads=4, kv_heads=2, head_dim=24, ffn=260, layers=4, vocab=307,
        is_tied=True, window=33, rope_theta=1e6, rope_scaling=PROPORTIONAL,
        spells_rope_parameters=True, extra=GEMMA4_KEYS | {"final_logit_softcapping": 5.0},
    ),
    "gemma4 8:1 heads of 256 and 512, shared, values are keys, biases": Shape(
        "gemma4_text", hidden=160, heads=8, kv_heads=1, head_dim=256, ffn=130, layers=6, vocab=301,
        is_tied=True, window=9, has_biases=True, rope_theta=300.0, spells_rope_parameters=True,
        rope_scaling=PROPORTIONAL | {"partial_rotary_factor": 0.5, "factor": 2.0},
        extra=GEMMA4 | {
            "global_head_dim": 512, "attention_k_eq_v": True, "num_global_key_value_heads": 2,
            "hidden_size_per_layer_input": 40, "use_double_wide_mlp": False,
        },
    ),
    "gemma4 24 and 48, 2 of 5 experts": Shape(
        "gemma4_text", hidden=144, heads=4, kv_heads=2, head_dim=24, ffn=172, layers=4, vocab=301,
        is_tied=True, window=33, rope_theta=1e6, rope_scaling=PROPORTIONAL,
        spells_rope_parameters=True, extra=GEMMA4_EXPERTS,
    ),
    "gemma4 24 and 48, 4 of 9 experts, 2 of 4 layers share": Shape(
        "gemma4_text", hidden=144, heads=4, kv_heads=1, head_dim=24, ffn=100, layers=4, vocab=307,
        is_tied=True, window=17, extra=GEMMA4 | {
            "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2,
            "enable_moe_block": True, "num_experts": 9, "top_k_experts": 4,
            "moe_intermediate_size": 52,
        },
    ),
    "phi3 40, window 17": Shape(
        "phi3", hidden=200, heads=5, kv_heads=1, head_dim=40, ffn=260, vocab=307, window=17,
        extra={"partial_rotary_factor": 0.75},
    ),
    "phi3 72, longrope long": Shape(
        "phi3", hidden=144, heads=2, kv_heads=2, head_dim=72, ffn=172, vocab=301,
        rope_scaling=long_rope(36), extra={"original_max_position_embeddings": 64},
    ),
    "phi3 80, longrope short, partial": Shape(
        "phi3", hidden=160, heads=2, kv_heads=1, head_dim=80, ffn=172, vocab=301, context=128,
        rope_scaling=long_rope(30),
        extra={"original_max_position_embeddings": 128, "partial_rotary_factor": 0.75},
    ),
    "starcoder2 40, window 17": Shape(
        "starcoder2", hidden=200, heads=5, kv_heads=1, head_dim=40, ffn=260, vocab=307, window=17,
        is_tied=True, has_biases=True,
    ),
    "starcoder2 72 without biases": Shape(
        "starcoder2", hidden=144, heads=2, kv_heads=2, head_dim=72, ffn=172, vocab=301,
    ),
    "gpt_neox 40, a quarter rotated": Shape(
        "gpt_neox", hidden=280, heads=7, kv_heads=7, head_dim=40, ffn=172, vocab=301,
        has_biases=True, extra={"rotary_pct": 0.25},
    ),
    "gpt_neox 72, serial, tied": Shape(
        "gpt_neox", hidden=144, heads=2, kv_heads=2, head_dim=72, ffn=200, vocab=333, is_tied=True,
        extra={"use_parallel_residual": False, "rotary_pct": 0.5},
    ),
    "stablelm 40": Shape(
        "stablelm", hidden=280, heads=7, kv_heads=1, head_dim=40, ffn=172, vocab=301,
        has_biases=True, extra={"partial_rotary_factor": 0.25},
    ),
    "stablelm 4:1 heads of 160, norms by head": Shape(
        "stablelm", hidden=640, heads=4, kv_heads=1, head_dim=160, ffn=432, vocab=301,
        extra={"use_parallel_residual": True, "qk_layernorm": True, "partial_rotary_factor": 0.25},
    ),
    "stablelm 72, parallel, norms by head": Shape(
        "stablelm", hidden=288, heads=4, kv_heads=2, head_dim=72, ffn=200, vocab=333,
        extra={"use_parallel_residual": True, "qk_layernorm": True, "partial_rotary_factor": 0.5},
    ),
    "mixtral 40, 2 of 5 experts, window 17": Shape(
        "mixtral", hidden=280, heads=7, kv_heads=1, head_dim=40, ffn=76, vocab=301, window=17,
        rope_theta=1e6, extra={"num_local_experts": 5, "num_experts_per_tok": 2},
    ),
    "mixtral 72, 3 of 33 experts": Shape(
        "mixtral", hidden=144, heads=2, kv_heads=2, head_dim=72, ffn=36, vocab=333,
        extra={"num_local_experts": 33, "num_experts_per_tok": 3},
    ),
    "qwen3_moe 40, 4 of 9 experts": Shape(
        "qwen3_moe", hidden=200, heads=5, kv_heads=1, head_dim=40, ffn=76, vocab=307,
        extra={"num_experts": 9, "num_experts_per_tok": 4},
    ),
    "qwen3_moe 8:1 heads of 128, 8 of 16 experts": Shape(
        "qwen3_moe", hidden=128, heads=8, kv_heads=1, head_dim=128, ffn=48, vocab=283,
        extra={"num_experts": 16, "num_experts_per_tok": 8, "norm_topk_prob": True},
    ),
    "qwen3_moe 96, shares of chosen, plain layers": Shape(
        "qwen3_moe", hidden=100, heads=4, kv_heads=2, head_dim=96, ffn=60, layers=4, vocab=283,
        window=21, has_biases=True, extra={
            "num_experts": 6, "num_experts_per_tok": 3, "norm_topk_prob": True,
            "decoder_sparse_step": 2, "mlp_only_layers": [1],
        },
    ),
    "gpt_oss 40, 2 of 5 experts, window 17": Shape(
        "gpt_oss", hidden=288, heads=7, kv_heads=1, head_dim=40, ffn=96, vocab=301, window=17,
        has_biases=True, rope_scaling=ROPE_SCALINGS["yarn"] | {"truncate": False},
        extra={"num_local_experts": 5, "num_experts_per_tok": 2},
    ),
    "gpt_oss 8:1 heads of 64, 4 of 8 experts": Shape(
        "gpt_oss", hidden=192, heads=8, kv_heads=1, head_dim=64, ffn=192, vocab=301, window=33,
        has_biases=True, rope_scaling=ROPE_SCALINGS["yarn"] | {"truncate": False},
        extra={"num_local_experts": 8, "num_experts_per_tok": 4},
    ),
    "gpt_oss 72, 4 of 33 experts": Shape(
        "gpt_oss", hidden=160, heads=2, kv_heads=2, head_dim=72, ffn=32, vocab=333, window=33,
        rope_scaling=ROPE_SCALINGS["yarn"],
        extra={"num_local_experts": 33, "num_experts_per_tok": 4},
    ),
    "qwen3_5 24, two value heads a key head": Shape(
        "qwen3_5_text", hidden=72, heads=4, kv_heads=2, head_dim=24, ffn=84, layers=4, vocab=301,
        rope_theta=1e7, spells_rope_parameters=True, extra=DELTA_NET,
    ),
    "qwen3_5 72 tied, one value head a key head": Shape(
        "qwen3_5_text", hidden=144, heads=2, kv_heads=1, head_dim=72, ffn=172, layers=4, vocab=299,
        is_tied=True, rope_theta=1e6, spells_rope_parameters=True,
        extra=DELTA_NET | {"linear_num_value_heads": 2, "linear_key_head_dim": 40},
    ),
    "qwen3_5 40, three value heads a key head, every other layer": Shape(
        "qwen3_5_text", hidden=200, heads=5, kv_heads=1, head_dim=40, ffn=260, layers=4, vocab=307,
        rope_theta=1e6, spells_rope_parameters=True, extra=DELTA_NET | {
            "linear_num_value_heads": 6, "linear_value_head_dim": 48,
            "full_attention_interval": 2,
        },
    ),
    "qwen3_5_moe 24, 2 of 5 experts": Shape(
        "qwen3_5_moe_text", hidden=72, heads=4, kv_heads=2, head_dim=24, ffn=36, layers=4,
        vocab=301, rope_theta=1e7, spells_rope_parameters=True, extra=DELTA_NET | {
            "num_experts": 5, "num_experts_per_tok": 2, "shared_expert_intermediate_size": 60,
        },
    ),
    "qwen3_5_moe 72 tied, 8 of 33 experts": Shape(
        "qwen3_5_moe_text", hidden=144, heads=2, kv_heads=1, head_dim=72, ffn=52, layers=4,
        vocab=299, is_tied=True, rope_theta=1e6, spells_rope_parameters=True, extra=DELTA_NET | {
            "linear_key_head_dim": 40, "num_experts": 33, "num_experts_per_tok": 8,
            "shared_expert_intermediate_size": 52,
        },
    ),
    "lfm2 24, biases, adjusted width": Shape(
        "lfm2", hidden=72, heads=3, kv_heads=1, head_dim=24, ffn=112, layers=4, vocab=301,
        rope_theta=1e6, has_biases=True, extra={
            "layer_types": ["conv", "full_attention", "conv", "conv"],
            "block_auto_adjust_ff_dim": True, "block_ff_dim": 150, "block_multiple_of": 16,
            "block_ffn_dim_multiplier": 1.1,
        },
    ),
    "lfm2 7:1 heads of 40 tied, 5 taps": Shape(
        "lfm2", hidden=280, heads=7, kv_heads=1, head_dim=40, ffn=172, layers=3, vocab=307,
        is_tied=True, rope_theta=1e6, spells_rope_parameters=True,
        extra={"layer_types": ["full_attention", "conv", "conv"], "conv_L_cache": 5},
    ),
    "lfm2_moe 24, 2 of 5 experts, biases": Shape(
        "lfm2_moe", hidden=72, heads=3, kv_heads=1, head_dim=24, ffn=36, layers=4, vocab=301,
        rope_theta=1e6, has_biases=True, extra={
            "layer_types": ["conv", "full_attention", "conv", "conv"], "num_dense_layers": 2,
            "intermediate_size": 100, "num_experts": 5, "num_experts_per_tok": 2,
            "routed_scaling_factor": 1.5,
        },
    ),
    "lfm2_moe 40 tied, 3 of 9 experts, no biases": Shape(
        "lfm2_moe", hidden=280, heads=7, kv_heads=1, head_dim=40, ffn=52, layers=3, vocab=307,
        is_tied=True, rope_theta=1e6, spells_rope_parameters=True, extra={
            "layer_types": ["full_attention", "conv", "conv"], "num_dense_layers": 0,
            "intermediate_size": 100, "num_experts": 9, "num_experts_per_tok": 3,
            "use_expert_bias": False, "norm_topk_prob": False,
        },
    ),
    "qwen3_next 24, 2 of 5 experts, plain layers": Shape(
        "qwen3_next", hidden=72, heads=4, kv_heads=2, head_dim=24, ffn=36, layers=4, vocab=301,
        rope_theta=1e7, extra=DELTA_NET | {
            "intermediate_size": 84, "num_experts": 5, "num_experts_per_tok": 2,
            "shared_expert_intermediate_size": 60, "mlp_only_layers": [1],
        },
    ),
    "qwen3_next 40, three value heads a key head, shares of all": Shape(
        "qwen3_next", hidden=200, heads=5, kv_heads=1, head_dim=40, ffn=36, layers=4, vocab=307,
        rope_theta=1e6, extra=DELTA_NET | {
            "linear_num_value_heads": 6, "linear_value_head_dim": 48, "norm_topk_prob": False,
            "full_attention_interval": 2, "decoder_sparse_step": 2, "num_experts": 17,
            "num_experts_per_tok": 4, "shared_expert_intermediate_size": 44,
            "intermediate_size": 100,
        },
    ),
    "glm4_moe 40, 3 of 8 experts, biases, norms of heads": Shape(
        "glm4_moe", hidden=280, heads=7, kv_heads=1, head_dim=40, ffn=36, layers=3, vocab=301,
        rope_theta=1e6, has_biases=True, extra=GLM4_MOE,
    ),
    "glm4_moe 72 tied, 4 of 12 experts in 2 of 3 groups": Shape(
        "glm4_moe", hidden=144, heads=2, kv_heads=2, head_dim=72, ffn=28, layers=3, vocab=299,
        is_tied=True, extra=GLM4_MOE | {
            "n_routed_experts": 12, "n_group": 3, "topk_group": 2, "num_experts_per_tok": 4,
            "use_qk_norm": False, "norm_topk_prob": False, "first_k_dense_replace": 0,
        },
    ),
    "glm4_moe_lite 24 and 8, 3 of 8 experts": Shape(
        "glm4_moe_lite", hidden=144, heads=5, kv_heads=5, head_dim=8, ffn=36, layers=3, vocab=301,
        rope_theta=1e6, extra=GLM4_MOE_LITE,
    ),
    "glm4_moe_lite 192 and 64, halves rotate, plain layers": Shape(
        "glm4_moe_lite", hidden=160, heads=4, kv_heads=4, head_dim=64, ffn=36, layers=4, vocab=307,
        rope_theta=1e6, spells_rope_parameters=True, extra=GLM4_MOE_LITE | {
            "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256,
            "kv_lora_rank": 112, "rope_interleave": False,
            "mlp_layer_types": ["sparse", "dense", "sparse", "dense"],
        },
    ),
    "deepseek_v3 24 and 8, 3 of 8 experts in 2 of 4 groups, rope yarn": Shape(
        "deepseek_v3", hidden=72, heads=4, kv_heads=4, head_dim=8, ffn=36, layers=4, vocab=301,
        rope_scaling=DEEPSEEK_ROPE, extra=DEEPSEEK,
    ),
    "deepseek_v3 24 and 8, queries without a latent, tied": Shape(
        "deepseek_v3", hidden=144, heads=7, kv_heads=7, head_dim=8, ffn=36, layers=3, vocab=299,
        is_tied=True, rope_theta=5e4, extra=MOONLIGHT,
    ),
    "deepseek_v3 128 and 64, latent of 512, 6 of 33 experts": Shape(
        "deepseek_v3", hidden=200, heads=5, kv_heads=5, head_dim=64, ffn=44, layers=2, vocab=307,
        rope_theta=5e4, extra=MOONLIGHT | {
            "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
            "v_head_dim": 128, "n_routed_experts": 33, "num_experts_per_tok": 6,
        },
    ),
}  # fmt: skip
