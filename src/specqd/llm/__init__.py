"""The Python API: a model's directory or repository in, completions out."""

from specqd.engine.generation import Origin, TokenLogprob
from specqd.engine.reports import Stats
from specqd.llm.inputs import Prompt
from specqd.llm.llm import LLM
from specqd.llm.replies import Reply, ToolCall
from specqd.llm.results import Completion, Result
from specqd.llm.stream import Stream

__all__ = [
    "LLM",
    "Completion",
    "Origin",
    "Prompt",
    "Reply",
    "Result",
    "Stats",
    "Stream",
    "TokenLogprob",
    "ToolCall",
]
