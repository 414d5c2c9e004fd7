"""Counts the tokens of a text that a partial head leaves out, by its size and by the rule.

    python benchmarks/left_out.py MODEL/tokenizer.json prompts.jsonl README.md ...
    python benchmarks/left_out.py /tmp/bpe.json --train FILES --vocab 128000 prompts.jsonl ...

Texts are files, or each line's longest string of a .jsonl file. The first half of each is read, the
tokens of the second are looked up before they are seen: among the first ids, by their share of all,
beside the panels of late; and in what the rule had chosen. `gain` is a projection, for a draft that
is right --right of the time where its list allows it, takes --draft of the target's bytes, and has
--head of its own in its head. --train makes the tokenizer first, a byte-level BPE, of the files
that FILES names, one a line.
"""

import argparse
import json
import random
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from specqd import _native

PANEL, WINDOW, PARTS = 16, 16384, (32, 16, 8, 4, 2)
LENGTH = 7  # of proposals
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def trained(names: list[str], vocabulary: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (Path(name).read_text(encoding="utf-8", errors="ignore") for name in names)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def texts_of(path: Path) -> Iterator[str]:
    if path.suffix != ".jsonl":
        yield path.read_text(encoding="utf-8")
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        yield max((v for v in json.loads(line).values() if isinstance(v, str)), key=len)


def left_out(texts: list[list[int]], panels: int) -> dict[int, float]:
    """By parts of the vocabulary that are kept beside the panels of the last tokens."""
    window: deque[int] = deque()
    used: Counter[int] = Counter()
    missed: Counter[int] = Counter()
    looked_up = 0
    for text in texts:
        for place, token in enumerate(text):
            panel = token // PANEL
            if place >= len(text) // 2:
                looked_up += 1
                outside = [part for part in PARTS if panel >= panels // part]
                missed.update(outside if not used[panel] else [])
            window.append(panel)
            used[panel] += 1
            if len(window) > WINDOW:
                used[window.popleft()] -= 1
    return {part: missed[part] / looked_up for part in PARTS}


def by_the_rule(
    texts: list[list[int]], panels: int, options: argparse.Namespace
) -> tuple[float, float]:
    """The share of tokens left out and the share of the head that was read."""
    partial_head, rng = _native.PartialHead(panels * PANEL), random.Random(0)
    looked_up = missed = read = 0
    for text in texts:
        at = len(text) // 2
        partial_head.read(text[:at])
        while at < len(text):
            ids = partial_head.ids_that_pay(
                rest_bytes=options.draft * (1 - options.head),
                panel_bytes=options.draft * options.head / panels,
                panels=panels,
                verify_bytes=1.0,
            )
            kept = set(partial_head.panels(ids, panels))
            right = 0
            for token in text[at : at + LENGTH]:
                if token // PANEL not in kept or rng.random() >= options.right:
                    break
                right += 1
            picks = text[at : at + right + 1]
            missed += sum(token // PANEL not in kept for token in picks)
            read += len(kept) * len(picks)
            looked_up += len(picks)
            partial_head.picked(picks, [*picks[:right], -1][:LENGTH])
            at += len(picks)
    return missed / looked_up, read / looked_up / panels


def pace(right: float, draft: float) -> float:
    """Tokens a forward of the target, over what it and its draft cost, at the best length."""
    paces, tokens, chance = [1.0], 1.0, 1.0
    for length in range(1, 17):
        chance *= right
        tokens += chance
        paces.append(tokens / (1 + length * draft))
    return max(paces)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--train", type=Path)
    parser.add_argument("--vocab", type=int, default=128_000)
    parser.add_argument("--right", type=float, default=0.9)
    parser.add_argument("--draft", type=float, default=0.33)
    parser.add_argument("--head", type=float, default=0.24)
    options = parser.parse_args()
    if options.train:
        names = options.train.read_text().splitlines()
        trained(names, options.vocab).save(str(options.tokenizer))
    tokenizer = Tokenizer.from_file(str(options.tokenizer))
    panels = -(-tokenizer.get_vocab_size() // PANEL)
    for path in options.texts:
        texts = [tokenizer.encode(text).ids for text in texts_of(path)]
        shares = left_out(texts, panels)
        missed, read = by_the_rule(texts, panels, options)
        draft = options.draft * (1 - options.head * (1 - read))
        gain = pace(options.right * (1 - missed), draft) / pace(options.right, options.draft)
        print(f"{path.name:20}{sum(map(len, texts)):7} tokens; left out:", end="")
        print(*(f" 1/{part} {share:.4f}" for part, share in shares.items()), end="")
        print(f"; by the rule {missed:.4f} at {read:.2f} of the head: gain {gain:.3f}")


if __name__ == "__main__":
    main()
