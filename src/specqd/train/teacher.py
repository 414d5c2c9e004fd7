"""What a head learns from the model: features and logits of a text, and weights to begin with.

Read text by text, so memory does not grow with the number of texts. Knows no torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specqd._native import Context, Rows
from specqd.errors import RequestError
from specqd.formats.bf16 import widened
from specqd.model.model import Model
from specqd.model.tensor_names import names_of
from specqd.train.settings import TrainSettings
from specqd.train.vocabulary import Ids

Floats = NDArray[np.float32]
_MOST_LOGITS = 1 << 23  # of one forward: 32 MiB


@dataclass(frozen=True, slots=True)
class Lesson:
    """One text of n tokens as the model reads it."""

    features: Floats  # [n, taps * hidden]
    logits: Floats  # [n, the head's tokens]: after each token
    is_known: NDArray[np.bool_]  # [n]: whether the head has the likeliest token


class Teacher:
    """The model, seen through the taps and the tokens of a head."""

    def __init__(self, model: Model, settings: TrainSettings, ids: Ids | None) -> None:
        """`ids` are the model's ids of the head's tokens; None: all."""
        self.model = model
        self.settings = settings
        self.ids = ids
        size = (model.config.vocab_size, model.config.hidden_size)
        self._source, self._names = model.weights.tensors, names_of(model.config)
        embedding = f"{self._names.embedding}.weight"
        if embedding not in self._source:
            raise RequestError(
                f"{self._source.path}: the weights are packed; train a head of the model that they "
                "were packed from"
            )
        self._embedding = self._source.bf16(embedding, size)
        head = f"{self._names.head}.weight"
        self._head = self._source.bf16(head, size) if head in self._source else self._embedding

    def lesson(self, tokens: Sequence[int]) -> Lesson:
        """Forwards the text once; reads features and logits of all rows."""
        model, decoder = self.model, self.model.decoder
        most = max(1, min(model.max_rows, _MOST_LOGITS // model.config.vocab_size))
        features, logits, best = [], [], []
        before, slot = decoder.tapped, model.cache.create()
        decoder.tap(list(self.settings.taps))
        try:
            context = Context(slot)
            for first in range(0, len(tokens), most):
                part = list(tokens[first : first + most])
                model.forward([Rows(context, first, part, len(part))])
                features.append(widened(decoder.taps()).reshape(len(part), -1))
                rows = decoder.logits()
                best.append(rows.argmax(1))
                logits.append(rows.copy() if self.ids is None else rows[:, self.ids])
        finally:
            decoder.tap(before)
            model.cache.release(slot)
        likeliest = np.concatenate(best)
        known = np.ones(len(tokens), bool) if self.ids is None else np.isin(likeliest, self.ids)
        return Lesson(np.concatenate(features), np.concatenate(logits), known)

    def embeddings(self, tokens: Sequence[int]) -> Floats:
        """Rows of the model's embedding: [n, hidden]."""
        return widened(self._embedding[np.asarray(tokens, np.int64)])

    def head_rows(self) -> Floats:
        """The output's rows of the head's tokens: [tokens, hidden]."""
        return widened(self._head if self.ids is None else self._head[self.ids])

    def beginning(self) -> dict[str, Floats]:
        """The last layer's feed forward and output, and the final norm, by a head's names.

        Left out is what a family does not have in that form.
        """
        config, names = self.model.config, self._names
        last, hidden = config.num_layers - 1, config.hidden_size
        at, ffn = f"{names.layers}.{last}.", config.feed_forward_size(last)
        queries = config.num_heads * config.attention(last).head_dim
        shapes = {
            "midlayer.self_attn.o_proj": (f"{at}{names.output}", (hidden, queries)),
            "midlayer.mlp.gate_proj": (f"{at}{names.gate_up[0]}", (ffn, hidden)),
            "midlayer.mlp.up_proj": (f"{at}{names.gate_up[-1]}", (ffn, hidden)),
            "midlayer.mlp.down_proj": (f"{at}{names.down}", (hidden, ffn)),
        }
        if config.attention(last).head_dim != config.head_dim:
            del shapes["midlayer.self_attn.o_proj"]
        found: dict[str, Floats] = {}
        if config.is_gated and config.experts is None and len(names.gate_up) == 2:
            for name, (theirs, shape) in shapes.items():
                if f"{theirs}.weight" in self._source:
                    found[f"{name}.weight"] = self._source.f32(f"{theirs}.weight", shape)
        if config.norm == "rms" and f"{names.final_norm}.weight" in self._source:
            norm = self._source.f32(f"{names.final_norm}.weight", (hidden,))
            found["norm.weight"] = norm + np.float32(config.norm_offset)
        return _narrowed(found, self.settings.ffn)


def _narrowed(weights: dict[str, Floats], ffn: int) -> dict[str, Floats]:
    """Keeps the `ffn` units of the feed forward with the largest weights."""
    gate, up, down = (weights.get(f"midlayer.mlp.{name}_proj.weight") for name in _UNITS)
    if gate is None or up is None or down is None or len(up) < ffn:
        return {name: value for name, value in weights.items() if ".mlp." not in name}
    size = np.linalg.norm(up, axis=1) * np.linalg.norm(down, axis=0)
    kept = np.sort(np.argsort(-size, kind="stable")[:ffn])
    units = {"gate": gate[kept], "up": up[kept], "down": down[:, kept]}
    narrow = {
        f"midlayer.mlp.{name}_proj.weight": np.ascontiguousarray(units[name]) for name in units
    }
    return weights | narrow


_UNITS = ("gate", "up", "down")
