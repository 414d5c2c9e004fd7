"""Opens the model that the options name."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from specqd.cli.draft_options import Drafting
from specqd.cli.fetching import fetch
from specqd.cli.options import NO_PROMPT_CACHE, MachineChoice, PromptCacheChoice
from specqd.cli.terminal import ProgressBar

if TYPE_CHECKING:
    from specqd.llm import LLM


def open_llm(
    model: str | None,
    draft: Drafting,
    machine: MachineChoice,
    *,
    precision: str = "exact",
    prompt_cache: PromptCacheChoice = NO_PROMPT_CACHE,
    cache_positions: int | None = None,
    context: int | None = None,
    chat_template: Path | None = None,
) -> "LLM":
    """Loads the model with a progress bar. Fetches it, with the small model that `auto` adds.

    When the command ends, it waits until prompts that are kept are written.
    """
    from specqd.hub import resolve

    path: Path | None = None
    if model is not None:  # fetched first: the bar of loading would hide that of a download
        path = fetch(model) if draft.wants_sibling else resolve(model)
    llm = load_llm(
        path,
        draft,
        machine,
        precision=precision,
        prompt_cache=prompt_cache,
        cache_positions=cache_positions,
        context=context,
        chat_template=chat_template,
    )
    if llm.model.prompt_store is not None:
        click.get_current_context().call_on_close(llm.model.prompt_store.writer.flush)
    return llm


def load_llm(
    path: str | Path | None,
    draft: Drafting,
    machine: MachineChoice,
    *,
    precision: str = "exact",
    prompt_cache: PromptCacheChoice = NO_PROMPT_CACHE,
    cache_positions: int | None = None,
    cache_bytes: int | None = None,
    context: int | None = None,
    chat_template: Path | None = None,
) -> "LLM":
    """Loads a model that needs no download, with a progress bar."""
    from specqd.llm import LLM

    with ProgressBar("Packing weights") as bar:
        return LLM(
            path,
            draft.chain or "auto",
            machine.threads,
            machine.isa,
            numa=machine.numa,
            precision=precision,
            cache_positions=cache_positions,
            cache_bytes=cache_bytes,
            context=context,
            prompt_cache=prompt_cache.directory,
            prompt_cache_size=prompt_cache.most_bytes,
            small=draft.small,
            chat_template=chat_template,
            progress=bar,
        )
