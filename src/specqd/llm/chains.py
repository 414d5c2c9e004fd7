"""The drafters that the words of `draft` name -> a chain of levels. Knows models, tokenizers and
levels; no requests."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specqd import _native
from specqd._native import BlockDrafter, DraftChoice, Level, NgramDrafter, NoDraft
from specqd.config import read_config
from specqd.engine.roles import Drafter
from specqd.errors import HubError, LoadedFormatError, RequestError, TokenizerError
from specqd.formats.fp4 import DraftFormat
from specqd.hub import Check, model_name, real_path, resolve
from specqd.llm.draft_words import KNOWN, DraftSpec, members_of, refused
from specqd.model.dflash import (
    BlockFiles,
    BlockHead,
    load_block_drafter,
    open_head,
    read_head_description,
)
from specqd.model.heads import Head, HeadFiles, keep_prompts, load_head
from specqd.model.loader import Progress
from specqd.model.model import Model, Precision
from specqd.model.mtp import MtpFiles, load_mtp
from specqd.model.weights import (
    Overall,
    bytes_to_pack,
    open_packed,
    require_memory,
    weights_to_keep,
)
from specqd.text.text_file import json_lines, read_text_file
from specqd.text.tokenizer import Tokenizer


class Drafts:
    """The drafters of one target: small models, heads and n-gram texts of its chains, loaded once.

    A model that is used in both precisions is packed once. Each level has its own KV cache, except
    an fp4 level directly below the exact level of the same model, which shares that level's cache.
    """

    def __init__(self, directory: Path, precision: Precision, tokenizer: Tokenizer) -> None:
        """Takes the directory, precision and tokenizer of the target, which is loaded later."""
        self._target = (real_path(directory), precision)
        self._tokenizer = tokenizer
        self._directories: dict[str, Path] = {}  # by source, those that were checked
        self._corpora: dict[str, list[list[int]]] = {}
        self._models: dict[tuple[Path, Precision], Model] = {}
        # By directory, format and the decoder of the level above.
        self._heads: dict[tuple[Path, DraftFormat, _native.Decoder], _native.Decoder] = {}

    def check(self, specs: Sequence[DraftSpec]) -> None:
        """Finds the files of all levels, and refuses a chain that cannot draft or does not fit into
        memory. Packs nothing.

        Raises SpecqdError.
        """
        above = [self._target]
        for spec in specs:
            members = [self._check_member(member, specs) for member in spec.members]
            for i, (member, model) in enumerate(zip(spec.members, members, strict=True)):
                if model is not None and model in above + members[:i]:
                    raise refused(
                        member.word,
                        "this model is already in the chain at this precision, in this place or "
                        "above it; name it once",
                    )
            above += [model for model in members[:1] if model is not None]
        require_memory(self._to_load(specs))

    def _check_member(
        self, spec: DraftSpec, specs: Sequence[DraftSpec]
    ) -> tuple[Path, Precision] | None:
        """Finds the files of one drafter. Returns its directory and precision if it is a model."""
        if spec.kind == "ngram":
            if spec.source and spec.source not in self._corpora:
                self._corpora[spec.source] = _read_corpus(spec, self._tokenizer)
            return None
        if spec.kind in ("head", "mtp"):
            self._check_head(spec, specs)
            return None
        directory = self._target[0] if spec.kind == "self" else self._find(spec)
        open_packed(directory, spec.format)  # refuses another format
        return directory, spec.precision

    def _check_head(self, spec: DraftSpec, specs: Sequence[DraftSpec]) -> None:
        """Refuses a head that does not fit the first member of the level above."""
        level = next(i for i, each in enumerate(specs) if spec in each.members)
        above = self._target[0]
        if level and specs[level - 1].kind == "model":
            above = self._directories[specs[level - 1].source]
        if spec.kind == "mtp":
            MtpFiles.open(above, read_config(above))
            return
        target = read_config(above)
        directory = _resolve(spec, lambda path: read_head_description(path, target))
        open_head(directory, target)
        self._directories[spec.source] = directory

    def overall(self, specs: Sequence[DraftSpec], progress: Progress | None) -> Progress | None:
        """One progress over the models of a checked chain that are not loaded yet."""
        total = sum(map(bytes_to_pack, self._to_load(specs)))
        return Overall(progress, total) if progress is not None and total else None

    def weight_bytes(self, specs: Sequence[DraftSpec]) -> int:
        """Bytes of memory that the weights of a checked chain typically take once they are loaded.
        Mapped weights take none."""
        return sum(weights_to_keep(self._to_load(specs)).values())

    def _to_load(self, specs: Sequence[DraftSpec]) -> list[Path]:
        """The directories of the target and of the small models that are not loaded yet."""
        wanted = [self._target[0]]
        wanted += [
            self._directories[spec.source]
            for spec in members_of(specs)
            if spec.kind in ("model", "head")
        ]
        loaded = {directory for directory, _ in self._models}
        loaded |= {directory for directory, *_ in self._heads}
        return [each for each in dict.fromkeys(wanted) if each not in loaded]

    def _find(self, spec: DraftSpec) -> Path:
        if spec.source not in self._directories:
            directory = _resolve(spec, read_config)
            read_config(directory)
            _check_vocabulary(spec, self._tokenizer, Tokenizer.open(directory))
            self._directories[spec.source] = directory
        return self._directories[spec.source]

    def chain(
        self, target: Model, specs: Sequence[DraftSpec], progress: Progress | None = None
    ) -> Level:
        """The target's level, above the levels of a checked chain. Packs what is not loaded yet."""
        self._models[self._target] = target
        target.decoder.partial_head.keep(sorted(self._tokenizer.special_ids))
        return Level(target, self._below(target, "", specs, _Building(progress)))

    def _below(
        self, above: Model, name: str, specs: Sequence[DraftSpec], building: "_Building"
    ) -> Drafter:
        """Makes the drafter of `above`, the level of that name. If a level has several drafters,
        the rest of the chain drafts for the first."""
        if not specs:
            return NoDraft()
        first, *others = specs[0].members
        if len(specs) > 1:
            outer = self._drafter(above, name, first, specs[1:], building)
        else:
            outer = self._leaf(above, name, first, building)
        # After the outer one: a head that stands below it, too, reads the features of its guesses.
        beside = [self._leaf(above, name, spec, building) for spec in others]
        return DraftChoice([outer, *beside]) if others else outer

    def _leaf(
        self, above: Model, above_name: str, spec: DraftSpec, building: "_Building"
    ) -> Drafter:
        """A drafter with nothing below it. One that stands in several places of a model is made
        once: what it learns in one place serves the others."""
        key = above.decoder, spec.word
        if key not in building.leaves:
            building.leaves[key] = self._drafter(above, above_name, spec, (), building)
        return building.leaves[key]

    def _drafter(
        self,
        above: Model,
        above_name: str,
        spec: DraftSpec,
        inner: Sequence[DraftSpec],
        building: "_Building",
    ) -> Drafter:
        if spec.kind == "ngram":
            corpus = self._corpora[spec.source] if spec.source else ()
            return NgramDrafter(corpus=corpus, length=spec.length)
        if spec.kind in ("head", "mtp"):
            return self._head(above, above_name, spec, building)
        directory = self._target[0] if spec.kind == "self" else self._directories[spec.source]
        model = self._model(directory, spec, above, building)
        draft = model.weights.draft.value
        read = draft if spec.precision is Precision.FP4 else spec.precision.value
        name = read if spec.kind == "self" else f"{model_name(directory)}:{read}"
        name = building.name(name, above_name)
        return Level(
            model, self._below(model, name, inner, building), length=spec.length, name=name
        )

    def _head(
        self, above: Model, above_name: str, spec: DraftSpec, building: "_Building"
    ) -> Level | BlockDrafter:
        """The level or drafter of a draft head, which reads features of the level above."""
        model = next(d for (d, _), m in self._models.items() if m.decoder is above.decoder)
        files: HeadFiles | BlockFiles | MtpFiles
        if spec.kind == "mtp":
            directory, files = model, MtpFiles.open(model, above.config)
            name = "mtp" if model == self._target[0] else f"{model_name(model)}:mtp"
        else:
            directory = self._directories[spec.source]
            files, name = open_head(directory, above.config), f"head:{model_name(directory)}"
        key = directory, spec.format or DraftFormat.FP4, above.decoder
        if key not in self._heads:
            self._heads[key] = _load_head(files, above, spec, building.progress)
        name, promised = building.name(name, above_name), self._cache_bytes()
        if isinstance(files, BlockFiles):
            blocks = BlockHead(files, self._heads[key], above, spec.precision, promised)
            keep_prompts(blocks, above, key[1])
            blocks.draft_for(self._models[self._target].decoder)
            return BlockDrafter(blocks, length=spec.length, name=name)
        head = Head(files, self._heads[key], above, spec.precision, promised)
        keep_prompts(head, above, key[1])
        head.draft_for(self._models[self._target].decoder)
        return Level(head, NoDraft(), length=spec.length, name=name)

    def _model(
        self, directory: Path, spec: DraftSpec, above: Model, building: "_Building"
    ) -> Model:
        """The model of a level. Levels of one chain that read as much of a context share it."""
        target = self._models[self._target]
        exact = self._models.get((directory, Precision.EXACT))
        is_below_exact = (
            exact is not None
            and above.cache is exact.cache
            and above.precision is Precision.EXACT
            and spec.precision is Precision.FP4
        )
        if is_below_exact:
            model = above.as_draft()
        else:
            place = directory, spec.precision, spec.context
            if place not in building.models:
                building.models[place] = self._opened(directory, spec, building).for_chain()
            model = building.models[place]
        model.set_draft_context(spec.context)
        model.draft_for(target.decoder)
        if spec.format not in (None, model.weights.draft):
            loaded = model.weights.draft.value
            problem = f"these weights are loaded as {loaded}; draft with {loaded}, or start again"
            raise LoadedFormatError(f"{problem} with this draft", "draft", spec.word)
        return model

    def _cache_bytes(self) -> int:
        """Bytes of the pages of all models' caches."""
        caches = {id(each.cache): each.cache for each in self._models.values()}
        return sum(each.total_pages * each.page_bytes for each in caches.values())

    def _opened(self, directory: Path, spec: DraftSpec, building: "_Building") -> Model:
        """The loaded model, for all chains. Its cache is within the memory that those of the other
        models leave."""
        key = directory, spec.precision
        if key in self._models:
            return self._models[key]
        target = self._models[self._target]
        pages = target.cache.total_pages
        promised = self._cache_bytes()
        twin = next((m for (other, _), m in self._models.items() if other == directory), None)
        if twin is not None:
            model = twin.with_own_cache(spec.precision, pages, promised)
        else:
            model = Model.open(
                directory,
                machine=target.machine,
                precision=spec.precision,
                draft=spec.format,
                cache_positions=pages * _native.PAGE_POSITIONS,
                promised_bytes=promised,
                context=target.max_positions,  # texts are not longer
                progress=building.progress,
            )
            target.rely_on(model)
        if target.prompt_store is not None:
            model.keep_prompts(target.prompt_store.writer)
        self._models[key] = model
        return model


