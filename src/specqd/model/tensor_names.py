"""The names of modules in each family's checkpoints. Knows no shapes and no files."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from specqd.config import DecoderConfig


@dataclass(frozen=True, slots=True)
class TensorNames:
    """Module names; those of a layer follow `layers` and the layer's index.

    A single name in `query_key_value` is a fused tensor: rows of queries, keys and values (by head,
    if `fused_by_head`). A single name in `gate_up` is fused too, or the only projection of a feed
    forward without gates. None is a norm that the family lacks. An expert's modules follow
    `experts` and its number; or, where the family stacks them, all are one tensor each.
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
    query_norm: str = "self_attn.q_norm"
    key_norm: str = "self_attn.k_norm"
    output: str = "self_attn.o_proj"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    router: str = "mlp.gate"
    experts: str = "mlp.experts"
    expert_gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    expert_down: str = "down_proj"
    expert_stacks: tuple[str, str] | None = None  # gates and ups, and downs, of all experts
    shared_gate_up: tuple[str, ...] = ()  # of the feed forward beside the experts
    shared_down: str = ""
    shared_gate: str | None = None  # the gate of its output
    experts_norm: str | None = None
    experts_post_norm: str | None = None
    shared_post_norm: str | None = None
    router_norm: str | None = None  # this and the next are tensors, not modules
    share_scales: str | None = None  # factors on shares by expert
    choice_bias: str = "mlp.gate.e_score_correction_bias"
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
    layer_scale: str = "layer_scalar"
    per_layer_table: str = "model.embed_tokens_per_layer"
    per_layer_embedding: str = "model.per_layer_model_projection"
    per_layer_norm: str = "model.per_layer_projection_norm"
    per_layer_gate: str = "per_layer_input_gate"
    per_layer_projection: str = "per_layer_projection"
    per_layer_post_norm: str = "post_per_layer_input_norm"


