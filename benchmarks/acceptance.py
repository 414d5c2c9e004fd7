"""Prints how often the draft inside a model's weights agrees with the model itself.

    python benchmarks/acceptance.py MODEL --prompts spec_bench.jsonl --chat

Teacher-forced: at every position of the text that the model writes, the draft reads the model's own
keys and values and samples once, with the model's noise. So this is the acceptance rate of a
proposal's first token. The interval is over prompts, which are taken evenly from each file.

    python benchmarks/acceptance.py MODEL --prompts long.jsonl --context all --context 2048 \
        --round 5 --whole

With --context, drafts read so many positions of the text. The last verification chooses them, and
"above" is the difference to the first --context.
"""

from pathlib import Path

from harness import Report, parser

from specqd import SamplingParams
from specqd.bench.agreement import agreements
from specqd.bench.levels import read_prompts
from specqd.bench.rounds import Interval
from specqd.config import read_generation_defaults
from specqd.formats.fp4 import DraftFormat
from specqd.hub import resolve
from specqd.model.importance import MeasuredInputs
from specqd.model.input_measurement import measure_inputs
from specqd.model.model import Machine, Model
from specqd.text.calibration import read_calibration
from specqd.text.tokenizer import Tokenizer

MOST_LINES = 1 << 20
LONGEST_PROMPT = 1500  # characters: long documents would take most of the time


def chosen(path: Path, limit: int, longest: int | None) -> list[str]:
    """At most `limit` prompts of a file, at even distances, because files are sorted by kind."""
    lines = read_prompts(path, MOST_LINES)
    return [text[:longest] for text in lines[:: max(1, len(lines) // limit)][:limit]]


def reading(model: Model, context: str) -> Model:
    """The draft inside a model's weights that reads so many positions of a context."""
    draft = model.as_draft()
    if context != "default":
        draft.set_draft_context(0 if context == "all" else int(context))
    return draft


def encoded(tokenizer: Tokenizer, text: str, is_chat: bool) -> list[int]:
    if is_chat:
        return tokenizer.chat([{"role": "user", "content": text}])
    return tokenizer.encode(text)


def calibrated(directory: Path, machine: Machine, tokenizer: Tokenizer) -> MeasuredInputs:
    """The measurements that `specqd pack` makes."""
    text = read_calibration(tokenizer, None)
    longest = max(map(len, text.sequences))
    plain = Model.open(directory, machine=machine, cache_positions=longest)
    return measure_inputs(plain, text.sequences)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("model")
    arguments.add_argument("--prompts", type=Path, action="append", required=True)
    arguments.add_argument("--chat", action="store_true", help="apply the chat template")
    arguments.add_argument("--limit", type=int, default=24, help="prompts of each file")
    arguments.add_argument("-n", type=int, default=96, help="positions after each prompt")
    arguments.add_argument("--temperature", type=float, action="append")
    arguments.add_argument("--format", choices=[each.value for each in DraftFormat])
    arguments.add_argument("--calibrate", action="store_true", help="as specqd pack does")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--context", action="append", help="positions, `all` or `default`")
    arguments.add_argument("--round", type=int, default=1, help="tokens between verifications")
    arguments.add_argument("--whole", action="store_true", help="do not shorten long prompts")
    options = arguments.parse_args()
    contexts = options.context or ["default"]
    directory = resolve(options.model)
    machine = Machine.choose(options.threads, options.isa)
    tokenizer = Tokenizer.open(directory)
    inputs = calibrated(directory, machine, tokenizer) if options.calibrate else None
    kind = options.format and DraftFormat(options.format)
    model = Model.open(directory, machine=machine, draft=kind, inputs=inputs)
    defaults = read_generation_defaults(directory)
    stop_ids = frozenset(defaults.eos_token_ids or model.config.eos_token_ids)
    draft, exact = (
        16 * each.bytes_per_forward / model.bf16_bytes_per_forward
        for each in (model.as_draft(), model)
    )
    title = (
        f"{directory.name}, {model.weights.draft.value}: {draft:.2f} of {exact:.2f} bits per weight"
    )
    columns = [
        *("prompts", ("temperature", "g"), "context", ("agreement", ".3f"), ("above", "+.3f")),
        *("positions", "texts"),
    ]
    with Report(options, title, machine, columns) as report:
        for path in options.prompts:
            texts = chosen(path, options.limit, None if options.whole else LONGEST_PROMPT)
            prompts = [encoded(tokenizer, text, options.chat) for text in texts]
            for temperature in options.temperature or [0.0, 0.8]:
                params = SamplingParams(
                    max_tokens=options.n, temperature=temperature, seed=options.seed
                ).resolved(defaults)
                drafts = [reading(model, context) for context in contexts]
                [first, *others] = agreements(
                    model, drafts, prompts, params, stop_ids=stop_ids, round_length=options.round
                )
                for context, found in zip(contexts, [first, *others], strict=True):
                    share = Interval(found.share, *found.interval)
                    above = Interval(*found.above(first)) if others else None
                    counts = sum(found.judged), len(prompts)
                    report.row(path.name, temperature, context, share, above, *counts)


if __name__ == "__main__":
    main()
