"""Prints how often the draft inside a model's weights agrees with the model itself.

    python benchmarks/acceptance.py MODEL --prompts spec_bench.jsonl --chat

Teacher-forced: at every position of the text that the model writes, the draft reads the model's own
keys and values and picks once, with the model's noise. So this is the acceptance of a proposal's
first token. The interval is over prompts. Prompts are taken evenly from each file.
"""

import argparse
import json
from pathlib import Path

from specqd import SamplingParams, _native
from specqd.bench.agreement import agreement
from specqd.bench.levels import read_prompts
from specqd.config import read_generation_defaults
from specqd.formats.fp4 import DraftFormat
from specqd.hub import resolve
from specqd.model.input_measurement import measure_inputs
from specqd.model.model import Machine, Model
from specqd.text.calibration import read_calibration
from specqd.text.tokenizer import Tokenizer

MOST_LINES = 1 << 20
LONGEST_PROMPT = 1500  # characters: long documents would take most of the time


def chosen(path: Path, limit: int) -> list[str]:
    """At most `limit` prompts of a file, at even distances: files are sorted by kind."""
    lines = read_prompts(path, MOST_LINES)
    return [text[:LONGEST_PROMPT] for text in lines[:: max(1, len(lines) // limit)][:limit]]


def encoded(tokenizer: Tokenizer, text: str, is_chat: bool) -> list[int]:
    if is_chat:
        return tokenizer.chat([{"role": "user", "content": text}])
    return tokenizer.encode(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--prompts", type=Path, action="append", required=True)
    parser.add_argument("--chat", action="store_true", help="ask through the chat template")
    parser.add_argument("--limit", type=int, default=24, help="prompts of each file")
    parser.add_argument("-n", type=int, default=96, help="positions after each prompt")
    parser.add_argument("--temperature", type=float, action="append")
    parser.add_argument("--format", type=DraftFormat, choices=list(DraftFormat))
    parser.add_argument("--calibrate", action="store_true", help="as specqd pack does")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    directory = resolve(options.model)
    machine, tokenizer = Machine.choose(options.threads), Tokenizer.open(directory)
    inputs = None
    if options.calibrate:
        text = read_calibration(tokenizer, None)
        longest = max(map(len, text.sequences))
        plain = Model.open(directory, machine=machine, cache_positions=longest)
        inputs = measure_inputs(plain, text.sequences)
        del plain
    model = Model.open(directory, machine=machine, draft=options.format, inputs=inputs)
    defaults = read_generation_defaults(directory)
    stop_ids = frozenset(defaults.eos_token_ids or model.config.eos_token_ids)
    bf16 = model.bf16_bytes_per_forward
    report = {
        "model": directory.name,
        "cpu": _native.cpu_model(),
        "format": model.weights.draft.value,
        "chat": options.chat,
        "bits_per_weight": {
            "exact": 16 * model.bytes_per_forward / bf16,
            "draft": 16 * model.as_draft().bytes_per_forward / bf16,
        },
        "files": [],
    }
    bits = report["bits_per_weight"]
    if not options.json:
        print(
            f"{directory.name}, {report['format']}: {bits['draft']:.2f} bits a weight of "
            f"{bits['exact']:.2f}"
        )
    for path in options.prompts:
        texts = chosen(path, options.limit)
        prompts = [encoded(tokenizer, text, options.chat) for text in texts]
        for temperature in options.temperature or [0.0, 0.8]:
            params = SamplingParams(
                max_tokens=options.n, temperature=temperature, seed=options.seed
            ).resolved(defaults)
            result = agreement(model, prompts, params, stop_ids=stop_ids)
            report["files"].append({"file": path.name} | result.described())
            if not options.json:
                low, high = result.interval
                print(
                    f"  {path.name:20} T {temperature:<4g} agrees {result.share:.3f} "
                    f"[{low:.3f}, {high:.3f}] at {sum(result.judged)} positions of "
                    f"{len(prompts)} prompts",
                    flush=True,
                )
    if options.json:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
