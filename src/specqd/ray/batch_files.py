"""`specqd batch --ray`: a batch file's requests as a dataset; the driver writes the answers.

The contract is that of `specqd batch`: the file of answers says what is done. Ray Data runs the
requests of a worker that ends again, and the driver asks only for what its file lacks.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil

import pyarrow as pa
import ray
from ray.data import DataContext
from ray.exceptions import RayError

from specqd.errors import MachineError, SpecqdError
from specqd.openai.batch import Batch, Progress, Sink, is_refused
from specqd.ray.worker import Worker, Workers

_LINES = 64  # of a block: what a killed worker does again, at most


def answer_batch(
    address: str, workers: Workers, batch: Batch, answers: Sink, progress: Progress
) -> int:
    """Answers the requests that have no answer yet; returns the number that was refused.

    address: of a running cluster, `auto`, or `local` to start one on this machine.
    """
    waiting = [{"line": each.line} for each in batch.requests if each.custom_id not in answers.done]
    refused = 0
    progress(len(answers.done), len(batch.requests))
    with _cluster(address), _told_in_one_line():
        dataset = ray.data.from_items(waiting, override_num_blocks=ceil(len(waiting) / _LINES))
        answered = dataset.map_batches(
            _Lines,
            fn_constructor_kwargs={"workers": workers, "created": batch.created},
            **workers.placed(),
        )
        for rows in answered.iter_batches(batch_size=None, batch_format="pyarrow"):
            lines = [json.loads(each) for each in rows["answer"].to_pylist()]
            new = {each["custom_id"]: each for each in lines}
            answers.append({name: new[name] for name in new if name not in answers.done})
            refused += sum(map(is_refused, lines))
            progress(len(answers.done), len(batch.requests))
    return refused


class _Lines:
    def __init__(self, workers: Workers, created: int) -> None:
        self._worker = Worker(workers, created)

    def __call__(self, rows: pa.Table) -> pa.Table:
        answers = self._worker.answers(rows["line"].to_pylist())
        return pa.table({"answer": [json.dumps(answer) for answer in answers]})


@contextmanager
def _cluster(address: str) -> Iterator[None]:
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        problem = str(error).partition("\n")[0]
        raise MachineError(f"--ray {address}: {problem}") from error
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _told_in_one_line() -> Iterator[None]:
    """Raises a worker's SpecqdError as such, and Ray's own errors as MachineError."""
    try:
        yield
    except RayError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, SpecqdError):
            cause = getattr(cause, "cause", None) or cause.__cause__
        if cause is not None:
            raise cause from error
        problem = str(error).strip().rpartition("\n")[2]
        raise MachineError(f"a worker failed: {problem}") from error
