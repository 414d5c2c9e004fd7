"""Builds llama.cpp from its source package and converts a model for each peer.

    python benchmarks/peers/prepare.py MODEL --work .peers
    python benchmarks/peers/prepare.py MODEL --work .peers --gguf FILE --formats q4_k_m.gguf packed

Existing files are kept, so that an interrupted run can continue. A peer that cannot be installed is
reported here and is absent from the results; the others are still measured.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

LLAMA_CPP = "llama-cpp-python==0.3.36"  # its source package contains llama.cpp and its tools
TARGETS = ("llama-server", "llama-quantize")
CMAKE_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
    f"-DCMAKE_CXX_FLAGS=-include {Path(__file__).with_name('tile_config.h').resolve()}",
)
MXFP4_GROUP = 32
BF16_FILE = 32  # llama.cpp's number of the file type
MADE_OF_BF16 = ("bf16.gguf", "q4_0.gguf", "mxfp4.gguf", "openvino-bf16", "openvino-mxfp4")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--gguf", type=Path, help="the 4-bit file of which MODEL was made")
    parser.add_argument("--formats", nargs="+", default=MADE_OF_BF16, help="files to make")
    parser.add_argument("--small", type=Path, help="a prepared model that drafts for MODEL")
    options = parser.parse_args()
    out = options.work / options.model.name
    out.mkdir(parents=True, exist_ok=True)
    _try("llama.cpp", lambda: build_llama_cpp(options.work, options.jobs))
    formats = Formats(options.model.resolve(), out, options.work, options.gguf)
    for name in options.formats:
        _try(name, partial(formats.make, name))
    if options.small is not None and not (out / "small").exists():
        (out / "small").symlink_to(Path("..") / options.small.name)


def _try(what: str, step: Callable[[], object]) -> None:
    try:
        step()
    except (OSError, ImportError, ValueError, RuntimeError, subprocess.CalledProcessError) as error:
        print(f"{what} will be absent: {error}", file=sys.stderr)


def llama_cpp_tool(work: Path, name: str) -> Path:
    return work / "llama.cpp-build" / "bin" / name


def build_llama_cpp(work: Path, jobs: int) -> None:
    if all(llama_cpp_tool(work, name).exists() for name in TARGETS):
        return
    package = work / "llama-cpp-python"
    _make(package, _unpack)
    [source] = package.glob("*/vendor/llama.cpp")
    build = work / "llama.cpp-build"
    _run("cmake", "-S", source, "-B", build, "-G", "Ninja", *CMAKE_OPTIONS)
    _run("cmake", "--build", build, "-j", jobs, "--target", *TARGETS)


def _unpack(to: Path) -> None:
    name = LLAMA_CPP.partition("==")[0]
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    _run(*download, "--no-binary", name, "--dest", to, LLAMA_CPP)
    [archive] = to.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(to, filter="data")


def write_gguf(model: Path, path: Path) -> None:
    """Writes the same BF16 bits for llama.cpp. Prompts are token ids, so none is added to them.

    Raises ValueError for a scaled RoPE.
    """
    from support.gguf_files import convert

    config = json.loads((model / "config.json").read_text())
    rope = config.get("rope_parameters") or {}  # as transformers 5 writes them
    if config.get("rope_scaling") or rope.get("rope_type", "default") != "default":
        raise ValueError(f"{model}: only a model with unscaled RoPE is written as GGUF here")
    metadata = {"general__file_type": BF16_FILE, "tokenizer__ggml__add_bos_token": False}
    convert(model, path, "BF16", **metadata)


def round_vectors(path: Path) -> None:
    """Rounds norms and biases, which llama.cpp keeps in F32, to values of BF16, in place."""
    import gguf

    from support.writers import bf16_bits

    for tensor in gguf.GGUFReader(path, "r+").tensors:
        if tensor.tensor_type == gguf.GGMLQuantizationType.F32:
            tensor.data[:] = (bf16_bits(tensor.data).astype("u4") << 16).view("f4")


@dataclass(frozen=True, slots=True)
class Formats:
    """The formats of one model, each a file or directory of `out`, made when it is first needed.
    `gguf` is the 4-bit file of which the BF16 model was made, if it was."""

    model: Path
    out: Path
    work: Path
    gguf: Path | None

    def make(self, name: str) -> Path:
        """Raises KeyError for an unknown name."""
        write = FORMATS[name]
        _make(self.out / name, lambda partial: write(self, partial))
        return self.out / name

    def link_gguf(self, to: Path) -> None:
        if self.gguf is None:
            raise ValueError(f"{self.model} was not made of a GGUF file")
        to.symlink_to(self.gguf.resolve())

    def write_bf16(self, to: Path) -> None:
        """Writes the bits that SpecQD reads: a GGUF file is dequantised and rounded once."""
        if self.gguf is None:
            write_gguf(self.model, to)
            return
        self._quantize("--allow-requantize", self.gguf, to, "BF16")
        round_vectors(to)

    def write_q4_0(self, to: Path) -> None:
        """Every matrix, embedding and output head included, like the 4-bit weights of specqd."""
        self._quantize("--pure", self.make("bf16.gguf"), to, "Q4_0")

    def write_mxfp4(self, to: Path) -> None:
        """Every matrix, as for Q4_0."""
        kinds = ["--output-tensor-type", "mxfp4", "--token-embedding-type", "mxfp4"]
        for part in ("attn", "ffn"):
            kinds += ["--tensor-type", f"{part}=mxfp4"]
        self._quantize(*kinds, self.make("bf16.gguf"), to, "Q8_0")

    def write_q8_0(self, to: Path) -> None:
        self._quantize(self.make("bf16.gguf"), to, "Q8_0")

    def _quantize(self, *words: object) -> None:
        _run(llama_cpp_tool(self.work, "llama-quantize"), *words)

    def export_openvino(self, to: Path) -> None:
        """BF16 like the checkpoint: the exporter's command stores large models in 8 bits by
        default."""
        from optimum.exporters.openvino import main_export
        from optimum.intel import OVConfig

        task, config = "text-generation-with-past", OVConfig()
        main_export(str(self.model), str(to), task=task, ov_config=config, convert_tokenizer=True)

    def compress_openvino(self, to: Path) -> None:
        """`int8` and `int4` as the exporter's command makes them by default, INT4 in groups of 128
        with embedding and output head in INT8; MXFP4 for every layer."""
        import nncf
        import openvino

        modes = nncf.CompressWeightsMode
        settings = {
            "int8": {"mode": modes.INT8_ASYM},
            "int4": {"mode": modes.INT4_ASYM, "ratio": 1.0, "group_size": 128},
            "mxfp4": {
                "mode": modes.MXFP4,
                "ratio": 1.0,
                "group_size": MXFP4_GROUP,
                "all_layers": True,
            },
        }
        plain, name = self.make("openvino-bf16"), "openvino_model.xml"
        shutil.copytree(plain, to, ignore=shutil.ignore_patterns("openvino_model.*"))
        compressed = nncf.compress_weights(
            openvino.Core().read_model(plain / name), **settings[to.name.rpartition("-")[2]]
        )
        openvino.save_model(compressed, to / name, compress_to_fp16=False)

    def pack(self, to: Path) -> None:
        """Needs no calibration file: specqd has one."""
        _run(Path(sys.executable).with_name("specqd"), "pack", self.model, to)


FORMATS: dict[str, Callable[[Formats, Path], None]] = {
    "bf16.gguf": Formats.write_bf16,
    "q4_0.gguf": Formats.write_q4_0,
    "mxfp4.gguf": Formats.write_mxfp4,
    "q4_k_m.gguf": Formats.link_gguf,
    "q8_0.gguf": Formats.write_q8_0,
    "openvino-bf16": Formats.export_openvino,
    "openvino-mxfp4": Formats.compress_openvino,
    "openvino-int8": Formats.compress_openvino,
    "openvino-int4": Formats.compress_openvino,
    "packed": Formats.pack,
}


def _make(path: Path, write: Callable[[Path], None]) -> None:
    """Writes under a temporary name, and renames the complete file."""
    if not path.exists():
        partial = path.with_name(f"partial-{path.name}")
        shutil.rmtree(partial, ignore_errors=True)
        partial.unlink(missing_ok=True)
        write(partial)
        partial.rename(path)


def _run(*command: object) -> None:
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
