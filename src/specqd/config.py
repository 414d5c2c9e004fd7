"""What a model is, from `config.json`: one DecoderConfig for every supported `model_type`.

Follows transformers 5 in every default and in old and new spellings. Knows nothing of weights;
what it does not support, it refuses by name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specqd.errors import shown
from specqd.gguf import GgufFile, is_gguf
from specqd.gguf_config import config_fields
from specqd.json_fields import POSITIVE, Fields
from specqd.rope import RopeConfig, read_rope

_LAYER_TYPES = ("full_attention", "attention", "sliding_attention")  # the second is the old first
_QUANTISED = {  # quant_method -> what people call it
    "gptq": "GPTQ",
    "awq": "AWQ",
    "bitsandbytes": "bitsandbytes",
    "fp8": "FP8",
    "fbgemm_fp8": "FP8",
    "compressed-tensors": "compressed-tensors",
    "mxfp4": "MXFP4",
}
_MOST_LAYERS = 10_000  # far past any model; keeps a hostile config from filling the memory


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A decoder-only transformer: RMSNorm, rotary positions, grouped queries, a SwiGLU MLP.

    With `windows[layer] = w > 0`, position q attends to positions q-w+1 .. q; 0 is full attention.
    `qkv_bias`, `output_bias` and `mlp_bias` say which linears have a bias; `qk_norm` that q and k
    are normalised per head before the rotation.
    """

    model_type: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    norm_eps: float
    rope: RopeConfig
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    windows: tuple[int, ...]
    tied_embeddings: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """How a model's authors want it sampled, as `generation_config.json` states it.

    None is "not stated". The other fields count only where `do_sample` is true: false or absent
    means greedy, which `effective_temperature` spells as 0.
    """

    do_sample: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    eos_token_ids: tuple[int, ...] | None = None

    @property
    def effective_temperature(self) -> float:
        """0 unless `do_sample`; then the stated temperature, or 1."""
        if not self.do_sample:
            return 0.0
        return 1.0 if self.temperature is None else self.temperature


def read_config(directory: Path) -> DecoderConfig:
    """Read `config.json` of a model directory, or the like of a GGUF file.

    Raises ConfigError, in one line that names the file.
    """
    if is_gguf(directory):
        fields = config_fields(GgufFile.open(directory))
    else:
        fields = Fields.read(directory / "config.json")
    model_type = fields.get("model_type")
    if not isinstance(model_type, str) or model_type not in _READERS:
        raise fields.error(
            f"model_type {shown(model_type)} is not supported; known: {', '.join(_READERS)}"
        )
    _refuse_quantised(fields)
    return _READERS[model_type](fields)


def _refuse_quantised(fields: Fields) -> None:
    for name in ("quantization_config", "compression_config"):
        if fields.get(name) is not None:
            method = fields.nested(name).get("quant_method")
            kind = _QUANTISED.get(method, shown(method)) if isinstance(method, str) else name
            raise fields.error(
                f"this is a quantised checkpoint ({kind}), which is not supported; "
                "use the BF16 checkpoint of this model"
            )


def read_generation_defaults(directory: Path) -> GenerationDefaults:
    """Read `generation_config.json`; all None where the directory has none."""
    path = directory / "generation_config.json"
    if not path.exists():
        return GenerationDefaults()
    fields = Fields.read(path)
    stated = {name for name, value in fields.values.items() if value is not None}
    return GenerationDefaults(
        do_sample=fields.flag("do_sample", False) if "do_sample" in stated else None,
        temperature=fields.optional_number("temperature", 0.0, 1e30),
        top_p=fields.optional_number("top_p", 0.0, 1.0),
        top_k=fields.integer("top_k", 0, least=0) if "top_k" in stated else None,
        min_p=fields.optional_number("min_p", 0.0, 1.0),
        repetition_penalty=fields.optional_number("repetition_penalty", *POSITIVE),
        eos_token_ids=fields.token_ids("eos_token_id", ()) if "eos_token_id" in stated else None,
    )


def _read_llama(fields: Fields) -> DecoderConfig:
    attention_bias = fields.flag("attention_bias", False)
    return _decoder(
        fields,
        max_positions=2048,
        bos=(1,),
        eos=(2,),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=fields.flag("mlp_bias", False),
    )


def _read_mistral(fields: Fields) -> DecoderConfig:
    window = _window(fields)
    num_layers = fields.integer("num_hidden_layers", most=_MOST_LAYERS)
    return _decoder(
        fields,
        max_positions=4096 * 32,
        bos=(1,),
        eos=(2,),
        num_kv_heads=8,
        windows=(window,) * num_layers,
    )


