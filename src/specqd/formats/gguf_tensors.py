"""Gives the tensors of a GGUF file their Hugging Face names and row order.

Owns llama.cpp's names, its order of q and k rows and its offset of norm weights. Does not know
which tensors a model needs.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specqd.errors import TensorError, shown
from specqd.formats.bf16 import rounded_to_bf16, widened
from specqd.formats.gguf import READABLE, GgufFile, of_all_layers
from specqd.formats.gguf_quants import BLOCK_FORMATS, bf16_of_blocks
from specqd.formats.gguf_recurrent import RECURRENT, RecurrentLayout, logarithms
from specqd.formats.mapped import MappedFile

_MODEL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_AFTER = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_AROUND = _LAYER | _AFTER | {"ffn_norm": "pre_feedforward_layernorm"}
_LAYERS = {  # by architecture, where the names differ from Llama's
    "olmo2": _LAYER | _AFTER,
    "gemma2": _AROUND,
    "gemma3": _AROUND,
    "phi3": _LAYER | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    "qwen35": _LAYER
    | {
        "post_attention_norm": "post_attention_layernorm",
        "attn_qkv": f"{RECURRENT}in_proj_qkv",
        "attn_gate": f"{RECURRENT}in_proj_z",
        "ssm_beta": f"{RECURRENT}in_proj_b",
        "ssm_alpha": f"{RECURRENT}in_proj_a",
        "ssm_conv1d": f"{RECURRENT}conv1d",
        "ssm_norm": f"{RECURRENT}norm",
        "ssm_out": f"{RECURRENT}out_proj",
    },
}
_BARE = {"ssm_a": f"{RECURRENT}A_log", "ssm_dt.bias": f"{RECURRENT}dt_bias"}  # without modules
_SHIFTED_NORMS = ("gemma2", "gemma3", "qwen35")  # the file holds 1 + w for a norm weight w
_REORDERED = ("llama", "granite")  # q and k rows alternate between the halves of a head
_DERIVED = ("rope_freqs.weight",)  # computed from the configuration, so not read


class GgufTensors:
    """A `WeightSource` over one GGUF file."""

    def __init__(
        self,
        gguf: GgufFile,
        names: dict[str, str],
        heads: dict[str, int],
        recurrent: RecurrentLayout | None,
    ) -> None:
        self.path = gguf.path
        self._recurrent = recurrent
        self._has_shifted_norms = gguf.get("general.architecture") in _SHIFTED_NORMS
        self._gguf = gguf
        self._names = names  # Hugging Face's name -> the file's
        self._heads = heads  # by module, for projections whose rows llama.cpp reorders

    @classmethod
    def open(cls, path: Path) -> "GgufTensors":
        """Maps and checks a file. Raises TensorError, in one line that names the file."""
        gguf = GgufFile.open(path)
        architecture = gguf.get("general.architecture")
        modules = _LAYERS.get(architecture, _LAYER) if isinstance(architecture, str) else _LAYER
        recurrent = RecurrentLayout.of(gguf, "qwen35") if architecture == "qwen35" else None
        names = {}
        for name, tensor in gguf.tensors.items():
            if tensor.dtype not in READABLE:
                raise TensorError(
                    f"{path}: tensor {shown(name)} is {tensor.dtype}, which is not supported; use "
                    f"a file in {', '.join(READABLE[:-1])} or {READABLE[-1]}"
                )
            known = _hugging_face_name(name, modules)
            if known is not None:
                names[known] = name
            elif name not in _DERIVED and not _is_mtp(gguf, name):
                raise TensorError(
                    f"{path}: tensor {shown(name)} belongs to no supported model; "
                    "use the model's Hugging Face directory"
                )
        return cls(gguf, names, _reordered(gguf), recurrent)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def matrices(self) -> Iterable[tuple[str, str, tuple[int, ...]]]:
        tensors = ((ours, self._gguf.tensors[name]) for ours, name in self._names.items())
        return ((name, at.dtype, at.shape) for name, at in tensors if len(at.shape) == 2)

    def files(self) -> Iterable[MappedFile]:
        return self._gguf.parts

    def check_unchanged(self) -> None:
        self._gguf.check_unchanged()

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raises TensorError unless tensor `name` exists and has `shape`."""
        if name not in self._names:
            raise TensorError(
                f"{self.path}: tensor {shown(name)} is missing ({list(shape)} was expected); "
                "the file does not hold what its metadata says"
            )
        found = self._gguf.tensors[self._names[name]].shape
        if self._is_recurrent(name) and len(shape) == 3:  # llama.cpp drops a dimension of 1
            shape = shape[:1] + shape[2:]
        if found != shape:
            raise TensorError(
                f"{self.path}: tensor {shown(name)} has shape {list(found)}, "
                f"{list(shape)} was expected; the file does not hold what its metadata says"
            )

    def bf16(self, name: str, shape: tuple[int, ...], at: int | None = None) -> NDArray[np.uint16]:
        """Returns the BF16 bits of tensor `name`. Raises TensorError as `check` does.

        The result is mapped unless it is rounded from wider floats, dequantised or reordered.
        """
        data = self._data(name, shape)
        is_recurrent = self._is_recurrent(name)
        if self._has_shifted_norms and name.endswith("norm.weight") and not is_recurrent:
            return self._unshifted(name, data)
        bits = data if data.dtype == np.uint16 else rounded_to_bf16(data)
        if is_recurrent and self._recurrent is not None:
            return self._recurrent.restored(name, bits)
        heads = self._heads.get(name.split(".")[-2])
        return bits if heads is None else in_half_order(bits, heads)

    def f32(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Returns the values of tensor `name`. Raises TensorError as `check` does.

        They are rounded to BF16, except in recurrent layers.
        """
        if self._recurrent is None or not self._is_recurrent(name):
            return widened(self.bf16(name, shape))
        data = self._data(name, shape)
        wide = widened(data) if data.dtype == np.uint16 else data.astype(np.float32)
        values = self._recurrent.restored(name, wide)
        if not name.endswith("A_log"):
            return values
        found = logarithms(values)
        if found is None:
            raise TensorError(
                f"{self.path}: tensor {shown(self._names[name])} has a rate that is not below 0; "
                "the file is damaged, fetch it again"
            )
        return found

    def _data(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """Returns the floats of the file as they are, and blocks as BF16 bits."""
        self.check(name, shape)
        data = self._gguf.data(self._names[name])
        blocks = BLOCK_FORMATS.get(self._gguf.tensors[self._names[name]].dtype)
        return data if blocks is None else bf16_of_blocks(data, blocks)

    def _is_recurrent(self, name: str) -> bool:
        return self._recurrent is not None and f".{RECURRENT}" in name

    def _unshifted(self, name: str, data: NDArray[Any]) -> NDArray[np.uint16]:
        wide = widened(data) if data.dtype == np.uint16 else data
        bits = without_one(wide)
        if bits is None:
            raise TensorError(
                f"{self.path}: tensor {shown(name)} minus 1 is not BF16, as the model's norms are; "
                "use the model's Hugging Face directory"
            )
        return bits


def without_one(values: NDArray[Any]) -> NDArray[np.uint16] | None:
    """Returns the BF16 bits of `values - 1`, or None if BF16 cannot hold them exactly."""
    difference = values.astype(np.float64) - 1.0
    narrow = difference.astype(np.float32)
    bits = narrow.view(np.uint32)
    if np.any(narrow != difference) or np.any(bits & 0xFFFF):
        return None
    return (bits >> 16).astype(np.uint16)


def in_half_order(rows: NDArray[np.uint16], heads: int) -> NDArray[np.uint16]:
    """Returns the rows [n, ...] of q or k, or their biases [n], in Hugging Face's order.

    RoPE rotates dimensions x and y of an attention head together. llama.cpp stores
    x0 y0 x1 y1 ..., Hugging Face x0 x1 ... y0 y1 ...
    """
    if rows.shape[0] % (2 * heads):
        return rows  # reading the configuration rejects such heads
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def _reordered(gguf: GgufFile) -> dict[str, int]:
    architecture = gguf.get("general.architecture")
    if architecture not in _REORDERED:
        return {}
    heads = gguf.get(f"{architecture}.attention.head_count")
    kv_heads = of_all_layers(gguf.get(f"{architecture}.attention.head_count_kv")) or heads
    if not (isinstance(heads, int) and isinstance(kv_heads, int) and heads > 0 and kv_heads > 0):
        raise TensorError(f"{gguf.path}: {architecture}.attention.head_count is not a number")
    return {"q_proj": heads, "k_proj": kv_heads}


def _is_mtp(gguf: GgufFile, name: str) -> bool:
    """Returns whether the tensor belongs to an MTP layer. In GGUF files these are not read."""
    return gguf.get("general.architecture") == "qwen35" and ".nextn." in name


def _hugging_face_name(name: str, modules: Mapping[str, str]) -> str | None:
    """Returns the name in safetensors checkpoints, or None for an unknown tensor."""
    parts = name.split(".")
    bare = ".".join(parts[2:])
    if parts[0] == "blk" and bare in _BARE and f"{RECURRENT}norm" in modules.values():
        return f"model.layers.{parts[1]}.{_BARE[bare]}"
    if parts[-1] not in ("weight", "bias"):
        return None
    if parts[0] == "blk" and len(parts) == 4 and parts[2] in modules:
        return f"model.layers.{parts[1]}.{modules[parts[2]]}.{parts[3]}"
    if len(parts) == 2 and parts[0] in _MODEL:
        return f"{_MODEL[parts[0]]}.{parts[1]}"
    return None
