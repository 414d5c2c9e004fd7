"""The configuration of a trained head: which residuals it reads, its layer and its flags.

Fields of all makers of EAGLE-3 heads, where tensors do not say it themselves. Knows no weights.
"""

from dataclasses import dataclass
from pathlib import Path

from specqd.config.decoder import DecoderConfig
from specqd.config.fields import Fields
from specqd.config.rope import RopeConfig, RopeDefaults, read_rope, rope_fields
from specqd.errors import ConfigError, shown

_IDS = "eagle_aux_hidden_state_layer_ids"
_LATENT = "its layer has latent attention (MLA)"
_PARALLEL = "it drafts all depths in one forward (P-EAGLE)"
_ARCHITECTURES = {  # refused, and why
    "Eagle3DeepseekV2ForCausalLM": _LATENT,
    "Eagle3DeepseekV3ForCausalLM": _LATENT,
    "PEagleDraftModel": _PARALLEL,
    "PeagleLlamaForCausalLM": _PARALLEL,
    "EagleLlamaForCausalLM": "it is an EAGLE-1 head",
    "MedusaModel": "it is a Medusa head",
}
_FLAGS = {  # field -> the value that is refused, and why
    "use_aux_hidden_state": (False, "it reads no residuals of the model's layers"),
    "eh_proj_before_attn": (True, "it has a projection before its attention"),
    "parallel_draft_heads": (True, _PARALLEL),
    "parallel_drafting": (True, _PARALLEL),
}
# Makers whose defaults of `norm_before_residual` differ.
_STATED = ("Eagle3Speculator", "Eagle3DraftModel")


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """One layer of Llama over pairs.

    `taps` are boundaries of the target's layers: b is the input of layer b. `keeps_normed`: the
    residual stream begins with the normed hidden row (`norm_before_residual`). `recycles_normed`:
    the next row reads the final norm's output (`norm_output`).
    """

    path: Path
    taps: tuple[int, ...]
    hidden_size: int | None  # None: not stated; the tensors have it
    intermediate_size: int | None
    num_heads: int
    num_kv_heads: int
    head_dim: int | None  # None: the hidden size over the heads
    norm_eps: float
    rope: RopeConfig
    keeps_normed: bool
    recycles_normed: bool


def read_head_config(directory: Path, target: DecoderConfig) -> HeadConfig:
    """Reads `config.json` of a head for that target; raises ConfigError, which names the file."""
    fields = Fields.read(directory / "config.json")
    eagle = fields.part("eagle_config")
    architectures = _architectures(fields)
    _refuse_others(fields, eagle, architectures)
    inner = "transformer_layer_config"
    layer = fields.part(inner) if fields.object(inner) is not None else fields
    heads = layer.integer("num_attention_heads")
    kv_heads = layer.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        problem = f"{heads} is not a multiple of {kv_heads} kv heads"
        raise layer.error("num_attention_heads", problem)
    size = _stated(layer, "hidden_size")
    head_dim = _stated(layer, "head_dim", most=1024)
    dim = head_dim or (size // heads if size is not None and size >= 2 * heads else 2)
    positions = layer.integer("max_position_embeddings", 2048)
    scaling = rope_fields(layer)
    if scaling.get("mrope_section") is not None:
        raise scaling.error("mrope_section", "is not supported; use a head without it")
    before, name = eagle, "norm_before_residual"
    if fields.get(name) is not None or architectures & {*_STATED}:
        before = fields
        if fields.get(name) is None:
            raise fields.wrong(name, "true or false")
    recycles = (holder.flag("norm_output") for holder in (fields, eagle))
    return HeadConfig(
        path=directory,
        taps=_read_taps(fields, eagle, target.num_layers),
        hidden_size=size,
        intermediate_size=_stated(layer, "intermediate_size"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=layer.positive("rms_norm_eps", 1e-6),
        rope=read_rope(layer, scaling, positions, dim, RopeDefaults()),
        keeps_normed=before.flag(name),
        recycles_normed=any(recycles),
    )


def _stated(layer: Fields, name: str, **limits: int) -> int | None:
    return layer.integer(name, **limits) if layer.get(name) is not None else None


def _architectures(fields: Fields) -> set[str]:
    names = fields.get("architectures")
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def _refuse_others(fields: Fields, eagle: Fields, architectures: set[str]) -> None:
    for name in sorted(architectures & {*_ARCHITECTURES}):
        raise ConfigError(f"{fields.path}: {name} is not supported: {_ARCHITECTURES[name]}")
    for holder in (fields, eagle):
        for name, (refused, why) in _FLAGS.items():
            if holder.flag(name, not refused) is refused:
                raise holder.error(name, f"is not supported: {why}")
        for name in ("quantization_config", "compression_config"):
            if holder.get(name) is not None:
                raise holder.error(name, "is not supported; use the head in BF16")


def _read_taps(fields: Fields, eagle: Fields, layers: int) -> tuple[int, ...]:
    """The boundaries that the head reads.

    Configurations name either boundaries or layers whose outputs are read. The field
    `layer_ids_are` says which; without it, ids that begin with 1 are layers, as in SGLang.
    """
    holder = fields if fields.get(_IDS) is not None else eagle
    ids = holder.get(_IDS)
    if ids is None:
        return _checked(holder, (2, layers // 2, layers - 3), layers)
    if not isinstance(ids, list) or not ids or not all(type(i) is int for i in ids):
        raise holder.wrong(_IDS, "a list of layers' numbers")
    kind = fields.text("layer_ids_are") or ("outputs" if ids[0] == 1 else "boundaries")
    if kind not in ("boundaries", "outputs"):
        raise fields.wrong("layer_ids_are", '"boundaries" or "outputs"')
    return _checked(holder, tuple(i + (kind == "outputs") for i in ids), layers)


def _checked(holder: Fields, taps: tuple[int, ...], layers: int) -> tuple[int, ...]:
    if list(taps) != sorted({*taps}) or taps[0] < 0 or taps[-1] > layers:
        raise holder.error(
            _IDS,
            f"gives the boundaries {shown(list(taps))}; ascending ones from 0 to {layers}, the "
            "model's number of layers, are needed",
        )
    return taps
