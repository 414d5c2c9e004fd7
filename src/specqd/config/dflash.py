"""The configuration of a DFlash drafter (arXiv 2602.06036) or a DFlash2 one.

Fields as z-lab and vLLM's speculators write them. Knows no weights.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from specqd.config.decoder import (
    DecoderConfig,
    DynamicConvolutionConfig,
    layer_count,
    read_decoder,
    read_layer_types,
    windows_of,
)
from specqd.config.fields import Fields
from specqd.config.rope import rope_fields
from specqd.errors import ConfigError, SpecqdError, shown

MOST_BLOCK = 64  # rows of a block
_MOST_RANK, _MOST_CANDIDATES = 65_536, 1024  # of a selector
_SHIFTED = "its rows predict the token after their own place"
_DOMINO = "it is a Domino drafter"
_ARCHITECTURES = {  # refused, by the beginning of the name, and why
    "DSpark": f"{_SHIFTED}, with a chain over them (DSpark)",
    "Domino": _DOMINO,
    "Laguna": "it has gated attention (Laguna)",
}
_MASK = "mask_token_id"
_TARGET_IDS, _BOUNDARIES = "target_layer_ids", "aux_hidden_state_layer_ids"
_TAPS, _GROUP = "conv_kernel_size", "conv_group_size"
_RANK, _CANDIDATES = "selector_rank", "selector_top_k"


@dataclass(frozen=True, slots=True)
class SelectorConfig:
    """A selector of tokens (DFlash2): the best `candidates` of a row are ranked again by how they
    follow the token before, a product of vectors of `rank` values."""

    rank: int
    candidates: int


@dataclass(frozen=True, slots=True)
class BlockConfig:
    """A drafter of blocks.

    `taps` are boundaries of the target's layers, in the order of fc's columns: b is the input of
    layer b. `block` is the number of rows with which the drafter was trained, that of the newest
    token included. `mask` is the token id of the other rows. `layers` is a decoder of the drafter's
    layers, with the vocabulary of the target; the tensors say which biases and norms it has.
    DFlash2 drafters have convolutions in their layers, and a selector.
    """

    path: Path
    taps: tuple[int, ...]
    block: int
    mask: int
    layers: DecoderConfig
    selector: SelectorConfig | None = None


def read_block_config(directory: Path, target: DecoderConfig) -> BlockConfig:
    """Reads `config.json` of a drafter for that target; raises ConfigError."""
    fields = Fields.read(directory / "config.json")
    own = fields.part("dflash_config")
    _refuse_others(fields, own, directory)
    inner = "transformer_layer_config"
    layer = fields.part(inner) if fields.object(inner) is not None else fields
    layers = _read_layers(layer, fields, own, target)
    mask = _holder(fields, own, _MASK)
    block = _stated(fields, own, "block_size", 2, MOST_BLOCK)
    convolution = _read_convolution(fields, own, layers.hidden_size, block)
    return BlockConfig(
        path=directory,
        taps=_read_taps(fields, own, target.num_layers, layers.num_layers),
        block=block,
        mask=_read_mask(mask, target.vocab_size),
        layers=replace(layers, dynamic_convolution=convolution),
        selector=_read_selector(fields, own, target.vocab_size),
    )


def states_mask(directory: Path) -> bool:
    """Whether `config.json` names a mask, as those of block drafters do. Raises ConfigError."""
    fields = Fields.read(directory / "config.json")
    return any(each.get(_MASK) is not None for each in (fields, fields.part("dflash_config")))


def _holder(fields: Fields, own: Fields, name: str) -> Fields:
    """The object that states a field: `dflash_config`, or the one around it."""
    return fields if own.get(name) is None else own


def _stated(fields: Fields, own: Fields, name: str, least: int, most: int) -> int:
    return _holder(fields, own, name).integer(name, least=least, most=most)


def _architectures(fields: Fields) -> list[str]:
    stated = fields.get("architectures")
    return [each for each in stated if isinstance(each, str)] if isinstance(stated, list) else []


def _has_part(fields: Fields, own: Fields, names: tuple[str, ...]) -> bool:
    """Whether a drafter has a part of DFlash2, which these fields describe. A DFlash2 drafter must
    have it; any other one has it if a field is stated."""
    is_dflash2 = any(name.startswith("DFlash2") for name in _architectures(fields))
    return is_dflash2 or any(_holder(fields, own, n).get(n) is not None for n in names)


def _read_convolution(
    fields: Fields, own: Fields, hidden: int, block: int
) -> DynamicConvolutionConfig | None:
    if not _has_part(fields, own, (_TAPS, _GROUP)):
        return None
    taps = _stated(fields, own, _TAPS, 1, block)
    group = _stated(fields, own, _GROUP, 1, hidden)
    if hidden % group:
        raise _holder(fields, own, _GROUP).error(
            _GROUP, f"{group} does not divide hidden_size, {hidden}"
        )
    return DynamicConvolutionConfig(taps, group)


def _read_selector(fields: Fields, own: Fields, vocabulary: int) -> SelectorConfig | None:
    if not _has_part(fields, own, (_RANK, _CANDIDATES)):
        return None
    rank = _stated(fields, own, _RANK, 1, _MOST_RANK)
    most = min(vocabulary, _MOST_CANDIDATES)
    return SelectorConfig(rank, _stated(fields, own, _CANDIDATES, 1, most))


def _refuse_others(fields: Fields, own: Fields, directory: Path) -> None:
    for name in _architectures(fields):
        for beginning, why in _ARCHITECTURES.items():
            if name.startswith(beginning):
                raise ConfigError(f"{fields.path}: {shown(name)} is not supported: {why}")
    for holder in (fields, own):
        for name in ("sample_from_anchor", "shift_label"):
            if holder.flag(name):
                raise holder.error(name, f"is not supported: {_SHIFTED}")
        if holder.get("projector_type") == "domino":
            raise holder.error("projector_type", f"is not supported: {_DOMINO}")
        for name in ("quantization_config", "compression_config"):
            if holder.get(name) is not None:
                raise holder.error(name, "is not supported; use the drafter in BF16")
    if (directory / "mask_embedding.pt").exists():
        raise ConfigError(
            f"{directory}: not supported: mask_embedding.pt, an embedding of masks of its own; use "
            "another drafter"
        )


def _read_mask(holder: Fields, vocabulary: int) -> int:
    mask = holder.integer(_MASK, least=0)
    if mask >= vocabulary:
        raise holder.error(
            _MASK,
            f"is {mask}, and the model's embedding has {vocabulary} rows; the drafter belongs to "
            "another model",
        )
    return mask


def _read_layers(
    layer: Fields, fields: Fields, own: Fields, target: DecoderConfig
) -> DecoderConfig:
    if rope_fields(layer).get("mrope_section") is not None:
        raise rope_fields(layer).error("mrope_section", "is not supported; use another drafter")
    kinds = read_layer_types(layer) or ["full_attention"] * layer_count(layer)
    window = layer.integer("sliding_window", 0, least=0)
    windows = windows_of(
        layer, ["full_attention" if k == "attention" else k for k in kinds], window
    )
    is_causal = _is_causal(fields, own)
    read = read_decoder(
        layer.with_values(vocab_size=target.vocab_size, bos_token_id=None, eos_token_id=None),
        max_positions=target.max_positions,
        windows=windows,
    )
    cap = "final_logit_softcapping"
    return replace(
        read,
        model_type="dflash",
        max_positions=target.max_positions,
        qkv_bias=False,
        output_bias=False,
        tied_embeddings=False,
        causal=tuple(window > 0 and is_causal for window in windows),
        embedding_scale=_scale(fields, own, "input_embedding_scale"),
        logit_scale=_scale(fields, own, "output_multiplier"),
        logit_softcap=_holder(fields, own, cap).optional_number(cap, 1e-30, 1e30),
    )


def _scale(fields: Fields, own: Fields, name: str) -> float:
    return _holder(fields, own, name).positive(name, 1.0)


def _is_causal(fields: Fields, own: Fields) -> bool:
    """Whether layers with windows are causal within a block. Makers have three words for it."""
    opposite = "sliding_window_non_causal"
    if fields.get(opposite) is not None:
        return not fields.flag(opposite)
    return _holder(fields, own, "causal").flag("causal", fields.flag("is_causal", True))


def _read_taps(fields: Fields, own: Fields, layers: int, own_layers: int) -> tuple[int, ...]:
    """The boundaries whose values make a feature. `target_layer_ids` are layers whose outputs are
    read, speculators' `aux_hidden_state_layer_ids` are boundaries."""
    stated = fields.get("num_target_layers")
    if stated is not None and fields.integer("num_target_layers") != layers:
        raise fields.error(
            "num_target_layers",
            f"is {stated}, and the model has {layers} layers; the drafter belongs to another model",
        )
    name = _BOUNDARIES if fields.get(_BOUNDARIES) is not None else _TARGET_IDS
    holder = _holder(fields, own, name)
    ids = holder.get(name)
    if ids is None:
        return tuple(each + 1 for each in _spread(layers, own_layers))
    if not isinstance(ids, list) or not ids or not all(type(i) is int for i in ids):
        raise holder.wrong(name, "a list of layers' numbers")
    taps = tuple(i + (name == _TARGET_IDS) for i in ids)
    if len({*taps}) < len(taps) or min(taps) < 0 or max(taps) > layers:
        raise _wrong_taps(holder, name, taps, layers)
    return taps


def _wrong_taps(holder: Fields, name: str, taps: tuple[int, ...], layers: int) -> SpecqdError:
    return holder.error(
        name,
        f"gives the boundaries {shown(list(taps))}; different ones from 0 to {layers}, the model's "
        "number of layers, are needed",
    )


def _spread(layers: int, count: int) -> list[int]:
    """Layers from 1 to N - 3 at equal distances; a single one is in the middle."""
    if count == 1:
        return [layers // 2]
    first, last = 1, max(layers - 3, 1)
    return [round(first + i * (last - first) / (count - 1)) for i in range(count)]
