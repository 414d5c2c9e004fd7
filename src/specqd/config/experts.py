"""The families whose feed forwards are a mixture of experts: Mixtral, Qwen's, gpt-oss, others."""

from dataclasses import replace
from math import sqrt

from specqd.config.decoder import (
    DecoderConfig,
    ExpertsConfig,
    SigmoidChoice,
    alternating_types,
    layer_count,
    read_decoder,
    read_experts,
    read_layer_types,
    read_sparse_layers,
    read_window,
    windows_of,
)
from specqd.config.family import Family
from specqd.config.fields import Fields
from specqd.config.qwen3_5 import qwen_mtp, read_qwen3_5
from specqd.config.rope import (
    RopeDefaults,
    read_ropes_by_type,
    with_default_rope,
    without_ropes,
)
from specqd.config.tensor_names import EXPERT_STACKS, LLAMA, SHARED_EXPERTS
from specqd.errors import ConfigError
from specqd.formats.fp4 import BLOCK


def read_mixtral(fields: Fields, context: int | None) -> DecoderConfig:
    config = read_decoder(
        fields,
        context=context,
        max_positions=4096 * 32,
        bos=(1,),
        eos=(2,),
        num_kv_heads=8,
        eps=("rms_norm_eps", 1e-5),
        rope=RopeDefaults(theta=1_000_000.0),
        window=read_window(fields, 0),
    )
    experts = read_experts(fields, size=config.intermediate_size, count=8, per_token=2)
    return replace(config, experts=experts)


def read_qwen2_moe(fields: Fields, context: int | None) -> DecoderConfig:
    """A gated shared expert. Every other one of the first layers may have a window."""
    window = read_window(fields, 4096) if fields.flag("use_sliding_window") else 0
    last = fields.integer("max_window_layers", 28, least=0)
    types = read_layer_types(fields) or [
        "sliding_attention" if window and layer < last and layer % 2 == 0 else "full_attention"
        for layer in range(layer_count(fields))
    ]
    config = read_decoder(
        fields,
        context=context,
        max_positions=32768,
        num_kv_heads=16,
        qkv_bias=fields.flag("qkv_bias", True),
        windows=windows_of(fields, types, window),
    )
    experts = read_experts(
        fields,
        size=fields.integer("moe_intermediate_size", 1408),
        count=60,
        per_token=4,
        layers=_sparse_layers(fields),
        normalizes_routing_weights=fields.flag("norm_topk_prob"),
    )
    return _with_shared_expert(fields, config, experts, 5632)


def read_qwen3_moe(fields: Fields, context: int | None) -> DecoderConfig:
    """Experts in every `decoder_sparse_step`-th layer, a plain feed forward in the others."""
    window = read_window(fields, 4096) if fields.flag("use_sliding_window") else 0
    config = read_decoder(
        fields,
        context=context,
        max_positions=32768,
        num_kv_heads=4,
        attention_bias=fields.flag("attention_bias"),
        window=window,
    )
    experts = read_experts(
        fields,
        size=fields.integer("moe_intermediate_size", 768),
        count=128,
        per_token=8,
        layers=_sparse_layers(fields),
        normalizes_routing_weights=fields.flag("norm_topk_prob"),
    )
    return replace(config, qk_norm="one", experts=experts)


def read_olmoe(fields: Fields, context: int | None) -> DecoderConfig:
    if fields.get("clip_qkv") is not None:
        raise fields.wrong("clip_qkv", "null")
    config = read_decoder(
        fields,
        context=context,
        max_positions=4096,
        eos=(50279,),
        eps=("rms_norm_eps", 1e-5),
        attention_bias=fields.flag("attention_bias"),
    )
    experts = read_experts(
        fields,
        size=config.intermediate_size,
        count=64,
        per_token=8,
        normalizes_routing_weights=fields.flag("norm_topk_prob"),
    )
    return replace(config, qk_norm="row", experts=experts)


