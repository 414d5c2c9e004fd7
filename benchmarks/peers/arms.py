"""What is compared: an arm is an engine with its weights and its way of drafting.

Knows the peers' words for their options; knows nothing of processes, clocks or results.
"""

from dataclasses import dataclass
from typing import Literal

Engine = Literal["specqd", "llama.cpp", "openvino", "transformers"]
Kind = Literal["plain", "quantised", "speculative"]

BITS = {"bf16": 16, "mxfp4": 4.25, "q4_0": 4.5}  # a weight, as stored
CONTEXT = 512  # positions of the longest text


@dataclass(frozen=True, slots=True)
class Arm:
    """`weights`: bf16, mxfp4 or q4_0. `draft`: none, a 4-bit copy of the same model, or a lookup by
    its engine's name. `length`: tokens of a draft, None where the engine chooses. `acceptance`: at
    which each drafted token counts as right, whatever it is (synthetic; the text is then noise)."""

    engine: Engine
    weights: str = "bf16"
    draft: str = "none"
    length: int | None = None
    acceptance: float | None = None

    @property
    def kind(self) -> Kind:
        if self.draft != "none":
            return "speculative"
        return "plain" if self.weights == "bf16" else "quantised"

    @property
    def name(self) -> str:
        words = [self.engine, self.weights]
        if self.draft != "none":
            words += ["+", self.draft]
        if self.length is not None:
            words.append(f"k={self.length}")
        if self.acceptance is not None:
            words.append(f"p={self.acceptance:g}")
        return " ".join(words)

    @property
    def process(self) -> str:
        """Arms of one process: ours share one store of weights."""
        return self.engine if self.engine == "specqd" else self.name


# Random weights: what a token costs. Acceptance means nothing there.
DECODE = (
    Arm("specqd"),
    Arm("specqd", "mxfp4"),
    Arm("llama.cpp"),
    Arm("llama.cpp", "mxfp4"),
    Arm("llama.cpp", "q4_0"),
    Arm("openvino"),
    Arm("openvino", "mxfp4"),
    Arm("transformers"),
)


def synthetic(acceptance: float) -> tuple[Arm, ...]:
    """Random weights, at an acceptance that is set: what drafting costs and brings."""
    theirs = [("mxfp4", 1), ("mxfp4", 3), ("q4_0", 2), ("q4_0", 4)]
    return (
        Arm("specqd"),
        Arm("specqd", draft="mxfp4", acceptance=acceptance),
        Arm("llama.cpp"),
        *(Arm("llama.cpp", draft=draft, length=k, acceptance=acceptance) for draft, k in theirs),
    )


# Real text: all that an engine offers, end to end.
TEXT = (
    Arm("specqd"),
    Arm("specqd", draft="mxfp4"),
    Arm("specqd", draft="ngram"),
    Arm("specqd", draft="auto"),
    Arm("llama.cpp"),
    Arm("llama.cpp", draft="mxfp4", length=3),
    Arm("llama.cpp", draft="mxfp4", length=8),
    Arm("llama.cpp", draft="q4_0", length=3),
    Arm("llama.cpp", draft="q4_0", length=8),
    Arm("llama.cpp", draft="ngram-simple"),
    Arm("llama.cpp", draft="ngram-mod"),
    Arm("llama.cpp", draft="ngram-map-k"),
    Arm("llama.cpp", draft="ngram-cache"),
    Arm("openvino"),
    Arm("openvino", draft="mxfp4", length=3),
    Arm("openvino", draft="mxfp4", length=5),
    Arm("openvino", draft="lookup", length=5),
    Arm("openvino", draft="lookup", length=10),
    Arm("transformers"),
    Arm("transformers", draft="lookup", length=10),
)
