"""The small models that are known to draft for larger ones. Fetches and loads nothing."""

from pathlib import Path

from specqd.hub import model_name

# Repositories of a family with {} for the size, the size of the small model, and the larger sizes.
# The models of a line have the same tokens, which loading checks; their padding may differ.
_FAMILIES = (
    ("Qwen/Qwen2.5-Coder-{}-Instruct", "0.5B", "1.5B 3B 7B 14B 32B"),
    ("Qwen/Qwen2.5-Coder-{}", "0.5B", "1.5B 3B 7B 14B 32B"),
    ("Qwen/Qwen2.5-{}-Instruct", "0.5B", "1.5B 3B 7B 14B 32B 72B"),
    ("Qwen/Qwen2.5-{}", "0.5B", "1.5B 3B 7B 14B 32B 72B"),
    ("Qwen/Qwen3-{}", "0.6B", "1.7B 4B 8B 14B 32B 30B-A3B 235B-A22B"),
    ("Qwen/Qwen3-{}-Base", "0.6B", "1.7B 4B 8B 14B 30B-A3B"),
    ("Qwen/Qwen3.5-{}", "0.8B", "2B 4B 9B 27B 35B-A3B"),
    ("Qwen/Qwen3.5-{}-Base", "0.8B", "2B 4B 9B"),
    ("meta-llama/Llama-{}-Instruct", "3.2-1B", "3.2-3B 3.1-8B 3.1-70B 3.3-70B"),
    ("meta-llama/Llama-{}", "3.2-1B", "3.2-3B 3.1-8B 3.1-70B"),
    ("HuggingFaceTB/SmolLM2-{}-Instruct", "135M", "360M 1.7B"),
    ("HuggingFaceTB/SmolLM2-{}", "135M", "360M 1.7B"),
    ("google/gemma-3-{}", "270m-it", "1b-it 4b-it 12b-it 27b-it"),
    ("google/gemma-3-{}", "270m", "1b-pt 4b-pt 12b-pt 27b-pt"),
    ("ibm-granite/granite-3.3-{}-instruct", "2b", "8b"),
    ("ibm-granite/granite-3.3-{}-base", "2b", "8b"),
    ("allenai/OLMo-2-{}-Instruct", "0425-1B", "1124-7B 1124-13B 0325-32B"),
    ("allenai/OLMo-2-{}", "0425-1B", "1124-7B 1124-13B 0325-32B"),
)
_SMALL = {
    name.format(size).lower(): name.format(small)
    for name, small, larger in _FAMILIES
    for size in larger.split()
}
_GGUF = "-gguf"  # the end of a repository's name that has the same model as GGUF files


def sibling_of(model: str | Path) -> str | None:
    """The repository of the small model that drafts for this one; None: none is known.

    model: `owner/name[:FILE]`, or the path of a model in Hugging Face's cache.
    """
    name = model if isinstance(model, str) else model_name(model)
    return _SMALL.get(name.partition(":")[0].lower().removesuffix(_GGUF))