def _read_qwen2(fields: Fields) -> DecoderConfig:
    return _decoder(
        fields,
        max_positions=32768,
        num_kv_heads=32,
        qkv_bias=True,
        windows=_qwen_windows(fields),
    )


def _read_qwen3(fields: Fields) -> DecoderConfig:
    attention_bias = fields.flag("attention_bias", False)
    return _decoder(
        fields,
        max_positions=32768,
        num_kv_heads=32,
        head_dim=128,
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        qk_norm=True,
        windows=_qwen_windows(fields),
    )


_READERS: dict[str, Callable[[Fields], DecoderConfig]] = {
    "llama": _read_llama,
    "mistral": _read_mistral,
    "qwen2": _read_qwen2,
    "qwen3": _read_qwen3,
}


def _decoder(
    fields: Fields,
    *,
    max_positions: int,
    bos: tuple[int, ...] = (),
    eos: tuple[int, ...] = (),
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    windows: tuple[int, ...] | None = None,
) -> DecoderConfig:
    """What all model types share; the arguments are the defaults and traits of one of them."""
    if fields.get("hidden_act") not in (None, "silu"):
        raise fields.wrong("hidden_act", "'silu'")
    num_layers = fields.integer("num_hidden_layers", most=_MOST_LAYERS)
    max_positions = fields.integer("max_position_embeddings", max_positions)
    bos_ids = fields.token_ids("bos_token_id", bos)
    heads, kv_heads, head_dim = _read_heads(fields, num_kv_heads, head_dim)
    return DecoderConfig(
        model_type=str(fields.get("model_type")),
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=fields.integer("vocab_size"),
        max_positions=max_positions,
        norm_eps=fields.positive("rms_norm_eps", 1e-6),
        rope=read_rope(fields, max_positions),
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        mlp_bias=mlp_bias,
        qk_norm=qk_norm,
        windows=(0,) * num_layers if windows is None else windows,
        tied_embeddings=fields.flag("tie_word_embeddings", False),
        bos_token_id=bos_ids[0] if bos_ids else None,
        eos_token_ids=fields.token_ids("eos_token_id", eos),
    )


def _read_heads(
    fields: Fields, num_kv_heads: int | None, head_dim: int | None
) -> tuple[int, int, int]:
    """Query heads, key/value heads and the size of one.

    A null is "as many as query heads" and "hidden_size / heads"; absent is the type's default.
    """
    heads, hidden_size = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    if num_kv_heads is None or "num_key_value_heads" in fields.values:
        num_kv_heads = heads
    kv_heads = fields.integer("num_key_value_heads", num_kv_heads)
    if heads % kv_heads:
        raise fields.error(f"num_attention_heads {heads} is not a multiple of {kv_heads} kv heads")
    if head_dim is None:
        if fields.get("head_dim") is None and hidden_size % heads:
            raise fields.error(f"hidden_size {hidden_size} is not a multiple of {heads} heads")
        head_dim = hidden_size // heads
    head_dim = fields.integer("head_dim", head_dim)
    if head_dim % 2:
        raise fields.error(f"head_dim {head_dim} is odd; rotary positions need an even one")
    if head_dim > 1024:
        raise fields.error(f"head_dim {head_dim} is above 1024, the largest supported")
    return heads, kv_heads, head_dim


def _window(fields: Fields) -> int:
    """transformers takes 4096 where the field is absent; null is full attention."""
    return fields.integer("sliding_window", 0 if "sliding_window" in fields.values else 4096)


def _qwen_windows(fields: Fields) -> tuple[int, ...]:
    num_layers = fields.integer("num_hidden_layers", most=_MOST_LAYERS)
    window = _window(fields) if fields.flag("use_sliding_window", False) else 0
    layer_types = fields.get("layer_types")
    if layer_types is None:
        first = fields.integer("max_window_layers", 28, least=0)
        return tuple(window if layer >= first else 0 for layer in range(num_layers))
    if not isinstance(layer_types, list) or len(layer_types) != num_layers:
        raise fields.wrong("layer_types", f"a list of {num_layers} names")
    for layer_type in layer_types:
        if layer_type == "sliding_attention" and window == 0:
            raise fields.error(
                "layer_types has sliding_attention, but sliding_window is off; "
                "set use_sliding_window and sliding_window"
            )
        if layer_type not in _LAYER_TYPES:
            raise fields.error(
                f"layer_types has {shown(layer_type)}; known: full_attention, sliding_attention"
            )
    return tuple(window if kind == "sliding_attention" else 0 for kind in layer_types)
