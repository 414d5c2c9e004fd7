"""Names and sizes of a model's tensors, from its traits. Knows nothing of the loader."""

from collections.abc import Iterator

from specqd.config import DecoderConfig, ExpertsConfig
from specqd.config.decoder import LatentConfig
from specqd.config.families import names_of
from specqd.config.recurrent import DeltaConfig
from specqd.config.tensor_names import TensorNames

Sizes = Iterator[tuple[str, tuple[int, ...]]]


def sizes_of(config: DecoderConfig) -> Sizes:
    """Names and sizes of tensors in file order."""
    names, hidden = names_of(config), config.hidden_size
    yield f"{names.embedding}.weight", (config.vocab_size, hidden)
    for index in range(config.num_layers):
        for name, size in layer_sizes(config, index):
            yield f"{names.layers}.{index}.{name}", size
    if config.per_layer is not None:
        columns = config.num_layers * config.per_layer.size
        yield f"{names.per_layer_table}.weight", (config.per_layer.vocab_size, columns)
        yield from _linear(names.per_layer_embedding, columns, hidden)
        yield f"{names.per_layer_norm}.weight", (config.per_layer.size,)
    yield from _norm(config, names.final_norm)
    if not config.tied_embeddings:
        yield f"{names.head}.weight", (config.vocab_size, hidden)


def layer_sizes(config: DecoderConfig, index: int) -> Sizes:
    """Those of one layer, by their names in it."""
    names, hidden = names_of(config), config.hidden_size
    norms = (
        names.attention_norm,
        names.attention_post_norm,
        names.feed_forward_norm,
        names.feed_forward_post_norm,
    )
    for norm in dict.fromkeys(norms):
        yield from _norm(config, norm)
    if config.recurrent is not None and config.recurrent.layers[index]:
        yield from _recurrent(config, names)
    elif config.latent is not None:
        yield from _latent_attention(config, config.latent, names)
    else:
        yield from _attention(config, names, index)
    width = config.feed_forward_size(index)
    if config.experts is not None and config.experts.layers[index]:
        yield from _experts(config, config.experts, names, width)
    else:
        yield from _feed_forward(config, names.gate_up, names.down, width, config.mlp_bias)
    if config.per_layer is not None:
        yield from _linear(names.per_layer_gate, config.per_layer.size, hidden)
        yield from _linear(names.per_layer_projection, hidden, config.per_layer.size)
        yield from _norm(config, names.per_layer_post_norm)
    if config.scales_layers:
        yield names.layer_scale, (1,)


def _norm(config: DecoderConfig, name: str | None) -> Sizes:
    if name is not None:
        yield f"{name}.weight", (config.hidden_size,)
        if config.norm == "layer":
            yield f"{name}.bias", (config.hidden_size,)


def _linear(name: str, rows: int, columns: int, has_bias: bool = False) -> Sizes:
    yield f"{name}.weight", (rows, columns)
    if has_bias:
        yield f"{name}.bias", (rows,)


def _attention(config: DecoderConfig, names: TensorNames, index: int) -> Sizes:
    own, hidden = config.attention(index), config.hidden_size
    queries, keys = config.num_heads * own.head_dim, own.num_kv_heads * own.head_dim
    rows = [queries * (2 if config.gates_attention else 1), keys, keys]
    if len(names.query_key_value) == 1:
        rows = [sum(rows)]
    elif own.kv_layer is not None:
        rows = rows[:1]
    elif own.values_are_keys:
        rows = rows[:2]
    for name, count in zip(names.query_key_value, rows, strict=False):
        yield from _linear(name, count, hidden, config.qkv_bias)
    yield from _linear(names.output, hidden, queries, config.output_bias)
    yield from _head_norms(config, names.query_norm, config.num_heads, own.head_dim)
    if own.kv_layer is None:
        yield from _head_norms(config, names.key_norm, own.num_kv_heads, own.head_dim)
    if config.has_sinks:
        yield names.sinks, (config.num_heads,)


def _head_norms(config: DecoderConfig, name: str, heads: int, dim: int) -> Sizes:
    if config.qk_norm == "each":
        for head in range(heads):
            yield f"{name}.norms.{head}.weight", (dim,)
    elif config.qk_norm is not None:
        yield f"{name}.weight", (heads * dim if config.qk_norm == "row" else dim,)


