"""Times the overhead of a draft-verify round outside forwards and sampling: proposing, matching and
bookkeeping. `compare_builds.py OLD NEW overhead` runs it, in the greedy decoding of one sequence.
"""

from time import perf_counter

from specqd import LLM, _native
from specqd._native import DraftRequest, Level, Sequence

PROMPT = "def mean(values):\n    return sum(values) / len(values)\n\n\ndef variance(values):\n"


def round_seconds(llm: LLM, steps: int) -> tuple[float, float]:
    """Seconds per draft-verify round: in total, and outside forwards and sampling."""
    level = llm.engine.level
    levels = [each for each in level.levels if isinstance(each, Level)]
    tokens = llm.encode(PROMPT)
    sequence = Sequence(tokens, _native.Sampler(), len(tokens))
    most = llm.model.config.max_positions
    sequence.tokens.extend(level.advance([DraftRequest(sequence, 1)])[0].tokens)  # prefill

    def within() -> float:
        return sum(each.stats.seconds + each.stats.pick_seconds for each in levels)

    before, begun = within(), perf_counter()
    for _ in range(steps):
        sequence.tokens.extend(level.advance([DraftRequest(sequence, most)])[0].tokens)
    seconds = perf_counter() - begun
    overhead = seconds - (within() - before)
    level.release(sequence)
    return seconds / steps, overhead / steps
