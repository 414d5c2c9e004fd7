"""A small peaked model of each family that differs from Llama, with the family's traits."""

from collections.abc import Mapping

from support.random_latent import DEEPSEEK, GLM4_MOE, GLM4_MOE_LITE, MOONLIGHT
from support.random_models import ROPE_SCALINGS, Shape
from support.random_recurrent import DELTA_NET

GRANITE = {
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.02,
    "residual_multiplier": 0.22,
    "logits_scaling": 0.25,
}


def long_rope(pairs: int) -> Mapping[str, object]:
    """Factors that grow with the wavelength; long factors grow faster."""
    rising = [1.0 + pair / pairs for pair in range(pairs)]
    return {
        "type": "longrope",
        "short_factor": rising,
        "long_factor": [factor**3 for factor in rising],
    }


# The queries grow within short texts, by more than in published models.
MINISTRAL_ROPE = {
    "rope_type": "yarn",
    "factor": 16.0,
    "original_max_position_embeddings": 32,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.4,
}

DEEPSEEK_ROPE = {
    "rope_type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "mscale": 0.7,
    "mscale_all_dim": 1.0,
}

_SLIDING, _FULL = "sliding_attention", "full_attention"
# The last three layers share keys and values, and have wider feed forwards.
GEMMA4 = {
    "layer_types": [_SLIDING, _SLIDING, _FULL, _SLIDING, _SLIDING, _FULL],
    "global_head_dim": 48,
    "num_kv_shared_layers": 3,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 8,
}
# The largest dense one: full layers take their values from keys; nothing is shared.
GEMMA4_KEYS = {
    "layer_types": [_SLIDING, _FULL, _SLIDING, _FULL],
    "global_head_dim": 48,
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 30.0,
}
GEMMA4_EXPERTS = GEMMA4_KEYS | {
    "enable_moe_block": True,
    "num_experts": 5,
    "top_k_experts": 2,
    "moe_intermediate_size": 36,
}
PROPORTIONAL = {"rope_type": "proportional", "partial_rotary_factor": 0.25}

