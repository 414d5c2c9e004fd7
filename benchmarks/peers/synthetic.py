"""A drafter with a set acceptance, for benchmarks on random weights."""

from collections.abc import Sequence as SequenceOf
from random import Random

from specqd._native import DraftRequest, Proposal, Sequence
from specqd.engine.roles import Drafter


class SyntheticDrafter:
    """Runs `drafter` at its full cost, then replaces its tokens: each in turn is right with
    probability `acceptance` (`future`, known from plain decoding), until the first wrong one. The
    verifier's tokens stay exact."""

    def __init__(self, drafter: Drafter, acceptance: float) -> None:
        self._drafter = drafter
        self._acceptance = acceptance
        self._random = Random(0)
        self.future: list[int] = []  # new tokens of the current sequence

    @property
    def levels(self) -> tuple[Drafter, ...]:
        return self._drafter.levels

    def propose(self, requests: SequenceOf[DraftRequest]) -> list[Proposal]:
        proposals = self._drafter.propose(requests)
        return [self._told(a, p) for a, p in zip(requests, proposals, strict=True)]

    def _told(self, request: DraftRequest, proposal: Proposal) -> Proposal:
        at = len(request.sequence.tokens) - request.sequence.prompt_length
        tokens = []
        for right in self.future[at : at + len(proposal.tokens)]:
            is_right = self._random.random() < self._acceptance
            tokens.append(right if is_right else right ^ 1)
            if not is_right:
                break
        tokens += proposal.tokens[len(tokens) :]  # tokens after a wrong one are never used
        return Proposal(tokens, proposal.confidences, depths=proposal.depths)

    def observe(self, request: DraftRequest, proposal: Proposal, accepted: int) -> None:
        self._drafter.observe(request, proposal, accepted)

    def release(self, sequence: Sequence) -> None:
        self._drafter.release(sequence)
