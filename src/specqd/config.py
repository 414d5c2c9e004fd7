"""What a model is, from `config.json`: one DecoderConfig for every supported `model_type`.

Follows transformers 5 in every default and in old and new spellings. Knows nothing of weights;
what it does not support, it refuses by name.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from specqd.errors import ConfigError, shown

RopeKind = Literal["default", "linear", "llama3", "yarn"]

_POSITIVE = (1e-30, 1e30)
_LAYER_TYPES = ("full_attention", "attention", "sliding_attention")  # the second is the old first
_MOST_LAYERS = 10_000  # far past any model; keeps a hostile config from filling the memory


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary positions. A field that its kind does not use holds a neutral value.

    `attention_factor` is None where it is derived from `factor`, `mscale` and `mscale_all_dim`;
    those two are 0 where absent.
    """

    kind: RopeKind
    theta: float
    factor: float = 1.0
    original_max_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True


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
    """Read `config.json` of a model directory; raises ConfigError, in one line that names it."""
    fields = _Fields.read(directory / "config.json")
    model_type = fields.get("model_type")
    if not isinstance(model_type, str) or model_type not in _READERS:
        raise fields.error(
            f"model_type {shown(model_type)} is not supported; known: {', '.join(_READERS)}"
        )
    if fields.get("quantization_config") is not None:
        raise fields.error(
            "quantised checkpoints (quantization_config) are not supported; "
            "use the BF16 checkpoint of this model"
        )
    return _READERS[model_type](fields)


def read_generation_defaults(directory: Path) -> GenerationDefaults:
    """Read `generation_config.json`; all None where the directory has none."""
    path = directory / "generation_config.json"
    if not path.exists():
        return GenerationDefaults()
    fields = _Fields.read(path)
    stated = {name for name, value in fields.values.items() if value is not None}
    return GenerationDefaults(
        do_sample=fields.flag("do_sample", False) if "do_sample" in stated else None,
        temperature=fields.optional_number("temperature", 0.0, 1e30),
        top_p=fields.optional_number("top_p", 0.0, 1.0),
        top_k=fields.integer("top_k", 0, least=0) if "top_k" in stated else None,
        min_p=fields.optional_number("min_p", 0.0, 1.0),
        repetition_penalty=fields.optional_number("repetition_penalty", *_POSITIVE),
        eos_token_ids=fields.token_ids("eos_token_id", ()) if "eos_token_id" in stated else None,
    )