@dataclass(frozen=True, slots=True)
class MtpNames:
    """Module names of an MTP layer, which is one of the family's layers between others.

    All begin with `prefix`; those of the layer follow `layers` and `index`. `feed_forward_of` is
    the model's layer whose kind of feed forward it has. `repeated` are tensors that some files
    hold again, though they are the model's.
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


_DEFAULT = TensorNames()
_SHARED_EXPERT = replace(
    _DEFAULT,
    shared_gate_up=("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"),
    shared_down="mlp.shared_expert.down_proj",
    shared_gate="mlp.shared_expert_gate",
)
_SHARED_EXPERTS = replace(
    _DEFAULT,
    shared_gate_up=("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"),
    shared_down="mlp.shared_experts.down_proj",
)
_STACKS = ("gate_up_proj", "down_proj")
READ_IN_PLACE = (f"{_DEFAULT.per_layer_table}.weight",)  # matrices that are never packed
_NORMS_AFTER = replace(
    _DEFAULT,
    attention_norm=None,
    attention_post_norm="post_attention_layernorm",
    feed_forward_norm=None,
    feed_forward_post_norm="post_feedforward_layernorm",
)
_NORMS_AROUND = replace(
    _NORMS_AFTER,
    attention_norm="input_layernorm",
    feed_forward_norm="pre_feedforward_layernorm",
)
_LFM2 = replace(
    _DEFAULT,
    final_norm="model.embedding_norm",
    attention_norm="operator_norm",
    feed_forward_norm="ffn_norm",
    query_norm="self_attn.q_layernorm",
    key_norm="self_attn.k_layernorm",
    output="self_attn.out_proj",
    gate_up=("feed_forward.w1", "feed_forward.w3"),
    down="feed_forward.w2",
    recurrent="conv",
    recurrent_inputs=("in_proj",),
    convolution="conv",
)
_BY_TYPE = {
    "lfm2": _LFM2,
    "lfm2_moe": replace(
        _LFM2,
        router="feed_forward.gate",
        experts="feed_forward.experts",
        expert_gate_up=("w1", "w3"),
        expert_down="w2",
        choice_bias="feed_forward.expert_bias",
    ),
    "gemma4_text": replace(
        _NORMS_AROUND,
        router="router.proj",
        experts="experts",
        expert_stacks=_STACKS,
        shared_gate_up=_DEFAULT.gate_up,
        shared_down=_DEFAULT.down,
        experts_norm="pre_feedforward_layernorm_2",
        experts_post_norm="post_feedforward_layernorm_2",
        shared_post_norm="post_feedforward_layernorm_1",
        router_norm="router.scale",
        share_scales="router.per_expert_scale",
    ),
    "phi3": replace(
        _DEFAULT, query_key_value=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",)
    ),
    "glm4": replace(
        _NORMS_AROUND,
        attention_post_norm="post_self_attn_layernorm",
        feed_forward_norm="post_attention_layernorm",
        feed_forward_post_norm="post_mlp_layernorm",
        gate_up=("mlp.gate_up_proj",),
    ),
    "granitemoehybrid": replace(
        _DEFAULT, gate_up=("shared_mlp.input_linear",), down="shared_mlp.output_linear"
    ),
    "starcoder2": replace(_DEFAULT, gate_up=("mlp.c_fc",), down="mlp.c_proj"),
    "stablelm": replace(
        _DEFAULT, query_norm="self_attn.q_layernorm", key_norm="self_attn.k_layernorm"
    ),
    "mixtral": replace(
        _DEFAULT,
        router="block_sparse_moe.gate",
        experts="block_sparse_moe.experts",
        expert_gate_up=("w1", "w3"),
        expert_down="w2",
    ),
    "qwen3_5_moe_text": replace(_SHARED_EXPERT, expert_stacks=_STACKS),
    "qwen3_next": replace(
        _SHARED_EXPERT, recurrent_inputs=("in_proj_qkvz",), recurrent_rates=("in_proj_ba",)
    ),
    "glm4_moe": _SHARED_EXPERTS,
    "glm4_moe_lite": _SHARED_EXPERTS,
    "deepseek_v3": _SHARED_EXPERTS,
    "gpt_oss": replace(_DEFAULT, router="mlp.router", expert_gate_up=("gate_up_proj",)),
    "gpt_neox": replace(
        _DEFAULT,
        embedding="gpt_neox.embed_in",
        layers="gpt_neox.layers",
        final_norm="gpt_neox.final_layer_norm",
        head="embed_out",
        query_key_value=("attention.query_key_value",),
        fused_by_head=True,
        output="attention.dense",
        gate_up=("mlp.dense_h_to_4h",),
        down="mlp.dense_4h_to_h",
    ),
}

_MIMO = "model.mtp_layers.0"  # holds the other modules too
_QWEN_MTP = MtpNames(
    prefix="mtp.",
    layers="mtp.layers",
    embedding_norm="mtp.pre_fc_norm_embedding",
    hidden_norm="mtp.pre_fc_norm_hidden",
    projection="mtp.fc",
    final_norm="mtp.norm",
)
_MTP = {
    "mimo": MtpNames(
        prefix="model.mtp_layers.",
        layers="model.mtp_layers",
        embedding_norm=f"{_MIMO}.token_layernorm",
        hidden_norm=f"{_MIMO}.hidden_layernorm",
        projection=f"{_MIMO}.input_proj",
        final_norm=f"{_MIMO}.final_layernorm",
    ),
    "qwen3_5_text": _QWEN_MTP,
    "qwen3_5_moe_text": _QWEN_MTP,
    "qwen3_next": _QWEN_MTP,
}
_NUMBERED_MTP = ("glm4_moe", "glm4_moe_lite", "deepseek_v3")  # the layer follows the model's own
MTP_TYPES = (*_MTP, *_NUMBERED_MTP)


def mtp_names_of(config: DecoderConfig) -> MtpNames:
    """The names of an MTP layer of this model, which must be of MTP_TYPES."""
    if config.model_type not in _NUMBERED_MTP:
        return _MTP[config.model_type]
    at = f"{_DEFAULT.layers}.{config.num_layers}."
    return MtpNames(
        prefix=at,
        layers=_DEFAULT.layers,
        embedding_norm=f"{at}enorm",
        hidden_norm=f"{at}hnorm",
        projection=f"{at}eh_proj",
        final_norm=f"{at}shared_head.norm",
        index=config.num_layers,
        feed_forward_of=-1,
        repeated=(f"{at}embed_tokens.weight", f"{at}shared_head.head.weight"),
    )


# Prefixes of a text model's names in a model that also reads images -> in a text model.
_TEXT_PREFIXES = {"model.language_model.": "model.", "language_model.": ""}
_UNPREFIXED = (f"{_DEFAULT.head}.", "mtp.")  # also part of the text model


def names_of(config: DecoderConfig) -> TensorNames:
    by_norms = {"before": _DEFAULT, "after": _NORMS_AFTER, "both": _NORMS_AROUND}
    names = _BY_TYPE.get(config.model_type, by_norms[config.norms])
    if config.model_type == "stablelm" and config.is_parallel:  # one norm for both branches
        return replace(names, feed_forward_norm=names.attention_norm)
    return names


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
