"""Llama, and families that differ from it by a trait or two."""

from collections.abc import Mapping
from dataclasses import replace

from specqd.config import RopeConfig
from support.families.family import Family
from support.shapes import FULL, HEADS_40, HEADS_72, ROPE_SCALINGS, SLIDING, SMALL, YARN, Shape


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
# Hunyuan's; transformers ignores the other entries of its checkpoints.
ALPHA = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
MROPE = {"rope_type": "default", "mrope_section": [4, 4, 4], "mrope_interleaved": True}

FAMILIES = {
    "llama": Family(
        shapes={
            "": Shape(
                context=1024, rope_scaling=ROPE_SCALINGS["llama3"], has_biases=True, is_peaked=True,
            ),
        },
        parity={
            "7:1 heads of 40": HEADS_40,
            "72, biases, rope llama3": replace(
                HEADS_72, kv_heads=1, has_biases=True, rope_theta=500000.0,
                rope_scaling=ROPE_SCALINGS["llama3"],
            ),
            "96 tied, rope linear": Shape(
                hidden=192, heads=4, kv_heads=2, head_dim=96, ffn=300, vocab=290, is_tied=True,
                rope_scaling=ROPE_SCALINGS["linear"],
            ),
            "heads of 64": Shape(hidden=320, heads=5, kv_heads=5, head_dim=64, ffn=428, vocab=301),
            "4:1 heads of 128": Shape(
                hidden=256, heads=8, kv_heads=2, head_dim=128, ffn=344, vocab=301,
            ),
        },
    ),
    "mistral": Family(
        shapes={
            "": replace(SMALL, hidden=112, heads=7, head_dim=40, ffn=172, vocab=333, window=50),
        },
        parity={
            "40, window 17": replace(HEADS_40, kv_heads=7, window=17),
            "7:1 heads of 96, window 33, rope yarn": Shape(
                hidden=168, heads=7, kv_heads=1, head_dim=96, ffn=190, vocab=270, window=33,
                rope_scaling=ROPE_SCALINGS["yarn"], spells_rope_parameters=True,
            ),
        },
    ),
    "ministral": Family(
        shapes={
            "": replace(
                SMALL, heads=4, kv_heads=2, vocab=277, window=60, rope_theta=1e6,
                extra={"layer_types": [SLIDING, FULL]},
            ),
        },
        parity={
            "40, window 17": replace(
                HEADS_40, layers=3, window=17, extra={"layer_types": [FULL, SLIDING, SLIDING]},
            ),
            "72, all windows of 9": replace(HEADS_72, window=9, rope_theta=1e6),
        },
        traits=[
            ({"layer_types": [FULL, SLIDING] * 2}, {"windows": (0, 4096) * 2}),
            ({"sliding_window": None}, {"windows": (0,) * 4}),
        ],
    ),
    "ministral3": Family(
        shapes={
            "": replace(
                SMALL, head_dim=40, rope_theta=1e6, rope_scaling=MINISTRAL_ROPE,
                spells_rope_parameters=True,
            ),
        },
        parity={
            "40, queries grow after 32": replace(
                HEADS_40, rope_theta=1e6, rope_scaling=MINISTRAL_ROPE, spells_rope_parameters=True,
            ),
            "72 tied, window 21, queries grow after 16": replace(
                HEADS_72, window=21, is_tied=True, rope_theta=1e6, spells_rope_parameters=True,
                rope_scaling=MINISTRAL_ROPE | {
                    "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.1,
                },
            ),
        },
        traits=[
            (
                {},
                {
                    "ropes": (
                        RopeConfig(
                            "yarn", 1e6, 16.0, 16384, mscale=1.0, mscale_all_dim=1.0,
                            query_growth=0.1,
                        ),
                    ) * 4,
                    "windows": (0,) * 4, "head_dim": 128, "norm_eps": 1e-5, "eos_token_ids": (2,),
                },
            ),
            (
                {"rope_parameters": YARN | {"llama_4_scaling_beta": None}, "sliding_window": 7},
                {"ropes": (RopeConfig("yarn", 1e4, 8.0, 64),) * 4, "windows": (7,) * 4},
            ),
            (
                {
                    "rope_parameters": {
                        "rope_type": "default", "llama_4_scaling_beta": 0.5,
                        "original_max_position_embeddings": 9,
                    },
                },
                {
                    "ropes": (
                        RopeConfig("default", 1e4, original_max_positions=9, query_growth=0.5),
                    ) * 4,
                },
            ),
        ],
        refusals=[
            (
                {"rope_parameters": {"llama_4_scaling_beta": 0.1}},
                ["original_max_position_embeddings is missing"],
            ),
        ],
    ),
    "qwen2": Family(
        shapes={
            "": replace(
                SMALL, hidden=56, heads=7, head_dim=40, window=60, is_tied=True, rope_theta=1e6,
            ),
        },
        parity={
            "72, window 9": replace(HEADS_72, layers=3, window=9, rope_theta=1e6),
            "7:1 heads of 40 tied, rope yarn": replace(
                HEADS_40, is_tied=True, rope_theta=1e6, rope_scaling=ROPE_SCALINGS["yarn"],
            ),
        },
    ),
    "qwen3": Family(
        shapes={
            "": Shape(
                layers=3, context=1024, window=70, rope_scaling=ROPE_SCALINGS["yarn"], is_tied=True,
                is_peaked=True,
            ),
        },
        parity={
            "96 tied": Shape(
                hidden=100, heads=4, kv_heads=2, head_dim=96, ffn=230, vocab=283, is_tied=True,
                rope_theta=1e6, spells_rope_parameters=True,
            ),
            "7:1 heads of 72, window 21": replace(
                HEADS_72, heads=7, kv_heads=1, layers=3, window=21, rope_theta=1e6,
            ),
        },
    ),
    "qwen3_vl_text": Family(
        shapes={
            "": replace(
                SMALL, hidden=56, heads=5, kv_heads=1, head_dim=24, vocab=271, rope_theta=5e6,
                rope_scaling=MROPE,
            ),
        },
        parity={
            "72, mrope": replace(HEADS_72, layers=3, rope_theta=5e6, rope_scaling=MROPE),
            "40 tied, rope parameters": replace(
                HEADS_40, is_tied=True, spells_rope_parameters=True,
            ),
        },
        traits=[
            (
                {"rope_scaling": MROPE},
                {
                    "ropes": (RopeConfig("default", 5e5),) * 4, "head_dim": 128, "qk_norm": "one",
                },
            ),
        ],
    ),
    "smollm3": Family(
        shapes={
            "": replace(SMALL, hidden=40, heads=2, ffn=60, layers=4, vocab=261, rope_theta=2e6),
        },
        parity={
            "40, 4 layers": replace(HEADS_40, layers=4, rope_theta=2e6),
            "96, window 21, tied": Shape(
                hidden=192, heads=2, kv_heads=1, head_dim=96, ffn=150, layers=3, vocab=299,
                is_tied=True, has_biases=True, rope_theta=2e6, spells_rope_parameters=True,
                extra={
                    "no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": 21,
                },
            ),
        },
        traits=[
            ({}, {"ropes": (RopeConfig("default", 2e6),) * 3 + (None,), "tied_embeddings": True}),
            (
                {"no_rope_layers": [0, 1, 1, 1], "use_sliding_window": True, "sliding_window": 9},
                {"windows": (9, 0, 0, 0), "ropes": (None, *(RopeConfig("default", 2e6),) * 3)},
            ),
        ],
        refusals=[
            ({"no_rope_layers": [1]}, ["no_rope_layers", "4 numbers"]),
        ],
    ),
    "phi3": Family(
        shapes={
            "": replace(
                SMALL, hidden=80, heads=2, head_dim=40, vocab=269, rope_scaling=long_rope(15),
                extra={"original_max_position_embeddings": 64, "partial_rotary_factor": 0.75},
            ),
        },
        parity={
            "40, window 17": replace(HEADS_40, window=17, extra={"partial_rotary_factor": 0.75}),
            "72, longrope long": replace(
                HEADS_72, rope_scaling=long_rope(36),
                extra={"original_max_position_embeddings": 64},
            ),
            "80, longrope short, partial": Shape(
                hidden=160, heads=2, kv_heads=1, head_dim=80, ffn=172, vocab=301, context=128,
                rope_scaling=long_rope(30),
                extra={"original_max_position_embeddings": 128, "partial_rotary_factor": 0.75},
            ),
        },
        traits=[
            (
                {"partial_rotary_factor": 0.75, "sliding_window": 17},
                {"ropes": (RopeConfig("default", 1e4, share=0.75),) * 4, "windows": (17,) * 4},
            ),
            (  # an old name, and the trained length that is not stated
                {
                    "max_position_embeddings": 8192,
                    "rope_scaling": long_rope(4) | {"type": "yarn", "rope_type": None},
                },
                {
                    "ropes": (
                        RopeConfig(
                            "longrope", 1e4, 2.0, 4096, factors=tuple(long_rope(4)["long_factor"]),
                        ),
                    ) * 4,
                },
            ),
        ],
        refusals=[
            ({"rope_scaling": {"type": "longrope", "long_factor": [1, -1]}}, ["short_factor"]),
        ],
    ),
    "seed_oss": Family(
        shapes={
            "": replace(SMALL, hidden=56, heads=7, vocab=263, has_biases=True),
        },
        parity={
            "7:1 heads of 40, biases": replace(HEADS_40, has_biases=True, rope_theta=1e7),
            "72, biases of outputs alone": replace(
                HEADS_72, is_tied=True, extra={"attention_out_bias": True},
            ),
        },
        traits=[
            ({}, {"head_dim": 128, "qkv_bias": True, "output_bias": False, "mlp_bias": False}),
            (
                {"attention_bias": False, "attention_out_bias": True, "mlp_bias": True},
                {"qkv_bias": False, "output_bias": True, "mlp_bias": True, "eos_token_ids": (2,)},
            ),
        ],
    ),
    "ernie4_5": Family(
        shapes={
            "": replace(SMALL, hidden=56, heads=4, vocab=263, rope_theta=5e5, is_tied=True),
        },
        parity={
            "7:1 heads of 40 tied": replace(HEADS_40, is_tied=True, rope_theta=5e5),
            "72, biases": replace(HEADS_72, has_biases=True),
        },
        traits=[
            ({"head_dim": None}, {"head_dim": 8}),
            (
                {},
                {
                    "rope_pairs": "neighbours", "ropes": (RopeConfig("default", 5e5),) * 4,
                    "head_dim": 128, "tied_embeddings": True, "norm_eps": 1e-5,
                    "bos_token_id": 1, "eos_token_ids": (2,),
                },
            ),
            ({"use_bias": True}, {"qkv_bias": True, "output_bias": True, "mlp_bias": True}),
        ],
    ),
    "exaone4": Family(
        shapes={
            "": replace(SMALL, layers=4, window=50, rope_theta=1e6),
        },
        parity={
            "7:1 heads of 40, window 17, rope llama3": replace(
                HEADS_40, layers=4, window=17, rope_theta=1e6, rope_scaling=ROPE_SCALINGS["llama3"],
            ),
            "72 tied, positions on every layer": replace(
                HEADS_72, is_tied=True, extra={"sliding_window": None, "layer_types": [FULL, FULL]},
            ),
        },
        traits=[
            (
                {"num_hidden_layers": 5, "rope_theta": 1e6},
                {
                    "norms": "after", "qk_norm": "one", "norm_eps": 1e-5, "head_dim": 8,
                    "windows": (4096, 4096, 4096, 0, 4096),
                    "ropes": (
                        *(RopeConfig("default", 1e6),) * 3, None, RopeConfig("default", 1e6),
                    ),
                },
            ),
            (
                {"sliding_window": None, "sliding_window_pattern": None},
                {"windows": (0,) * 4, "ropes": (RopeConfig("default", 1e4),) * 4},
            ),
            (
                {
                    "layer_types": [FULL, SLIDING, FULL, FULL], "sliding_window": 7,
                    "sliding_window_pattern": "LLLG",
                },
                {"windows": (0, 7, 0, 0), "ropes": (None, RopeConfig("default", 1e4), None, None)},
            ),
        ],
        refusals=[
            ({"sliding_window_pattern": "LLLG"}, ["sliding_window_pattern is 'LLLG'; an integer"]),
            (
                {"sliding_window": None, "layer_types": [SLIDING, FULL, FULL, FULL]},
                ["sliding_window is off"],
            ),
        ],
    ),
    "hunyuan_v1_dense": Family(
        shapes={
            "": replace(
                SMALL, hidden=56, heads=4, vocab=263, rope_scaling=ALPHA, is_tied=True,
            ),
        },
        parity={
            "7:1 heads of 40, biases, alpha": replace(
                HEADS_40, has_biases=True, rope_scaling=ALPHA,
            ),
            "72 tied, no alpha": replace(HEADS_72, is_tied=True, rope_theta=1e5),
        },
        traits=[
            (
                {"head_dim": 128, "rope_theta": 1e4, "rope_scaling": ALPHA},
                {
                    "qk_norm": "one", "rotates_before_norm": True, "norm_eps": 1e-5,
                    "ropes": (RopeConfig("default", 11158839.925077485),) * 4,
                    "bos_token_id": 1, "eos_token_ids": (2,), "tied_embeddings": False,
                },
            ),
            (
                {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "head_dim": None},
                {"ropes": (RopeConfig("default", 1e4),) * 4, "head_dim": 8},
            ),
        ],
        refusals=[
            (
                {"rope_scaling": {"type": "dynamic", "alpha": 0.5}},
                ["alpha is 0.5; a number from 1, with a head_dim above 2, is needed"],
            ),
        ],
    ),
    "helium": Family(
        shapes={
            "": replace(SMALL, vocab=263, has_biases=True, rope_theta=1e5),
        },
        parity={
            "7:1 heads of 40, biases": replace(HEADS_40, has_biases=True),
            "72 tied": replace(HEADS_72, is_tied=True, rope_theta=None),
        },
        traits=[
            (
                {"head_dim": 8, "num_key_value_heads": 2, "attention_bias": True},
                {
                    "rope_pairs": "neighbours", "ropes": (RopeConfig("default", 1e5),) * 4,
                    "qkv_bias": True, "output_bias": False, "norm_eps": 1e-8,
                    "bos_token_id": 1, "eos_token_ids": (2,), "mlp_bias": False,
                },
            ),
        ],
        refusals=[
            (
                {"num_key_value_heads": 2},
                ["hidden_size is 64; 1024, the size of all heads, is needed"],
            ),
        ],
    ),
}  # fmt: skip
