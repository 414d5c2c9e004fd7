"""Trains a DFlash drafter for a small Llama, so that acceptance can prove how ours reads one.

    python parity/train_dflash.py MODEL OUT --minutes 50 [--second]

The texts are the sources of Python's standard library. Every twentieth file is held out: OUT gets
prompts of those (prompts.jsonl) for `specqd bench head`. The drafter begins with the model's first
layers; its embedding and output head are the model's and stay as they are. OUT is written again
every few minutes, so a training that was stopped leaves a drafter. If OUT has a drafter, the
training continues from that one. With --second it becomes a DFlash2 drafter: it gets convolutions,
which change nothing at first, and a selector.
"""

import argparse
import json
import math
import sys
import sysconfig
import timeit
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, process_time

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch.nn.functional import linear, log_softmax, pad, scaled_dot_product_attention, silu
from transformers import AutoModelForCausalLM

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from dflash import Dflash

Tensor = torch.Tensor
SELECTOR = "candidate_selector"
LENGTH = 512  # tokens of a text
HELD_OUT = 20  # one file of so many
PROMPT_CHARACTERS = 800
LAYERS, BLOCK = 3, 4
TAPS = (2, 4, 5, 6, 7)  # boundaries of the model's layers
ANCHORS = 128  # blocks of a text, new in each step
FADE = 2.0  # places after which a place weighs e times less
CONVOLUTION_TAPS, GROUP = 2, 16  # of DFlash2: rows that a convolution sums, channels of a group
RANK, CANDIDATES = 64, 16  # of DFlash2's selector
RATE, WARMUP, CLIP = 1e-3, 0.04, 1.0
SAVE_SECONDS = 480.0


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts of `LENGTH` tokens, each with the id that begins a text; prompts of held-out files."""

    learned: Tensor
    held_out: Tensor
    prompts: list[str]

    @classmethod
    def read(cls, model: Path) -> "Texts":
        root = Path(sysconfig.get_paths()["stdlib"])
        others = {"site-packages", "test", "tests", "idle_test", "lib2to3"}
        files = sorted(file for file in root.rglob("*.py") if not others & {*file.parts})
        sources = [file.read_text("utf-8", "replace") for file in files]
        tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        held_out = sources[::HELD_OUT]
        prompts = [text[:PROMPT_CHARACTERS] for text in held_out if len(text) > 2000]
        learned = [text for i, text in enumerate(sources) if i % HELD_OUT]
        return cls(_pieces(tokenizer, learned), _pieces(tokenizer, held_out), prompts)

    def unused(self, vocabulary: int) -> int:
        """The last id that no text has."""
        used = {*self.learned.unique().tolist(), *self.held_out.unique().tolist()}
        return max(token for token in range(vocabulary) if token not in used)


def _pieces(tokenizer: Tokenizer, sources: Sequence[str]) -> Tensor:
    pieces: list[list[int]] = []
    for encoding in tokenizer.encode_batch(sources, add_special_tokens=False):
        ids = encoding.ids
        starts = range(0, len(ids) - LENGTH + 2, LENGTH - 1)
        pieces += [[0, *ids[first : first + LENGTH - 1]] for first in starts]
    return torch.tensor(pieces)


def faster_dtype() -> torch.dtype:
    """BF16 or float32: processors without products of BF16 take ten times as long with it."""

    def seconds(dtype: torch.dtype) -> float:
        x = torch.ones(1024, 1024, dtype=dtype)
        return min(timeit.repeat(lambda: x @ x, number=1, repeat=5))

    return min(torch.float32, torch.bfloat16, key=seconds)


class Teacher:
    """The model: the features that the drafter reads, and the tokens that it should predict."""

    def __init__(self, directory: Path, dtype: torch.dtype) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)
        self.config = self.model.config
        self.weights: dict[str, Tensor] = {
            name: tensor.float() for name, tensor in self.model.state_dict().items()
        }

    def read(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Features [n, LENGTH, taps * hidden], and logits [n, LENGTH, vocabulary]."""
        with torch.no_grad():
            out = self.model(tokens, use_cache=False, output_hidden_states=True)
        return torch.cat([out.hidden_states[tap] for tap in TAPS], -1).float(), out.logits


