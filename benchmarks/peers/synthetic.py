"""A drafter with a given acceptance rate, for benchmarks on random weights."""

from collections.abc import Sequence as SequenceOf
from random import Random

from specqd._native import DraftRequest, Proposal, Sequence
from specqd.engine.roles import Drafter


class SyntheticDrafter:
    """Runs `drafter` at its full cost, then replaces its tokens. Each in turn is accepted with
    probability `acceptance`, until the first rejected one; `future` holds the tokens of plain
    decoding. The verifier's tokens stay exact."""

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
        return [self._replaced(a, p) for a, p in zip(requests, proposals, strict=True)]

    def _replaced(self, request: DraftRequest, proposal: Proposal) -> Proposal:
        at = len(request.sequence.tokens) - request.sequence.prompt_length
        tokens = []
        for token in self.future[at : at + len(proposal.tokens)]:
            is_accepted = self._random.random() < self._acceptance
            tokens.append(token if is_accepted else token ^ 1)
            if not is_accepted:
                break
        tokens += proposal.tokens[len(tokens) :]  # tokens after a rejected one are never used
        return Proposal(tokens, proposal.confidences, depths=proposal.depths)

    def observe(self, request: DraftRequest, proposal: Proposal, accepted: int) -> None:
        self._drafter.observe(request, proposal, accepted)

    def release(self, sequence: Sequence) -> None:
        self._drafter.release(sequence)
