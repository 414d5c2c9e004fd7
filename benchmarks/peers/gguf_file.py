"""Writes a Llama directory as one GGUF file with the same BF16 bits, for llama.cpp.

Owns the metadata; the `gguf` package owns the format, `support.gguf_files` names and order of rows.
"""

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

from specqd.formats.safetensors import TensorDirectory
from support.gguf_files import in_pair_order, llama_cpp_name


def write(model: Path, path: Path) -> None:
    """Needs a Llama with BF16 weights, unscaled RoPE and a byte-level BPE tokenizer."""
    config = json.loads((model / "config.json").read_text())
    rope = config.get("rope_parameters") or {}  # as transformers 5 writes them
    config["rope_theta"] = rope.get("rope_theta", config.get("rope_theta"))
    is_scaled = config.get("rope_scaling") or rope.get("rope_type", "default") != "default"
    if config["model_type"] != "llama" or is_scaled:
        raise ValueError(f"{model}: only a Llama with unscaled RoPE is written as GGUF here")
    writer = gguf.GGUFWriter(path, "llama")
    _write_metadata(writer, config)
    _write_tokenizer(writer, json.loads((model / "tokenizer.json").read_text()), config)
    for name, view in TensorDirectory.open(model).items():
        _write_tensor(writer, name, view.data, config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_metadata(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def _write_tokenizer(
    writer: gguf.GGUFWriter, tokenizer: dict[str, Any], config: dict[str, Any]
) -> None:
    """Prompts and outputs are token ids, so only the vocabulary's size matters."""
    pieces = {at: piece for piece, at in tokenizer["model"]["vocab"].items()}
    special = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    pieces.update(special)
    size = config["vocab_size"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list([pieces.get(at, f"[PAD{at}]") for at in range(size)])
    kinds = gguf.TokenType
    writer.add_token_types(
        [
            kinds.CONTROL if at in special else kinds.NORMAL if at in pieces else kinds.UNUSED
            for at in range(size)
        ]
    )
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    writer.add_bos_token_id(config["bos_token_id"])
    ends = config["eos_token_id"]
    writer.add_eos_token_id(ends[0] if isinstance(ends, list) else ends)
    writer.add_add_bos_token(False)


def _write_tensor(
    writer: gguf.GGUFWriter, name: str, bits: NDArray[np.uint16], config: dict[str, Any]
) -> None:
    theirs = llama_cpp_name(name, "llama")
    if bits.ndim == 1:  # norms: BF16 bits are the upper half of the fp32
        writer.add_tensor(theirs, (bits.astype(np.uint32) << 16).view(np.float32))
        return
    bits = in_pair_order(name, bits, config)
    raw = np.ascontiguousarray(bits).view(np.uint8)
    writer.add_tensor(theirs, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
