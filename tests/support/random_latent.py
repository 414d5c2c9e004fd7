"""Tensors of random models with latent attention, or with experts that sigmoids choose.

Written from the models' definitions.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from support.random_recurrent import Linears, Sizes

if TYPE_CHECKING:
    from support.random_models import Shape

LATENT = ("deepseek_v3", "glm4_moe_lite")
SIGMOID = (*LATENT, "glm4_moe")

# Heads whose key, value and rotated part differ in size, so that their order matters.
_LATENT = {
    "q_lora_rank": 48,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 8,
    "v_head_dim": 48,
    "rms_norm_eps": 1e-2,  # norms of latents have an eps of their own
}
_SIGMOID = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.7,
    "first_k_dense_replace": 1,
    "intermediate_size": 84,
}
DEEPSEEK: Mapping[str, Any] = _LATENT | _SIGMOID | {"n_group": 4, "topk_group": 2}
MOONLIGHT: Mapping[str, Any] = _LATENT | _SIGMOID | {"q_lora_rank": None}
GLM4_MOE: Mapping[str, Any] = _SIGMOID | {"n_shared_experts": 1, "use_qk_norm": True}
GLM4_MOE_LITE: Mapping[str, Any] = {
    name: value for name, value in (_LATENT | _SIGMOID).items() if name != "first_k_dense_replace"
} | {"n_shared_experts": 1, "v_head_dim": 64}


def latent_linears(shape: "Shape") -> Linears:
    extra, hidden, heads = shape.extra, shape.hidden, shape.heads
    plain, turned, values = (
        extra[name] for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    )
    rank, query_rank = extra["kv_lora_rank"], extra["q_lora_rank"]
    queries = heads * (plain + turned)
    if query_rank is None:
        sizes = {"q_proj": (queries, hidden)}
    else:
        sizes = {"q_a_proj": (query_rank, hidden), "q_b_proj": (queries, query_rank)}
    sizes |= {
        "kv_a_proj_with_mqa": (rank + turned, hidden),
        "kv_b_proj": (heads * (plain + values), rank),
        "o_proj": (hidden, heads * values),
    }
    return {f"self_attn.{name}": (*size, False) for name, size in sizes.items()}


def latent_norms(shape: "Shape") -> Sizes:
    for name, rank in (("q_a", "q_lora_rank"), ("kv_a", "kv_lora_rank")):
        if shape.extra[rank] is not None:
            yield f"self_attn.{name}_layernorm.weight", (shape.extra[rank],)


def has_experts(shape: "Shape", index: int) -> bool:
    if "mlp_layer_types" in shape.extra:
        return bool(shape.extra["mlp_layer_types"][index] == "sparse")
    return bool(index >= shape.extra.get("first_k_dense_replace", 1))


def shared_experts(shape: "Shape") -> Linears:
    at, width = "mlp.shared_experts", shape.extra["n_shared_experts"] * shape.ffn
    linears = {f"{at}.{name}_proj": (width, shape.hidden, False) for name in ("gate", "up")}
    return linears | {f"{at}.down_proj": (shape.hidden, width, False)}