@dataclass(frozen=True, slots=True)
class _Building:
    """A chain that is being built: the progress of loading, the names of its levels so far, its
    drafters with nothing below them, and its small models by the context that they read."""

    progress: Progress | None
    names: set[str] = field(default_factory=set)
    leaves: dict[tuple[_native.Decoder, str], Drafter] = field(default_factory=dict)
    models: dict[tuple[Path, Precision, int | None], Model] = field(default_factory=dict)

    def name(self, name: str, above: str) -> str:
        """The name of a level below `above`. One that has this name already stands further out."""
        own = f"{name} below {above}" if name in self.names else name
        self.names.add(own)
        return own


def _load_head(
    files: HeadFiles | BlockFiles | MtpFiles,
    above: Model,
    spec: DraftSpec,
    progress: Progress | None,
) -> _native.Decoder:
    if isinstance(files, MtpFiles):
        return load_mtp(files, above, spec.format)
    if isinstance(files, BlockFiles):
        return load_block_drafter(files, above, spec.format, progress)
    return load_head(files, above, spec.format, progress)


def _resolve(spec: DraftSpec, check: Check) -> Path:
    try:
        return real_path(resolve(spec.source, check=check))
    except HubError as error:
        raise HubError(f"{error}; known drafts: {KNOWN}", "draft", spec.word) from error


