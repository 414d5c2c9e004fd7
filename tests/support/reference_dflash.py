"""DFlash (arXiv 2602.06036) and DFlash2 drafters in NumPy float64; only weights and features are
rounded, unless `rounded` also rounds the inputs of products, keys and values.

Knows nothing of caches, batches or of how much of a context is computed at once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specqd.config.dflash import BlockConfig
from support.reference_feed_forward import Weights, linear, rms_norm
from support.reference_positions import Array, frequencies_of


def _unrounded(values: Array) -> Array:
    return values


@dataclass(frozen=True, slots=True)
class Drafter:
    """A drafter's weights by name, and the embedding and output head that it uses."""

    config: BlockConfig
    weights: Weights
    embedding: Array  # [vocabulary, hidden]
    output_head: Array  # [tokens, hidden]
    rounded: Callable[[Array], Array] = _unrounded

    def block(self, features: Array, tokens: Sequence[int], first: int = 0) -> Array:
        """Logits of each row of a block, [rows, tokens], after a context of `features`, [n, taps *
        hidden], at the positions from `first` on."""
        layers = self.config.layers
        hidden = self.rounded(self.hidden(features, tokens, first))
        logits = hidden @ self.output_head.T * layers.logit_scale
        cap = layers.logit_softcap
        return logits if cap is None else cap * np.tanh(logits / cap)

    def selected(self, logits: Array, hidden: Array, previous: int) -> Array:
        """The logits of a row from which the token after `previous` is taken: -infinity for all
        but the candidates. `hidden` is the row of `hidden()`."""
        selector = self.config.selector
        assert selector is not None
        best = np.argsort(-logits, kind="stable")[: selector.candidates]
        at, weights = "candidate_selector.", self.weights
        before = weights[f"{at}predecessor_codebook"][previous]
        gates = before * linear(weights, f"{at}hidden_projection", hidden)
        found = np.full(len(logits), -np.inf)
        found[best] = logits[best] + weights[f"{at}successor_codebook"][best] @ gates
        return found

    def hidden(self, features: Array, tokens: Sequence[int], first: int = 0) -> Array:
        """The inputs of the output head, [rows, hidden]."""
        layers, weights = self.config.layers, self.weights
        start = first + len(features)
        context = self._norm("hidden_norm", self._linear(weights, "fc", features))
        x = self.embedding[np.asarray(tokens)] * layers.embedding_scale
        for index in range(layers.num_layers):
            at = f"layers.{index}."
            own = {n.removeprefix(at): w for n, w in weights.items() if n.startswith(at)}
            a = self._norm(f"{at}input_layernorm", x)
            a, around = self._convolved(own, "attention_conv", a)
            mixed = self._attention(own, index, context, a, start)
            x = x + around(self._linear(own, "self_attn.o_proj", mixed))
            b = self._norm(f"{at}post_attention_layernorm", x)
            b, around = self._convolved(own, "mlp_conv", b)
            gate = self._linear(own, "mlp.gate_proj", b)
            gated = gate / (1 + np.exp(-gate)) * self._linear(own, "mlp.up_proj", b)
            x = x + around(self._linear(own, "mlp.down_proj", gated))
        return self._norm("norm", x)

    def _convolved(
        self, own: Weights, name: str, x: Array
    ) -> tuple[Array, Callable[[Array], Array]]:
        """The convolution of `x`, [rows, hidden], and that of what is made of it."""
        config = self.config.layers.dynamic_convolution
        if config is None:
            return x, lambda y: y
        taps, (rows, hidden) = config.taps, x.shape
        dynamic = self._linear(own, f"{name}.kernel_projection", x).reshape(rows, 2, taps, -1)
        kernels = own[f"{name}.base_kernel"] + dynamic.repeat(config.group, axis=-1)

        def convolve(side: int, y: Array) -> Array:
            padded = np.concatenate([np.zeros((taps, hidden)), y])
            earlier = [padded[taps - tap :][:rows] for tap in range(taps)]
            return np.einsum("rtc,trc->rc", kernels[:, side], np.stack(earlier))

        return convolve(0, x), lambda y: convolve(1, y)

    def _linear(self, own: Weights, name: str, x: Array) -> Array:
        return linear(own, name, self.rounded(x))

    def _norm(self, name: str, x: Array) -> Array:
        return rms_norm(x, self.weights[f"{name}.weight"], self.config.layers.norm_eps)

    def _attention(
        self, own: Weights, index: int, context: Array, rows: Array, start: int
    ) -> Array:
        layers = self.config.layers
        heads, dim = layers.num_heads, layers.head_dim
        q = self._heads(own, index, "q", rows, start)
        first = start - len(context)
        k = np.concatenate(
            [
                self._heads(own, index, "k", part, at)
                for part, at in ((context, first), (rows, start))
            ]
        )
        v = self._linear(own, "self_attn.v_proj", np.concatenate([context, rows]))
        v = v.reshape(len(k), -1, dim)
        k, v = self.rounded(k), self.rounded(v)
        k, v = (np.repeat(part, heads // part.shape[1], axis=1) for part in (k, v))
        scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(dim)
        scores = np.where(self._is_visible(index, len(rows), len(k), start, first), scores, -np.inf)
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        return np.einsum("hts,shd->thd", shares, v).reshape(len(rows), -1)

    def _is_visible(self, index: int, rows: int, keys: int, start: int, first: int) -> Array:
        """The keys that a row sees: those of its window before it, and all of its block unless the
        layer is causal."""
        row, key = start + np.arange(rows)[:, None], first + np.arange(keys)
        window = self.config.layers.windows[index]
        seen = (key <= row) if self.config.layers.causal[index] else np.full((rows, keys), True)
        return seen & (key > row - window) if window else seen

    def _heads(self, own: Weights, index: int, kind: str, x: Array, start: int) -> Array:
        """Queries or keys, normalised and rotated: [n, heads, head_dim]."""
        layers, norm = self.config.layers, f"self_attn.{kind}_norm.weight"
        y = self._linear(own, f"self_attn.{kind}_proj", x).reshape(len(x), -1, layers.head_dim)
        if norm in own:
            y = rms_norm(y, own[norm], layers.norm_eps)
        rope = layers.ropes[index]
        assert rope is not None
        frequencies, scale = frequencies_of(rope, layers.head_dim)
        angles = (start + np.arange(len(x)))[:, None, None] * frequencies
        cos, sin = np.cos(angles) * scale, np.sin(angles) * scale
        first, second = np.split(y, 2, axis=-1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def drafter_of(
    config: BlockConfig, weights: Weights, embedding: Array, output_head: Array
) -> Drafter:
    """The drafter with its own embedding and output head, if it has them, or else the target's."""
    own: Mapping[str, Array] = weights
    return Drafter(
        config,
        weights,
        own.get("embed_tokens.weight", embedding),
        own.get("lm_head.weight", output_head),
    )
