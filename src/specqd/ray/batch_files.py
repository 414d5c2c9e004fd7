"""`specqd batch --ray`: workers answer a batch file as a Ray Data dataset; the driver writes.

As with `specqd batch`, the file of answers records what is done, and only missing answers are
computed. If a worker dies, Ray Data runs its requests again.
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

_LINES = 64  # per block; at most these are computed again after a worker was killed


def answer_batch(
    address: str, workers: Workers, batch: Batch, answers: Sink, progress: Progress
) -> int:
    """Answers the requests that have no answer yet; returns how many of them got an error.

    address: of a running cluster, `auto`, or `local` to start one on this machine. Raises
    MachineError if the cluster cannot be used or a worker fails.
    """
    waiting = [{"line": each.line} for each in batch.requests if each.custom_id not in answers.done]
    refused = 0
    progress(len(answers.done), len(batch.requests))
    with _cluster(address), _errors_in_one_line():
        dataset = ray.data.from_items(waiting, override_num_blocks=ceil(len(waiting) / _LINES))
        answered = dataset.map_batches(
            _Lines,
            **workers.placed(created=batch.created),
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
def _errors_in_one_line() -> Iterator[None]:
    """Raises a worker's SpecqdError as it is, and Ray's own errors as MachineError."""
    try:
        yield
    except RayError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, SpecqdError):
            cause = getattr(cause, "cause", None) or cause.__cause__
        if cause is not None:
            raise cause from error
        problem = str(error).strip().rpartition("\n")[2]
        raise MachineError(f"a worker failed: {problem}; its log in Ray says why") from error
