"""The names of modules in checkpoints: Llama's, and those that several families share.

Knows no shapes and no files.
"""

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import Any

_BASE = "model."  # before the names of all modules but the output head


@dataclass(frozen=True, slots=True)
class TensorNames:
    """Module names. Those of a layer's modules come after `layers` and the layer's index.

    A single name in `query_key_value` is a fused tensor: rows of queries, keys and values (by head,
    if `fused_by_head`). Without a name for `attention_gates`, their rows follow those of each
    head's query. A single name in `gate_up` is a fused tensor too, or the only projection of a feed
    forward without gates. None is a norm that the family lacks. The names of an expert's modules
    come after `experts` and the expert's number; if the family stacks its experts, each module is
    one tensor for all of them (`expert_stacks`).
    """

    embedding: str = "model.embed_tokens"
    layers: str = "model.layers"
    final_norm: str = "model.norm"
    head: str = "lm_head"
    attention_norm: str | None = "input_layernorm"
    attention_post_norm: str | None = None
    feed_forward_norm: str | None = "post_attention_layernorm"
    feed_forward_post_norm: str | None = None
    query_key_value: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    fused_by_head: bool = False
    attention_gates: str | None = None
    query_norm: str = "self_attn.q_norm"
    key_norm: str = "self_attn.k_norm"
    output: str = "self_attn.o_proj"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    activation: str = "mlp.act_fn"  # of xIELU, which has parameters
    router: str = "mlp.gate"
    experts: str = "mlp.experts"
    expert_gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    expert_down: str = "down_proj"
    expert_stacks: tuple[str, str] | None = None  # gates and ups, and downs, of all experts
    shared_gate_up: tuple[str, ...] = ()  # of the shared feed forward
    shared_down: str = ""
    shared_gate: str | None = None  # the gate of its output
    experts_norm: str | None = None
    experts_post_norm: str | None = None
    shared_post_norm: str | None = None
    router_norm: str | None = None  # this and the next are tensors, not modules
    expert_scales: str | None = None  # factors on routing weights, by expert
    correction_bias: str = "mlp.gate.e_score_correction_bias"
    sinks: str = "self_attn.sinks"
    recurrent: str = "linear_attn"
    recurrent_inputs: tuple[str, ...] = ("in_proj_qkv", "in_proj_z")  # one: fused by key head
    recurrent_rates: tuple[str, ...] = ("in_proj_b", "in_proj_a")  # likewise
    convolution: str = "conv1d"
    query_latent: str = "self_attn.q_a_proj"
    query_latent_norm: str = "self_attn.q_a_layernorm"
    latent_queries: str = "self_attn.q_b_proj"
    latent: str = "self_attn.kv_a_proj_with_mqa"
    latent_norm: str = "self_attn.kv_a_layernorm"
    latent_keys_values: str = "self_attn.kv_b_proj"
    attention_convolution: str = "attention_conv"
    feed_forward_convolution: str = "mlp_conv"
    layer_scale: str = "layer_scalar"
    per_layer_table: str = "model.embed_tokens_per_layer"
    per_layer_embedding: str = "model.per_layer_model_projection"
    per_layer_norm: str = "model.per_layer_projection_norm"
    per_layer_gate: str = "per_layer_input_gate"
    per_layer_projection: str = "per_layer_projection"
    per_layer_post_norm: str = "post_per_layer_input_norm"

    def of_base_model(self) -> "TensorNames":
        """The names in checkpoints of the model without its output head, such as those of embedding
        models: `layers`, not `model.layers`."""
        names = {each.name: getattr(self, each.name) for each in fields(self)}
        base: dict[str, Any] = {
            field: name.removeprefix(_BASE)
            for field, name in names.items()
            if isinstance(name, str) and name.startswith(_BASE)
        }
        return replace(self, **base)


@dataclass(frozen=True, slots=True)
class MtpNames:
    """Module names of an MTP layer: one of the family's layers, with norms and a projection.

    All names begin with `prefix`; those of the layer's own modules come after `layers` and `index`.
    `feed_forward_of` is the index of a layer of the model that has the same kind of feed forward.
    `repeated` are tensors of the model that some files hold a second time.
    """

    prefix: str
    layers: str
    embedding_norm: str
    hidden_norm: str
    projection: str
    final_norm: str
    index: int = 0
    feed_forward_of: int = 0
    repeated: tuple[str, ...] = ()

    @property
    def layer(self) -> str:
        """The beginning of the names of the layer's own modules."""
        return f"{self.layers}.{self.index}."


LLAMA = TensorNames()
NORMS_AFTER = replace(
    LLAMA,
    attention_norm=None,
    attention_post_norm="post_attention_layernorm",
    feed_forward_norm=None,
    feed_forward_post_norm="post_feedforward_layernorm",
)
NORMS_AROUND = replace(
    NORMS_AFTER,
    attention_norm="input_layernorm",
    feed_forward_norm="pre_feedforward_layernorm",
)
SHARED_EXPERTS = replace(
    LLAMA,
    shared_gate_up=("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"),
    shared_down="mlp.shared_experts.down_proj",
)
EXPERT_STACKS = ("gate_up_proj", "down_proj")
READ_IN_PLACE = (f"{LLAMA.per_layer_table}.weight",)  # matrices that are never packed


# Prefixes of a text model's names in a model that also reads images -> in a text model.
_TEXT_PREFIXES = {"model.language_model.": "model.", "language_model.": ""}
_UNPREFIXED = (f"{LLAMA.head}.", "mtp.")  # also part of the text model


def text_part(names: Collection[str]) -> dict[str, str]:
    """The text model's own names of its tensors in a model that also reads images; else empty."""
    for prefix, own in _TEXT_PREFIXES.items():
        if any(name.startswith(prefix) for name in names):
            return {
                name: own + name.removeprefix(prefix) if name.startswith(prefix) else name
                for name in names
                if name.startswith((prefix, *_UNPREFIXED))
            }
    return {}
