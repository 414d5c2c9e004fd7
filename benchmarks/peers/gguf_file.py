"""Writes a Llama directory as one GGUF file with the same BF16 bits, for llama.cpp.

Owns the names, the order of Q and K rows and the metadata; the `gguf` package owns the format.
"""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from specqd.formats.safetensors import TensorDirectory

_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write(model: Path, path: Path) -> None:
    """Needs a Llama with BF16 weights, unscaled RoPE and a byte-level BPE tokenizer."""
    config = json.loads((model / "config.json").read_text())
    if config["model_type"] != "llama" or config.get("rope_scaling"):
        raise ValueError(f"{model}: only a Llama with unscaled RoPE is written as GGUF here")
    writer = gguf.GGUFWriter(path, "llama")
    _write_metadata(writer, config)
    _write_tokenizer(writer, json.loads((model / "tokenizer.json").read_text()), config)
    for name, view in TensorDirectory.open(model).items():
        _write_tensor(writer, _their_name(name), view.data, config)
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
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def _their_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in _OUTER:
        return f"{_OUTER[stem]}.weight"
    layer, _, rest = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{_LAYER[rest]}.weight"


def _write_tensor(
    writer: gguf.GGUFWriter, name: str, bits: NDArray[np.uint16], config: dict[str, Any]
) -> None:
    if bits.ndim == 1:  # norms: BF16 bits are the upper half of the fp32
        writer.add_tensor(name, (bits.astype(np.uint32) << 16).view(np.float32))
        return
    if name.endswith(("attn_q.weight", "attn_k.weight")):
        query = name.endswith("attn_q.weight")
        heads = config["num_attention_heads" if query else "num_key_value_heads"]
        bits = _interleaved(bits, heads)
    raw = np.ascontiguousarray(bits).view(np.uint8)
    writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)


def _interleaved(bits: NDArray[np.uint16], heads: int) -> NDArray[np.uint16]:
    """Rows of each head in llama.cpp's order: (0, half), (1, half + 1), ..."""
    rows, columns = bits.shape
    halves = bits.reshape(heads, 2, rows // heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)
