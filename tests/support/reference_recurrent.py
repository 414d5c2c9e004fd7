"""Recurrent layers in NumPy float64: a recurrence row by row, without anchors or chunks; or a
convolution alone."""

from collections.abc import Mapping

import numpy as np

from support.reference_positions import Array, Config

L2_EPSILON = 1e-6


def is_recurrent(layer: Mapping[str, Array]) -> bool:
    return "linear_attn.A_log" in layer or "conv.conv.weight" in layer


def recurrent(config: Config, layer: Mapping[str, Array], x: Array) -> Array:
    """The layer's output before it is added to the residual stream; x is [n, hidden]."""
    return (_gated_convolution if "conv.conv.weight" in layer else _delta_net)(config, layer, x)


def _gated_convolution(config: Config, layer: Mapping[str, Array], x: Array) -> Array:
    def bias(name: str) -> Array:
        return layer.get(f"conv.{name}.bias", np.zeros(1))

    mixed = x @ layer["conv.in_proj.weight"].T + bias("in_proj")
    before, after, values = np.split(mixed, 3, axis=1)
    convolved = _convolve(before * values, layer["conv.conv.weight"]) + bias("conv")
    return after * convolved @ layer["conv.out_proj.weight"].T + bias("out_proj")


def _delta_net(config: Config, layer: Mapping[str, Array], x: Array) -> Array:
    key_heads, value_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    key_dim, value_dim = config["linear_key_head_dim"], config["linear_value_head_dim"]
    n, keys = len(x), key_heads * key_dim
    weights = _linears(config, layer)
    mixed = _convolve(x @ weights["in_proj_qkv"].T, layer["linear_attn.conv1d.weight"])
    mixed = mixed * _sigmoid(mixed)  # SiLU
    q, k, v = np.split(mixed, (keys, 2 * keys), axis=1)
    q, k = (_unit(part.reshape(n, key_heads, key_dim)) for part in (q, k))
    q, k = (np.repeat(part, value_heads // key_heads, axis=1) for part in (q, k))
    v = v.reshape(n, value_heads, value_dim)
    beta = _sigmoid(x @ weights["in_proj_b"].T)
    steps = np.logaddexp(0, x @ weights["in_proj_a"].T + layer["linear_attn.dt_bias"])
    decay = np.exp(-np.exp(layer["linear_attn.A_log"]) * steps)
    out = _recur(q / np.sqrt(key_dim), k, v, beta, decay)
    out /= np.sqrt((out**2).mean(axis=-1, keepdims=True) + config["rms_norm_eps"])
    z = (x @ weights["in_proj_z"].T).reshape(out.shape)
    gated = out * layer["linear_attn.norm.weight"] * z * _sigmoid(z)
    return gated.reshape(n, -1) @ weights["out_proj"].T


_LINEARS = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")


def _linears(config: Config, layer: Mapping[str, Array]) -> dict[str, Array]:
    """The weights of linears; those that are fused by key head are taken apart."""
    if "linear_attn.in_proj_qkvz.weight" not in layer:
        return {name: layer[f"linear_attn.{name}.weight"] for name in _LINEARS}
    heads, key_dim = config["linear_num_key_heads"], config["linear_key_head_dim"]
    group = config["linear_num_value_heads"] // heads
    ends = np.cumsum([key_dim, key_dim, group * config["linear_value_head_dim"]])
    fused = {name: layer[f"linear_attn.in_proj_{name}.weight"] for name in ("qkvz", "ba")}
    by_head = {name: w.reshape(heads, -1, w.shape[1]) for name, w in fused.items()}
    parts = [*np.split(by_head["qkvz"], ends, axis=1), *np.split(by_head["ba"], 2, axis=1)]
    q, k, v, z, b, a = (part.reshape(-1, part.shape[2]) for part in parts)
    split = {"in_proj_qkv": np.concatenate([q, k, v]), "in_proj_z": z}
    rest = {"in_proj_b": b, "in_proj_a": a, "out_proj": layer["linear_attn.out_proj.weight"]}
    return split | rest


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