def read_mellum(fields: Fields, context: int | None) -> DecoderConfig:
    """Qwen 3's experts, with windows and a rope for each type of layer."""
    layers, positions = layer_count(fields), 131_072
    types = read_layer_types(fields) or ["full_attention"] * layers
    config = read_decoder(
        without_ropes(fields),
        context=context,
        max_positions=positions,
        num_kv_heads=4,
        head_dim=128,
        attention_bias=fields.flag("attention_bias"),
        windows=windows_of(fields, types, read_window(fields, 1024)),
    )
    experts = read_experts(
        fields,
        size=fields.integer("moe_intermediate_size", 896),
        count=64,
        per_token=8,
        layers=read_sparse_layers(fields, (True,) * layers),
        normalizes_routing_weights=fields.flag("norm_topk_prob", True),
    )
    ropes = read_ropes_by_type(
        fields,
        types,
        positions,
        config.head_dim,
        full=RopeDefaults(theta=500_000.0),
        sliding=RopeDefaults(theta=10_000.0),
        context=context,
    )
    return replace(config, qk_norm="one", experts=experts, ropes=ropes)


def read_afmoe(fields: Fields, context: int | None) -> DecoderConfig:
    """Experts chosen by sigmoids, gates on the outputs of attention, norms on both sides. Layers
    without a window have no positions."""
    every = fields.integer("global_attn_every_n_layers", 4)
    types = alternating_types(fields, every)
    config = read_decoder(
        fields,
        context=context,
        max_positions=16384,
        head_dim=128,
        eps=("rms_norm_eps", 1e-5),
        attention_bias=fields.flag("attention_bias"),
        windows=windows_of(fields, types, read_window(fields, 1024)),
    )
    dense = fields.integer("num_dense_layers", 1, least=0)
    experts = read_experts(
        fields,
        size=fields.integer("moe_intermediate_size", 1408),
        count=64,
        per_token=6,
        layers=tuple(layer >= dense for layer in range(config.num_layers)),
    )
    width = experts.size * fields.integer("num_shared_experts", 2, most=1024)
    choice = SigmoidChoice(scale=fields.positive("route_scale", 1.0))
    return replace(
        config,
        norms="both",
        qk_norm="one",
        attention_gates="values",
        embedding_scale=sqrt(config.hidden_size) if fields.flag("mup_enabled") else 1.0,
        ropes=tuple(
            rope if window else None
            for rope, window in zip(config.ropes, config.windows, strict=True)
        ),
        experts=replace(experts, has_shared=True, sigmoids=choice),
        intermediate_sizes=tuple(
            width if sparse else config.intermediate_size for sparse in experts.layers
        ),
    )


def read_qwen3_5_moe(fields: Fields, context: int | None) -> DecoderConfig:
    """Qwen 3.5 with experts and a shared expert in every layer."""
    width = fields.integer("shared_expert_intermediate_size", 512)
    fields = fields.with_values(intermediate_size=width).with_defaults(num_key_value_heads=2)
    experts = read_experts(
        fields, size=fields.integer("moe_intermediate_size", 512), count=256, per_token=8
    )
    return _with_experts(fields, context, experts)


def read_qwen3_next(fields: Fields, context: int | None) -> DecoderConfig:
    """Qwen 3 Next: experts and a shared expert, but plain feed forwards in some layers."""
    fields = fields.with_defaults(num_key_value_heads=2)
    experts = read_experts(
        fields,
        size=fields.integer("moe_intermediate_size", 512),
        count=512,
        per_token=10,
        layers=_sparse_layers(fields),
        normalizes_routing_weights=fields.flag("norm_topk_prob", True),
    )
    return _with_experts(fields, context, experts)


def _with_experts(fields: Fields, context: int | None, experts: ExpertsConfig) -> DecoderConfig:
    """Qwen 3.5 with these experts and a shared expert."""
    return _with_shared_expert(fields, read_qwen3_5(fields, context), experts, 512)


