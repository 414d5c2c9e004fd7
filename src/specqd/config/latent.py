"""The families with DeepSeek's latent attention, its router of experts, or both."""

import math
from dataclasses import replace
from decimal import Decimal

from specqd.config.decoder import (
    DecoderConfig,
    ExpertsConfig,
    LatentConfig,
    SigmoidChoice,
    check_heads,
    layer_count,
    read_decoder,
    read_experts,
    read_sparse_layers,
)
from specqd.config.family import Family
from specqd.config.fields import Fields
from specqd.config.mtp import MtpConfig, read_mtp
from specqd.config.rope import RopeConfig, RopeDefaults
from specqd.config.tensor_names import LLAMA, SHARED_EXPERTS, MtpNames
from specqd.errors import shown

_PANEL = 16  # outputs of a head's products come in panels of this many


def read_deepseek_v3(fields: Fields, context: int | None) -> DecoderConfig:
    """Latent attention; experts in all layers but the first ones, chosen among groups."""
    latent = LatentConfig(512, 64, 128, 128, 1536)
    config = _read_latent_decoder(fields, context, 4096, 1e-6, latent)
    layers, choice = _later_layers(fields, 3), SigmoidChoice(8, 4, 2.5)
    return _with_experts(fields, config, ExpertsConfig(256, 8, 2048, layers, sigmoids=choice))


def read_deepseek_v2(fields: Fields, context: int | None) -> DecoderConfig:
    """The same with experts chosen by a softmax over all, and no groups."""
    for name, only in (("topk_method", "greedy"), ("routed_scaling_factor", 1.0)):
        if fields.get(name) not in (None, only):
            raise fields.wrong(name, shown(only))
    for name in ("norm_topk_prob", "mlp_bias"):
        if fields.flag(name):
            raise fields.wrong(name, "false")
    fields = fields.with_values(rope_interleave=True)
    fields = fields.with_defaults(bos_token_id=1, eos_token_id=2)
    latent = LatentConfig(512, 64, 128, 128, 1536)
    config = _read_latent_decoder(fields, context, 2048, 1e-6, latent)
    experts = read_experts(
        fields,
        size=fields.integer("moe_intermediate_size", 1407),
        count=64,
        per_token=None,
        count_name="n_routed_experts",
        layers=_later_layers(fields, 0),
        normalizes_routing_weights=False,
    )
    return _with_shared(fields, config, replace(experts, has_shared=True), 2)


def read_youtu(fields: Fields, context: int | None) -> DecoderConfig:
    """Latent attention without experts."""
    fields = fields.with_defaults(
        bos_token_id=128_000, eos_token_id=128_001, tie_word_embeddings=True
    )
    latent = LatentConfig(512, 64, 128, 128, 1536)
    return _read_latent_decoder(fields, context, 131_072, 1e-6, latent)


def read_glm4_moe_lite(fields: Fields, context: int | None) -> DecoderConfig:
    """The same with other defaults; `mlp_layer_types` says which layers have experts."""
    latent = LatentConfig(512, 64, 192, 256, 768)
    config = _read_latent_decoder(fields, context, 202_752, 1e-5, latent)
    layers = read_sparse_layers(fields, (False, *[True] * (layer_count(fields) - 1)))
    choice = SigmoidChoice(scale=1.8)
    return _with_experts(fields, config, ExpertsConfig(64, 4, 1536, layers, sigmoids=choice))


def read_glm4_moe(fields: Fields, context: int | None) -> DecoderConfig:
    """DeepSeek's experts with plain attention; half of each head rotates."""
    config = read_decoder(
        fields,
        context=context,
        max_positions=131_072,
        num_kv_heads=8,
        eps=("rms_norm_eps", 1e-5),
        rope=RopeDefaults(share=0.5),
        qkv_bias=fields.flag("attention_bias"),
    )
    config = replace(config, qk_norm="one" if fields.flag("use_qk_norm") else None)
    layers, choice = _later_layers(fields, 1), SigmoidChoice()
    return _with_experts(fields, config, ExpertsConfig(128, 8, 1408, layers, sigmoids=choice))


def _read_latent_decoder(
    fields: Fields, context: int | None, max_positions: int, eps: float, latent: LatentConfig
) -> DecoderConfig:
    """A decoder with latent attention; `latent` holds the family's defaults."""
    if fields.flag("attention_bias"):
        raise fields.wrong("attention_bias", "false")
    latent = _read_latent(fields, latent)
    heads = fields.integer("num_attention_heads")
    if fields.integer("num_key_value_heads", heads) != heads:
        raise fields.wrong("num_key_value_heads", f"the number of query heads ({heads})")
    config = read_decoder(
        fields.with_values(head_dim=latent.rope_dim, num_key_value_heads=1),
        context=context,
        max_positions=max_positions,
        bos=(0,),
        eos=(1,),
        eps=("rms_norm_eps", eps),
    )
    row = latent.rank + latent.rope_dim
    check_heads(fields, heads, 1, row)
    [rope] = config.distinct_ropes
    return replace(
        config,
        head_dim=row,
        latent=latent,
        attention_scale=1.0 / math.sqrt(latent.query_dim) * _score_growth(rope) ** 2,
        rope_pairs="neighbours" if fields.flag("rope_interleave", True) else "halves",
    )


