"""The configuration of a decoder of any family, and the fields that all families share.

Knows nothing of weights or of their names.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from specqd.config.fields import Fields
from specqd.config.mtp import MtpConfig
from specqd.config.recurrent import ConvolutionConfig, DeltaConfig
from specqd.config.rope import RopeConfig, RopeDefaults, read_rope, rope_fields

NormKind = Literal["rms", "layer"]
Activation = Literal["silu", "gelu", "gelu_tanh", "clamped_swiglu", "relu_squared", "xielu"]

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu2": "relu_squared",
}
_LAYER_TYPES = ("full_attention", "sliding_attention")
_MOST_LAYERS = 10_000  # more than any model has; a hostile config must not fill the memory
_MOST_EXPERTS = 10_000
_ROPE = RopeDefaults()


@dataclass(frozen=True, slots=True)
class SigmoidChoice:
    """The router chooses experts by the sigmoids of their scores plus a correction bias
    (`e_score_correction_bias`).

    The experts form `groups`. The router compares the sums of each group's two best experts, and
    chooses only from the `chosen_groups` groups with the largest sums. Routing weights are the
    sigmoids, without the bias, times `scale`. If they are normalised, each is divided by the sum of
    the chosen ones plus `weight_sum_epsilon`.
    """

    groups: int = 1
    chosen_groups: int = 1
    scale: float = 1.0
    weight_sum_epsilon: float = 1e-20
    has_bias: bool = True


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """Layers where a router chooses `per_token` of `count` feed forwards of width `size`.

    Routing weights are a softmax over the scores of the chosen experts
    (`normalizes_routing_weights`), or of all experts. With `has_shared`, every row also passes
    through the layer's own feed forward. With `has_own_norms`, the experts and the router have
    norms of their own, and so have the outputs of the experts and of the shared feed forward.
    """

    count: int
    per_token: int
    size: int
    layers: tuple[bool, ...]
    normalizes_routing_weights: bool = True
    has_router_bias: bool = False
    is_mxfp4: bool = False  # in the file
    has_shared: bool = False
    has_own_norms: bool = False
    sigmoids: SigmoidChoice | None = None


@dataclass(frozen=True, slots=True)
class LatentConfig:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434).

    All heads attend to one row per position: a latent of `rank` values, and `rope_dim` values that
    rotate. Each head's key consists of `plain_dim` values, projected from the latent, and of the
    rotated values. Each head's value, of `value_dim`, is projected from the latent too. Queries are
    projected from a latent of `query_rank`; None means that they are projected directly.
    """

    rank: int
    rope_dim: int
    plain_dim: int
    value_dim: int
    query_rank: int | None = None

    @property
    def query_dim(self) -> int:
        return self.plain_dim + self.rope_dim


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """The keys and values of one layer.

    With `values_are_keys`, the values are the keys before norm and rotation, or their latent.
    `kv_layer` is the earlier layer whose keys and values this layer reads; None means that it has
    its own.
    """

    num_kv_heads: int
    head_dim: int
    values_are_keys: bool = False
    kv_layer: int | None = None


