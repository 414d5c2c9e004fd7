"""`specqd serve`: an OpenAI-compatible server for one model or several."""

from collections.abc import Callable
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from specqd.cli.command import Command
from specqd.cli.draft_options import Drafting, draft_options
from specqd.cli.options import (
    Bytes,
    MachineChoice,
    Positions,
    PromptCacheChoice,
    Seconds,
    context_option,
    machine_options,
    models_argument,
    option,
    prompt_cache_options,
    quiet_option,
    template_option,
)
from specqd.cli.sampling_options import recommended_options
from specqd.cli.serving import Opening
from specqd.cli.terminal import inform, say
from specqd.errors import RequestError
from specqd.extras import install_command

if TYPE_CHECKING:
    from specqd.server.models import Models

NEEDED = ("fastapi", "uvicorn", "prometheus_client", "llguidance")

_EPILOG = """\b
Examples:
  specqd serve
  specqd serve ./my-model --draft fp4 --draft ngram --port 8080
  specqd serve qwen3:0.6b smollm2:135m ./my-model --keep-alive 30m
  SPECQD_API_KEY=secret specqd serve Qwen/Qwen3-0.6B --host 0.0.0.0 --context 4096
"""


@click.command(cls=Command, epilog=_EPILOG)
@models_argument
@draft_options
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=8000,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="0: a free port.",
)
@click.option(
    "--api-key",
    "api_keys",
    envvar="SPECQD_API_KEY",
    metavar="KEY",
    multiple=True,
    help="Key that requests must carry. May repeat. Better: SPECQD_API_KEY, several separated by "
    "spaces, because other users can read command lines.",
)
@click.option(
    "--allow-host", multiple=True, metavar="NAME", help="Accept this Host header. May repeat."
)
@click.option(
    "--allow-origin",
    multiple=True,
    metavar="ORIGIN",
    callback=lambda context, parameter, given: frozenset(map(_origin, given)),
    help="Let pages of this origin use the server (CORS), such as http://localhost:3000. "
    "'*' allows all origins. May repeat.",
)
@option(
    "--max-batch",
    also=("-np", "--parallel", "--max-num-seqs"),
    default=16,
    show_default=True,
    type=click.IntRange(1, 512),
    help="Sequences decoded at once; other requests wait.",
)
@option(
    "--max-gap",
    default=0.25,
    show_default=True,
    metavar="SECONDS",
    type=click.FloatRange(0.01, 10.0),
    help="Longest pause of a running answer while prompts of others are read. Longer ones read "
    "prompts somewhat faster.",
)
@context_option
@click.option(
    "--cache-positions",
    type=Positions(1),
    metavar="N",
    help="Tokens in the KV cache of a model, over all sequences; 64k is 65536. Default: four "
    "contexts, if they fit.",
)
@click.option(
    "--memory",
    type=Bytes(),
    metavar="SIZE",
    help="Memory that the weights and KV caches of loaded models take at most, such as 10g. "
    "Default: for several models, what is free at the start.",
)
@option(
    "--keep-alive",
    also=("--keepalive", "--sleep-idle-seconds"),
    type=Seconds(),
    metavar="TIME",
    help="Unload a model after this time without a request, such as 90, 5m or 1h. Default: keep "
    "it, unless another one needs its memory.",
)
@recommended_options
@click.option(
    "--strict-openai",
    is_flag=True,
    help="Sample at OpenAI's temperature 1 if neither the request, nor an option, nor the model "
    "states a temperature. Default: as `specqd chat` does, at 0.7 with a repetition penalty of "
    "1.05.",
)
@template_option()
@prompt_cache_options
@click.option(
    "--lenient",
    is_flag=True,
    help="Ignore unknown fields of requests instead of refusing them. Logs each name once.",
)
@option(
    "--log-requests",
    is_flag=True,
    help="Print a line for each request: path, status, seconds and tokens, but no text.",
)
@option(
    "--served-model-name",
    also=("-a", "--alias"),
    metavar="NAME",
    help="The only model's name in the API. Default: the directory's name, or owner/name.",
)
@machine_options
@quiet_option("log_requests")
def serve(
    model: tuple[str, ...],
    draft: Drafting,
    host: str,
    port: int,
    api_keys: tuple[str, ...],
    allow_host: tuple[str, ...],
    allow_origin: frozenset[str],
    max_batch: int,
    max_gap: float,
    context: int | None,
    cache_positions: int | None,
    memory: int | None,
    keep_alive: float | None,
    strict_openai: bool,
    chat_template: Path | None,
    prompt_cache: PromptCacheChoice,
    lenient: bool,
    log_requests: bool,
    served_model_name: str | None,
    machine: MachineChoice,
    **sampling: Any,
) -> None:
    """Serve models over OpenAI's and Anthropic's HTTP APIs.

    Completions and chats, streamed or whole; a chat page at /, Prometheus metrics at /metrics.
    Without --host, only this machine can connect. Sampling options are for requests that set none;
    they default to the model's generation_config.json. Needs the extra `serve`.
    """
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise RequestError(f"serving needs {', '.join(missing)}; {install_command('serve')}")
    _check_keys(api_keys)

    from specqd.sampling import SamplingParams
    from specqd.server.guard import Access
    from specqd.server.listening import listen, run
    from specqd.server.opening import DRAIN_SECONDS

    opening = Opening(
        draft=draft,
        machine=machine,
        cache_positions=cache_positions,
        context=context,
        prompt_cache=prompt_cache,
        chat_template=chat_template,
        max_batch=max_batch,
        max_gap_s=max_gap,
        name=served_model_name,
        sampling=SamplingParams(**{k: v for k, v in sampling.items() if v is not None}),
        is_strict=strict_openai,
    )
    opening.check(model)
    sock = listen(host, port)
    models = opening.models(model, memory, keep_alive)
    # Only the server knows the number of a free port, so even a quiet one tells it.
    _announce(models, sock.getsockname(), inform if port else say, is_open=not api_keys)
    names = frozenset(each.lower() for each in (host, *allow_host))
    access = Access(api_keys=api_keys, host_names=names, origins=allow_origin)
    run(models, access, sock, DRAIN_SECONDS, inform, is_lenient=lenient, logs_requests=log_requests)


def _check_keys(api_keys: tuple[str, ...]) -> None:
    if "" in api_keys:
        raise click.UsageError("--api-key is empty; give a key, or drop the option")
    if not all(key.isascii() and key.isprintable() for key in api_keys):
        raise click.UsageError("--api-key: HTTP headers carry printable ASCII only")


def _announce(
    models: "Models", address: tuple[Any, ...], tell: Callable[[str], None], *, is_open: bool
) -> None:
    """Tells where the models are served, and warns if anyone may use them."""
    shown = f"[{address[0]}]" if ":" in address[0] else address[0]
    tell(f"serving {', '.join(each.name for each in models.all)} at http://{shown}:{address[1]}")
    if is_open and not ip_address(address[0]).is_loopback:
        inform("warning: anyone who can reach this port can use it; set --api-key")


def _origin(given: str) -> str:
    """An origin as browsers write it; raises BadParameter for another text."""
    parts = urlsplit(given)
    origin = f"{parts.scheme}://{parts.netloc}"
    if given != "*" and (not parts.scheme or not parts.netloc or given.rstrip("/") != origin):
        raise click.BadParameter(f"{given!r} is not an origin such as http://localhost:3000.")
    return given if given == "*" else origin.lower()
