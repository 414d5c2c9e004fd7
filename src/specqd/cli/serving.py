"""Opens the models that `specqd serve` names: one at the start, several when they are requested."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specqd.cli.draft_options import Drafting
from specqd.cli.fetching import fetch
from specqd.cli.opening import load_llm
from specqd.cli.options import MachineChoice, PromptCacheChoice
from specqd.cli.terminal import inform, shown_bytes
from specqd.errors import RequestError, ShortMemoryError

if TYPE_CHECKING:
    from specqd.llm.checked import CheckedModel
    from specqd.sampling import SamplingParams
    from specqd.server.models import Models
    from specqd.server.served_model import Source
    from specqd.server.service import Remains, Service, Shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The options with which every model of the server is loaded. `LLM` and `open_service` describe
    them."""

    draft: Drafting
    machine: MachineChoice
    cache_positions: int | None
    context: int | None
    prompt_cache: PromptCacheChoice
    chat_template: Path | None
    max_batch: int
    max_gap_s: float
    name: str | None
    sampling: "SamplingParams"
    is_strict: bool

    def check(self, words: Sequence[str]) -> None:
        """Raises UsageError for options that several models cannot share."""
        one_only = {"--served-model-name": self.name, "--chat-template": self.chat_template}
        for option, value in one_only.items():
            if len(words) > 1 and value is not None:
                raise click.UsageError(f"{option} is for one model; leave it out for several")

    def models(
        self, words: Sequence[str], memory: int | None, keep_alive_s: float | None
    ) -> "Models":
        """Finds all models, fetches those that are missing, and loads the only one. Several are
        checked, but not loaded.

        words: MODEL as given; none: the shipped one. memory: the most bytes for all models; None:
        for several, what is free now.

        Raises SpecqdError.
        """
        from specqd import _native
        from specqd.server.models import Models
        from specqd.server.service import Shared

        if len(words) > 1:
            self.machine.machine()  # its errors come now, not with the first request
            if memory is None and (usable := _native.usable_memory()) >= 0:
                memory = usable
        shared = Shared()
        sources = [self._source(each, memory, shared) for each in words or (None,)]
        _check_names([each.name for each in sources], words)
        models = Models(sources, memory=memory, keep_alive_s=keep_alive_s, say=inform)
        if len(sources) == 1:
            models.load_all()
        return models

    def _source(self, word: str | None, memory: int | None, shared: "Shared") -> "Source":
        from specqd.hub import model_name, resolve, shipped_model
        from specqd.server.served_model import Source

        path = shipped_model()
        if word is not None:
            path = fetch(word) if self.draft.wants_sibling else resolve(word)
        name = self.name or model_name(path)
        load = partial(self._load, click.get_current_context(), path, shared)
        if memory is None:
            return Source(name, load)
        checked = self._checked(path)
        if checked.weight_bytes > memory:
            raise ShortMemoryError(
                f"{path}: its weights need about {shown_bytes(checked.weight_bytes)} of memory and "
                f"the server's models may take {shown_bytes(memory)}; use a smaller model",
            )
        context = self.context or checked.config.max_positions
        states_cache = self.cache_positions is not None
        return Source(name, load, checked.weight_bytes, context, states_cache)

    def _checked(self, path: Path) -> "CheckedModel":
        from specqd.llm.checked import CheckedModel
        from specqd.model.model import Precision

        return CheckedModel.of(
            path,
            self.draft.chain or "auto",
            Precision.EXACT,
            context=self.context,
            small=self.draft.small,
            chat_template=self.chat_template,
        )

    def _load(
        self,
        command: click.Context,
        path: Path,
        shared: "Shared",
        remains: "Remains | None",
        cache_bytes: int | None,
    ) -> "Service":
        """Loads a model in any thread. command: names options in notes."""
        from specqd.server.opening import open_service

        with command.scope(cleanup=False):
            llm = load_llm(
                path,
                self.draft,
                self.machine,
                cache_positions=remains.cache_positions if remains else self.cache_positions,
                cache_bytes=cache_bytes,
                context=self.context,
                prompt_cache=self.prompt_cache,
                chat_template=self.chat_template,
            )
        return open_service(
            llm,
            max_batch=self.max_batch,
            max_gap_s=self.max_gap_s,
            name=self.name,
            sampling=self.sampling,
            is_strict=self.is_strict,
            shared=shared,
            remains=remains,
        )


def _check_names(names: Sequence[str], words: Sequence[str]) -> None:
    """Raises RequestError if two models have one name in the API."""
    for i, name in enumerate(names):
        if name in names[:i]:
            first = words[names.index(name)]
            raise RequestError(
                f"{words[i]}: is called {name} in the API, and so is {first}; rename one"
            )