def _check_vocabulary(spec: DraftSpec, ours: Tokenizer, theirs: Tokenizer) -> None:
    difference = ours.first_difference(theirs)
    if difference is not None:
        raise TokenizerError(
            f"its token {difference.token_id} is {difference.theirs!r} where the model has "
            f"{difference.ours!r}; a draft must have the model's tokenizer",
            "draft",
            spec.word,
        )


def _read_corpus(spec: DraftSpec, tokenizer: Tokenizer) -> list[list[int]]:
    """The texts of a file as token ids: one text per file, or per line of a .jsonl file."""
    path = Path(spec.source)
    try:
        content = read_text_file(path, "name a text or .jsonl file")
        texts = [content]
        if path.suffix == ".jsonl":
            texts = [_text_of(entry, where) for entry, where in json_lines(content, path.name)]
    except RequestError as error:
        raise refused(spec.word, str(error)) from error
    return [tokenizer.encode(text, add_special_tokens=False) for text in texts]


def _text_of(entry: Any, where: str) -> str:
    """The entry itself, or the `text` of an object, or else its `prompt` and `completion`."""
    if isinstance(entry, dict):
        entry = entry.get("text") or "".join(
            part for key in ("prompt", "completion") if isinstance(part := entry.get(key), str)
        )
    if not isinstance(entry, str) or not entry:
        raise RequestError(f"{where} has no text; write an object with `text` or `prompt`")
    return entry
