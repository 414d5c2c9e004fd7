"""Trains a DFlash drafter for a small Llama, so that acceptance can prove how ours reads one.

    python parity/train_dflash.py MODEL OUT --minutes 50 [--dflash2]

The texts are the sources of Python's standard library, or of --sources. Every twentieth file is
held out: OUT gets prompts of those (prompts.jsonl) for `specqd bench head`. The drafter begins with
the model's first layers; its embedding and output head are the model's and stay as they are. OUT is
written again every few minutes, so a training that was stopped leaves a drafter. If OUT has a
drafter, the training continues from that one. With --dflash2 it becomes a DFlash2 drafter: it gets
convolutions, which change nothing at first, and a selector.
"""

import argparse
import json
import math
import sysconfig
import timeit
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, process_time

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch.nn.functional import log_softmax

from dflash import Dflash
from learning_dflash import Drafter, Teacher

Tensor = torch.Tensor
LENGTH = 512  # tokens of a text
HELD_OUT = 20  # one file of so many
PROMPTS, PROMPT_CHARACTERS = 128, 800
ANCHORS = 128  # blocks of a text, new in each step
FADE = 2.0  # places after which a place weighs e times less
RATE, WARMUP, CLIP = 1e-3, 0.04, 1.0
SAVE_SECONDS = 480.0
REPORT_STEPS = 10


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts of `LENGTH` tokens, each with the id that begins a text; prompts of held-out files."""

    learned: Tensor
    held_out: Tensor
    prompts: list[str]

    @classmethod
    def read(cls, model: Path, roots: Sequence[Path]) -> "Texts":
        files = sorted(file for root in roots for file in _sources(root))
        sources = [file.read_text("utf-8", "replace") for file in files]
        tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        held_out = sources[::HELD_OUT]
        prompts = [text[:PROMPT_CHARACTERS] for text in held_out if len(text) > 2000][:PROMPTS]
        learned = [text for i, text in enumerate(sources) if i % HELD_OUT]
        return cls(_pieces(tokenizer, learned), _pieces(tokenizer, held_out), prompts)

    def unused(self, vocabulary: int) -> int:
        """The last id that no text has."""
        used = {*self.learned.unique().tolist(), *self.held_out.unique().tolist()}
        return max(token for token in range(vocabulary) if token not in used)


def _sources(root: Path) -> Iterator[Path]:
    others = {"site-packages", "test", "tests", "idle_test", "lib2to3"}
    for file in root.rglob("*.py"):
        if not others & {*file.relative_to(root).parts}:
            yield file


def _pieces(tokenizer: Tokenizer, sources: Sequence[str]) -> Tensor:
    pieces: list[list[int]] = []
    for encoding in tokenizer.encode_batch(sources, add_special_tokens=False):
        ids = encoding.ids
        starts = range(0, len(ids) - LENGTH + 2, LENGTH - 1)
        pieces += [[0, *ids[first : first + LENGTH - 1]] for first in starts]
    return torch.tensor(pieces)


def faster_dtype() -> torch.dtype:
    """BF16 or float32: processors without products of BF16 take ten times as long with it."""
    if torch.get_default_device().type != "cpu":
        return torch.bfloat16

    def seconds(dtype: torch.dtype) -> float:
        x = torch.ones(1024, 1024, dtype=dtype)
        return min(timeit.repeat(lambda: x @ x, number=1, repeat=5))

    return min(torch.float32, torch.bfloat16, key=seconds)


def draw_anchors(texts: int, block: int) -> Tensor:
    """Positions of newest tokens, [texts, ANCHORS], with the whole block inside the text."""
    most = LENGTH - block + 1
    return torch.stack([1 + torch.randperm(most - 1)[:ANCHORS] for _ in range(texts)])


def block_logits(teacher: Teacher, drafter: Drafter, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The drafter's logits of random blocks, [texts, ANCHORS, block - 1, vocabulary], and the
    teacher's of the same places."""
    anchors = draw_anchors(len(tokens), drafter.block)
    features, wanted = teacher.read(tokens)
    half = teacher.model.dtype == torch.bfloat16
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=half):
        found = drafter.logits(features, tokens, anchors)
    at = (anchors[..., None] + torch.arange(drafter.block - 1)).flatten(1)
    theirs = wanted.gather(1, at[..., None].expand(-1, -1, wanted.shape[-1]))
    return found.float(), theirs.view_as(found).float()


def loss_of(found: Tensor, wanted: Tensor) -> Tensor:
    """Cross-entropy with the teacher's distributions; early places weigh more."""
    weights = torch.exp(-torch.arange(found.shape[-2]) / FADE)
    nats = -(wanted.softmax(-1) * log_softmax(found, -1)).sum(-1)
    return (nats * weights).mean((0, 1)).sum() / weights.sum()


def shares_of(found: Tensor, wanted: Tensor) -> Tensor:
    """By place: the share of blocks whose likeliest tokens are the teacher's up to that place."""
    agrees = found.argmax(-1) == wanted.argmax(-1)
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
    threads = torch.get_num_threads()
    # Other programs on the processor do not shorten the training.
    spent = monotonic if texts.learned.is_cuda else lambda: process_time() / threads
    begun, saved = spent(), monotonic()
    recent: list[float] = []
    for step, tokens in enumerate(batches(texts.learned, size), 1):
        done = (spent() - begun) / (60 * minutes)
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
        if step % REPORT_STEPS == 1:
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
    wanted = reference.block(features[0, :anchor], int(tokens[anchor]), drafter.block)
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
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=4, help="texts of a step")
    parser.add_argument("--block", type=int, default=4, help="rows of a block")
    parser.add_argument("--sources", type=Path, nargs="+", help="directories of other Python files")
    parser.add_argument("--dflash2", action="store_true", help="train a DFlash2 drafter")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_default_device(args.device)
    path = args.out / "model.safetensors"
    earlier = load_file(path, args.device) if path.exists() else {}
    if earlier:
        torch.seed()  # other texts and places than the last time
    else:
        torch.manual_seed(0)
    args.out.mkdir(parents=True, exist_ok=True)
    roots = args.sources or [Path(sysconfig.get_paths()["stdlib"])]
    texts, teacher = Texts.read(args.model, roots), Teacher(args.model, faster_dtype())
    prompts = (json.dumps({"prompt": prompt}) + "\n" for prompt in texts.prompts)
    (args.out / "prompts.jsonl").write_text("".join(prompts))
    unused = texts.unused(teacher.config.vocab_size)
    drafter = Drafter(teacher, unused, args.block, earlier, args.dflash2)
    print(f"{len(texts.learned)} texts to learn, {len(texts.held_out)} held out", flush=True)
    train(teacher, drafter, texts, args.out, args.batch, args.minutes)
    check(teacher, drafter, args.model, args.out, texts.held_out[0])


if __name__ == "__main__":
    main()
