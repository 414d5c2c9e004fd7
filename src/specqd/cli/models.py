"""`specqd models`, `pull` and `rm`: the models in Hugging Face's cache, and short names."""

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from specqd.cli import fitting
from specqd.cli.command import Command
from specqd.cli.completion import complete_model
from specqd.cli.fetching import fetch
from specqd.cli.options import Positions, option, quiet_option
from specqd.cli.terminal import aligned, one_line, shown_bytes
from specqd.errors import RequestError, SpecqdError

if TYPE_CHECKING:
    from specqd.hub import CachedModel
    from specqd.hub.catalogue import Entry

_REMOVABLE = "owner/name[@revision] or a short name."


@dataclass(frozen=True, slots=True)
class ModelReport:
    """One model. If this version cannot load it, `needed_bytes` is None and `problem` says why."""

    name: str
    size_bytes: int  # on the disk
    needed_bytes: int | None = None  # of memory that its weights typically take
    fits: bool | None = None  # into the memory that is left; None: unknown
    problem: str | None = None
    is_incomplete: bool = False  # a download was interrupted

    @classmethod
    def of(cls, model: "CachedModel", available: int) -> "ModelReport":
        from specqd.config import read_config
        from specqd.hub import missing_weights
        from specqd.model.weights import typical_bytes

        try:
            read_config(model.path)
            if model.path.is_dir() and missing_weights(model.path):
                problem = f"weights are missing; `specqd pull {model.name}` fetches the rest"
                return cls(model.name, model.size_bytes, problem=problem, is_incomplete=True)
            needed = typical_bytes(model.path)
        except (SpecqdError, OSError) as error:
            problem = str(error).replace(f"{model.path}/", "")
            return cls(model.name, model.size_bytes, problem=one_line(problem))
        fits = None if available < 0 else needed <= available
        return cls(model.name, model.size_bytes, needed, fits)


@click.command(cls=Command)
@option("--json", "is_json", is_flag=True, help="Print one JSON object.")
@option(
    "--for",
    "size",
    type=fitting.MemorySize(),
    metavar="SIZE",
    help="Show which models fit a machine with so much memory, such as 16g, or into the free "
    "memory of this machine (here), and how many tokens/s to expect.",
)
@option(
    "--bandwidth",
    needs="size",
    type=click.FloatRange(min=0, min_open=True),
    metavar="GB/S",
    help="With --for: memory bandwidth of that machine. Default: this machine's, measured.",
)
@option(
    "--context",
    needs="size",
    type=Positions(1),
    default=4096,
    show_default=True,
    metavar="N",
    help="With --for: tokens for which the memory must suffice.",
)
def models(is_json: bool, size: str | None, bandwidth: float | None, context: int) -> None:
    """List models: cached ones, with their memory, and short names.

    "fits" compares the memory that a model's weights typically take with the memory that this
    machine has left. The KV cache needs more; --context N bounds it. What drafts for a model: its
    own 4 bits, its MTP layer (mtp), the small model that auto adds, and a trained head, which
    --draft head:DIR names.

    \b
    Examples:
      specqd models
      specqd models --for 16g
      specqd models --for 32g --bandwidth 80 --context 32k
      specqd pull qwen3:0.6b
      specqd rm qwen3:0.6b
    """
    from specqd import _native
    from specqd.hub import SHIPPED, SHORT_NAMES, CachedModel, cached_models, shipped_model
    from specqd.hub.catalogue import CATALOGUE
    from specqd.siblings import sibling_of

    target = None if size is None else fitting.Target.of(size, bandwidth)
    if target is not None and not is_json:
        click.echo("\n".join(fitting.fitting_lines(target, context)))
        return
    shipped, available = shipped_model(), _native.usable_memory()
    shipped_bytes = sum(file.stat().st_size for file in shipped.iterdir())
    found = [CachedModel(SHIPPED, shipped, shipped_bytes), *cached_models()]
    reports = [ModelReport.of(each, available) for each in found]
    if is_json:
        content: dict[str, Any] = {
            "usable_memory_bytes": None if available < 0 else available,
            "short_names": SHORT_NAMES,
            "small": {name: sibling_of(repo) for name, repo in SHORT_NAMES.items()},
            "catalogue": [_described(each) for each in CATALOGUE],
        }
        if target is not None:
            content["for"] = fitting.described(target, context)
        print(json.dumps({"models": [asdict(each) for each in reports]} | content))
        return
    left = "" if available < 0 else f", of {available / 1e9:.1f} GB left"
    rows = [["model", "on disk", "in memory", "fits"], *map(_row, reports)]
    click.echo("\n".join(aligned(rows)))
    click.echo(f"\nMemory of the weights{left}. Short names, fetched when first used:\n")
    for each in CATALOGUE:
        use = "embeddings" if each.embeds else f"drafts: {', '.join(fitting.drafts_of(each))}"
        click.echo(f"  {each.name:<22}{each.repository:<38}{each.memory_gb:6.1f} GB  {use}")


def _described(entry: "Entry") -> dict[str, Any]:
    return asdict(entry) | {
        "memory_gb": entry.memory_gb,
        "has_mtp": entry.has_mtp,
        "has_own_draft": entry.has_own_draft,
    }


def _row(report: ModelReport) -> list[str]:
    size = shown_bytes(report.size_bytes)
    if report.needed_bytes is None:
        why = "incomplete" if report.is_incomplete else "not supported"
        return [one_line(report.name), size, "-", why]
    fits = {True: "yes", False: "no", None: "unknown"}[report.fits]
    return [one_line(report.name), size, shown_bytes(report.needed_bytes), fits]


@click.command(cls=Command)
@click.argument("model", shell_complete=complete_model, help=_REMOVABLE)
@option("--no-small", is_flag=True, help="Do not also fetch the small model that drafts for it.")
@quiet_option()
def pull(model: str, no_small: bool) -> None:
    """Fetch a model into Hugging Face's cache.

    The small model that drafts for it is fetched, too, if one is known; `specqd models` shows it.
    Every command fetches a model that is not in the cache. Only the files that SpecQD needs are
    fetched, and none of a model that it cannot run.

    \b
    Examples:
      specqd pull qwen3:0.6b
      specqd pull Qwen/Qwen3-0.6B@main
    """
    from specqd.hub import expanded, resolve

    if expanded(model).exists():
        raise RequestError(
            f"{model}: is a local path already; pull fetches owner/name or a short name"
        )
    path = resolve(model) if no_small else fetch(model, is_pulled=True)
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    click.echo(one_line(f"{model}: {shown_bytes(size)} in {path}"))


@click.command(cls=Command)
@click.argument("model", shell_complete=complete_model, help=_REMOVABLE)
def rm(model: str) -> None:
    """Remove a model from Hugging Face's cache.

    Without @revision, all its revisions are removed. Directories outside the cache stay.

    \b
    Examples:
      specqd rm qwen3:0.6b
      specqd rm Qwen/Qwen3-0.6B@main
    """
    from specqd.hub import expanded, remove_cached

    if expanded(model).exists():
        raise RequestError(f"{model}: is a local path, not in the cache; delete it yourself")
    click.echo(one_line(f"{model}: removed, {shown_bytes(remove_cached(model))} freed"))