def _read_latent(fields: Fields, family: LatentConfig) -> LatentConfig:
    def panels(name: str, default: int) -> int:
        value = fields.integer(name, default, most=1024)
        if value % _PANEL:
            raise fields.error(name, f"is {value}; a multiple of {_PANEL} is needed")
        return value

    query_rank = family.query_rank
    if "q_lora_rank" in fields.values:  # a null is not the same as absent
        has_rank = fields.get("q_lora_rank") is not None
        query_rank = fields.integer("q_lora_rank", most=1 << 16) if has_rank else None
    return LatentConfig(
        rank=panels("kv_lora_rank", family.rank),
        rope_dim=fields.integer("qk_rope_head_dim", family.rope_dim, most=1024),
        plain_dim=fields.integer("qk_nope_head_dim", family.plain_dim, most=1024),
        value_dim=panels("v_head_dim", family.value_dim),
        query_rank=query_rank,
    )


def _score_growth(rope: RopeConfig) -> float:
    """YaRN's factor on queries and on keys, which DeepSeek applies to the scores.

    `Decimal` rounds the logarithm in the same way on every platform; `math` does not.
    """
    if rope.kind != "yarn" or not rope.mscale_all_dim or rope.factor <= 1:
        return 1.0
    return 0.1 * rope.mscale_all_dim * float(Decimal(rope.factor).ln()) + 1.0


def _with_experts(fields: Fields, config: DecoderConfig, family: ExpertsConfig) -> DecoderConfig:
    """The decoder with experts; `family` holds the defaults, and the layers that have experts."""
    mtp = read_mtp(fields, MtpConfig(blanks_first=True))
    return replace(_with_shared(fields, config, _read_experts(fields, family), 1), mtp=mtp)


def _with_shared(
    fields: Fields, config: DecoderConfig, experts: ExpertsConfig, count: int
) -> DecoderConfig:
    """The decoder with experts, and so many shared ones by default.

    The shared experts are one feed forward; that of layers without experts is wider.
    """
    width = experts.size * fields.integer("n_shared_experts", count, most=1024)
    sizes = tuple(width if sparse else config.intermediate_size for sparse in experts.layers)
    return replace(config, experts=experts, intermediate_sizes=sizes)


def _read_experts(fields: Fields, family: ExpertsConfig) -> ExpertsConfig:
    for name, only in (
        ("scoring_func", "sigmoid"),
        ("topk_method", "noaux_tc"),
        ("moe_layer_freq", 1),
    ):
        if fields.get(name) not in (None, only):
            raise fields.wrong(name, shown(only))
    assert family.sigmoids is not None
    choice = SigmoidChoice(
        groups=fields.integer("n_group", family.sigmoids.groups),
        chosen_groups=fields.integer("topk_group", family.sigmoids.chosen_groups),
        scale=fields.positive("routed_scaling_factor", family.sigmoids.scale),
    )
    experts = read_experts(
        fields,
        size=fields.integer("moe_intermediate_size", family.size),
        count=family.count,
        per_token=family.per_token,
        count_name="n_routed_experts",
        layers=family.layers,
        normalizes_routing_weights=fields.flag("norm_topk_prob", True),
    )
    _check_groups(fields, experts, choice)
    return replace(experts, has_shared=True, sigmoids=choice)


def _check_groups(fields: Fields, experts: ExpertsConfig, choice: SigmoidChoice) -> None:
    groups, chosen = choice.groups, choice.chosen_groups
    if experts.count % groups or (groups > 1 and experts.count // groups < 2):
        problem = f"is {groups}; {experts.count} experts must fall into groups of two or more"
        raise fields.error("n_group", problem)
    if chosen > groups:
        raise fields.wrong("topk_group", f"at most n_group ({groups})")
    if experts.per_token > experts.count // groups * chosen:
        among = experts.count // groups * chosen
        raise fields.wrong("num_experts_per_tok", f"at most the experts of topk_group ({among})")


def _later_layers(fields: Fields, first: int) -> tuple[bool, ...]:
    """All but the first ones."""
    dense = fields.integer("first_k_dense_replace", first, least=0)
    return tuple(layer >= dense for layer in range(layer_count(fields)))


def _numbered_mtp(layers: int) -> MtpNames:
    """The layer follows the model's own ones, and is numbered as they are."""
    at = f"{LLAMA.layers}.{layers}."
    return MtpNames(
        prefix=at,
        layers=LLAMA.layers,
        embedding_norm=f"{at}enorm",
        hidden_norm=f"{at}hnorm",
        projection=f"{at}eh_proj",
        final_norm=f"{at}shared_head.norm",
        index=layers,
        feed_forward_of=-1,
        repeated=(f"{at}embed_tokens.weight", f"{at}shared_head.head.weight"),
    )


FAMILIES = {
    "glm4_moe": Family(read_glm4_moe, SHARED_EXPERTS, _numbered_mtp),
    "glm4_moe_lite": Family(read_glm4_moe_lite, SHARED_EXPERTS, _numbered_mtp),
    "youtu": Family(read_youtu),
    "deepseek_v2": Family(read_deepseek_v2, SHARED_EXPERTS),
    "deepseek_v3": Family(read_deepseek_v3, SHARED_EXPERTS, _numbered_mtp),
}
