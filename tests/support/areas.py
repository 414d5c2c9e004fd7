"""Which test files belong to which area: `make test AREA=draft`. A file may belong to several."""

from fnmatch import fnmatch

# By area, a folder of src/specqd or csrc: patterns of `tests/test_<pattern>.py`.
AREAS = {
    "formats": "draft_formats formats fp4 gguf* hostile_metadata packed_changes tensors wrapping",
    "config": "config* embedding_config hostile_metadata rope",
    "text": (
        "calibration channels chat_messages chat_template continu* given_template reasoning "
        "stops plain_tools tekken template_process text_parts tokenizer* tool_* without_posix"
    ),
    "hub": "cached_models catalogue disk_faults head_fetching hub* small_*",
    "model": (
        "attention_waves calibration context decoder dflash* embeddings exactness experts "
        "find_wrong_bit fp4 gemma4 gguf_recurrent goldens head* kv_* latent mtp* native_structs "
        "pack* partial_head prompt_cache prompt_files prompt_store real_models recurrent* rope "
        "stages taps tensors"
    ),
    "kernels": (
        "aarch64 allocation_faults error_feedback float_mode kernels noise rope sample_token"
    ),
    "runtime": "numa pool stages threads topology",
    "weights": "draft_formats error_feedback fp4 pack*",
    "decode": (
        "context dflash draft_pages draft_prefixes head head_grammars heads level* noise "
        "sample_token sampling shared_cache taps"
    ),
    "draft": (
        "agreement batch_lengths block_drafter chains draft_lengths level* ngram* partial_head "
        "policy suggestion"
    ),
    "engine": (
        "context exactness explain preemption prompt_[lp]* prompts reports scheduler scoring "
        "server_engine shared_cache threads turns"
    ),
    "llm": (
        "async_llm chains chat_messages embeddings interpreter_exit llm* lm_eval messages "
        "prompt_logprobs replies schemas small_models turns"
    ),
    "openai": "batch* lenient openai* plain_tools refusals responses server_structured tool*",
    "anthropic": "client_* clients messages",
    "server": (
        "client_* clients keeper load_clients messages operations page* recorded_clients "
        "responses server* without_posix"
    ),
    "ray": "deploy ray",
    "bench": "agreement bench* peer_* rounds stages suggestion",
    "cli": (
        "batch_command bench* cached_models catalogue chat chat_[cps]* cli* docs explain extras "
        "markdown quiet small_fetching suggestion without_posix"
    ),
    "docs": "architecture areas client_snippets deploy distribution docs examples find_wrong_bit",
    "fuzz": "fuzz hostile_metadata",
}


def belongs(file_name: str, area: str) -> bool:
    """Whether a test file, such as `test_fp4.py`, belongs to an area. KeyError: no such area."""
    return any(fnmatch(file_name, f"test_{pattern}.py") for pattern in AREAS[area].split())
