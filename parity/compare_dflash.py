"""Compares a trained DFlash drafter's logits with torch's, also where we read its files wrongly.

    python parity/compare_dflash.py MODEL DRAFTER

DRAFTER is a directory that train_dflash.py wrote: a block follows each of its held-out prompts. The
reference is torch in float32 over transformers' residuals. Our error must be at most that of torch
in BF16; wrong taps and wrong attention must show as larger ones.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from dflash import Dflash, blocks
from eagle3 import residuals
from specqd.model.dflash import BlockFiles, BlockHead, load_block_drafter
from specqd.model.model import Machine, Model, Precision
from specqd.text.tokenizer import Tokenizer
from support.dflash_cases import block, new_sequence, read
from support.reference import rms_error

MOST_TEXTS = 8


def readings(files: BlockFiles) -> Iterator[tuple[str, BlockFiles]]:
    """The files as they are, and with one thing wrong."""
    yield "ours", files
    for step in (-1, 1):
        taps = tuple(tap + step for tap in files.taps)
        yield f"ours, taps {step:+d}", replace(files, config=replace(files.config, taps=taps))
    causal = (True,) * files.layers.num_layers
    yield "ours, causal blocks", replace(files, layers=replace(files.layers, causal=causal))


def our_block(model: Model, files: BlockFiles, tokens: list[int]) -> NDArray:
    head = BlockHead(files, load_block_drafter(files, model), model, Precision.EXACT)
    sequence = new_sequence(tokens)
    read(model, sequence)
    logits: NDArray = block(head, sequence, files.config.block)
    model.release(sequence)
    return logits


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("drafter", type=Path)
    args = parser.parse_args()
    model, tokenizer = Model.open(args.model, machine=Machine.choose()), Tokenizer.open(args.model)
    files = BlockFiles.open(args.drafter, model.config)
    lines = (args.drafter / "prompts.jsonl").read_text().splitlines()[:MOST_TEXTS]
    errors: dict[str, list[float]] = {}
    for line in lines:
        tokens = tokenizer.encode(json.loads(line)["prompt"])
        truth, rough = (
            blocks(
                Dflash(args.drafter, args.model, dtype),
                residuals(args.model, tokens, dtype),
                tokens,
                [len(tokens)],
                files.config.block,
            )[0].numpy()
            for dtype in (torch.float32, torch.bfloat16)
        )
        errors.setdefault("torch in BF16", []).append(rms_error(rough, truth))
        for name, each in readings(files):
            errors.setdefault(name, []).append(rms_error(our_block(model, each, tokens), truth))
    for name, found in errors.items():
        print(f"{name:20} {median(found):.5f}, at most {max(found):.5f}")
    return 0 if median(errors["ours"]) <= median(errors["torch in BF16"]) else 1


if __name__ == "__main__":
    sys.exit(main())
