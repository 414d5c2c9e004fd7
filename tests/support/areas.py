"""Which test files belong to which area: `make test AREA=draft`. A file may belong to several."""

from fnmatch import fnmatch

# By area, a folder of src/specqd or csrc: patterns of `tests/test_<pattern>.py`.
AREAS = {
    "formats": "tensors formats gguf* draft_formats hostile_metadata fp4 wrapping packed_changes",
    "config": "config* hostile_metadata rope",
    "text": "tokenizer* chat_template template_process channels stops text_parts calibration",
    "hub": "hub* cached_models disk_faults",
    "model": "train_* decoder experts fp4 gemma4 goldens gguf_recurrent head* kv_* latent mtp* "
    "pack* partial_head real_models recurrent* rope stages taps tensors calibration context "
    "exactness native_structs",
    "kernels": "kernels float_mode noise error_feedback allocation_faults sample_token rope",
    "runtime": "pool topology numa threads stages",
    "weights": "fp4 pack* error_feedback draft_formats",
    "decode": "sample_token noise sampling context level* head heads head_grammars shared_cache "
    "taps",
    "draft": "draft_lengths level* ngram* policy chains agreement suggestion partial_head",
    "engine": "turns scheduler preemption reports prompt_logprobs scoring server_engine "
    "shared_cache exactness threads explain context",
    "llm": "llm* async_llm lm_eval messages chains turns interpreter_exit prompt_logprobs",
    "openai": "openai* responses tool* batch* server_structured lenient refusals",
    "anthropic": "messages clients client_*",
    "server": "server* page* clients client_* load_clients messages responses operations",
    "ray": "ray deploy",
    "bench": "bench* agreement suggestion stages peer_files",
    "cli": "cli* chat chat_commands batch_command explain bench* suggestion cached_models docs",
    "docs": "areas docs examples architecture distribution client_snippets deploy",
    "fuzz": "fuzz hostile_metadata",
}


def belongs(file_name: str, area: str) -> bool:
    """Whether a test file, such as `test_fp4.py`, belongs to an area. KeyError: no such area."""
    return any(fnmatch(file_name, f"test_{pattern}.py") for pattern in AREAS[area].split())
