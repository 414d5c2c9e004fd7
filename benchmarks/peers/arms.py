"""The compared arms: an engine with its weights and its way of drafting.

Knows the names of the peers' options, but no processes, clocks or results.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Engine = Literal["specqd", "llama.cpp", "openvino", "transformers"]
Kind = Literal["plain", "quantised", "speculative"]

BITS = {"bf16": 16, "mxfp4": 4.25, "q4_0": 4.5}  # per stored weight, where every matrix has them
SMALL = "small/"  # begins the name of a format in which a smaller model drafts
CONTEXT = 512  # positions that prompt and answer may take
LONGEST = 2048 + 64  # positions that a server has room for
LONG_CONTEXT = 20_480  # both, for long prompts


@dataclass(frozen=True, slots=True)
class Arm:
    """`weights`: the format in which the engine reads the model. `draft`: none, a 4-bit copy of the
    model (of specqd: its own 4-bit weights), `small/` and the format of a smaller model, or a
    lookup by the engine's name for it. `length`: tokens of a draft; None lets the engine choose.
    `acceptance`: the probability that a drafted token is accepted (synthetic; the text is then
    noise). `context`: positions that a server has room for. `is_flash`: whether llama.cpp uses
    flash attention, its default, which reads long prompts faster and decodes slower behind
    them."""

    engine: Engine
    weights: str = "bf16"
    draft: str = "none"
    length: int | None = None
    acceptance: float | None = None
    context: int = LONGEST
    is_flash: bool = True

    @property
    def kind(self) -> Kind:
        if self.draft != "none":
            return "speculative"
        return "plain" if self.weights in ("bf16", "packed") else "quantised"

    @property
    def name(self) -> str:
        words = [self.engine, self.weights]
        if self.draft != "none":
            words += ["+", self.draft]
        if self.length is not None:
            words.append(f"k={self.length}")
        if self.acceptance is not None:
            words.append(f"p={self.acceptance:g}")
        if not self.is_flash:
            words.append("-fa-off")
        return " ".join(words)

    @property
    def process(self) -> str:
        """Arms with the same value run in one process: those of specqd share their weights. A small
        model needs memory, so its arm has a process of its own."""
        is_shared = self.engine == "specqd" and not self.draft.startswith(SMALL)
        return self.engine if is_shared else self.name


# Random weights show the cost of a token. Acceptance is meaningless there.
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

# Random prompts of many lengths.
PREFILL = (Arm("specqd"), Arm("llama.cpp"), Arm("openvino"))


def with_drafts(
    engine: Engine,
    drafts: Sequence[tuple[str, int | None]],
    acceptance: float | None = None,
) -> tuple[Arm, ...]:
    """The engine without drafts, then with each draft and length."""
    drafting = (Arm(engine, draft=d, length=k, acceptance=acceptance) for d, k in drafts)
    return (Arm(engine), *drafting)


def synthetic(acceptance: float) -> tuple[Arm, ...]:
    """Random weights and a given acceptance rate: cost and benefit of drafting."""
    ours = [("mxfp4", None), ("mxfp4", 3), ("mxfp4", 5)]
    theirs = [("mxfp4", 1), ("mxfp4", 3), ("q4_0", 2), ("q4_0", 4)]
    return (
        *with_drafts("specqd", ours, acceptance),
        *with_drafts("llama.cpp", theirs, acceptance),
    )


# Real text, end to end.
TEXT = (
    *with_drafts("specqd", [("fp4", None), ("ngram", None), ("auto", None)]),
    *with_drafts("llama.cpp", [(d, k) for d in ("mxfp4", "q4_0") for k in (3, 8)]),
    *(Arm("llama.cpp", draft=f"ngram-{kind}") for kind in ("simple", "mod", "map-k", "cache")),
    *with_drafts("openvino", [("mxfp4", 3), ("mxfp4", 5), ("lookup", 5), ("lookup", 10)]),
    *with_drafts("transformers", [("lookup", 10)]),
)

# A trained model in the formats that each engine's users run; `specqd pack` keeps all bits of BF16.
# Drafts of the small model pay less, and shorter, the fewer bytes the target has.
FORMATS = (
    *(Arm("specqd", "packed", draft) for draft in ("none", "fp4", "auto", "small/packed")),
    *(
        Arm("llama.cpp", weights, "small/q4_k_m" if length else "none", length)
        for weights, *lengths in (("q4_k_m", 2, 3), ("q8_0", 3), ("bf16", 4))
        for length in (None, *lengths)
    ),
    *(
        Arm("openvino", weights, "small/int4" if length else "none", length)
        for weights in ("int4", "int8", "bf16")
        for length in (None, 4)
    ),
)

# Long prompts.
LONG = (
    *(Arm("specqd", "packed", draft) for draft in ("none", "fp4", "auto")),
    *(
        Arm("llama.cpp", weights, context=LONG_CONTEXT, is_flash=is_flash)
        for weights, is_flash in (("q4_k_m", True), ("q4_k_m", False), ("bf16", False))
    ),
)
