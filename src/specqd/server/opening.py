"""Makes a service of a loaded model: its engine, its name and its defaults."""

from dataclasses import replace
from functools import cache
from typing import Any

from specqd.config import GenerationDefaults
from specqd.engine.engine import Engine
from specqd.engine.prompts import MAX_GAP_S
from specqd.hub import model_name
from specqd.llm import LLM
from specqd.sampling import SamplingParams
from specqd.server.service import Remains, Service, Serving, Shared

DRAIN_SECONDS = 60  # for open requests to finish when the server shuts down


def open_service(
    llm: LLM,
    *,
    max_batch: int,
    max_gap_s: float = MAX_GAP_S,
    name: str | None = None,
    sampling: SamplingParams | None = None,
    is_strict: bool = False,
    shared: Shared | None = None,
    remains: Remains | None = None,
) -> Service:
    """Builds the service, and measures memory bandwidth, unless it is known from an earlier load.
    Closing the service closes the LLM.

    max_gap_s: seconds that answers may pause while prompts are read.
    name: the model's name in the API. None: the name of its directory, or owner/name.
    sampling: defaults that replace the model's own for requests that omit these fields.
    is_strict: OpenAI's temperature 1, rather than that of chats, if nothing states a temperature.
    shared: what all models of the server share. remains: those of this model's earlier load.
    """
    engine = Engine(
        llm.engine.level,
        llm.tokenizer,
        eos_token_ids=llm.engine.eos_token_ids,
        max_batch=max_batch,
        max_gap_s=max_gap_s,
    )
    name = name or model_name(llm.directory)
    defaults = _replaced(llm.defaults, sampling or SamplingParams())
    if is_strict:
        defaults = defaults.with_openai_temperature()
    serving = Serving(engine, name, defaults, cache(llm.embedder))
    return Service(serving, shared, remains, llm.close)


def _replaced(defaults: GenerationDefaults, given: SamplingParams) -> GenerationDefaults:
    chosen: dict[str, Any] = {
        name: value
        for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        if (value := getattr(given, name)) is not None
    }
    if given.temperature is not None:
        chosen["do_sample"] = given.temperature > 0
    return replace(defaults, **chosen)
