"""`specqd pack`: writes a model with packed weights, which opens at once."""

import json
import secrets
import shutil
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specqd.cli.command import Command
from specqd.cli.completion import complete_model
from specqd.cli.options import (
    MODEL_IS,
    MachineChoice,
    machine_options,
    quiet_option,
)
from specqd.cli.terminal import ProgressBar, inform, one_line
from specqd.errors import RequestError, SpecqdWarning, naming_file
from specqd.formats.fp4 import DraftFormat
from specqd.formats.sync import sync

if TYPE_CHECKING:
    from specqd.config import DecoderConfig
    from specqd.model.importance import MeasuredInputs
    from specqd.model.model import Machine
    from specqd.model.weights import DecoderWeights
    from specqd.text.calibration import CalibrationText

# Files of a model, other than its weights, that the engine reads.
_DESCRIPTION = (
    "config.json",
    "generation_config.json",
    "tokenizer*.json",
    "tekken.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "chat_template*",
    "additional_chat_templates/*",
)


@click.command(cls=Command)
@click.argument("model", shell_complete=complete_model, help=MODEL_IS)
@click.argument("out", type=click.Path(path_type=Path), help="A new directory.")
@click.option(
    "--format",
    "draft",
    type=click.Choice([each.value for each in DraftFormat]),
    default=DraftFormat.FP4.value,
    show_default=True,
    help="Format of the draft weights: fp4, or MXFP4 with scales of least squared error (mxfp4) or "
    "with those of the OCP standard and the paper (mxfp4-floor).",
)
@click.option(
    "--calibrate",
    metavar="FILE|none",
    help="Text on which to measure how much each weight matters to the draft: JSON lines with "
    "`text` or `messages`. Default: a short text that comes with SpecQD. none: use the norms, as "
    "loading does.",
)
@machine_options
@quiet_option()
def pack(
    model: str,
    out: Path,
    draft: str,
    calibrate: str | None,
    machine: MachineChoice,
) -> None:
    """Pack a model's weights once.

    Writes MODEL with packed weights to the new directory OUT. Every command accepts OUT; it opens
    at once, on any machine, and gives the same tokens as MODEL. Weights take about 13 bits each.

    \b
    Examples:
      specqd pack Qwen/Qwen3-0.6B ./qwen3-packed
      specqd pack ./model-q4_k_m.gguf ./model-packed
      specqd generate ./qwen3-packed -p "Once upon a time"
    """
    from specqd.config import read_config
    from specqd.hub import resolve
    from specqd.model.packed import is_packed
    from specqd.model.weights import left_out, load_weights
    from specqd.text.calibration import read_calibration
    from specqd.text.tokenizer import Tokenizer

    directory = resolve(model)
    if is_packed(directory):
        raise RequestError(f"{directory}: is packed already; name the model it was packed from")
    tokenizer = Tokenizer.open(directory)
    config, chosen = read_config(directory), machine.machine()
    text = None
    if DraftFormat(draft) is DraftFormat.FP4 and not config.is_mxfp4 and calibrate != "none":
        text = read_calibration(tokenizer, None if calibrate is None else Path(calibrate))
    with _raising_at_sigterm(), _new_directory(out) as unfinished:
        inputs = _measure(directory, chosen, text) if text else None
        with ProgressBar("Packing weights") as bar:
            weights = load_weights(
                directory,
                config,
                chosen.pool,
                chosen.isa,
                draft=DraftFormat(draft),
                inputs=inputs,
                progress=bar,
            )
        weights = _with_mtp(weights, directory, config, chosen)
        if missed := left_out(directory, weights):
            more = f" and {len(missed) - 1} more" if len(missed) > 1 else ""
            inform(f"note: left out, as nothing reads it: {missed[0]}{more}")
        _write(unfinished, directory, weights, text.name if text else "none")
    click.echo(one_line(f"{out}: {_described(weights)}"))


