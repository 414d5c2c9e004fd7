"""A model that generates; see `LLM`."""

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from copy import copy
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specqd import _native
from specqd.config import read_generation_defaults
from specqd.engine.engine import Engine
from specqd.engine.generation import GenerationRequest
from specqd.engine.reports import chain_of
from specqd.engine.turns import Turns
from specqd.errors import FieldError, RequestError, TokenizerError
from specqd.llm import inputs, peers
from specqd.llm.auto import checked_chain
from specqd.llm.call import Call
from specqd.llm.chains import Drafts
from specqd.llm.chats import Chat
from specqd.llm.checked import CheckedModel
from specqd.llm.draft_words import DraftSpec, draft_format
from specqd.llm.embedding import Embedder
from specqd.llm.inputs import Messages, Prompt
from specqd.llm.results import Result
from specqd.llm.rules import Rules
from specqd.llm.stream import Finished, OnPrompt, Stream, unchanged
from specqd.model.loader import Progress
from specqd.model.model import Machine, Model, Precision
from specqd.model.prompt_files import PromptFiles
from specqd.model.prompt_writer import PromptWriter
from specqd.sampling import SamplingParams
from specqd.text.tokenizer import Tokenizer


class LLM:
    """A model that generates exactly the tokens that it generates without drafts.

    Any number of threads may call it at once, also by `asyncio.to_thread`. One engine runs their
    requests in one batch. Each request gets the tokens that it gets alone; its statistics count the
    work for all of them. `with LLM() as llm:` frees the memory at the end.

    model: a Hugging Face directory, a GGUF file or `owner/name[@revision]`; None: the shipped one.
    draft: `auto`, `none`, or a chain of drafts, outermost first, such as
        `["fp4", "./small", "ngram"]`. A draft is `fp4`, `mxfp4`, `MODEL[:bf16|:fp4|:mxfp4]`,
        `head:DIR[:bf16|:fp4]`, `mtp[:bf16|:fp4]` or `ngram[:FILE]`, each with an optional `:k=N`.
    threads: threads of the native core; None: one per usable core, which is also the most.
    isa: the instruction set to use; None: the fastest.
    precision: `exact`, or `fp4` to generate from the 4-bit weights only (not lossless).
    cache_positions: tokens in the KV cache, over all sequences; None: four contexts, if they fit
        into half of the free memory and into `cache_bytes`.
    cache_bytes: the most bytes of a KV cache whose positions are not stated.
    context: tokens of the longest sequence, prompt included; None: the model's context. It
        determines the KV cache's size and the factors of LongRoPE.
    prompt_cache: a directory in which the KV cache of prompts is kept for later runs; None: it is
        not kept.
    prompt_cache_size: most bytes of that directory; None: 10 GiB. The least recently used files are
        removed first.
    numa: `one` uses one NUMA node, `spread` divides the weights among all nodes, `replicate` copies
        them to each; `auto` spreads. With one node these are the same.
    small: a smaller model with the same tokens, which `auto` adds to the model's own drafts: named
        as `model` is. `auto`: the known one of a model in Hugging Face's cache, if it is in the
        cache, too; it is not fetched, and it is left out with a warning if it cannot draft or does
        not fit into memory. None or `none`: no small model.
    chat_template: a file with a Jinja chat template, which replaces the model's own.
    progress: called while the weights load, with the bytes loaded so far and those of all.
    """

    @peers.refuses(peers.OF_LLM)
    def __init__(
        self,
        model: str | Path | None = None,
        draft: str | SequenceOf[str] | None = "auto",
        threads: int | None = None,
        isa: str | None = None,
        *,
        precision: Precision | str = Precision.EXACT,
        cache_positions: int | None = None,
        cache_bytes: int | None = None,
        context: int | None = None,
        prompt_cache: str | Path | None = None,
        prompt_cache_size: int | None = None,
        numa: str = "auto",
        small: str | Path | None = "auto",
        chat_template: str | Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        inputs.check_words(draft, isa)
        inputs.check_numbers(threads=threads, cache_positions=cache_positions, context=context)
        inputs.check_numbers(cache_bytes=cache_bytes, prompt_cache_size=prompt_cache_size)
        precision = Precision.named(precision)
        checked = CheckedModel.of(
            model, draft, precision, context=context, small=small, chat_template=chat_template
        )
        kept = inputs.directory_name("prompt_cache", prompt_cache)
        writer = None if kept is None else PromptWriter(PromptFiles(kept, prompt_cache_size))
        self.directory, self.tokenizer = checked.directory, checked.tokenizer
        self.defaults = read_generation_defaults(self.directory)
        self._small, self._drafts, specs = small, checked.drafts, checked.specs
        self.turns = Turns()
        # The interpreter waits for it at exit; Ctrl-C interrupts it.
        with self.turns.alone() as interrupt, interrupt.allowed():
            progress = self._drafts.overall(specs, progress)
            opened = Model.open(
                self.directory,
                machine=Machine.choose(threads, isa, numa),
                precision=precision,
                draft=draft_format(specs),
                cache_positions=cache_positions,
                cache_bytes=cache_bytes,
                context=context,
                progress=progress,
            )
            _check_vocabulary(self.directory, self.tokenizer, opened)
            if writer is not None:
                opened.keep_prompts(writer)
            self._model: Model | None = opened
            self._engine: Engine | None = self._engine_of(specs, progress)
            eos = self._engine.eos_token_ids
            self.rules = Rules(self.tokenizer, opened.vocabulary, sorted(eos))

    @property
    def model(self) -> Model:
        """The loaded model: its configuration, weights and KV cache. Raises RequestError after
        `close`."""
        if self._model is None:
            raise self._is_closed()
        return self._model

    @property
    def engine(self) -> Engine:
        """What runs the requests: the chain of levels, the queue and its counts. Raises
        RequestError after `close`."""
        if self._engine is None:
            raise self._is_closed()
        return self._engine

    def close(self) -> None:
        """Frees the model's memory, unless another LLM of `with_draft` uses it. Later calls raise
        RequestError, and so do calls of other threads that are still running. Waits until prompts
        that are kept are written."""
        with self.turns.alone():
            if self._engine is not None:
                self._engine.end_all(self._is_closed())
            if self._model is not None and self._model.prompt_store is not None:
                self._model.prompt_store.writer.flush()
            self._engine = self._model = None
            self._drafts = Drafts(self.directory, Precision.EXACT, self.tokenizer)

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        levels = " > ".join(chain_of(self._engine.level)) if self._engine else "closed"
        return f"LLM({str(self.directory)!r}, {levels})"

    def with_draft(
        self,
        draft: str | SequenceOf[str] | None,
        *,
        reload: bool = False,
        progress: Progress | None = None,
    ) -> "LLM":
        """The same model with other drafts; nothing is loaded twice. Use one of the two at a time:
        they share the KV cache, and each assumes that it has all of it.

        reload: load all weights again, for a draft in another format (`mxfp4` where `fp4` is
            loaded, which is refused otherwise). The new LLM shares only the threads.
        """
        inputs.check_words(draft)
        precision, own = self.model.precision, self.model.config
        with self.turns.alone() as interrupt, interrupt.allowed():
            other = copy(self)
            if reload:
                other._drafts = Drafts(self.directory, precision, self.tokenizer)
            specs = checked_chain(draft, self._small, precision, self.directory, own, other._drafts)
            progress = other._drafts.overall(specs, progress)
            if reload:
                other._model = self.model.reopened(self.directory, draft_format(specs), progress)
            other._engine = other._engine_of(specs, progress)
        return other

    def _engine_of(self, specs: SequenceOf[DraftSpec], progress: Progress | None) -> Engine:
        eos = self.defaults.eos_token_ids or self.model.config.eos_token_ids
        level = self._drafts.chain(self.model, specs, progress)
        if specs:
            level.measure()
        return Engine(level, self.tokenizer, eos_token_ids=eos)

    @peers.refuses(peers.OF_GENERATE)
    def generate(
        self,
        prompts: Prompt | SequenceOf[Prompt],
        sampling_params: SamplingParams | None = None,
    ) -> list[Result]:
        """Completes one prompt or several, each a text or token ids. The results are in the order
        of the prompts. Each text continues that of its prompt."""
        encoded = [self.encode(prompt) for prompt in inputs.prompts_of(prompts)]
        return self._whole(encoded, sampling_params)

    def _whole(
        self,
        encoded: list[list[int]],
        sampling_params: SamplingParams | None,
        *,
        is_answer: bool = False,
    ) -> list[Result]:
        params, tokenizer = inputs.params_of(sampling_params, self.defaults), self.tokenizer
        call = self._begin(GenerationRequest(encoded, params, is_answer=is_answer))
        generations = call.generations
        try:
            call.run(lambda: all(each.finish_reason is not None for each in generations))
        finally:
            stats = call.cancel()
        for error in (each.error for each in generations if each.error is not None):
            raise error
        samples = iter(generations)
        return [
            Result.of(each, list(islice(samples, params.n)), stats, tokenizer, is_answer=is_answer)
            for each in encoded
        ]

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        on_prompt: OnPrompt | None = None,
        is_answer: bool = False,
    ) -> Stream:
        """Completes one prompt piece by piece.

        on_prompt: called with the number of tokens of the prompt that are read, and of all its
            tokens, after each part of it.
        is_answer: the prompt is a chat's, so the new text is one of its own. Otherwise it continues
            the prompt's, with the space between the two.
        """
        return self._stream(self.encode(prompt), sampling_params, on_prompt, is_answer=is_answer)

    def chat(
        self,
        messages: Messages,
        sampling_params: SamplingParams | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **template_variables: Any,
    ) -> Result:
        """Answers a conversation through the model's chat template. `reply` of the result has the
        parts of the answer: content, reasoning and calls of tools.

        messages: as in OpenAI's API; a content is a text or a list of parts of type `text`.
        template_variables: `tools` (functions in OpenAI's form), `documents` and other variables of
            the template, such as `enable_thinking`. vLLM's argument `chat_template_kwargs` may hold
            them too. If the template knows no tools, plain messages describe them.
            `continue_final_message=True` continues the last message, the assistant's.
        """
        chat = Chat.of(self.tokenizer, messages, chat_template_kwargs, template_variables)
        [result] = self._whole([chat.prompt], sampling_params, is_answer=chat.is_answer)
        return chat.replied(result)

    def stream_chat(
        self,
        messages: Messages,
        sampling_params: SamplingParams | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        on_prompt: OnPrompt | None = None,
        **template_variables: Any,
    ) -> Stream:
        """Answers a conversation piece by piece, with the arguments of `chat` and `on_prompt` of
        `stream`."""
        chat = Chat.of(self.tokenizer, messages, chat_template_kwargs, template_variables)
        return self._stream(
            chat.prompt, sampling_params, on_prompt, chat.replied, is_answer=chat.is_answer
        )

    def logprobs(self, token_ids: SequenceOf[int]) -> NDArray[np.float32]:
        """Log-probabilities of the next token after each of the `token_ids`: float32 [n, vocab]."""
        ids = inputs.token_ids("token_ids", token_ids)
        with self.turns.alone(is_long=True):
            self.engine.scheduler.make_room(len(ids))
            logits = self.model.logits(ids)
            isa = self.model.machine.isa
        return np.stack([_native.log_softmax(row, isa) for row in logits])

    def embed(
        self,
        texts: Prompt | SequenceOf[Prompt],
        *,
        prompt_name: str | None = None,
        dimensions: int | None = None,
    ) -> NDArray[np.float32]:
        """The vectors of one text or several, each a text or token ids: float32 [n, dimensions].

        Pooling, prompts and normalisation are those of the model's sentence-transformers files;
        without such files, a vector is the last token's row, normalised. A vector has the same bits
        alone and with others.

        prompt_name: the model's prompt to put before each text, such as `query`; None: its default.
        dimensions: shorter vectors, of a model that was trained for this.
        """
        embedder = self.embedder()
        dimensions = embedder.check_dimensions(dimensions)
        many = inputs.prompts_of(texts, "texts")
        encoded = [embedder.encode(each, prompt_name) for each in many]
        with self.turns.alone():
            run = embedder.begin(encoded)
        while not run.is_done:
            with self.turns.alone(is_long=True):
                run.step(self.engine.rows_beside())
        return embedder.vectors(run, dimensions)

    def embedder(self) -> Embedder:
        """How the model embeds texts. Raises ConfigError if its files ask for what is not
        supported."""
        return Embedder(self.directory, self.model, self.tokenizer)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a text, with the special tokens that the model expects; ids pass through."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        return inputs.token_ids("prompt", prompt)

    def decode(self, token_ids: SequenceOf[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids."""
        ids = inputs.token_ids("token_ids", token_ids)
        if ids and not 0 <= min(ids) <= max(ids) < 2**31:
            raise FieldError("token_ids", "an id is from 0 to 2147483647")
        return self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def _begin(self, request: GenerationRequest) -> Call:
        if request.make_grammar is None:
            request = replace(request, make_grammar=self.rules.of(request.params, request.prompts))
        return Call(self.engine, self.turns, request)

    def _stream(
        self,
        prompt: list[int],
        sampling_params: SamplingParams | None,
        on_prompt: OnPrompt | None,
        finished: Finished = unchanged,
        *,
        is_answer: bool,
    ) -> Stream:
        params, tokenizer = inputs.params_of(sampling_params, self.defaults), self.tokenizer
        return Stream(
            self._begin, prompt, params, tokenizer, on_prompt, finished, is_answer=is_answer
        )

    def _is_closed(self) -> RequestError:
        return RequestError(f"the LLM of {self.directory} is closed; make another one")


def _check_vocabulary(directory: Path, tokenizer: Tokenizer, model: Model) -> None:
    if tokenizer.own_size > model.config.vocab_size:
        raise TokenizerError(
            f"{directory}: the tokenizer has {tokenizer.own_size} tokens and the model "
            f"{model.config.vocab_size}; they do not belong together"
        )
