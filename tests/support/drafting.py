"""The chains that the exactness harness decodes with, and drafts that end by chance."""

import random
import re
from collections.abc import Sequence as SequenceOf

from specqd._native import DraftRequest, Level, Proposal, Sequence
from specqd.engine.roles import Drafter
from specqd.llm.chains import Drafts
from specqd.llm.draft_words import parse_chain
from specqd.model.model import Model, Precision
from specqd.text.tokenizer import Tokenizer
from support.subjects import CORPUS, Subject

# A chain's words, the outermost first; words in capitals stand for directories and a file.
CHAINS = (
    "ngram",
    "SMALL:bf16:k=3",
    "SMALL:k=5+ngram:k=2",
    "fp4+ngram:CORPUS",
    "fp4+SMALL+ngram",
    "fp4:k=4+ngram",
    "fp4:k=6:context=192+SMALL:bf16:k=4:context=192",
    "fp4:context=256+ngram",
    "SMALL:bf16:k=6+SMALL:k=4+ngram:k=3",
    "fp4:k=8+SMALL:k=4+ngram:CORPUS:k=3",
    "fp4:k=12:context=320+SMALL:bf16:k=8+SMALL:k=4:context=192+ngram:CORPUS:k=2",
)
BLOCKS = (
    "head:BLOCKS:k=5",
    "fp4:k=6+head:BLOCKS:bf16",
    "fp4|head:BLOCKS|ngram",
    "fp4:k=8:context=192+head:SELECTED",
)
HEADS = ("head:HEAD:k=3", "fp4:k=5+head:HEAD:bf16:k=2", *BLOCKS[:2])
LENGTHS = (*range(1, 9), 40)  # the last one is longer than a chunk of recurrent layers
DRAFTS = (
    *("none", *(f"fp4:k={k}" for k in LENGTHS), "fp4", "fp4:k=16:context=192"),
    *CHAINS,
    *HEADS,
    *BLOCKS[2:],
)
QUICK_DRAFTS = (
    *("none", "fp4:k=1", "fp4:k=4", "fp4:k=40", "fp4", "fp4:k=16:context=192"),
    *CHAINS[::2],
    CHAINS[-1],
    *HEADS,
)
STOPS = ("own", "random")  # who decides how long a draft is


class Whimsical:
    """A drafter whose every decision to go on or to stop is made by chance: what is asked of it,
    what a token is said to be worth, and how much of the proposal is handed on."""

    def __init__(self, drafter: Drafter, rng: random.Random) -> None:
        self._drafter = drafter
        self._rng = rng

    @property
    def levels(self) -> tuple[Drafter, ...]:
        return self._drafter.levels

    def propose(self, requests: SequenceOf[DraftRequest]) -> list[Proposal]:
        asked = [
            request.changed(
                at_most=self._rng.choice(
                    (request.at_most, self._rng.randint(0, min(request.at_most, 9)))
                ),
                token_value_s=self._rng.choice((0.0, request.token_value_s, 1e9)),
            )
            for request in requests
        ]
        proposals = []
        for proposal in self._drafter.propose(asked):
            kept = max(0, len(proposal.tokens) - self._rng.choice((0, 0, 0, 1, 2, 5)))
            proposals.append(Proposal(proposal.tokens[:kept], proposal.confidences[:kept]))
        return proposals

    def values(self, requests: SequenceOf[DraftRequest]) -> list[tuple[float, float]]:
        return self._drafter.values(requests)

    def observe(self, request: DraftRequest, proposal: Proposal, accepted: int) -> None:
        self._drafter.observe(request, proposal, accepted)

    def release(self, sequence: Sequence) -> None:
        self._drafter.release(sequence)


def drafts_of(subject: Subject) -> Drafts:
    return Drafts(subject.directory, Precision.EXACT, Tokenizer.open(subject.directory))


def level_of(
    subject: Subject, model: Model, draft: str, drafts: Drafts, whims: random.Random | None = None
) -> Level:
    """The chain of levels that a cell's `draft` names; with whims, stopped at random."""
    files = {
        "SMALL": str(subject.small),
        "HEAD": str(subject.head),
        "BLOCKS": str(subject.blocks),
        "SELECTED": str(subject.selected),
        "CORPUS": str(CORPUS),
    }
    words = [re.sub("|".join(files), lambda m: files[m[0]], word) for word in draft.split("+")]
    specs = parse_chain(words)
    drafts.check(specs)
    level = drafts.chain(model, specs)
    for each in level.levels:
        if whims is not None and isinstance(each, Level):
            each.drafter = Whimsical(each.drafter, whims)
    return level
