"""Norms, linears and feed forwards of the reference, in NumPy float64."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from specqd.config import DecoderConfig, ExpertsConfig
from specqd.config.decoder import SigmoidChoice
from specqd.config.tensor_names import TensorNames
from support.reference_positions import Array

Weights = Mapping[str, Array]


def norm_if_any(config: DecoderConfig, weights: Weights, name: str | None, x: Array) -> Array:
    """Returns x where the model has no such norm."""
    if name is None:
        return x
    return norm(config, x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def norm(config: DecoderConfig, x: Array, weight: Array, bias: Array | None = None) -> Array:
    if config.norm == "layer":
        x = x - x.mean(axis=-1, keepdims=True)
    normed = rms_norm(x, config.norm_offset + weight, config.norm_eps)
    return normed if bias is None else normed + bias


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


def linear(layer: Weights, name: str, x: Array) -> Array:
    return x @ layer[f"{name}.weight"].T + layer.get(f"{name}.bias", np.zeros(1))


def feed_forward(
    config: DecoderConfig,
    names: TensorNames,
    layer: Weights,
    index: int,
    residual: Array,
    margins: list[Array],
) -> Array:
    """The output for rows of the residual stream, before its norm. Appends a router's margins."""
    x = norm_if_any(config, layer, names.feed_forward_norm, residual)
    experts = config.experts
    if experts is None or not experts.layers[index]:
        if config.activation == "xielu":
            return _xielu_feed_forward(names, layer, x)
        return plain(config, layer, names.gate_up, names.down, x)
    if not experts.has_own_norms:
        scores = linear(layer, names.router, x)
        out = _experts(config, experts, names, layer, x, scores, margins)
        return out + _shared(config, names, layer, x) if experts.has_shared else out
    scaled = norm(config, residual, layer[names.router_norm or ""]) / math.sqrt(x.shape[1])
    inputs = norm_if_any(config, layer, names.experts_norm, residual)
    scores = linear(layer, names.router, scaled)
    out = _experts(config, experts, names, layer, inputs, scores, margins)
    shared = norm_if_any(config, layer, names.shared_post_norm, _shared(config, names, layer, x))
    return shared + norm_if_any(config, layer, names.experts_post_norm, out)


def _xielu_feed_forward(names: TensorNames, layer: Weights, x: Array) -> Array:
    positive, negative, slope, limit = (
        layer[f"{names.activation}.{name}"] for name in ("alpha_p", "alpha_n", "beta", "eps")
    )
    up = linear(layer, names.gate_up[0], x)
    above = np.log1p(np.exp(positive)) * up**2
    below = (np.expm1(np.minimum(up, limit)) - up) * (slope + np.log1p(np.exp(negative)))
    return linear(layer, names.down, np.where(up > 0, above, below) + slope * up)


def _shared(config: DecoderConfig, names: TensorNames, layer: Weights, x: Array) -> Array:
    out = plain(config, layer, names.shared_gate_up, names.shared_down, x)
    if names.shared_gate is None:
        return out
    return out / (1 + np.exp(-linear(layer, names.shared_gate, x)))


def _experts(
    config: DecoderConfig,
    experts: ExpertsConfig,
    names: TensorNames,
    layer: Weights,
    x: Array,
    scores: Array,
    margins: list[Array],
) -> Array:
    if experts.sigmoids is None:
        chosen, weights = _choose_experts(experts, scores)
        gaps = _gaps(scores, experts.per_token)
    else:
        bias = (
            layer[names.correction_bias] if experts.sigmoids.has_bias else np.zeros(experts.count)
        )
        chosen, weights, gaps = _choose_by_sigmoids(experts, experts.sigmoids, scores, bias)
    margins.append(gaps / _rms(scores))
    if experts.has_own_norms and names.expert_scales:
        weights = weights * layer[names.expert_scales][chosen]
    out = np.zeros_like(x)
    for expert in np.unique(chosen):
        rows, places = np.nonzero(chosen == expert)
        own, gate_up, down = _expert(experts, names, layer, expert)
        result = plain(config, own, gate_up, down, x[rows])
        out[rows] += weights[rows, places, None] * result
    return out