def _latent_attention(config: DecoderConfig, latent: LatentConfig, names: TensorNames) -> Sizes:
    hidden, heads = config.hidden_size, config.num_heads
    queries, rank = heads * latent.query_dim, latent.query_rank
    if rank is None:
        yield from _linear(names.query_key_value[0], queries, hidden)
    else:
        yield from _linear(names.query_latent, rank, hidden)
        yield f"{names.query_latent_norm}.weight", (rank,)
        yield from _linear(names.latent_queries, queries, rank)
    yield from _linear(names.latent, latent.rank + latent.rope_dim, hidden)
    yield f"{names.latent_norm}.weight", (latent.rank,)
    expanded = heads * (latent.plain_dim + latent.value_dim)
    yield from _linear(names.latent_keys_values, expanded, latent.rank)
    yield from _linear(names.output, hidden, heads * latent.value_dim)


def _recurrent(config: DecoderConfig, names: TensorNames) -> Sizes:
    at, hidden, recurrent = names.recurrent, config.hidden_size, config.recurrent
    assert recurrent is not None
    channels, taps = recurrent.channels, recurrent.taps
    if not isinstance(recurrent, DeltaConfig):
        biased = recurrent.has_bias
        yield from _linear(f"{at}.{names.recurrent_inputs[0]}", 3 * channels, hidden, biased)
        yield f"{at}.{names.convolution}.weight", (channels, 1, taps)
        if biased:
            yield f"{at}.{names.convolution}.bias", (channels,)
        yield from _linear(f"{at}.out_proj", hidden, channels, biased)
        return
    heads, values = recurrent.value_heads, recurrent.value_heads * recurrent.value_dim
    for modules, rows in (
        (names.recurrent_inputs, [channels, values]),
        (names.recurrent_rates, [heads, heads]),
    ):
        sizes = rows if len(modules) == 2 else [sum(rows)]
        for name, count in zip(modules, sizes, strict=True):
            yield from _linear(f"{at}.{name}", count, hidden)
    yield from _linear(f"{at}.out_proj", hidden, values)
    yield f"{at}.{names.convolution}.weight", (channels, 1, taps)
    yield f"{at}.A_log", (heads,)
    yield f"{at}.dt_bias", (heads,)
    yield f"{at}.norm.weight", (recurrent.value_dim,)


def _feed_forward(
    config: DecoderConfig, gate_up: tuple[str, ...], down: str, width: int, biased: bool = False
) -> Sizes:
    rows = 2 * width if config.is_gated and len(gate_up) == 1 else width
    for name in gate_up:
        yield from _linear(name, rows, config.hidden_size, biased)
    yield from _linear(down, config.hidden_size, width, biased)


def _experts(
    config: DecoderConfig, experts: ExpertsConfig, names: TensorNames, width: int
) -> Sizes:
    hidden, size, at = config.hidden_size, experts.size, names.experts
    yield from _linear(names.router, experts.count, hidden, experts.has_router_bias)
    if experts.has_shared:
        yield from _feed_forward(config, names.shared_gate_up, names.shared_down, width)
        if names.shared_gate is not None:
            yield from _linear(names.shared_gate, 1, hidden)
    if experts.is_mxfp4:
        for name, rows, columns in (
            (names.expert_gate_up[0], 2 * size, hidden),
            (names.expert_down, hidden, size),
        ):
            yield f"{at}.{name}_blocks", (experts.count, rows, columns // 32, 16)
            yield f"{at}.{name}_scales", (experts.count, rows, columns // 32)
            yield f"{at}.{name}_bias", (experts.count, rows)
    elif names.expert_stacks is not None:
        yield f"{at}.{names.expert_stacks[0]}", (experts.count, 2 * size, hidden)
        yield f"{at}.{names.expert_stacks[1]}", (experts.count, hidden, size)
    else:
        for expert in range(experts.count):
            gate_up = tuple(f"{at}.{expert}.{name}" for name in names.expert_gate_up)
            yield from _feed_forward(config, gate_up, f"{at}.{expert}.{names.expert_down}", size)
    if experts.has_own_norms:
        for norm in (names.experts_norm, names.experts_post_norm, names.shared_post_norm):
            yield from _norm(config, norm)
        yield names.router_norm or "", (hidden,)
        yield names.expert_scales or "", (experts.count,)
    if experts.sigmoids is not None and experts.sigmoids.has_bias:
        yield names.correction_bias, (experts.count,)