@dataclass(frozen=True, slots=True)
class PerLayerConfig:
    """A second embedding of each token: `size` values for every layer, in a table of its own."""

    size: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class DynamicConvolutionConfig:
    """Convolutions around attention and feed forward, over the rows of a forward (DFlash2).

    Each row is a sum over itself and the `taps - 1` rows before it. Coefficients are weights by
    channel, plus a projection of the row with one value for each group of `group` channels.
    """

    taps: int
    group: int


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A decoder-only transformer: rotary positions, grouped queries, norms, feed forwards.

    With `windows[layer] = w > 0`, position q attends to positions q-w+1 .. q; 0 is full attention.
    `ropes[layer]` is None for a layer without positions. `qkv_bias`, `output_bias` and `mlp_bias`
    say which linears have a bias. `qk_norm` normalises queries and keys before the rotation: each
    head with one weight for all heads ("one"), each head with a weight of its own ("each"), or the
    whole row ("row"); with `rotates_before_norm`, it normalises each head after the rotation.
    `attention_gates` says whether the outputs of attention are gated by head
    ("heads") or one by one ("values"). `norms` says whether norms come before attention and feed
    forward, after them, or both; `norm_offset` is added to the norms' weights. `rope_pairs` says
    which of the 2n rotated dimensions of a head rotate together: i and i + n ("halves"), or 2i and
    2i + 1 ("neighbours").
    """

    model_type: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    norm_eps: float
    ropes: tuple[RopeConfig | None, ...]
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    windows: tuple[int, ...]
    tied_embeddings: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    norm: NormKind = "rms"
    norm_bias: bool = True  # of layer norms
    norm_offset: float = 0.0
    norms: Literal["before", "after", "both"] = "before"
    rope_pairs: Literal["halves", "neighbours"] = "halves"
    qk_norm: Literal["one", "each", "row"] | None = None
    rotates_before_norm: bool = False
    activation: Activation = "silu"
    is_gated: bool = True
    is_parallel: bool = False  # attention and feed forward read the same residual stream
    attention_scale: float | None = None  # of scores; None is 1 / sqrt(head_dim)
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    has_sinks: bool = False  # one more score per attention head, without a value
    attention_gates: Literal["heads", "values"] | None = None
    experts: ExpertsConfig | None = None
    recurrent: DeltaConfig | ConvolutionConfig | None = None
    latent: LatentConfig | None = None  # of all layers; `head_dim` is then its row's
    attentions: tuple[AttentionConfig, ...] = ()  # by layer; empty: as the fields above say
    norms_values: bool = False  # each head's, without a weight
    intermediate_sizes: tuple[int, ...] = ()  # by layer; empty: `intermediate_size`
    per_layer: PerLayerConfig | None = None
    scales_layers: bool = False  # multiplies the output of each layer by a number of its own
    mtp: MtpConfig | None = None  # of the family; the checkpoint may lack the layer
    reads_pairs: bool = False  # attention reads [embedding; hidden], as in an EAGLE-3 head
    causal: tuple[bool, ...] = ()  # by layer; empty: all layers are causal
    dynamic_convolution: DynamicConvolutionConfig | None = None

    @property
    def recurrent_layers(self) -> tuple[bool, ...]:
        return self.recurrent.layers if self.recurrent else (False,) * self.num_layers

    def attention(self, layer: int) -> AttentionConfig:
        if self.attentions:
            return self.attentions[layer]
        return AttentionConfig(self.num_kv_heads, self.head_dim, self.latent is not None)

    def feed_forward_size(self, layer: int) -> int:
        return self.intermediate_sizes[layer] if self.intermediate_sizes else self.intermediate_size

    def rotation(self, layer: int) -> tuple[RopeConfig, int] | None:
        """The layer's rope and the size of the heads that it rotates."""
        rope = self.ropes[layer]
        dim = self.latent.rope_dim if self.latent else self.attention(layer).head_dim
        return None if rope is None else (rope, dim)

    @property
    def is_mxfp4(self) -> bool:
        """Whether most weights are MXFP4 in the file; an fp4 draft would then save nothing."""
        return self.experts is not None and self.experts.is_mxfp4

    @property
    def distinct_ropes(self) -> list[RopeConfig]:
        """The layers' ropes, each once, in the order of first use."""
        return list(dict.fromkeys(rope for rope in self.ropes if rope is not None))

    @property
    def distinct_rotations(self) -> list[tuple[RopeConfig, int]]:
        """The layers' rotations, each once, in the order of first use."""
        rotations = map(self.rotation, range(self.num_layers))
        return list(dict.fromkeys(each for each in rotations if each is not None))

    @property
    def distinct_heads(self) -> list[tuple[int, int]]:
        """The layers' numbers of key/value heads and sizes of heads, each pair once."""
        layers = map(self.attention, range(self.num_layers))
        return list(dict.fromkeys((each.num_kv_heads, each.head_dim) for each in layers))


def read_decoder(
    fields: Fields,
    *,
    max_positions: int,
    context: int | None = None,
    bos: tuple[int, ...] = (),
    eos: tuple[int, ...] = (),
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    eps: tuple[str, float] = ("rms_norm_eps", 1e-6),
    rope: RopeDefaults = _ROPE,
    activation: Activation | None = None,
    tied: bool = False,
    attention_bias: bool = False,
    qkv_bias: bool = False,
    mlp_bias: bool = False,
    window: int = 0,
    windows: tuple[int, ...] = (),
) -> DecoderConfig:
    """Reads the fields that all families have; the arguments are defaults and traits of a family.

    `context` is the longest sequence that will be decoded, if known. `attention_bias` includes
    `qkv_bias`. `window` is that of every layer, unless `windows` has one for each.
    """
    num_layers = layer_count(fields)
    max_positions = fields.integer("max_position_embeddings", max_positions)
    bos_ids = fields.id_or_ids("bos_token_id", bos)
    heads, kv_heads, head_dim = _read_heads(fields, num_kv_heads, head_dim)
    ropes = read_rope(fields, rope_fields(fields), max_positions, head_dim, rope, context)
    if ropes.kind == "yarn":  # often added to a configuration that still states the trained length
        longest = int(ropes.original_max_positions * ropes.factor)
        max_positions = max(max_positions, longest)
    return DecoderConfig(
        model_type=str(fields.get("model_type")),
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=fields.integer("vocab_size"),
        max_positions=min(max_positions, context or max_positions),
        norm_eps=fields.positive(*eps),
        ropes=(ropes,) * num_layers,
        qkv_bias=attention_bias or qkv_bias,
        output_bias=attention_bias,
        mlp_bias=mlp_bias,
        windows=windows or (window,) * num_layers,
        tied_embeddings=fields.flag("tie_word_embeddings", tied),
        bos_token_id=bos_ids[0] if bos_ids else None,
        eos_token_ids=fields.id_or_ids("eos_token_id", eos),
        activation=activation or read_activation(fields, "hidden_act", "silu"),
    )