FAMILY_SHAPES: Mapping[str, Shape] = {
    "qwen2": Shape(
        "qwen2", hidden=56, heads=7, kv_heads=1, head_dim=40, ffn=84, vocab=271, context=1024,
        window=60, is_tied=True, rope_theta=1e6, is_peaked=True,
    ),
    "olmo2": Shape(
        "olmo2", hidden=72, heads=3, kv_heads=1, head_dim=24, ffn=84, vocab=271, context=1024,
        is_peaked=True,
    ),
    "olmo3": Shape(
        "olmo3", hidden=72, heads=3, kv_heads=1, head_dim=24, ffn=84, layers=4, vocab=271,
        context=1024, window=50, rope_theta=5e5, rope_scaling=ROPE_SCALINGS["yarn"], is_peaked=True,
    ),
    "ministral3": Shape(
        "ministral3", hidden=72, heads=3, kv_heads=1, head_dim=40, ffn=84, vocab=271,
        context=1024, rope_theta=1e6, rope_scaling=MINISTRAL_ROPE, spells_rope_parameters=True,
        is_peaked=True,
    ),
    "granite": Shape(
        "granite", hidden=56, heads=7, kv_heads=1, head_dim=40, ffn=84, vocab=263, context=1024,
        has_biases=True, extra=GRANITE | {"logits_scaling": 1.5}, is_peaked=True,
    ),
    "granitemoehybrid": Shape(
        "granitemoehybrid", hidden=56, heads=7, kv_heads=1, head_dim=8, ffn=84, vocab=263,
        context=1024, extra=GRANITE | {"logits_scaling": 1.5}, is_peaked=True,
    ),
    "glm4": Shape(
        "glm4", hidden=56, heads=7, kv_heads=1, head_dim=40, ffn=84, vocab=263, context=1024,
        has_biases=True, is_peaked=True,
    ),
    "smollm3": Shape(
        "smollm3", hidden=40, heads=2, kv_heads=1, head_dim=24, ffn=60, layers=4, vocab=261,
        context=1024, rope_theta=2e6, is_peaked=True,
    ),
    "gemma2": Shape(
        "gemma2", hidden=48, heads=4, kv_heads=2, head_dim=256, ffn=84, vocab=263, context=1024,
        window=70, extra={"query_pre_attn_scalar": 20, "attn_logit_softcapping": 3.0},
        is_tied=True, is_peaked=True,
    ),
    "gemma3_text": Shape(
        "gemma3_text", hidden=48, heads=4, kv_heads=1, head_dim=24, ffn=84, layers=3, vocab=263,
        context=1024, is_tied=True, window=50, rope_theta=1e6, is_peaked=True,
        rope_scaling=ROPE_SCALINGS["linear"], spells_rope_parameters=True,
        extra={"sliding_window_pattern": 2},
    ),
    "gemma4_text": Shape(
        "gemma4_text", hidden=48, heads=4, kv_heads=1, head_dim=24, ffn=84, layers=6, vocab=263,
        context=1024, is_tied=True, window=50, extra=GEMMA4, is_peaked=True,
    ),
    "gemma4_text, values are keys": Shape(
        "gemma4_text", hidden=72, heads=4, kv_heads=2, head_dim=24, ffn=84, layers=4, vocab=263,
        context=1024, is_tied=True, window=70, rope_theta=1e6, rope_scaling=PROPORTIONAL,
        spells_rope_parameters=True, extra=GEMMA4_KEYS, is_peaked=True,
    ),
    "gemma4_text, experts": Shape(
        "gemma4_text", hidden=72, heads=4, kv_heads=2, head_dim=24, ffn=84, layers=4, vocab=263,
        context=1024, is_tied=True, window=70, rope_theta=1e6, rope_scaling=PROPORTIONAL,
        spells_rope_parameters=True, extra=GEMMA4_EXPERTS, is_peaked=True,
    ),
    "phi3": Shape(
        "phi3", hidden=80, heads=2, kv_heads=1, head_dim=40, ffn=84, vocab=269, context=1024,
        rope_scaling=long_rope(15), is_peaked=True,
        extra={"original_max_position_embeddings": 64, "partial_rotary_factor": 0.75},
    ),
    "starcoder2": Shape(
        "starcoder2", hidden=72, heads=3, kv_heads=1, head_dim=24, ffn=84, vocab=271,
        context=1024, window=60, is_tied=True, has_biases=True, is_peaked=True,
    ),
    "gpt_neox": Shape(
        "gpt_neox", hidden=72, heads=3, kv_heads=3, head_dim=24, ffn=84, vocab=271, context=1024,
        has_biases=True, extra={"rotary_pct": 0.25}, is_peaked=True,
    ),
    "stablelm": Shape(
        "stablelm", hidden=72, heads=3, kv_heads=3, head_dim=24, ffn=84, vocab=271, context=1024,
        is_peaked=True, extra={
            "use_parallel_residual": True, "qk_layernorm": True, "partial_rotary_factor": 0.25,
        },
    ),
    "mixtral": Shape(
        "mixtral", hidden=48, heads=2, kv_heads=1, head_dim=24, ffn=36, vocab=263, context=1024,
        window=60, is_peaked=True, extra={"num_local_experts": 5, "num_experts_per_tok": 2},
    ),
    "qwen3_moe": Shape(
        "qwen3_moe", hidden=56, heads=7, kv_heads=1, head_dim=40, ffn=36, layers=3, vocab=261,
        context=1024, is_peaked=True, extra={
            "num_experts": 9, "num_experts_per_tok": 4, "mlp_only_layers": [1],
        },
    ),
    "gpt_oss": Shape(
        "gpt_oss", hidden=64, heads=7, kv_heads=1, head_dim=40, ffn=96, vocab=263, context=1024,
        window=60, has_biases=True, rope_scaling=ROPE_SCALINGS["yarn"], is_peaked=True,
        extra={"num_local_experts": 5, "num_experts_per_tok": 2},
    ),
    "qwen3_5_text": Shape(
        "qwen3_5_text", hidden=72, heads=4, kv_heads=2, head_dim=24, ffn=84, layers=4, vocab=271,
        context=1024, rope_theta=1e6, spells_rope_parameters=True, is_peaked=True,
        extra=DELTA_NET | {"full_attention_interval": 2},
    ),
    "qwen3_5_moe_text": Shape(
        "qwen3_5_moe_text", hidden=72, heads=4, kv_heads=2, head_dim=24, ffn=36, layers=4,
        vocab=271, context=1024, rope_theta=1e6, spells_rope_parameters=True, is_peaked=True,
        extra=DELTA_NET | {
            "full_attention_interval": 2, "num_experts": 9, "num_experts_per_tok": 4,
            "shared_expert_intermediate_size": 52,
        },
    ),
    "lfm2": Shape(  # threads share the convolution's channels by 128
        "lfm2", hidden=136, heads=3, kv_heads=1, head_dim=24, ffn=84, layers=4, vocab=271,
        context=1024, rope_theta=1e6, is_peaked=True, has_biases=True, extra={
            "layer_types": ["conv", "full_attention", "conv", "conv"],
        },
    ),
    "lfm2_moe": Shape(
        "lfm2_moe", hidden=72, heads=3, kv_heads=1, head_dim=24, ffn=36, layers=4, vocab=271,
        context=1024, rope_theta=1e6, is_peaked=True, extra={
            "layer_types": ["conv", "full_attention", "conv", "conv"], "num_dense_layers": 1,
            "intermediate_size": 84, "num_experts": 9, "num_experts_per_tok": 2,
            "routed_scaling_factor": 1.5,
        },
    ),
    "qwen3_next": Shape(
        "qwen3_next", hidden=72, heads=4, kv_heads=2, head_dim=24, ffn=36, layers=4, vocab=271,
        context=1024, rope_theta=1e6, is_peaked=True, extra=DELTA_NET | {
            "full_attention_interval": 2, "num_experts": 5, "num_experts_per_tok": 2,
            "shared_expert_intermediate_size": 36, "intermediate_size": 84, "mlp_only_layers": [1],
        },
    ),
    "glm4_moe": Shape(
        "glm4_moe", hidden=56, heads=7, kv_heads=1, head_dim=40, ffn=36, layers=3, vocab=261,
        context=1024, has_biases=True, is_peaked=True, extra=GLM4_MOE,
    ),
    "glm4_moe_lite": Shape(
        "glm4_moe_lite", hidden=72, heads=5, kv_heads=5, head_dim=8, ffn=36, layers=3, vocab=263,
        context=1024, rope_theta=1e6, is_peaked=True, extra=GLM4_MOE_LITE,
    ),
    "deepseek_v3": Shape(
        "deepseek_v3", hidden=72, heads=3, kv_heads=3, head_dim=8, ffn=36, layers=3, vocab=271,
        context=1024, rope_scaling=DEEPSEEK_ROPE, is_peaked=True, extra=DEEPSEEK,
    ),
    "deepseek_v3, queries without a latent": Shape(
        "deepseek_v3", hidden=56, heads=4, kv_heads=4, head_dim=8, ffn=36, layers=3, vocab=269,
        context=1024, is_peaked=True, extra=MOONLIGHT,
    ),
}  # fmt: skip
