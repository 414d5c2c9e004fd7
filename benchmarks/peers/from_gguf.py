"""Writes a GGUF file as a Hugging Face directory in BF16, which all peers can convert.

python benchmarks/peers/from_gguf.py MODEL.gguf DIRECTORY

The weights are those that `specqd` reads: dequantised, rounded to BF16 once.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

from specqd._native import testing
from specqd.config import read_config
from specqd.config.gguf import config_fields
from specqd.formats.gguf import GgufFile
from specqd.model.model import Machine
from specqd.model.weights import load_weights
from specqd.text.gguf_tokenizer import tokenizer_files
from support.writers import write_safetensors

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}


def write(path: Path, out: Path) -> None:
    """Needs a file whose architecture is in ARCHITECTURES."""
    fields = dict(config_fields(GgufFile.open(path)).values)
    architecture = ARCHITECTURES[str(fields["model_type"])]
    fields |= {"architectures": [architecture], "dtype": "bfloat16"}
    files = tokenizer_files(path) | {"config.json": json.dumps(fields, indent=1)}
    settings = json.loads(files["tokenizer_config.json"])
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    files["tokenizer_config.json"] = json.dumps(settings, indent=1)
    machine = Machine.choose()
    weights = load_weights(path, read_config(path), machine.pool, machine.isa)
    tensors = dict(weights.unpacked)
    for packed in weights.matrices:
        ends = np.cumsum([source.count for source in packed.sources])
        rows = np.split(testing.unpack(packed.weight, machine.isa), ends[:-1])
        tensors |= {source.name: part for source, part in zip(packed.sources, rows, strict=True)}
    out.mkdir(parents=True)
    write_safetensors(out / "model.safetensors", tensors)
    for name, text in files.items():  # config.json, the last one, says that all are there
        (out / name).write_text(text + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gguf", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    write(options.gguf, options.out)


if __name__ == "__main__":
    main()