def layer_count(fields: Fields) -> int:
    return fields.integer("num_hidden_layers", most=_MOST_LAYERS)


def read_activation(fields: Fields, name: str, default: str) -> Activation:
    value = fields.get(name) or default
    if not isinstance(value, str) or value not in _ACTIVATIONS:
        raise fields.wrong(name, f"one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[value]


def _read_heads(
    fields: Fields, num_kv_heads: int | None, head_dim: int | None
) -> tuple[int, int, int]:
    """Query heads, key/value heads and the size of one.

    Null means as many key/value heads as query heads, and hidden_size / heads. An absent field
    takes the model type's default.
    """
    heads, hidden_size = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    if num_kv_heads is None or "num_key_value_heads" in fields.values:
        num_kv_heads = heads
    kv_heads = fields.integer("num_key_value_heads", num_kv_heads)
    if head_dim is None or "head_dim" in fields.values:
        if fields.get("head_dim") is None and hidden_size % heads:
            raise fields.error("hidden_size", f"{hidden_size} is not a multiple of {heads} heads")
        head_dim = hidden_size // heads
    head_dim = fields.integer("head_dim", head_dim)
    check_heads(fields, heads, kv_heads, head_dim)
    return heads, kv_heads, head_dim


def check_heads(fields: Fields, heads: int, kv_heads: int, head_dim: int) -> None:
    """Raises ConfigError for numbers and sizes of attention heads that are not supported."""
    if heads % kv_heads:
        problem = f"{heads} is not a multiple of {kv_heads} kv heads"
        raise fields.error("num_attention_heads", problem)
    if head_dim % 2:
        raise fields.error("head_dim", f"{head_dim} is odd; rotary positions need an even one")
    if head_dim > 1024:
        raise fields.error("head_dim", f"{head_dim} is above 1024, the largest supported")


def read_window(fields: Fields, default: int) -> int:
    """The window; 0, also for a null, is full attention. An absent field takes the default."""
    return fields.integer("sliding_window", 0 if "sliding_window" in fields.values else default)


def read_layer_types(fields: Fields) -> list[str] | None:
    """`layer_types`, checked; None if absent."""
    if fields.get("layer_types") is None:
        return None
    return fields.kinds("layer_types", layer_count(fields), _LAYER_TYPES, older=("attention",))


def alternating_types(fields: Fields, every: int) -> list[str]:
    """The stated types of layers; without any, full attention on every `every`-th layer."""
    layers = range(1, layer_count(fields) + 1)
    return read_layer_types(fields) or [
        "sliding_attention" if layer % every else "full_attention" for layer in layers
    ]


def windows_of(fields: Fields, layer_types: Sequence[str], window: int) -> tuple[int, ...]:
    """`window` for each sliding layer, 0 for the others."""
    if "sliding_attention" in layer_types and window == 0:
        raise fields.error(
            "layer_types",
            "has sliding_attention, but sliding_window is off; "
            "set use_sliding_window and sliding_window",
        )
    return tuple(window if kind == "sliding_attention" else 0 for kind in layer_types)


def read_sparse_layers(fields: Fields, default: tuple[bool, ...]) -> tuple[bool, ...]:
    """Whether each layer has experts, as `mlp_layer_types` says."""
    if fields.get("mlp_layer_types") is None:
        return default
    types = fields.kinds("mlp_layer_types", layer_count(fields), ("dense", "sparse"))
    return tuple(kind == "sparse" for kind in types)


def read_experts(
    fields: Fields,
    *,
    size: int,
    count: int | None,
    per_token: int | None,
    count_name: str = "num_experts",
    per_token_name: str = "num_experts_per_tok",
    layers: tuple[bool, ...] | None = None,
    normalizes_routing_weights: bool = True,
) -> ExpertsConfig:
    """Reads experts; the arguments are a model type's defaults. `count` has two spellings."""
    if fields.get("num_local_experts") is not None:
        count = fields.integer("num_local_experts", most=_MOST_EXPERTS)
    count = fields.integer(count_name, count, most=_MOST_EXPERTS)
    per_token = fields.integer(per_token_name, per_token)
    if per_token > count:
        raise fields.wrong(per_token_name, f"at most the number of experts ({count})")
    every = (True,) * layer_count(fields)
    return ExpertsConfig(count, per_token, size, layers or every, normalizes_routing_weights)