def _expert(
    experts: ExpertsConfig, names: TensorNames, layer: Weights, expert: int
) -> tuple[Weights, Sequence[str], str]:
    """The weights of one expert, and the names of its modules in them."""
    if names.expert_stacks is None and not experts.is_mxfp4:
        at = f"{names.experts}.{expert}."
        return layer, [at + name for name in names.expert_gate_up], at + names.expert_down
    stacks = names.expert_stacks or (names.expert_gate_up[0], names.expert_down)
    own = {f"{name}.weight": layer[f"{names.experts}.{name}"][expert] for name in stacks}
    if experts.is_mxfp4:  # rows of gate and up take turns
        own |= {f"{name}.bias": layer[f"{names.experts}.{name}_bias"][expert] for name in stacks}
        for part in ("weight", "bias"):
            rows = own[f"{stacks[0]}.{part}"]
            own[f"{stacks[0]}.{part}"] = np.concatenate([rows[::2], rows[1::2]])
    return own, stacks[:1], stacks[1]


def _choose_experts(experts: ExpertsConfig, scores: Array) -> tuple[NDArray[np.int64], Array]:
    """The best experts of each row and their routing weights, [n, experts per token]."""
    chosen = np.argsort(-scores, axis=-1, kind="stable")[:, : experts.per_token]
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = np.take_along_axis(powers, chosen, axis=-1)
    total = weights if experts.normalizes_routing_weights else powers
    return chosen, weights / total.sum(axis=-1, keepdims=True)


def _choose_by_sigmoids(
    experts: ExpertsConfig, choice: SigmoidChoice, scores: Array, bias: Array
) -> tuple[NDArray[np.int64], Array, Array]:
    """The same, and how much the scores may err before the choice changes, [n]."""
    sigmoids = 1 / (1 + np.exp(-scores))
    corrected = sigmoids + bias
    gaps = np.full(len(scores), np.inf)
    if choice.chosen_groups < choice.groups:
        by_group = corrected.reshape(len(scores), choice.groups, -1)
        sums = np.sort(by_group, axis=-1)[..., -2:].sum(axis=-1)
        gaps = _gaps(sums, choice.chosen_groups) / 2
        best = np.argsort(-sums, axis=-1, kind="stable")[:, : choice.chosen_groups]
        is_chosen = np.zeros_like(sums, bool)
        np.put_along_axis(is_chosen, best, True, axis=-1)
        corrected = np.where(is_chosen.repeat(by_group.shape[-1], axis=-1), corrected, -np.inf)
    chosen = np.argsort(-corrected, axis=-1, kind="stable")[:, : experts.per_token]
    weights = np.take_along_axis(sigmoids, chosen, axis=-1)
    if experts.normalizes_routing_weights:
        weights = weights / (weights.sum(axis=-1, keepdims=True) + choice.weight_sum_epsilon)
    if experts.per_token < scores.shape[-1]:
        gaps = np.minimum(gaps, _gaps(corrected, experts.per_token))
    return chosen, weights * choice.scale, 4 * gaps  # a sigmoid rises by a fourth


def _gaps(values: Array, count: int) -> Array:
    """Returns by how much the last of the best `count` exceeds the next one, [n]."""
    falling = -np.sort(-values, axis=-1)
    gaps: Array = falling[:, count - 1] - falling[:, count]
    return gaps


def _rms(x: Array) -> float:
    return float(np.sqrt((x * x).mean()))


def plain(
    config: DecoderConfig, layer: Weights, gate_up: Sequence[str], down: str, x: Array
) -> Array:
    """A feed forward; one name in `gate_up` is a fused tensor, or there is no gate."""
    parts = [linear(layer, name, x) for name in gate_up]
    if not config.is_gated:
        return linear(layer, down, ACTIVATIONS[config.activation](parts[0]))
    gate, up = parts if len(parts) == 2 else np.split(parts[0], 2, axis=-1)
    if config.activation == "clamped_swiglu":
        gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
        return linear(layer, down, gate / (1 + np.exp(-1.702 * gate)) * (up + 1))
    return linear(layer, down, ACTIVATIONS[config.activation](gate) * up)


def _gelu(x: Array) -> Array:
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def _gelu_tanh(x: Array) -> Array:
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu_squared": lambda x: np.maximum(x, 0) ** 2,
}