def _with_shared_expert(
    fields: Fields, config: DecoderConfig, experts: ExpertsConfig, width: int
) -> DecoderConfig:
    """The decoder with these experts and a shared one, by default of this width."""
    width = fields.integer("shared_expert_intermediate_size", width)
    sizes = tuple(width if sparse else config.intermediate_size for sparse in experts.layers)
    experts = replace(experts, has_shared=True)
    return replace(config, experts=experts, intermediate_sizes=sizes)


def _sparse_layers(fields: Fields) -> tuple[bool, ...]:
    step, plain = fields.integer("decoder_sparse_step", 1), fields.get("mlp_only_layers") or []
    if not isinstance(plain, list):
        raise fields.wrong("mlp_only_layers", "a list of layers")
    layers = range(layer_count(fields))
    return tuple(layer not in plain and (layer + 1) % step == 0 for layer in layers)


_GPT_OSS_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def read_gpt_oss(fields: Fields, context: int | None) -> DecoderConfig:
    """MXFP4 experts in the file, attention sinks, a window on every other layer."""
    if fields.part("quantization_config").get("quant_method") != "mxfp4":
        problem = "gpt_oss is read from its MXFP4 checkpoint only; use that one"
        raise ConfigError(f"{fields.path}: {problem}")
    for name, value in (("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)):
        if fields.positive(name, value) != value:
            raise fields.wrong(name, f"{value}")
    fields = with_default_rope(fields, _GPT_OSS_ROPE)
    config = read_decoder(
        fields,
        context=context,
        max_positions=131_072,
        num_kv_heads=8,
        head_dim=64,
        eps=("rms_norm_eps", 1e-5),
        rope=RopeDefaults(theta=150_000.0),
        activation="clamped_swiglu",
        attention_bias=fields.flag("attention_bias", True),
        windows=windows_of(fields, alternating_types(fields, 2), read_window(fields, 128)),
    )
    if config.hidden_size % BLOCK or config.intermediate_size % BLOCK:
        raise fields.error("hidden_size and intermediate_size", f"must be multiples of {BLOCK}")
    experts = read_experts(fields, size=config.intermediate_size, count=128, per_token=4)
    experts = replace(experts, has_router_bias=True, is_mxfp4=True)
    return replace(config, has_sinks=True, experts=experts)


_SHARED_EXPERT = replace(
    LLAMA,
    shared_gate_up=("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"),
    shared_down="mlp.shared_expert.down_proj",
    shared_gate="mlp.shared_expert_gate",
)
FAMILIES = {
    "mixtral": Family(
        read_mixtral,
        replace(
            LLAMA,
            router="block_sparse_moe.gate",
            experts="block_sparse_moe.experts",
            expert_gate_up=("w1", "w3"),
            expert_down="w2",
        ),
    ),
    "qwen2_moe": Family(read_qwen2_moe, _SHARED_EXPERT),
    "qwen3_moe": Family(read_qwen3_moe),
    "olmoe": Family(read_olmoe),
    "mellum": Family(read_mellum),
    "afmoe": Family(
        read_afmoe,
        replace(
            SHARED_EXPERTS,
            attention_gates="self_attn.gate_proj",
            attention_post_norm="post_attention_layernorm",
            feed_forward_norm="pre_mlp_layernorm",
            feed_forward_post_norm="post_mlp_layernorm",
            router="mlp.router.gate",
            correction_bias="mlp.expert_bias",
        ),
    ),
    "gpt_oss": Family(
        read_gpt_oss,
        replace(LLAMA, router="mlp.router", expert_gate_up=("gate_up_proj",)),
        is_mxfp4=True,
    ),
    "qwen3_5_moe_text": Family(
        read_qwen3_5_moe,
        replace(_SHARED_EXPERT, expert_stacks=EXPERT_STACKS),
        mtp=qwen_mtp,
        wrapper="qwen3_5_moe",
    ),
    "qwen3_next": Family(
        read_qwen3_next,
        replace(
            _SHARED_EXPERT, recurrent_inputs=("in_proj_qkvz",), recurrent_rates=("in_proj_ba",)
        ),
        mtp=qwen_mtp,
    ),
}
