"""The arms of the ML-SpecQD paper (arXiv 2503.13565), and ours with the same models.

The arms and the draft length are those of the authors' script for Qwen2.5-Coder 7B and 0.5B on
MBPP: `examples/llm/run_bench_codeqwen.py` of libxsmm/tpp-pytorch-extension.
"""

import shlex
from collections.abc import Sequence
from dataclasses import replace

from specqd.bench.levels import Arm, make_arms
from specqd.llm import LLM
from specqd.llm.draft_words import auto_words
from specqd.model.loader import Progress

LENGTH = 8  # tokens of each proposal, at every level (num_assistant_tokens)


def paper_chains(small: str) -> dict[str, Sequence[str]]:
    """The chain of each arm but plain decoding, by the arm's name."""
    own = f"mxfp4:k={LENGTH}"
    return {
        "MXFP4": [own],
        "DRAFT": [f"{small}:bf16:k={LENGTH}"],
        "MULTI": [own, f"{small}:mxfp4:k={LENGTH}"],
        "fp4": ["fp4"],
        "auto": ["auto"],
        "auto+small": auto_words(small),
    }


def paper_arms(plain: LLM, small: str, progress: Progress | None = None) -> list[Arm]:
    """Plain decoding as GREEDY, then the other arms."""
    chains = paper_chains(small)
    arms = make_arms(plain, [shlex.join(words) for words in chains.values()], progress)
    names = ["GREEDY", *chains]
    return [replace(arm, name=name) for name, arm in zip(names, arms, strict=True)]
