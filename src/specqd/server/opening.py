"""Makes a service of a loaded model: its engine, its name and its access rules."""

from specqd.engine.engine import Engine
from specqd.engine.prompts import MAX_GAP_S
from specqd.hub import model_name
from specqd.llm import LLM
from specqd.server.app import Service, Serving
from specqd.server.guard import Access

DRAIN_SECONDS = 60  # for open requests to finish when the server shuts down


def open_service(
    llm: LLM,
    access: Access,
    *,
    max_batch: int,
    max_gap_s: float = MAX_GAP_S,
    name: str | None = None,
    is_lenient: bool = False,
) -> Service:
    """Builds the service, and measures memory bandwidth.

    max_gap_s: seconds that answers may pause while prompts are read.
    name: the model's name in the API. None: the name of its directory, or owner/name.
    """
    engine = Engine(
        llm.engine.level,
        llm.tokenizer,
        eos_token_ids=llm.engine.eos_token_ids,
        max_batch=max_batch,
        max_gap_s=max_gap_s,
    )
    name = name or model_name(llm.directory)
    return Service(Serving(engine, name, llm.defaults, access, is_lenient=is_lenient))
