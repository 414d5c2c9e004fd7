"""Commands and options of llama.cpp, vLLM and Ollama that SpecQD lacks, and what to do instead.

Names that mean the same as one of ours are accepted with ours: see `Option.also`.
"""

from collections.abc import Callable, Container
from typing import Any

import click

# Names of commands that mean one of ours.
COMMANDS = {
    "run": "chat",
    "complete": "generate",
    "list": "models",
    "ls": "models",
    "show": "inspect",
    "download": "pull",
    "remove": "rm",
    "delete": "rm",
    "run-batch": "batch",
}
# Names of commands that SpecQD lacks, and the way to do it here.
_REFUSED_COMMANDS = (
    ("ps stop", "Nothing runs in the background; Ctrl-C ends `specqd serve`."),
    ("create cp push convert quantize", "Models are used as they are; `specqd pack` packs one."),
    ("embed embeddings", "`specqd serve` answers /v1/embeddings; in Python, use LLM.embed."),
    ("rerank", "SpecQD generates and embeds texts only."),
    ("login logout", "`hf auth login` keeps the token for gated models."),
    ("help", "`specqd --help` lists commands, `specqd COMMAND --help` options."),
    ("version", "`specqd --version` shows it."),
)

# The names of options, and the way to do it here.
_REFUSED = (
    (
        "-ngl --n-gpu-layers --gpu-layers --num-gpu -dev --device -mg --main-gpu --enforce-eager",
        "SpecQD runs on the CPU; leave it out.",
    ),
    (
        "-tp --tensor-parallel-size -pp --pipeline-parallel-size -dp --data-parallel-size "
        "-sm --split-mode -ts --tensor-split -tb --threads-batch",
        "One process uses all cores; --threads N sets how many.",
    ),
    (
        "-C --cpu-mask -Cr --cpu-range --cpu-strict --prio",
        "--threads N sets how many cores work; taskset(1) chooses them.",
    ),
    (
        "--dtype --quantization --load-format",
        "Weights are BF16; --precision fp4 generates from their 4-bit draft alone.",
    ),
    (
        "-ctk --cache-type-k -ctv --cache-type-v --kv-cache-dtype --gpu-memory-utilization",
        "--context N bounds the KV cache.",
    ),
    (
        "-b --batch-size -ub --ubatch-size --max-num-batched-tokens --enable-chunked-prefill "
        "-fa --flash-attn --attention-backend --block-size --swap-space --enable-prefix-caching",
        "SpecQD chooses it; leave it out.",
    ),
    (
        "--mlock --no-mmap --mmap",
        "`specqd pack` writes a model that is mapped.",
    ),
    (
        "--draft-max --draft-min --draft-n --draft-p-min --num-speculative-tokens",
        "--draft DRAFT:k=N fixes the draft length.",
    ),
    ("--speculative-config", "--draft DRAFT names a draft, one option per level."),
    (
        "--temperature --temp --top-p --top-k --min-p --seed -s --repeat-penalty -n --max-tokens "
        "--predict --n-predict --stop --system --system-prompt -sys",
        "`specqd generate`, `specqd chat` and each request to a server take it.",
    ),
    (
        "--typical --typical-p --mirostat --mirostat-lr --mirostat-ent --dynatemp-range "
        "--xtc-probability --xtc-threshold --dry-multiplier --top-nsigma --samplers --tfs",
        "Sampling knows --temperature, --top-p, --top-k, --min-p and penalties.",
    ),
    (
        "--repeat-last-n",
        "--repetition-penalty counts all tokens of prompt and text.",
    ),
    (
        "--best-of --num-beams --beam-width --use-beam-search",
        "SpecQD samples one text; give several --seed in turn.",
    ),
    (
        "--grammar --grammar-file --format --response-format --guided-grammar -j --json-schema -jf "
        "--json-schema-file --guided-json --guided-regex",
        "--schema FILE and --pattern REGEX restrict texts of `specqd generate` and `specqd chat`; "
        "requests to a server have response_format.",
    ),
    ("--context-shift --no-context-shift --keep", "`specqd chat --on-full shift` makes room."),
    (
        "--lora --lora-scaled --enable-lora --lora-modules --control-vector",
        "Adapters are not supported; merge them into the weights.",
    ),
    (
        "--tokenizer --tokenizer-mode --jinja --trust-remote-code",
        "A model's own tokenizer is used, and no code of its own.",
    ),
    (
        "--chat-template --chat-template-file",
        "`specqd chat`, `generate --chat`, `batch` and `serve` take it.",
    ),
    (
        "--tool-call-parser --enable-auto-tool-choice --reasoning-parser",
        "Tool calls need no setting; leave it out.",
    ),
    (
        "-cnv --conversation -no-cnv --no-conversation -i --interactive --interactive-first",
        "`specqd chat` is the conversation, `specqd generate` continues one text.",
    ),
    (
        "--revision -hff --hf-file -mu --model-url",
        "MODEL has it all: owner/name@revision, or owner/name:FILE for a GGUF file.",
    ),
    ("--download-dir --models-dir", "The variable HF_HOME sets the directory of the cache."),
    ("-hft --hf-token", "`hf auth login` or the variable HF_TOKEN gives the token."),
    ("--allowed-origins --cors-origins", "--allow-origin ORIGIN names one; it may repeat."),
    ("--api-key-file", "The variable SPECQD_API_KEY holds keys, separated by spaces."),
    (
        "--disable-log-requests --no-enable-log-requests --enable-log-requests --disable-log-stats "
        "--disable-uvicorn-access-log --uvicorn-log-level --log-level --log-file -lv "
        "--log-verbosity",
        "`specqd serve` logs requests only with --log-requests, and counts them at /metrics.",
    ),
    (
        "--embedding --embeddings --pooling --task --runner",
        "`specqd serve` answers /v1/embeddings, too, with the pooling of the model's files.",
    ),
    ("--rerank --reranking", "SpecQD generates and embeds texts only."),
    ("-mm --mmproj --image --audio --limit-mm-per-prompt", "Only text is read."),
    (
        "--generation-config --override-generation-config",
        "The model's generation_config.json gives the defaults; edit it there.",
    ),
    (
        "-to --timeout --max-logprobs -cb --cont-batching --slots --metrics --props --cache-reuse "
        "--no-enable-prefix-caching --no-enable-chunked-prefill --compilation-config -O",
        "Not needed here; leave it out.",
    ),
    ("-e --escape --no-escape", "Prompts are taken as they are; the shell's $'\\n' is a newline."),
    ("--echo", "The prompt is not printed; leave it out."),
    ("--url", "Commands load the model themselves; docs/clients.md names clients of a server."),
    ("--keepalive --keep-alive --sleep-idle-seconds", "`specqd serve` takes --keep-alive TIME."),
    ("--models-max", "`specqd serve` takes --memory SIZE."),
    (
        "--no-display-prompt --simple-io --color -co --log-disable --nowordwrap --no-warmup",
        "Not needed here; leave it out.",
    ),
    (
        "--ssl-key-file --ssl-keyfile --ssl-cert-file --ssl-certfile --root-path",
        "Put a proxy such as nginx or caddy before the server.",
    ),
)


def refused_options(taken: Container[str]) -> list[click.Option]:
    """A hidden option for each name that SpecQD lacks, which says what to do instead. Leaves out
    the names that the command itself has."""
    return [
        _refused(name, hint)
        for names, hint in _REFUSED
        for name in names.split()
        if name not in taken
    ]


def refused_names() -> list[tuple[str, str]]:
    """Each name, and the hint that answers it."""
    return [(name, hint) for names, hint in _REFUSED for name in names.split()]


def refused_commands() -> dict[str, str]:
    """Each name of a command that SpecQD lacks, and the hint that answers it."""
    return {name: hint for names, hint in _REFUSED_COMMANDS for name in names.split()}


def _refused(name: str, hint: str) -> click.Option:
    return click.Option(
        [name, f"refused{name.replace('-', '_')}"],
        is_flag=False,
        flag_value="",  # so that its value may be missing
        is_eager=True,
        hidden=True,
        expose_value=False,
        allow_from_autoenv=False,
        callback=_refusal(name, hint),
    )


def _refusal(name: str, hint: str) -> Callable[..., Any]:
    def refuse(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise click.UsageError(f"No such option: {name}. {hint}", context)

    return refuse