class Drafter:
    """A drafter that learns: many blocks of each text at once."""

    def __init__(
        self, teacher: Teacher, mask: int, earlier: dict[str, Tensor], is_second: bool
    ) -> None:
        self.config, self.mask = teacher.config, mask
        self.is_second = is_second or f"{SELECTOR}.predecessor_codebook" in earlier
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
        if self.is_second:
            self.w |= self._parts_of_second(hidden)
        self.w |= {name: tensor.float() for name, tensor in earlier.items()}
        self.w = {name: tensor.clone().requires_grad_() for name, tensor in self.w.items()}

    def _parts_of_second(self, hidden: int) -> dict[str, Tensor]:
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
        if not self.is_second:
            return x, lambda y: y
        sizes = (2, CONVOLUTION_TAPS, -1)
        dynamic = self.linear(x, f"{at}.kernel_projection").unflatten(-1, sizes)
        kernels = self.w[f"{at}.base_kernel"] + dynamic.repeat_interleave(GROUP, -1)

        def convolve(side: int, y: Tensor) -> Tensor:
            rows = y.unflatten(1, (-1, BLOCK))
            parts = (
                kernels[:, :, side, tap] * pad(rows, (0, 0, tap, 0))[:, :, :BLOCK].flatten(1, 2)
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
        """The logits of blocks, [n, blocks, BLOCK - 1, vocabulary]: with a selector, what it adds
        after the text's own tokens is part of them, for candidates and other tokens alike. anchors:
        the positions of their newest tokens, [n, blocks]."""
        (n, length), blocks = tokens.shape, anchors.shape[1]
        context = self.norm(self.linear(features, "fc"), "hidden_norm")
        x = self.embedding[self.mask].expand(n, blocks, BLOCK, -1).clone()
        x[:, :, 0] = self.embedding[tokens.gather(1, anchors)]
        x = x.flatten(1, 2)
        rows = (anchors[..., None] + torch.arange(BLOCK)).flatten(1)
        keys = torch.arange(length).expand(n, -1)
        before = keys[:, None] < anchors.repeat_interleave(BLOCK, 1)[..., None]
        block = torch.arange(blocks).repeat_interleave(BLOCK)
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
        last = self.norm(x, "norm").unflatten(1, (blocks, BLOCK))[:, :, 1:]
        # torch multiplies a view of a part as many small matrices, which is slow.
        flat = last.flatten(0, 2)
        logits = linear(flat, self.head)
        if self.is_second and is_selected:
            known = (anchors[..., None] + torch.arange(BLOCK - 1)).flatten(1)
            gates = self.w[f"{SELECTOR}.predecessor_codebook"][tokens.gather(1, known).flatten()]
            gates = gates * self.linear(flat, f"{SELECTOR}.hidden_projection")
            logits = logits + linear(gates, self.w[f"{SELECTOR}.successor_codebook"])
        return logits.unflatten(0, (n, blocks, BLOCK - 1))

    def write(self, out: Path) -> None:
        """Writes the drafter as z-lab's are."""
        theirs = self.config
        second = {
            "conv_kernel_size": CONVOLUTION_TAPS,
            "conv_group_size": GROUP,
            "selector_rank": RANK,
            "selector_top_k": CANDIDATES,
        }
        config = {
            "architectures": ["DFlash2DraftModel" if self.is_second else "DFlashDraftModel"],
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
            "block_size": BLOCK,
            "dflash_config": {
                "mask_token_id": self.mask,
                "target_layer_ids": [tap - 1 for tap in TAPS],
                **(second if self.is_second else {}),
            },
        }
        (out / "config.json").write_text(json.dumps(config, indent=1))
        tensors = {name: each.detach().to(torch.bfloat16) for name, each in self.w.items()}
        save_file(tensors, out / ".unfinished")
        (out / ".unfinished").replace(out / "model.safetensors")


def draw_anchors(texts: int) -> Tensor:
    """Positions of newest tokens, [texts, ANCHORS], with the whole block inside the text."""
    most = LENGTH - BLOCK + 1
    return torch.stack([1 + torch.randperm(most - 1)[:ANCHORS] for _ in range(texts)])


def block_logits(teacher: Teacher, drafter: Drafter, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The drafter's logits of random blocks, and the teacher's of the same places."""
    anchors = draw_anchors(len(tokens))
    features, wanted = teacher.read(tokens)
    with torch.autocast("cpu", torch.bfloat16, enabled=teacher.model.dtype == torch.bfloat16):
        found = drafter.logits(features, tokens, anchors)
    at = (anchors[..., None] + torch.arange(BLOCK - 1)).flatten(1)
    theirs = wanted.gather(1, at[..., None].expand(-1, -1, wanted.shape[-1]))
    return found.float().flatten(1, 2), theirs.float()


def loss_of(found: Tensor, wanted: Tensor) -> Tensor:
    """Cross-entropy with the teacher's distributions; early places weigh more."""
    weights = torch.exp(-torch.arange(BLOCK - 1) / FADE)
    nats = -(wanted.softmax(-1) * log_softmax(found, -1)).sum(-1)
    return (nats.unflatten(1, (-1, BLOCK - 1)) * weights).mean((0, 1)).sum() / weights.sum()


def shares_of(found: Tensor, wanted: Tensor) -> Tensor:
    """By place: the share of blocks whose likeliest tokens are the teacher's up to that place."""
    agrees = (found.argmax(-1) == wanted.argmax(-1)).unflatten(1, (-1, BLOCK - 1))
    return agrees.cumprod(-1).float().mean((0, 1))


def batches(texts: Tensor, size: int) -> Iterator[Tensor]:
    """All texts once in each epoch, in new orders, without an end."""
    while True:
        for batch in texts[torch.randperm(len(texts))].split(size):
            if len(batch) == size:
                yield batch


def train(
    teacher: Teacher, drafter: Drafter, texts: Texts, out: Path, size: int, minutes: float
) -> None:
    optimiser = torch.optim.AdamW(drafter.w.values(), lr=RATE, betas=(0.9, 0.95), fused=True)
    begun, saved = process_time(), monotonic()
    recent: list[float] = []
    for step, tokens in enumerate(batches(texts.learned, size), 1):
        done = (process_time() - begun) / (60 * minutes * torch.get_num_threads())
        if done >= 1:
            break
        share = min(done / WARMUP, 1.0) * 0.5 * (1 + math.cos(math.pi * done))
        optimiser.param_groups[0]["lr"] = RATE * share
        loss = loss_of(*block_logits(teacher, drafter, tokens))
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(drafter.w.values(), CLIP)
        optimiser.step()
        recent = [*recent[-49:], loss.item()]
        if step % 10 == 1:
            print(
                f"{done:4.0%}: step {step}, {step * size * LENGTH / 1e6:.2f} M tokens, "
                f"{sum(recent) / len(recent):.3f} nats",
                flush=True,
            )
        if monotonic() - saved > SAVE_SECONDS:
            report(teacher, drafter, texts, out)
            saved = monotonic()
    report(teacher, drafter, texts, out)


def report(teacher: Teacher, drafter: Drafter, texts: Texts, out: Path) -> None:
    """Writes the drafter, and prints how often it is right along held-out texts."""
    drafter.write(out)
    with torch.no_grad():
        parts = [
            shares_of(*block_logits(teacher, drafter, tokens))
            for tokens in texts.held_out[:: len(texts.held_out) // 8].split(4)
        ]
    shares = torch.stack(parts).mean(0)
    listed = ", ".join(f"{share:.3f}" for share in shares.tolist())
    print(f"held out: {1 + shares.sum():.2f} tokens a block; by place {listed}", flush=True)


def check(teacher: Teacher, drafter: Drafter, model: Path, out: Path, tokens: Tensor) -> None:
    """Compares a block with that of the reference, which reads the files."""
    anchor = LENGTH // 2
    features, _ = teacher.read(tokens[None])
    reference = Dflash(out, model, torch.float32)
    wanted = reference.block(features[0, :anchor], int(tokens[anchor]), BLOCK)
    for name, tensor in drafter.w.items():
        tensor.data = reference.w[name]
    with torch.no_grad():
        found = drafter.logits(features, tokens[None], torch.tensor([[anchor]]), False)[0, 0]
    error = (found - wanted).norm() / wanted.norm()
    print(f"differs from the reference by {error:.1e} of the logits")
    assert error < 1e-4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="directory of a Llama")
    parser.add_argument("out", type=Path, help="directory of the drafter")
    parser.add_argument("--minutes", type=float, default=50.0, help="of work of all threads")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=4, help="texts of a step")
    parser.add_argument("--second", action="store_true", help="train a DFlash2 drafter")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    path = args.out / "model.safetensors"
    earlier = load_file(path) if path.exists() else {}
    if earlier:
        torch.seed()  # other texts and places than the last time
    else:
        torch.manual_seed(0)
    args.out.mkdir(parents=True, exist_ok=True)
    texts, teacher = Texts.read(args.model), Teacher(args.model, faster_dtype())
    prompts = (json.dumps({"prompt": prompt}) + "\n" for prompt in texts.prompts)
    (args.out / "prompts.jsonl").write_text("".join(prompts))
    unused = texts.unused(teacher.config.vocab_size)
    drafter = Drafter(teacher, unused, earlier, args.second)
    print(f"{len(texts.learned)} texts to learn, {len(texts.held_out)} held out", flush=True)
    train(teacher, drafter, texts, args.out, args.batch, args.minutes)
    check(teacher, drafter, args.model, args.out, texts.held_out[0])


if __name__ == "__main__":
    main()
