"""Writes tests/goldens: small random models, and logits of transformers in float32.

Arguments: the names of goldens; without any, all.
"""

import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

import theirs
from support.decided_tokens import decided_tokens
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
from support.random_latent import DEEPSEEK, GLM4_MOE, GLM4_MOE_LITE, MOONLIGHT, SIGMOID
from support.random_models import ROPE_SCALINGS, Shape, make_model
from support.random_recurrent import DELTA_NET
from support.reference import rms_error

ROOT = Path(__file__).resolve().parent.parent
SEED = 20260
TOKENS = 48

GOLDENS: dict[str, Shape] = {
    "llama": Shape(
        "llama", hidden=56, heads=7, kv_heads=1, head_dim=40, ffn=76, vocab=269,
        rope_theta=500000.0, rope_scaling=ROPE_SCALINGS["llama3"], is_peaked=True,
    ),
    "llama-biases": Shape(
        "llama", hidden=48, heads=2, kv_heads=2, head_dim=24, ffn=100, vocab=263,
        has_biases=True, is_tied=True, rope_scaling=ROPE_SCALINGS["linear"],
    ),
    "mistral": Shape(
        "mistral", hidden=72, heads=3, kv_heads=3, head_dim=24, ffn=84, vocab=271, window=11,
        spells_rope_parameters=True,
    ),
    "qwen2": Shape(
        "qwen2", hidden=72, heads=2, kv_heads=1, head_dim=72, ffn=92, vocab=262,
        window=7, is_tied=True, rope_theta=1e6, rope_scaling=ROPE_SCALINGS["yarn"],
    ),
    "qwen3": Shape(
        "qwen3", hidden=44, heads=4, kv_heads=2, head_dim=96, ffn=68, vocab=267,
        rope_theta=1e6, is_peaked=True,
    ),
    "olmo2": Shape(
        "olmo2", hidden=72, heads=3, kv_heads=1, head_dim=24, ffn=84, vocab=271, is_peaked=True,
    ),
    "olmo3": Shape(
        "olmo3", hidden=72, heads=3, kv_heads=1, head_dim=24, ffn=84, layers=4, vocab=271,
        window=11, rope_theta=500000.0, rope_scaling=ROPE_SCALINGS["yarn"],
    ),
    "ministral3": Shape(
        "ministral3", hidden=72, heads=3, kv_heads=1, head_dim=40, ffn=84, vocab=271,
        rope_theta=1e6, rope_scaling=MINISTRAL_ROPE | {"original_max_position_embeddings": 16},
        spells_rope_parameters=True,
    ),
    "granite": Shape(
        "granite", hidden=48, heads=2, kv_heads=1, head_dim=24, ffn=84, vocab=263, is_tied=True,
        has_biases=True, extra=GRANITE,
    ),
    "granitemoehybrid": Shape(
        "granitemoehybrid", hidden=48, heads=2, kv_heads=1, head_dim=24, ffn=84, vocab=263,
        is_tied=True, has_biases=True, extra=GRANITE,
    ),
    "glm4": Shape(
        "glm4", hidden=48, heads=2, kv_heads=1, head_dim=40, ffn=84, vocab=263, has_biases=True,
    ),
    "smollm3": Shape(
        "smollm3", hidden=40, heads=2, kv_heads=1, head_dim=24, ffn=60, vocab=261, layers=4,
        rope_theta=2e6,
    ),
    "gemma2": Shape(
        "gemma2", hidden=48, heads=4, kv_heads=2, head_dim=24, ffn=84, vocab=263, is_tied=True,
        window=7, extra={"query_pre_attn_scalar": 20, "attn_logit_softcapping": 3.0},
    ),
    "gemma3_text": Shape(
        "gemma3_text", hidden=48, heads=4, kv_heads=1, head_dim=24, ffn=84, vocab=263,
        is_tied=True, window=9, rope_theta=1e6, rope_scaling=ROPE_SCALINGS["linear"],
        extra={"sliding_window_pattern": 2, "rope_local_base_freq": 300.0},
    ),
    "gemma4_text": Shape(
        "gemma4_text", hidden=40, heads=4, kv_heads=1, head_dim=24, ffn=52, layers=6, vocab=263,
        is_tied=True, window=9, extra=GEMMA4,
    ),
    "gemma4_text-keys": Shape(
        "gemma4_text", hidden=40, heads=4, kv_heads=2, head_dim=24, ffn=60, layers=4, vocab=263,
        is_tied=True, window=9, rope_theta=300.0, rope_scaling=PROPORTIONAL,
        spells_rope_parameters=True, extra=GEMMA4_KEYS | {"final_logit_softcapping": 3.0},
    ),
    "gemma4_text-experts": Shape(
        "gemma4_text", hidden=40, heads=4, kv_heads=2, head_dim=24, ffn=60, layers=4, vocab=263,
        is_tied=True, window=9, rope_theta=300.0, rope_scaling=PROPORTIONAL,
        spells_rope_parameters=True, extra=GEMMA4_EXPERTS | {"final_logit_softcapping": 3.0},
    ),
    "phi3": Shape(
        "phi3", hidden=80, heads=2, kv_heads=1, head_dim=40, ffn=84, vocab=269,
        rope_scaling=long_rope(15),
        extra={"original_max_position_embeddings": 32, "partial_rotary_factor": 0.75},
    ),
    "starcoder2": Shape(
        "starcoder2", hidden=72, heads=3, kv_heads=1, head_dim=24, ffn=84, vocab=271, window=11,
        is_tied=True, has_biases=True,
    ),
    "gpt_neox": Shape(
        "gpt_neox", hidden=72, heads=3, kv_heads=3, head_dim=24, ffn=84, vocab=271,
        has_biases=True, extra={"rotary_pct": 0.25},
    ),
    "stablelm": Shape(
        "stablelm", hidden=72, heads=3, kv_heads=3, head_dim=24, ffn=84, vocab=271,
        extra={
            "use_parallel_residual": True, "qk_layernorm": True, "partial_rotary_factor": 0.25,
        },
    ),
    "mixtral": Shape(
        "mixtral", hidden=48, heads=2, kv_heads=1, head_dim=24, ffn=36, vocab=263, window=11,
        extra={"num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "qwen3_moe": Shape(
        "qwen3_moe", hidden=40, heads=2, kv_heads=1, head_dim=24, ffn=36, vocab=261,
        extra={"num_experts": 5, "num_experts_per_tok": 3, "mlp_only_layers": [0]},
    ),
    "gpt_oss": Shape(
        "gpt_oss", hidden=64, heads=2, kv_heads=1, head_dim=24, ffn=32, vocab=263, window=11,
        has_biases=True, rope_scaling=ROPE_SCALINGS["yarn"] | {"truncate": False},
        extra={"num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "qwen3_5_text": Shape(
        "qwen3_5_text", hidden=80, heads=4, kv_heads=2, head_dim=24, ffn=100, layers=4, vocab=263,
        rope_theta=1e6, spells_rope_parameters=True, extra=DELTA_NET,
    ),
    "qwen3_5_moe_text": Shape(
        "qwen3_5_moe_text", hidden=64, heads=4, kv_heads=2, head_dim=24, ffn=20, layers=4,
        vocab=263, rope_theta=1e6, spells_rope_parameters=True, extra=DELTA_NET | {
            "num_experts": 4, "num_experts_per_tok": 2, "shared_expert_intermediate_size": 28,
        },
    ),
    "lfm2": Shape(
        "lfm2", hidden=72, heads=3, kv_heads=1, head_dim=24, ffn=100, layers=4, vocab=263,
        is_tied=True, rope_theta=1e6, has_biases=True, extra={
            "layer_types": ["conv", "full_attention", "conv", "conv"],
            "block_auto_adjust_ff_dim": True, "block_ff_dim": 121, "block_multiple_of": 20,
            "block_ffn_dim_multiplier": 1.1, "conv_L_cache": 4,
        },
    ),
    "lfm2_moe": Shape(
        "lfm2_moe", hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=20, layers=4, vocab=263,
        rope_theta=1e6, extra={
            "layer_types": ["conv", "full_attention", "conv", "conv"], "num_dense_layers": 1,
            "intermediate_size": 52, "num_experts": 5, "num_experts_per_tok": 2,
            "routed_scaling_factor": 1.5,
        },
    ),
    "qwen3_next": Shape(
        "qwen3_next", hidden=64, heads=4, kv_heads=2, head_dim=24, ffn=20, layers=4, vocab=263,
        rope_theta=1e6, extra=DELTA_NET | {
            "intermediate_size": 52, "num_experts": 4, "num_experts_per_tok": 2,
            "shared_expert_intermediate_size": 28, "mlp_only_layers": [0],
        },
    ),
    "glm4_moe": Shape(
        "glm4_moe", hidden=48, heads=4, kv_heads=2, head_dim=24, ffn=20, layers=3, vocab=263,
        has_biases=True, extra=GLM4_MOE,
    ),
    "glm4_moe_lite": Shape(
        "glm4_moe_lite", hidden=48, heads=3, kv_heads=3, head_dim=8, ffn=20, layers=3, vocab=263,
        rope_theta=1e6, spells_rope_parameters=True, extra=GLM4_MOE_LITE,
    ),
    "deepseek_v3": Shape(
        "deepseek_v3", hidden=48, heads=3, kv_heads=3, head_dim=8, ffn=20, layers=3, vocab=263,
        rope_scaling=DEEPSEEK_ROPE | {"original_max_position_embeddings": 32}, extra=DEEPSEEK,
    ),
    "deepseek_v3-moonlight": Shape(
        "deepseek_v3", hidden=48, heads=3, kv_heads=3, head_dim=8, ffn=20, layers=3, vocab=263,
        rope_theta=5e4, extra=MOONLIGHT,
    ),
}  # fmt: skip


def main() -> None:
    for name in sys.argv[1:] or GOLDENS:
        shape = GOLDENS[name]
        directory = make_model(ROOT / "tests" / "goldens" / name, shape, SEED)
        tokens = np.random.default_rng(SEED).integers(0, shape.vocab, TOKENS).tolist()
        if shape.model_type in SIGMOID:  # else chance would decide the error, as in run.py
            tokens = decided_tokens(directory, shape, SEED, TOKENS)
        logits = theirs.logits(directory, tokens, "float32")
        bf16_error = rms_error(theirs.logits(directory, tokens, "bfloat16"), logits)
        path = directory / "golden.npz"
        np.savez_compressed(path, tokens=tokens, logits=logits, bf16_error=bf16_error)
        print(f"{path.relative_to(ROOT)}: bf16 error {bf16_error:.5f}")


if __name__ == "__main__":
    main()
