"""OpenVINO GenAI: an LLMPipeline for each arm; all defaults but the number of threads."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import openvino
import openvino_genai
from arms import Arm
from protocol import Run

NGRAM = 3  # longest match of a lookup, as in the library's example


class Pipeline:
    def __init__(self, arm: Arm, folder: Path, threads: int) -> None:
        source = folder / f"openvino-{arm.weights}"
        options: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads}
        self.process = os.getpid()
        self.stored_bytes = (source / "openvino_model.bin").stat().st_size
        self.version = openvino_genai.__version__
        self.notes = _notes(source, threads) if arm.draft == "none" else "as without drafts"
        self.bytes_read: dict[str, int] = {}
        settings: dict[str, Any] = {}
        if arm.draft == "lookup":
            settings = {"num_assistant_tokens": arm.length, "max_ngram_size": NGRAM}
            options |= {"prompt_lookup": True}
        elif arm.draft != "none":
            place, _, draft_format = arm.draft.rpartition("/")
            draft = folder / place / f"openvino-{draft_format}"
            settings = {"num_assistant_tokens": arm.length}
            draft_model = openvino_genai.draft_model(draft, "CPU", INFERENCE_NUM_THREADS=threads)
            options |= {"draft_model": draft_model}
        self._pipeline = openvino_genai.LLMPipeline(source, "CPU", **options)
        self._settings = settings

    def generate(self, arm: str, prompt: Sequence[int], new_tokens: int) -> Run:
        config = self._pipeline.get_generation_config()
        config.max_new_tokens = new_tokens
        config.do_sample = False
        config.ignore_eos = True
        for name, value in self._settings.items():
            setattr(config, name, value)
        ids = np.array([prompt], dtype=np.int64)
        inputs = openvino_genai.TokenizedInputs(
            openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids))
        )
        begun = perf_counter()
        result = self._pipeline.generate(inputs, config)
        wall = perf_counter() - begun
        first = result.perf_metrics.get_ttft().mean / 1e3
        whole = result.perf_metrics.get_generate_duration().mean / 1e3
        drafted, accepted = _acceptance(result.extended_perf_metrics)
        return Run(list(result.tokens[0]), first, whole - first, wall, drafted, accepted)


def _acceptance(metrics: Any) -> tuple[int | None, int | None]:
    if metrics is None or not hasattr(metrics, "get_num_accepted_tokens"):
        return None, None
    drafted = metrics.draft_model_metrics.get_num_generated_tokens()
    return drafted, metrics.get_num_accepted_tokens()


def _notes(source: Path, threads: int) -> str:
    """What `precision` says, from a process of its own: this one's memory is measured."""
    command = [sys.executable, __file__, source, threads]
    return subprocess.check_output([str(word) for word in command], text=True).strip()


def precision(source: Path, threads: int) -> str:
    """The precision in which products with weights run: a hint may be ignored."""
    model = openvino.Core().read_model(source / "openvino_model.xml")
    compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": threads})
    hint = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
    products: Counter[str] = Counter()
    for operation in compiled.get_runtime_model().get_ordered_ops():
        info = {key: str(value.value) for key, value in operation.get_rt_info().items()}
        if info.get("layerType") == "FullyConnected":
            products[f"{info['primitiveType']} of {info['runtimePrecision']}"] += 1
    kv = compiled.get_property("KV_CACHE_PRECISION").to_string()
    found = ", ".join(f"{count} {kind}" for kind, count in products.items())
    return f"hint {hint}; products: {found}; KV cache {kv}"


def open_peer(arms: Sequence[Arm], model: Path, work: Path, threads: int) -> Pipeline:
    [arm] = arms
    return Pipeline(arm, work / model.name, threads)


if __name__ == "__main__":
    print(precision(Path(sys.argv[1]), int(sys.argv[2])))
