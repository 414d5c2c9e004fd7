"""Builds llama.cpp from its source package and converts a model for each peer.

    python benchmarks/peers/prepare.py MODEL --work .peers

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
)
MXFP4_GROUP = 32
BF16_FILE = 32  # llama.cpp's number of the file type


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    out = options.work / options.model.name
    out.mkdir(parents=True, exist_ok=True)
    _try("llama.cpp", lambda: build_llama_cpp(options.work, options.jobs))
    _try("llama.cpp", lambda: make_gguf(options.model, out, options.work))
    _try("OpenVINO", lambda: make_openvino(options.model, out))


def _try(peer: str, step: Callable[[], None]) -> None:
    try:
        step()
    except (OSError, ImportError, ValueError, RuntimeError, subprocess.CalledProcessError) as error:
        print(f"{peer} will be absent: {error}", file=sys.stderr)


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


def make_gguf(model: Path, out: Path, work: Path) -> None:
    """BF16, and Q4_0 and MXFP4 for every matrix, embedding and output head included, like the 4-bit
    weights of specqd."""
    quantize = llama_cpp_tool(work, "llama-quantize")
    plain = out / "bf16.gguf"
    _make(plain, lambda partial: write_gguf(model, partial))
    _make(out / "q4_0.gguf", lambda partial: _run(quantize, "--pure", plain, partial, "Q4_0"))
    kinds = ["--output-tensor-type", "mxfp4", "--token-embedding-type", "mxfp4"]
    for part in ("attn", "ffn"):
        kinds += ["--tensor-type", f"{part}=mxfp4"]
    _make(out / "mxfp4.gguf", lambda partial: _run(quantize, *kinds, plain, partial, "Q8_0"))


def make_openvino(model: Path, out: Path) -> None:
    """BF16 like the checkpoint (the exporter's command stores large models in 8 bits by default),
    and MXFP4 weights for every layer."""
    from optimum.exporters.openvino import main_export
    from optimum.intel import OVConfig

    def export(to: Path) -> None:
        task = "text-generation-with-past"
        config = OVConfig()
        main_export(str(model), str(to), task=task, ov_config=config, convert_tokenizer=True)

    plain = out / "openvino-bf16"
    _make(plain, export)
    _make(out / "openvino-mxfp4", lambda to: _compress(plain, to))


def _compress(plain: Path, to: Path) -> None:
    import nncf
    import openvino

    name = "openvino_model.xml"
    shutil.copytree(plain, to, ignore=shutil.ignore_patterns("openvino_model.*"))
    compressed = nncf.compress_weights(
        openvino.Core().read_model(plain / name),
        mode=nncf.CompressWeightsMode.MXFP4,
        ratio=1.0,
        group_size=MXFP4_GROUP,
        all_layers=True,
    )
    openvino.save_model(compressed, to / name, compress_to_fp16=False)


def _make(path: Path, write: Callable[[Path], None]) -> None:
    """Writes under a temporary name, and renames the complete file."""
    if not path.exists():
        partial = path.with_name(f"partial-{path.name}")
        shutil.rmtree(partial, ignore_errors=True)
        write(partial)
        partial.rename(path)


def _run(*command: object) -> None:
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
