"""The shapes of an MTP layer's tensors. Knows no files."""

from collections.abc import Container, Sequence

from specqd.config import DecoderConfig, ExpertsConfig
from specqd.config.decoder import LatentConfig
from specqd.model.tensor_names import MtpNames, TensorNames

Shapes = dict[str, tuple[int, ...]]  # by name


def shapes_of(
    layer: DecoderConfig, modules: TensorNames, names: MtpNames, tensors: Container[str]
) -> Shapes:
    """All tensors of an MTP layer. `tensors` tells whether its experts are stacked."""
    hidden, at = layer.hidden_size, names.layer
    shapes: Shapes = {names.projection: (hidden, 2 * hidden)}
    norms = [names.embedding_norm, names.hidden_norm, names.final_norm]
    norms += [f"{at}{norm}" for norm in (modules.attention_norm, modules.feed_forward_norm)]
    shapes |= dict.fromkeys(norms, (hidden,))
    others: Shapes = {}  # whose names have no `.weight`
    if layer.latent is None:
        shapes |= _attention(layer, modules, at)
        others = _biases(layer, modules, at)
    else:
        shapes |= _latent(layer, layer.latent, modules, at)
    if layer.experts is None:
        width = layer.feed_forward_size(0)
        shapes |= _feed_forward(at, modules.gate_up, modules.down, width, hidden)
    else:
        stacks = _stacks(layer.experts, modules, at, hidden)
        is_stacked = any(name in tensors for name in stacks)
        others |= stacks if is_stacked else {}
        shapes |= _experts(layer, layer.experts, modules, at, is_stacked)
        if layer.experts.sigmoids is not None:
            others[at + modules.choice_bias] = (layer.experts.count,)
    return {f"{name}.weight": shape for name, shape in shapes.items()} | others


def _attention(layer: DecoderConfig, modules: TensorNames, at: str) -> Shapes:
    hidden, dim = layer.hidden_size, layer.head_dim
    queries = layer.num_heads * dim
    shapes: Shapes = {at + name: (rows, hidden) for name, rows in _query_key_value(layer, modules)}
    if layer.qk_norm is not None:
        shapes |= {at + modules.query_norm: (dim,), at + modules.key_norm: (dim,)}
    return shapes | {at + modules.output: (hidden, queries)}


def _query_key_value(layer: DecoderConfig, modules: TensorNames) -> list[tuple[str, int]]:
    queries, keys = (count * layer.head_dim for count in (layer.num_heads, layer.num_kv_heads))
    rows = (queries * (1 + layer.gates_attention), keys, keys)
    return list(zip(modules.query_key_value, rows, strict=True))


def _biases(layer: DecoderConfig, modules: TensorNames, at: str) -> Shapes:
    biases = dict(_query_key_value(layer, modules)) if layer.qkv_bias else {}
    if layer.output_bias:
        biases[modules.output] = layer.hidden_size
    return {f"{at}{name}.bias": (rows,) for name, rows in biases.items()}


def _latent(layer: DecoderConfig, latent: LatentConfig, modules: TensorNames, at: str) -> Shapes:
    hidden, heads, rank = layer.hidden_size, layer.num_heads, latent.rank
    queries, query_rank = heads * latent.query_dim, latent.query_rank
    shapes: Shapes = {
        modules.latent: (rank + latent.rope_dim, hidden),
        modules.latent_norm: (rank,),
        modules.latent_keys_values: (heads * (latent.plain_dim + latent.value_dim), rank),
        modules.output: (hidden, heads * latent.value_dim),
    }
    if query_rank is None:
        shapes[modules.query_key_value[0]] = (queries, hidden)
    else:
        shapes[modules.query_latent] = (query_rank, hidden)
        shapes[modules.query_latent_norm] = (query_rank,)
        shapes[modules.latent_queries] = (queries, query_rank)
    return {at + name: shape for name, shape in shapes.items()}


def _feed_forward(at: str, gate_up: Sequence[str], down: str, width: int, hidden: int) -> Shapes:
    shapes: Shapes = {at + name: (width, hidden) for name in gate_up}
    return shapes | {at + down: (hidden, width)}


def _stacks(experts: ExpertsConfig, modules: TensorNames, at: str, hidden: int) -> Shapes:
    """All experts as two tensors, where the family publishes such."""
    if modules.expert_stacks is None:
        return {}
    gate_up, down = (f"{at}{modules.experts}.{name}" for name in modules.expert_stacks)
    count, size = experts.count, experts.size
    return {gate_up: (count, 2 * size, hidden), down: (count, hidden, size)}


def _experts(
    layer: DecoderConfig, experts: ExpertsConfig, modules: TensorNames, at: str, is_stacked: bool
) -> Shapes:
    """The router, the shared expert, and the others where they are not stacked."""
    hidden, width = layer.hidden_size, layer.feed_forward_size(0)
    shapes: Shapes = {at + modules.router: (experts.count, hidden)}
    if modules.shared_gate is not None:
        shapes[at + modules.shared_gate] = (1, hidden)
    if experts.has_shared:
        shapes |= _feed_forward(at, modules.shared_gate_up, modules.shared_down, width, hidden)
    for expert in range(0 if is_stacked else experts.count):
        own = f"{at}{modules.experts}.{expert}."
        gate_up, down = modules.expert_gate_up, modules.expert_down
        shapes |= _feed_forward(own, gate_up, down, experts.size, hidden)
    return shapes
