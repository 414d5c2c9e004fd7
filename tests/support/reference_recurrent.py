"""Recurrent layers in NumPy float64: a recurrence row by row, without anchors or chunks; or a
convolution alone."""

import numpy as np

from specqd.config import DecoderConfig
from specqd.config.recurrent import DeltaConfig
from specqd.config.tensor_names import TensorNames
from support.reference_feed_forward import Weights, linear
from support.reference_positions import Array

L2_EPSILON = 1e-6


def recurrent(config: DecoderConfig, names: TensorNames, layer: Weights, x: Array) -> Array:
    """The layer's output before it is added to the residual stream; x is [n, hidden]."""
    at = f"{names.recurrent}."
    own = {n.removeprefix(at): weight for n, weight in layer.items() if n.startswith(at)}
    if isinstance(config.recurrent, DeltaConfig):
        return _delta_net(config.recurrent, config.norm_eps, names, own, x)
    before, after, values = np.split(linear(own, names.recurrent_inputs[0], x), 3, axis=1)
    taps = own[f"{names.convolution}.weight"]
    bias = own.get(f"{names.convolution}.bias", np.zeros(1))
    return linear(own, "out_proj", after * (_convolve(before * values, taps) + bias))


def _delta_net(
    delta: DeltaConfig, eps: float, names: TensorNames, layer: Weights, x: Array
) -> Array:
    n, keys = len(x), delta.key_heads * delta.key_dim
    qkv, z, b, a = _inputs(delta, names, layer)
    mixed = _convolve(x @ qkv.T, layer[f"{names.convolution}.weight"])
    mixed = mixed * _sigmoid(mixed)  # SiLU
    q, k, v = np.split(mixed, (keys, 2 * keys), axis=1)
    q, k = (_unit(part.reshape(n, delta.key_heads, delta.key_dim)) for part in (q, k))
    q, k = (np.repeat(part, delta.value_heads // delta.key_heads, axis=1) for part in (q, k))
    v = v.reshape(n, delta.value_heads, delta.value_dim)
    steps = np.logaddexp(0, x @ a.T + layer["dt_bias"])
    decay = np.exp(-np.exp(layer["A_log"]) * steps)
    out = _recur(q / np.sqrt(delta.key_dim), k, v, _sigmoid(x @ b.T), decay)
    out /= np.sqrt((out**2).mean(axis=-1, keepdims=True) + eps)
    gates = (x @ z.T).reshape(out.shape)
    gated = out * layer["norm.weight"] * gates * _sigmoid(gates)
    return linear(layer, "out_proj", gated.reshape(n, -1))


def _inputs(delta: DeltaConfig, names: TensorNames, layer: Weights) -> list[Array]:
    """Weights of queries, keys and values; of gates, betas and rates. Those that are fused by key
    head are split."""
    modules = (*names.recurrent_inputs, *names.recurrent_rates)
    weights = [layer[f"{name}.weight"] for name in modules]
    if len(weights) == 4:
        return weights
    group = delta.value_heads // delta.key_heads
    ends = np.cumsum([delta.key_dim, delta.key_dim, group * delta.value_dim])
    inputs, rates = (weight.reshape(delta.key_heads, -1, weight.shape[1]) for weight in weights)
    parts = [*np.split(inputs, ends, axis=1), *np.split(rates, 2, axis=1)]
    q, k, v, z, b, a = (part.reshape(-1, part.shape[2]) for part in parts)
    return [np.concatenate([q, k, v]), z, b, a]


def _recur(q: Array, k: Array, v: Array, beta: Array, decay: Array) -> Array:
    """S = decay S; S += k (beta (v - S' k))'; the output is S' q. All are [n, heads, ...]."""
    state = np.zeros((v.shape[1], k.shape[2], v.shape[2]))
    out = np.empty_like(v)
    for t in range(len(v)):
        state *= decay[t, :, None, None]
        update = beta[t, :, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
        state += k[t, :, :, None] * update[:, None, :]
        out[t] = np.einsum("hkv,hk->hv", state, q[t])
    return out


def _convolve(x: Array, taps: Array) -> Array:
    """A causal convolution by channel; x is [n, channels], taps [channels, 1, taps]."""
    count = taps.shape[2]
    padded = np.concatenate([np.zeros((count - 1, x.shape[1])), x])
    return np.asarray(sum(padded[j : j + len(x)] * taps[:, 0, j] for j in range(count)))


def _unit(x: Array) -> Array:
    return x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + L2_EPSILON)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))