def _with_mtp(
    weights: "DecoderWeights", directory: Path, config: "DecoderConfig", machine: "Machine"
) -> "DecoderWeights":
    """The weights, and those of the model's MTP layer, if it has one that drafts."""
    from specqd.model.mtp import MtpFiles, has_mtp, load_mtp_weights

    if not has_mtp(directory, config):
        return weights
    files = MtpFiles.open(directory, config)
    layer = load_mtp_weights(files, machine.pool, machine.isa, weights.draft).loader
    return replace(
        weights,
        matrices=weights.matrices + layer.matrices,
        unpacked=weights.unpacked | layer.unpacked,
    )


def _measure(directory: Path, machine: "Machine", text: "CalibrationText") -> "MeasuredInputs":
    from specqd.model.input_measurement import measure_inputs
    from specqd.model.model import Model

    longest = max(map(len, text.sequences))
    with ProgressBar("Loading") as bar, warnings.catch_warnings():
        warnings.simplefilter("ignore", SpecqdWarning)  # packing loads again, and warns then
        model = Model.open(directory, machine=machine, cache_positions=longest, progress=bar)
    with ProgressBar("Measuring inputs") as bar:
        return measure_inputs(model, text.sequences, bar)


@contextmanager
def _raising_at_sigterm() -> Iterator[None]:
    """Turns SIGTERM into an exception, so that no unfinished file stays."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _new_directory(path: Path) -> Iterator[Path]:
    """Yields a temporary directory. At the end its files are synced to the disk and it is renamed
    to `path`; an error removes it."""
    is_taken = path.exists() and not (path.is_dir() and not any(path.iterdir()))
    if is_taken or (path.is_symlink() and not path.exists()):
        raise RequestError(f"{path}: exists already; name a new directory")
    path = path.absolute()
    unfinished = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    unfinished.mkdir(parents=True)
    try:
        with naming_file(path):
            yield unfinished
            with ProgressBar("Waiting for the disk"):
                for each in (*unfinished.rglob("*"), unfinished):
                    sync(each)  # before the rename: nothing checks the contents of files
        unfinished.replace(path)
        sync(path.parent)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _write(out: Path, source: Path, weights: "DecoderWeights", calibration: str) -> None:
    from specqd.formats.gguf import is_gguf
    from specqd.formats.safetensors import PACKED_WEIGHTS
    from specqd.model.packed import matrix_name, write_packed

    if is_gguf(source):
        _write_description(out, source)
    else:
        _copy_description(out, source)
    matrices = {matrix_name(packed.names): packed.weight for packed in weights.matrices}
    with ProgressBar("Writing") as bar:
        path, draft = out / PACKED_WEIGHTS, weights.draft
        write_packed(path, matrices, weights.unpacked, draft, calibration, bar)


def _copy_description(out: Path, directory: Path) -> None:
    from specqd.config.embedding import FILES

    patterns = (*_DESCRIPTION, *FILES)
    for file in sorted(path for pattern in patterns for path in directory.glob(pattern)):
        if file.is_file():
            copy = out / file.relative_to(directory)
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(file, copy)


def _write_description(out: Path, gguf: Path) -> None:
    """The configuration and tokenizer of a GGUF file, as a Hugging Face directory has them."""
    from specqd.config.embedding import gguf_files
    from specqd.config.gguf import config_fields
    from specqd.formats.gguf import GgufFile
    from specqd.text.gguf_tokenizer import tokenizer_files

    file = GgufFile.open(gguf)
    config = json.dumps(config_fields(file).values, indent=1)
    texts = {"config.json": config, **gguf_files(file), **tokenizer_files(gguf)}
    for name, text in texts.items():
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text(text + "\n", encoding="utf-8")


def _described(weights: "DecoderWeights") -> str:
    planes = [packed.weight.plane_bytes() for packed in weights.matrices]
    count = sum(packed.weight.rows * packed.weight.columns for packed in weights.matrices)
    stored = sum(sum(each.values()) for each in planes)
    return (
        f"{len(planes)} matrices in {stored / 1e6:,.1f} MB, {8 * stored / count:.2f} bits/"
        f"weight, draft weights in {weights.draft.value}"
    )
