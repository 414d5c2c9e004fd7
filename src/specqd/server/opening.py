"""Makes a service of a loaded model: its engine, its name and its access rules."""

from specqd.engine.engine import Engine
from specqd.hub import model_name
from specqd.llm import LLM
from specqd.server.app import Service, Serving
from specqd.server.guard import Access

PROMPT_ROWS = 128  # rows of prompts per round while other sequences decode
DRAIN_SECONDS = 60  # for open requests to finish when the server shuts down


def open_service(
    llm: LLM, access: Access, *, max_batch: int, name: str | None = None, is_lenient: bool = False
) -> Service:
    """Builds the service, and measures memory bandwidth.

    name: the model's name in the API. None: the name of its directory, or owner/name.
    """
    engine = Engine(
        llm.engine.level,
        llm.tokenizer,
        eos_token_ids=llm.engine.eos_token_ids,
        max_batch=max_batch,
        prompt_rows=PROMPT_ROWS,
    )
    name = name or model_name(llm.directory)
    return Service(Serving(engine, name, llm.defaults, access, is_lenient=is_lenient))
