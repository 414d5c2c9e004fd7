"""Arguments of vLLM that SpecQD lacks, and what to do instead."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import ParamSpec, TypeVar

from specqd.errors import FieldError

P = ParamSpec("P")
T = TypeVar("T")

_ON_A_CPU = "SpecQD runs on the CPU; leave it out"
_ALL_CORES = "one process uses all cores; threads= sets how many"
_BF16 = 'weights are BF16; precision="fp4" generates from their 4-bit draft alone'
_OWN = "a model's own tokenizer is used, and no code of its own; leave it out"
_CHOSEN = "SpecQD chooses it; leave it out"
OF_LLM = {
    **dict.fromkeys(("max_model_len", "max_seq_len"), "is context= here"),
    **dict.fromkeys(("tensor_parallel_size", "pipeline_parallel_size"), _ALL_CORES),
    **dict.fromkeys(("dtype", "quantization", "load_format", "kv_cache_dtype"), _BF16),
    **dict.fromkeys(("gpu_memory_utilization", "enforce_eager", "swap_space"), _ON_A_CPU),
    **dict.fromkeys(("cpu_offload_gb", "device"), _ON_A_CPU),
    **dict.fromkeys(("tokenizer", "tokenizer_mode", "trust_remote_code"), _OWN),
    **dict.fromkeys(("max_num_seqs", "max_num_batched_tokens"), _CHOSEN),
    **dict.fromkeys(("enable_prefix_caching", "enable_chunked_prefill"), _CHOSEN),
    "speculative_config": 'draft= names drafts, such as draft=["fp4", "ngram"]',
    "seed": "goes into SamplingParams(seed=...)",
    "revision": 'is part of the model: "owner/name@revision"',
}
OF_GENERATE = {
    "use_tqdm": "no progress is shown; leave it out",
    "prompt_token_ids": "prompts= takes token ids too",
    **{
        name: f"goes into SamplingParams({name}=...)"
        for name in ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "n", "logprobs")
    },
}


def refuses(hints: Mapping[str, str]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Makes a function raise FieldError for these keywords, with their hints."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            for name in kwargs:
                if name in hints:
                    raise FieldError(name, hints[name])
            return function(*args, **kwargs)

        return call

    return decorate
