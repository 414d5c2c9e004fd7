"""Norms, linears and feed forwards of the reference, in NumPy float64."""

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from support.reference_positions import Array, Config, is_qwen3_5

Weights = Mapping[str, Array]


def norm_if_any(config: Config, weights: Weights, name: str, x: Array) -> Array:
    """Returns x where the model has no such norm."""
    if f"{name}.weight" not in weights:
        return x
    return norm(config, x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def norm(config: Config, x: Array, weight: Array, bias: Array | None = None) -> Array:
    for name in ("layer_norm_eps", "norm_epsilon"):
        if name in config:
            centred = x - x.mean(axis=-1, keepdims=True)
            return rms_norm(centred, weight, config[name]) + (0 if bias is None else bias)
    offset = config["model_type"] in ("gemma2", "gemma3_text") or is_qwen3_5(config)
    eps = config.get("norm_eps", config.get("rms_norm_eps", 1e-6))
    return rms_norm(x, offset + weight, eps)


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


def linear(layer: Weights, name: str, x: Array) -> Array:
    return x @ layer[f"{name}.weight"].T + layer.get(f"{name}.bias", np.zeros(1))


def feed_forward(config: Config, layer: Weights, x: Array, margins: list[Array]) -> Array:
    """The output for rows x of the residual stream, before its norm. Appends a router's margins."""
    residual, x = x, norm_if_any(config, layer, "before_mlp", x)
    if "mlp.gate.weight" not in layer:
        return plain(config, layer, "mlp", x)
    if "router.scale" in layer:
        return _gemma4(config, layer, x, residual, margins)
    out = _experts(config, layer, x, linear(layer, "mlp.gate", x), margins)
    if "mlp.shared_experts.up_proj.weight" in layer:
        out += plain(config, layer, "mlp.shared_experts", x)
    if "mlp.shared_expert_gate.weight" in layer:
        gate = 1 / (1 + np.exp(-linear(layer, "mlp.shared_expert_gate", x)))
        out += gate * plain(config, layer, "mlp.shared_expert", x)
    return out


def _gemma4(
    config: Config, layer: Weights, x: Array, residual: Array, margins: list[Array]
) -> Array:
    """Experts, and the feed forward beside them, each with norms of its own."""
    dense = norm_if_any(config, layer, "after_mlp_1", plain(config, layer, "mlp", x))
    scaled = norm(config, residual, layer["router.scale"]) / math.sqrt(x.shape[1])
    inputs = norm_if_any(config, layer, "before_mlp_2", residual)
    out = _experts(config, layer, inputs, linear(layer, "mlp.gate", scaled), margins)
    return dense + norm_if_any(config, layer, "after_mlp_2", out)


def _experts(
    config: Config, layer: Weights, x: Array, scores: Array, margins: list[Array]
) -> Array:
    bias = layer.get("mlp.gate.e_score_correction_bias")
    if config.get("use_expert_bias") is False:
        bias = np.zeros(scores.shape[-1])
    if bias is None:
        chosen, shares = _choose_experts(config, scores)
        margins.append(_gaps(scores, experts_per_token(config)) / _rms(scores))
    else:
        chosen, shares, gaps = _choose_by_sigmoids(config, scores, bias)
        margins.append(gaps / _rms(scores))
    if "router.per_expert_scale" in layer:
        shares = shares * layer["router.per_expert_scale"][chosen]
    out = np.zeros_like(x)
    for expert in np.unique(chosen):
        rows, places = np.nonzero(chosen == expert)
        result = plain(config, layer, f"mlp.experts.{expert}", x[rows])
        out[rows] += shares[rows, places, None] * result
    return out


def experts_per_token(config: Config) -> int:
    return int(config.get("top_k_experts") or config["num_experts_per_tok"])


def _choose_experts(config: Config, scores: Array) -> tuple[NDArray[np.int64], Array]:
    """The best experts of each row and their shares, [n, experts per token]."""
    chosen = np.argsort(-scores, axis=-1, kind="stable")[:, : experts_per_token(config)]
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares = np.take_along_axis(powers, chosen, axis=-1)
    among_chosen = config.get("norm_topk_prob", config["model_type"] != "qwen3_moe")
    return chosen, shares / (shares if among_chosen else powers).sum(axis=-1, keepdims=True)


def _choose_by_sigmoids(
    config: Config, scores: Array, bias: Array
) -> tuple[NDArray[np.int64], Array, Array]:
    """The same, and how much the scores may err before the choice changes, [n]."""
    sigmoids = 1 / (1 + np.exp(-scores))
    choice, count = sigmoids + bias, experts_per_token(config)
    groups, chosen_groups = config.get("n_group", 1), config.get("topk_group", 1)
    gaps = np.full(len(scores), np.inf)
    if chosen_groups < groups:
        by_group = choice.reshape(len(scores), groups, -1)
        sums = np.sort(by_group, axis=-1)[..., -2:].sum(axis=-1)
        gaps = _gaps(sums, chosen_groups) / 2
        best = np.argsort(-sums, axis=-1, kind="stable")[:, :chosen_groups]
        is_chosen = np.zeros_like(sums, bool)
        np.put_along_axis(is_chosen, best, True, axis=-1)
        choice = np.where(is_chosen.repeat(by_group.shape[-1], axis=-1), choice, -np.inf)
    chosen = np.argsort(-choice, axis=-1, kind="stable")[:, :count]
    shares = np.take_along_axis(sigmoids, chosen, axis=-1)
    if config.get("norm_topk_prob", True):
        least = 1e-6 if config["model_type"] == "lfm2_moe" else 1e-20
        shares = shares / (shares.sum(axis=-1, keepdims=True) + least)
    if count < scores.shape[-1]:
        gaps = np.minimum(gaps, _gaps(choice, count))
    shares = shares * config.get("routed_scaling_factor", 1.0)
    return chosen, shares, 4 * gaps  # a sigmoid rises by a fourth


def _gaps(values: Array, count: int) -> Array:
    """Returns by how much the last of the best `count` exceeds the next one, [n]."""
    falling = -np.sort(-values, axis=-1)
    gaps: Array = falling[:, count - 1] - falling[:, count]
    return gaps


def _rms(x: Array) -> float:
    return float(np.sqrt((x * x).mean()))


def plain(config: Config, layer: Weights, at: str, x: Array) -> Array:
    if config["model_type"] == "gpt_oss":
        gate = np.minimum(linear(layer, f"{at}.gate_proj", x), 7)
        up = np.clip(linear(layer, f"{at}.up_proj", x), -7, 7)
        return linear(layer, f"{at}.down_proj", gate / (1 + np.exp(-1.702 * gate)) * (up + 1))
    act = _ACTIVATIONS[config.get("hidden_activation") or config.get("hidden_act", "silu")]
    up = linear(layer, f"{at}.up_proj", x)
    has_gate = f"{at}.gate_proj.weight" in layer
    hidden = act(linear(layer, f"{at}.gate_proj", x)) * up if has_gate else act(up)
    return linear(layer, f"{at}.down_proj", hidden)


def _gelu(x: Array) -> Array:
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def gelu_tanh(x: Array) -> Array:
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


_ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": _gelu,
    "gelu_pytorch_tanh": gelu_tanh,
}
