"""The shape of a random model. Knows no tensors and no files."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SLIDING, FULL = "sliding_attention", "full_attention"
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
ROPE_SCALINGS: Mapping[str, Mapping[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 2.5},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
}


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape and traits of a random model.

    Peaked models choose tokens by wide margins: greedy choices of the fp4 precision agree with the
    exact ones at 40 to 95 % of positions, at temperature 0.8 too.
    """

    model_type: str = "llama"
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    ffn: int = 160
    layers: int = 2
    vocab: int = 320
    context: int = 512
    window: int | None = None  # on every layer of mistral, on all but the first of qwen2 and qwen3
    rope_theta: float | None = 10000.0  # None: config.json does not state it
    rope_scaling: Mapping[str, Any] | None = None
    is_tied: bool = False
    has_biases: bool = False  # where the family allows them; qwen2 always has them for q, k and v
    is_peaked: bool = False
    spells_rope_parameters: bool = False  # the spelling of transformers 5
    extra: Mapping[str, Any] = field(default_factory=dict)  # further entries of config.json


# Small and peaked, with sizes that differ; contexts cross several chunks of attention.
SMALL = Shape(
    hidden=72, heads=3, kv_heads=1, head_dim=24, ffn=84, vocab=271, context=1024, is_peaked=True
)
# Sizes that no vector register divides.
HEADS_40 = Shape(hidden=280, heads=7, kv_heads=1, head_dim=40, ffn=172, vocab=301)
HEADS_72 = Shape(hidden=144, heads=2, kv_heads=2, head_dim=72, ffn=200, vocab=333)
