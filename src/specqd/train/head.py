"""An EAGLE-3 head in torch, whose parameters have SpecForge's names. Knows no files."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from specqd.config import DecoderConfig
from specqd.train.settings import TrainSettings

_DEVIATION = 0.02  # of random weights
ROPE_THETA = 10000.0


class _Norm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self._eps))


def _linear(columns: int, rows: int) -> nn.Linear:
    made = nn.Linear(columns, rows, bias=False)
    nn.init.normal_(made.weight, std=_DEVIATION)
    return made


@dataclass(slots=True)
class Past:
    """Keys and values [batch, kv heads, n, head_dim] of the rows with true features, and of each
    row's own guesses."""

    keys: list[Tensor]
    values: list[Tensor]


class _Attention(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self._dim, self._groups = config.head_dim, config.num_heads // config.num_kv_heads
        queries, keys = config.num_heads * self._dim, config.num_kv_heads * self._dim
        self.q_proj = _linear(2 * config.hidden_size, queries)
        self.k_proj = _linear(2 * config.hidden_size, keys)
        self.v_proj = _linear(2 * config.hidden_size, keys)
        self.o_proj = _linear(queries, config.hidden_size)

    def forward(self, pairs: Tensor, step: int, past: Past) -> Tensor:
        """Row t of step i attends to the rows 0 to t with true features, and to its own guesses of
        steps 1 to i."""
        batch, count, _ = pairs.shape
        q, k, v = (
            project(pairs).view(batch, count, -1, self._dim).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = _rotated(q, step), _rotated(k, step)
        past.keys.append(k.repeat_interleave(self._groups, 1))
        past.values.append(v.repeat_interleave(self._groups, 1))
        q = q * self._dim**-0.5
        ahead = torch.ones(count, count, dtype=torch.bool).triu(1)
        scores = (q @ past.keys[0].transpose(2, 3)).masked_fill(ahead, -torch.inf)
        own = [(q * keys).sum(-1, keepdim=True) for keys in past.keys[1:]]
        shares = torch.cat([scores, *own], -1).softmax(-1)
        mixed = shares[..., :count] @ past.values[0]
        for at, values in enumerate(past.values[1:], count):
            mixed = mixed + shares[..., at : at + 1] * values
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, count, -1))


def _rotated(x: Tensor, first: int) -> Tensor:
    """Rotates halves of each head; row t is at position t + first."""
    half = x.shape[-1] // 2
    inverse = ROPE_THETA ** (-torch.arange(half, dtype=torch.float32) / half)
    angles = (torch.arange(x.shape[2], dtype=torch.float32) + first)[:, None] * inverse
    cos, sin = angles.cos(), angles.sin()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class _FeedForward(nn.Module):
    def __init__(self, width: int, ffn: int) -> None:
        super().__init__()
        self.gate_proj = _linear(width, ffn)
        self.up_proj = _linear(width, ffn)
        self.down_proj = _linear(ffn, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


class _Layer(nn.Module):
    def __init__(self, config: DecoderConfig, ffn: int) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.norm_eps
        self.input_layernorm = _Norm(width, eps)
        self.hidden_norm = _Norm(width, eps)
        self.self_attn = _Attention(config)
        self.post_attention_layernorm = _Norm(width, eps)
        self.mlp = _FeedForward(width, ffn)

    def forward(self, hidden: Tensor, embedding: Tensor, step: int, past: Past) -> Tensor:
        pairs = torch.cat([self.input_layernorm(embedding), self.hidden_norm(hidden)], -1)
        hidden = hidden + self.self_attn(pairs, step, past)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class TorchHead(nn.Module):
    """A head of the model with that configuration; without tokens of its own, `lm_head` is None."""

    def __init__(self, config: DecoderConfig, settings: TrainSettings) -> None:
        super().__init__()
        width = config.hidden_size
        self.fc = _linear(len(settings.taps) * width, width)
        self.midlayer = _Layer(config, settings.ffn)
        self.norm = _Norm(width, config.norm_eps)
        own = settings.vocabulary
        self.lm_head = None if own is None else _linear(width, own)
        with torch.no_grad():  # begins with the last residual
            self.fc.weight.zero_()
            self.fc.weight[:, -width:] = torch.eye(width)

    def forward(self, features: Tensor, embeddings: list[Tensor]) -> list[Tensor]:
        """Normed rows [batch, n, hidden] of each step: training-time test.

        features: [batch, n, taps * hidden].
        embeddings: by step, [batch, n, hidden]: of the token behind each feature, and of those
            behind that one.
        """
        hidden, past, normed = self.fc(features), Past([], []), []
        for step, embedding in enumerate(embeddings):
            hidden = self.midlayer(hidden, embedding, step, past)
            normed.append(self.norm(hidden))
        return normed