@dataclass(frozen=True, slots=True)
class _Fields:
    """The members of one JSON object, each read with its type checked. A null counts as absent."""

    path: Path
    values: Mapping[str, object]
    within: str = ""  # the name of the object, where it is nested

    @classmethod
    def read(cls, path: Path) -> "_Fields":
        if not path.is_file():
            what = "is not a file" if path.exists() else "is missing"
            raise ConfigError(f"{path}: {what}; a model directory in Hugging Face layout is needed")
        try:
            values = json.loads(path.read_bytes().decode("utf-8"))
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}: is not valid JSON; fetch the model again") from error
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: is not a JSON object; fetch the model again")
        return cls(path, values)

    def error(self, problem: str) -> ConfigError:
        return ConfigError(f"{self.path}: {problem}")

    def wrong(self, name: str, expected: str) -> ConfigError:
        value = self.get(name)
        found = "is missing" if value is None else f"is {shown(value)}"
        return self.error(f"{self.within}{name} {found}; {expected} is needed")

    def get(self, name: str) -> object:
        return self.values.get(name)

    def nested(self, name: str) -> "_Fields":
        value = self.get(name)
        if value is None:
            return _Fields(self.path, {}, f"{name}.")
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return _Fields(self.path, value, f"{name}.")

    def integer(
        self, name: str, default: int | None = None, *, least: int = 1, most: int = 2**31 - 1
    ) -> int:
        value = self.get(name)
        if value is None and default is not None:
            return default
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(name, f"an integer from {least} to {most}")
        return value

    def optional_number(self, name: str, least: float, most: float) -> float | None:
        value = self.get(name)
        if value is None:
            return None
        # Python compares an integer of any size exactly, so a huge one cannot overflow here.
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.wrong(name, "a number")
        if not least <= value <= most:
            raise self.wrong(name, f"a number from {least:g} to {most:g}")
        return float(value)

    def positive(self, name: str, default: float | None = None) -> float:
        """A number that is above 0 and finite in fp32, and so is its inverse."""
        value = self.optional_number(name, *_POSITIVE)
        if value is not None:
            return value
        if default is None:
            raise self.wrong(name, "a number above 0")
        return default

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def token_ids(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """One id, a list of ids, or null for none (which is not the same as absent)."""
        if name not in self.values:
            return default
        value = self.values[name]
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(type(token) is int and 0 <= token < 2**31 for token in ids):
            raise self.wrong(name, "a token id or a list of them")
        return tuple(ids)


def _read_llama(fields: _Fields) -> DecoderConfig:
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


def _read_mistral(fields: _Fields) -> DecoderConfig:
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


def _read_qwen2(fields: _Fields) -> DecoderConfig:
    return _decoder(
        fields,
        max_positions=32768,
        num_kv_heads=32,
        qkv_bias=True,
        windows=_qwen_windows(fields),
    )


def _read_qwen3(fields: _Fields) -> DecoderConfig:
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


_READERS: dict[str, Callable[[_Fields], DecoderConfig]] = {
    "llama": _read_llama,
    "mistral": _read_mistral,
    "qwen2": _read_qwen2,
    "qwen3": _read_qwen3,
}


def _decoder(
    fields: _Fields,
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
        rope=_read_rope(fields, max_positions),
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
    fields: _Fields, num_kv_heads: int | None, head_dim: int | None
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


def _window(fields: _Fields) -> int:
    """transformers takes 4096 where the field is absent; null is full attention."""
    return fields.integer("sliding_window", 0 if "sliding_window" in fields.values else 4096)


def _qwen_windows(fields: _Fields) -> tuple[int, ...]:
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


def _read_rope(fields: _Fields, max_positions: int) -> RopeConfig:
    """From `rope_parameters` (transformers 5) or `rope_scaling` and `rope_theta` (before)."""
    rope = fields.nested("rope_scaling" if fields.get("rope_scaling") else "rope_parameters")
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind not in get_args(RopeKind) or any(isinstance(v, dict) for v in rope.values.values()):
        what = f"rope type {shown(kind)}" if kind != "default" else "rope of several kinds"
        raise rope.error(f"{what} is not supported; known: {', '.join(get_args(RopeKind))}")
    for holder in (rope, fields):
        if holder.get("partial_rotary_factor") not in (None, 1):
            raise holder.wrong("partial_rotary_factor", "1 (rotating the whole head)")
    theta = rope.positive("rope_theta", fields.positive("rope_theta", 10_000.0))
    if kind == "linear":
        return RopeConfig(kind="linear", theta=theta, factor=rope.positive("factor"))
    if kind == "default":
        return RopeConfig(kind="default", theta=theta)
    # A top-level value wins over the one inside, as in transformers.
    original = fields.integer(
        "original_max_position_embeddings",
        rope.integer("original_max_position_embeddings", max_positions),
    )
    if kind == "llama3":
        return _read_llama3_rope(rope, theta, original)
    return _read_yarn_rope(rope, theta, original, max_positions)


def _read_llama3_rope(rope: _Fields, theta: float, original: int) -> RopeConfig:
    low, high = rope.positive("low_freq_factor"), rope.positive("high_freq_factor")
    if high <= low:
        raise rope.wrong("high_freq_factor", f"more than low_freq_factor ({low:g})")
    return RopeConfig(
        kind="llama3",
        theta=theta,
        factor=rope.positive("factor"),
        original_max_positions=original,
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _read_yarn_rope(rope: _Fields, theta: float, original: int, max_positions: int) -> RopeConfig:
    """Where `factor` is absent, it is by how much the context outgrows the original one."""
    if theta <= 1.0:
        raise rope.wrong("rope_theta", "more than 1")
    stated = rope.get("attention_factor") is not None
    return RopeConfig(
        kind="yarn",
        theta=theta,
        factor=rope.positive("factor", max_positions / original),
        original_max_positions=original,
        beta_fast=rope.optional_number("beta_fast", 0.0, 1e30) or 32.0,
        beta_slow=rope.optional_number("beta_slow", 0.0, 1e30) or 1.0,
        attention_factor=rope.positive("attention_factor") if stated else None,
        mscale=rope.optional_number("mscale", 0.0, 1e30) or 0.0,
        mscale_all_dim=rope.optional_number("mscale_all_dim", 0.0, 1e30) or 0.0,
        truncate=rope.flag("truncate", True),
    )
