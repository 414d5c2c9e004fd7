"""A DFlash or DFlash2 drafter that learns, and the model that teaches it.

Knows no texts, losses or schedules: those are train_dflash.py's.
"""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn.functional import linear, pad, scaled_dot_product_attention, silu
from transformers import AutoModelForCausalLM

Tensor = torch.Tensor
SELECTOR = "candidate_selector"
LAYERS = 3
TAPS = (2, 4, 5, 6, 7)  # boundaries of the model's layers
CONVOLUTION_TAPS, GROUP = 2, 16  # of DFlash2: rows that a convolution sums, channels of a group
RANK, CANDIDATES = 64, 16  # of DFlash2's selector


class Teacher:
    """The model: the features that the drafter reads, and the tokens that it should predict."""

    def __init__(self, directory: Path, dtype: torch.dtype) -> None:
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)
        self.model = model.to(torch.get_default_device())
        self.config = self.model.config
        self.weights: dict[str, Tensor] = {
            name: tensor.float() for name, tensor in self.model.state_dict().items()
        }

    def read(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Features [n, length, taps * hidden], and logits [n, length, vocabulary]."""
        with torch.no_grad():
            out = self.model(tokens, use_cache=False, output_hidden_states=True)
        return torch.cat([out.hidden_states[tap] for tap in TAPS], -1).float(), out.logits


class Drafter:
    """A drafter that learns: many blocks of each text at once."""

    def __init__(
        self,
        teacher: Teacher,
        mask: int,
        block: int,
        earlier: dict[str, Tensor],
        is_dflash2: bool,
    ) -> None:
        self.config, self.mask, self.block = teacher.config, mask, block
        self.is_dflash2 = is_dflash2 or f"{SELECTOR}.predecessor_codebook" in earlier
        theirs = teacher.weights
        self.embedding = theirs["model.embed_tokens.weight"]
        self.head = theirs.get("lm_head.weight", self.embedding)
        hidden = self.config.hidden_size
        self.w = {
            "norm.weight": theirs["model.norm.weight"],
            "hidden_norm.weight": theirs[f"model.layers.{TAPS[0]}.input_layernorm.weight"],
            "fc.weight": torch.cat([torch.eye(hidden) * (tap == TAPS[0]) for tap in TAPS], 1),
        }
        for layer in range(LAYERS):
            at = f"model.layers.{layer}."
            found = [name for name in theirs if name.startswith(at)]
            self.w |= {f"layers.{layer}.{name.removeprefix(at)}": theirs[name] for name in found}
        if self.is_dflash2:
            self.w |= self._parts_of_dflash2(hidden)
        self.w |= {name: tensor.float() for name, tensor in earlier.items()}
        self.w = {name: tensor.clone().requires_grad_() for name, tensor in self.w.items()}

    def _parts_of_dflash2(self, hidden: int) -> dict[str, Tensor]:
        """Convolutions that change nothing, and a selector."""
        base = torch.zeros(2, CONVOLUTION_TAPS, hidden)
        base[:, 0] = 1
        projection = torch.zeros(2 * CONVOLUTION_TAPS * hidden // GROUP, hidden)
        parts: dict[str, Tensor] = {}
        for layer in range(LAYERS):
            for name in ("attention_conv", "mlp_conv"):
                at = f"layers.{layer}.{name}"
                parts[f"{at}.base_kernel"] = base
                parts[f"{at}.kernel_projection.weight"] = projection
        vocabulary = self.config.vocab_size
        parts[f"{SELECTOR}.hidden_projection.weight"] = torch.randn(RANK, hidden) / hidden**0.5
        for name in ("predecessor", "successor"):
            parts[f"{SELECTOR}.{name}_codebook"] = 0.1 * torch.randn(vocabulary, RANK)
        return parts

    def convolved(self, x: Tensor, at: str) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The convolution of a part's inputs, [n, rows, hidden], and that of its outputs."""
        if not self.is_dflash2:
            return x, lambda y: y
        sizes = (2, CONVOLUTION_TAPS, -1)
        dynamic = self.linear(x, f"{at}.kernel_projection").unflatten(-1, sizes)
        kernels = self.w[f"{at}.base_kernel"] + dynamic.repeat_interleave(GROUP, -1)

        def convolve(side: int, y: Tensor) -> Tensor:
            rows = y.unflatten(1, (-1, self.block))
            parts = (
                kernels[:, :, side, tap]
                * pad(rows, (0, 0, tap, 0))[:, :, : self.block].flatten(1, 2)
                for tap in range(CONVOLUTION_TAPS)
            )
            return sum(parts, torch.zeros(()))

        return convolve(0, x), lambda y: convolve(1, y)

    def norm(self, x: Tensor, name: str) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.config.rms_norm_eps)
        return wide * scale * self.w[f"{name}.weight"]

    def linear(self, x: Tensor, name: str) -> Tensor:
        return linear(x, self.w[f"{name}.weight"])

    def heads(self, x: Tensor, name: str, positions: Tensor | None) -> Tensor:
        """[n, rows, hidden] -> [n, heads, rows, head_dim]; rotated if positions [n, rows] are
        given."""
        dim = self.config.head_dim
        made = self.linear(x, name).unflatten(-1, (-1, dim)).transpose(1, 2)
        if positions is None:
            return made
        theta = self.config.rope_parameters["rope_theta"]
        frequencies = theta ** (-torch.arange(dim // 2) / (dim // 2))
        angles = positions[:, None, :, None] * frequencies
        a, b = made.float().chunk(2, -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(made.dtype)

    def logits(
        self, features: Tensor, tokens: Tensor, anchors: Tensor, is_selected: bool = True
    ) -> Tensor:
        """The logits of blocks, [n, blocks, block - 1, vocabulary]: with a selector, what it adds
        after the text's own tokens is part of them, for candidates and other tokens alike. anchors:
        the positions of their newest tokens, [n, blocks]."""
        (n, length), blocks, size = tokens.shape, anchors.shape[1], self.block
        context = self.norm(self.linear(features, "fc"), "hidden_norm")
        x = self.embedding[self.mask].expand(n, blocks, size, -1).clone()
        x[:, :, 0] = self.embedding[tokens.gather(1, anchors)]
        x = x.flatten(1, 2)
        rows = (anchors[..., None] + torch.arange(size)).flatten(1)
        keys = torch.arange(length).expand(n, -1)
        before = keys[:, None] < anchors.repeat_interleave(size, 1)[..., None]
        block = torch.arange(blocks).repeat_interleave(size)
        same = (block[:, None] == block).expand(n, -1, -1)
        seen = torch.cat([before, same], -1)[:, None]
        for layer in range(LAYERS):
            at = f"layers.{layer}."
            a, around = self.convolved(self.norm(x, f"{at}input_layernorm"), f"{at}attention_conv")
            own = f"{at}self_attn."
            q = self.heads(a, f"{own}q_proj", rows)
            k, v = (
                torch.cat([self.heads(context, name, where), self.heads(a, name, whose)], 2)
                for name, where, whose in (
                    (f"{own}k_proj", keys, rows),
                    (f"{own}v_proj", None, None),
                )
            )
            k, v = (part.repeat_interleave(q.shape[1] // k.shape[1], 1) for part in (k, v))
            mixed = scaled_dot_product_attention(q, k, v, attn_mask=seen)
            x = x + around(self.linear(mixed.transpose(1, 2).flatten(2), f"{own}o_proj"))
            b = self.norm(x, f"{at}post_attention_layernorm")
            b, around = self.convolved(b, f"{at}mlp_conv")
            gate = silu(self.linear(b, f"{at}mlp.gate_proj"))
            made = self.linear(gate * self.linear(b, f"{at}mlp.up_proj"), f"{at}mlp.down_proj")
            x = x + around(made)
        last = self.norm(x, "norm").unflatten(1, (blocks, size))[:, :, 1:]
        # torch multiplies a view of a part as many small matrices, which is slow.
        flat = last.flatten(0, 2)
        logits = linear(flat, self.head)
        if self.is_dflash2 and is_selected:
            known = (anchors[..., None] + torch.arange(size - 1)).flatten(1)
            gates = self.w[f"{SELECTOR}.predecessor_codebook"][tokens.gather(1, known).flatten()]
            gates = gates * self.linear(flat, f"{SELECTOR}.hidden_projection")
            logits = logits + linear(gates, self.w[f"{SELECTOR}.successor_codebook"])
        return logits.unflatten(0, (n, blocks, size - 1))

    def write(self, out: Path) -> None:
        """Writes the drafter as z-lab's are."""
        theirs = self.config
        parts = {
            "conv_kernel_size": CONVOLUTION_TAPS,
            "conv_group_size": GROUP,
            "selector_rank": RANK,
            "selector_top_k": CANDIDATES,
        }
        config = {
            "architectures": ["DFlash2DraftModel" if self.is_dflash2 else "DFlashDraftModel"],
            "model_type": "qwen3",
            "hidden_size": theirs.hidden_size,
            "intermediate_size": theirs.intermediate_size,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": theirs.num_attention_heads,
            "num_key_value_heads": theirs.num_key_value_heads,
            "head_dim": theirs.head_dim,
            "rms_norm_eps": theirs.rms_norm_eps,
            "rope_theta": theirs.rope_parameters["rope_theta"],
            "max_position_embeddings": theirs.max_position_embeddings,
            "vocab_size": theirs.vocab_size,
            "num_target_layers": theirs.num_hidden_layers,
            "block_size": self.block,
            "dflash_config": {
                "mask_token_id": self.mask,
                "target_layer_ids": [tap - 1 for tap in TAPS],
                **(parts if self.is_dflash2 else {}),
            },
        }
        (out / "config.json").write_text(json.dumps(config, indent=1))
        tensors = {name: each.detach().to(torch.bfloat16) for name, each in self.w.items()}
        save_file(tensors, out / ".unfinished")
        (out / ".unfinished").replace(out / "model.safetensors")
