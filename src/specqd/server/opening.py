"""A loaded model becomes a service: its engine, its name and who may use it."""

from specqd.engine.engine import Engine
from specqd.hub import model_name
from specqd.llm import LLM
from specqd.server.app import Service, Serving
from specqd.server.guard import Access

PROMPT_ROWS = 128  # prompts' rows in one round, while other sequences decode
DRAIN_SECONDS = 60  # for open requests to end when the server is told to end


def open_service(
    llm: LLM, access: Access, *, max_batch: int, name: str | None = None, is_lenient: bool = False
) -> Service:
    """name: None: the directory's, or owner/name. Measures the memory's bandwidth."""
    engine = Engine(
        llm.engine.level,
        llm.tokenizer,
        eos_token_ids=llm.engine.eos_token_ids,
        max_batch=max_batch,
        prompt_rows=PROMPT_ROWS,
    )
    name = name or model_name(llm.directory)
    return Service(Serving(engine, name, llm.defaults, access, is_lenient=is_lenient))
