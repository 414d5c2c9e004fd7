"""Scores a given continuation. Knows tokens; knows no text and no benchmark."""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from specqd import _native
from specqd._native import Sequence
from specqd.errors import RequestError
from specqd.model.model import Model
from specqd.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Score:
    """The score of a continuation after its context."""

    logprob: float  # natural logarithm, summed over the tokens, from raw logits
    is_greedy: bool  # whether each token is the likeliest at its place


def score(model: Model, context: SequenceOf[int], continuation: SequenceOf[int]) -> Score:
    """Scores the continuation. A prefix that contexts share is forwarded once.

    Raises RequestError if either is empty, or if both without the last token exceed the model's
    context.
    """
    if not context or not continuation:
        raise RequestError("a score needs a token of context and one to score; give both")
    tokens = [*context, *continuation[:-1]]
    model.check_generates()
    model.check_tokens(tokens)
    model.check_tokens(continuation)
    sequence = Sequence(list(context), SamplingParams().sampler(0, 0), len(context))
    total, is_greedy = 0.0, True
    try:
        held = model.adopt_prefix(sequence)
        model.context(sequence).match(sequence.tokens[:], len(context))
        rows = model.prefill(model.context(sequence), tokens[held:], len(continuation))
        for logits, token in zip(rows, continuation, strict=True):
            total += _native.logprob_of(logits, token, model.machine.isa)
            is_greedy = is_greedy and int(logits.argmax()) == token
        model.publish(sequence)
    finally:
        model.release(sequence)
    return Score(total, is_greedy)
