"""The shapes that parity covers: every model type, awkward sizes, every rope scaling."""

from random_models import ROPE_SCALINGS, Shape

PROMPT_LENGTH = 100  # past every window, past the original context of every rope scaling
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
}  # fmt: skip
