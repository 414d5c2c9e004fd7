"""A model whose metadata has wrong values gives a SpecqdError of one line, or works."""

import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specqd.config import read_generation_defaults
from specqd.errors import SpecqdError
from specqd.model.model import Machine, Model
from specqd.text.tokenizer import Tokenizer
from support.families import FAMILY_SHAPES
from support.gguf_files import convert, model_metadata, tokenizer_metadata
from support.random_models import ROPE_SCALINGS, Shape, make_config, make_model
from support.slow import values
from support.wrapped_models import wrap_model

SHAPES = {
    "llama": Shape(rope_scaling=ROPE_SCALINGS["llama3"], has_biases=True),
    "mistral": Shape("mistral", window=70),
    "qwen3": Shape("qwen3", rope_scaling=ROPE_SCALINGS["yarn"]),
    **FAMILY_SHAPES,
}
GGUF_SHAPES = {
    **{family: Shape(family) for family in ("llama", "qwen2", "qwen3", "olmo2")},
    "qwen35": replace(FAMILY_SHAPES["qwen3_5_text"], spells_rope_parameters=False),
}
FIELDS = (  # in addition to those in a family's config.json
    "head_dim", "rope_scaling", "rope_parameters", "rope_theta", "layer_types", "no_rope_layers",
    "rotary_pct", "rotary_emb_base", "partial_rotary_factor", "hidden_act", "hidden_activation",
    "sliding_window", "use_sliding_window", "max_window_layers", "sliding_window_pattern",
    "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers", "num_experts", "swiglu_limit",
    "quantization_config", "clip_qkv", "use_parallel_residual", "original_max_position_embeddings",
    "attn_logit_softcapping", "query_pre_attn_scalar", "use_bidirectional_attention",
    "num_local_experts", "position_embedding_type", "layers_block_type", "text_config",
    "full_attn_idxs", "block_ff_dim", "block_multiple_of", "block_ffn_dim_multiplier",
    "block_auto_adjust_ff_dim", "conv_L_cache", "tie_embedding", "norm_eps",
    "num_dense_layers", "use_expert_bias", "routed_scaling_factor",
    "q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "n_group",
    "topk_group", "n_routed_experts", "n_shared_experts", "first_k_dense_replace",
    "mlp_layer_types", "rope_interleave", "use_qk_norm",
)  # fmt: skip
MEMBERS = (
    "rope_type", "type", "factor", "rope_theta", "quant_method", "content", "special",
    "full_attention", "llama_4_scaling_beta",
)  # fmt: skip
WORDS = ("", "64", "silu", "gelu", "llama", "gpt_neox", "yarn", "longrope", "dynamic", "\x00", "é")
NUMBERS = (0, 1, 2, 3, 16, 10_000, 2**31 - 1, 2**31, 2**62, 2**64 - 1, -1, -(2**63))
REALS = (0.0, -0.0, 0.5, 1.0, 1e-8, 1e-30, 5e-324, 1e30, 1e308, -1.0, *map(float, ("inf", "nan")))
scalars = (
    st.booleans()
    | st.sampled_from(NUMBERS)
    | st.sampled_from(REALS)
    | st.sampled_from(WORDS)
    | st.integers(-5, 300)
    | st.floats()
)
json_values = st.recursive(
    st.none() | scalars | st.just(10**400),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(MEMBERS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
gguf_values = scalars | st.lists(scalars, max_size=4)
few, many = settings(max_examples=20), settings(max_examples=60)
some = pytest.mark.parametrize("examples", values(few, slow=[many]), ids=["few", "many"])


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine.choose(1)


@pytest.fixture(scope="module", params=[*SHAPES, "mistral3"])
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> Path:
    directory = tmp_path_factory.mktemp("models")
    if request.param == "mistral3":
        text = make_model(directory / "text", SHAPES["ministral3"], seed)
        return wrap_model(directory / "wrapped", text, "language_model.")
    return make_model(directory / "model", SHAPES[request.param], seed)


def use(path: Path, machine: Machine) -> None:
    """Opens a model and its tokenizer, and runs a forward of three tokens."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opened = Model.open(path, machine=machine, cache_positions=64, max_rows=4)
        opened.logits([1, 2, 1][: opened.config.max_positions])
        tokenizer = Tokenizer.open(path)
        tokenizer.decode(tokenizer.encode("a b"))


def check(attempt: Callable[[], object]) -> None:
    try:
        attempt()
    except SpecqdError as error:
        problem = str(error)
    else:
        problem = ""
    assert "\n" not in problem


def entries(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yields the paths of all members of nested objects."""
    for name, member in value.items() if isinstance(value, dict) else ():
        yield (*path, name)
        yield from entries(member, (*path, name))


def replaced(values: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    name, *deeper = path
    if deeper:
        value = replaced(values[name], tuple(deeper), value)
    return {**values, name: value}


def rewrite(directory: Path, file: str, data: st.DataObject, fields: tuple[str, ...] = ()) -> None:
    """Replaces one to three members of a JSON file by other values, strings mostly by strings."""
    values = json.loads((directory / file).read_text(encoding="utf-8"))
    words = sorted(name for name, value in values.items() if isinstance(value, str))
    for _ in range(data.draw(st.sampled_from((1, 1, 1, 2, 3)))):
        if words and data.draw(st.integers(0, 3)) == 0:
            values[data.draw(st.sampled_from(words))] = data.draw(st.sampled_from(WORDS))
            continue
        paths = sorted({*entries(values), *((field,) for field in fields)})
        path, value = data.draw(st.sampled_from(paths)), data.draw(json_values)
        values = replaced(values, path, value)
    (directory / file).write_text(json.dumps(values), encoding="utf-8")


@some
def test_any_value_in_config_json_is_rejected_or_works(
    model: Path, tmp_path: Path, machine: Machine, examples: settings
) -> None:
    @examples
    @given(data=st.data())
    def try_one(data: st.DataObject) -> None:
        copy = shutil.copytree(model, tmp_path / "model", dirs_exist_ok=True)
        rewrite(copy, "config.json", data, FIELDS)
        check(lambda: use(copy, machine))

    try_one()


@pytest.mark.parametrize("file", ["tokenizer_config.json", "tokenizer.json"])
@given(data=st.data())
@many
def test_any_value_in_a_tokenizers_files_is_rejected_or_works(
    file: str, tmp_path: Path, seed: int, data: st.DataObject
) -> None:
    if not (tmp_path / "good").exists():
        make_model(tmp_path / "good", Shape(), seed)
    copy = shutil.copytree(tmp_path / "good", tmp_path / "model", dirs_exist_ok=True)
    fields = ("added_tokens_decoder", "extra_special_tokens", "chat_template", "pad_token")
    rewrite(copy, file, data, fields)

    def encode() -> None:
        tokenizer = Tokenizer.open(copy)
        tokenizer.decode(tokenizer.encode("a b"))

    check(encode)


@given(data=st.data())
@many
def test_any_generation_default_is_rejected_or_works(tmp_path: Path, data: st.DataObject) -> None:
    names = ("do_sample", "temperature", "top_p", "top_k", "min_p", "eos_token_id")
    values = data.draw(st.dictionaries(st.sampled_from(names), json_values))
    (tmp_path / "generation_config.json").write_text(json.dumps(values))
    check(lambda: read_generation_defaults(tmp_path))


@pytest.mark.parametrize("family", GGUF_SHAPES)
@given(data=st.data())
@many
def test_any_metadata_of_a_gguf_file_is_rejected_or_works(
    family: str, tmp_path: Path, machine: Machine, seed: int, data: st.DataObject
) -> None:
    shape = GGUF_SHAPES[family]
    if not (tmp_path / "model").exists():
        make_model(tmp_path / "model", shape, seed)
    known = model_metadata(make_config(shape)) | tokenizer_metadata(tmp_path / "model")
    more = (
        f"{family}.rope.scaling.type", f"{family}.rope.scaling.factor", "split.count",
        f"{family}.expert_count", f"{family}.attention.sliding_window", "general.alignment",
        "tokenizer.chat_template", "tokenizer.chat_templates", "tokenizer.ggml.eot_token_id",
        f"{family}.attention.sliding_window_pattern", f"{family}.nextn_predict_layers",
    )  # fmt: skip
    changes = data.draw(
        st.dictionaries(st.sampled_from([*known, *more]), gguf_values, min_size=1, max_size=3)
    )
    metadata = {key.replace(".", "__"): value for key, value in changes.items()}
    path = convert(tmp_path / "model", tmp_path / "m.gguf", "BF16", **metadata)
    check(lambda: use(path, machine))
