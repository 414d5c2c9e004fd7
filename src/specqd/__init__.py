"""SpecQD: exact speculative decoding of open language models on CPUs."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specqd.errors import SpecqdError
    from specqd.llm import LLM, Completion, Result
    from specqd.llm.async_llm import AsyncLLM
    from specqd.sampling import SamplingParams

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "AsyncLLM",
    "Completion",
    "Result",
    "SamplingParams",
    "SpecqdError",
    "__version__",
]

_HOMES = {
    "LLM": "specqd.llm",
    "AsyncLLM": "specqd.llm.async_llm",
    "Completion": "specqd.llm",
    "Result": "specqd.llm",
    "SamplingParams": "specqd.sampling",
    "SpecqdError": "specqd.errors",
}


def __getattr__(name: str) -> Any:
    """Imports a public name on first use, so that `specqd --help` does not load the core."""
    if name not in _HOMES:
        raise AttributeError(f"module 'specqd' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
