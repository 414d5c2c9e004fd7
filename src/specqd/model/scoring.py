"""How likely a model finds given continuations. Knows tokens; knows no text and no benchmark."""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from specqd import _native
from specqd._native import Rows, Sequence
from specqd.errors import RequestError
from specqd.model.model import Model
from specqd.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Score:
    """Of a continuation after its context."""

    logprob: float  # natural, the sum over its tokens, in the raw logits
    is_greedy: bool  # whether each token is the likeliest at its place


def score(model: Model, context: SequenceOf[int], continuation: SequenceOf[int]) -> Score:
    """Reads both and scores the latter; contexts that begin alike are read once.

    Raises RequestError where either is empty or both, less the last token, exceed the context.
    """
    if not context or not continuation:
        raise RequestError("a score needs a token of context and one to score; give both")
    tokens = [*context, *continuation[:-1]]
    model.check_tokens(tokens)
    model.check_tokens(continuation)
    first = len(context) - 1  # whose logits say what the continuation's first token is
    sequence = Sequence(list(context), SamplingParams().picker(0, 0), len(context))
    total, is_greedy = 0.0, True
    try:
        start = model.adopt_prefix(sequence)
        while start < len(tokens):
            scored = max(start, first)
            end = min(len(tokens), scored + model.max_rows)
            rows = Rows(model.context(sequence), start, tokens[start:end], end - scored)
            model.forward([rows])
            wanted = continuation[scored - first : end - first]
            for logits, token in zip(model.decoder.logits(), wanted, strict=True):
                total += _native.logprob_of(logits, token, model.machine.isa)
                is_greedy = is_greedy and int(logits.argmax()) == token
            start = end
        model.publish(sequence)
    finally:
        model.release(sequence)
    return Score(total, is_greedy)
