"""Runs a model in an actor of Ray Data, and counts how many of them fit into a cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.data import ActorPoolStrategy

from specqd.errors import MachineError
from specqd.llm import LLM
from specqd.openai.batch import Batch, answer_batch, read_request
from specqd.openai.extras import Json


@dataclass(frozen=True, slots=True)
class Workers:
    """The model that each worker loads, and the cores that it uses."""

    model: str | None  # a path that exists on every machine, or owner/name
    name: str  # the model's name in answers
    draft: tuple[str, ...] = ()
    threads: int | None = None  # per worker; None: the cores of the cluster's smallest machine
    isa: str | None = None
    count: int | None = None  # of workers; None: as many as fit
    small: str | None = "auto"  # as in LLM
    chat_template: str | None = None  # as in LLM; a path that exists on every machine

    def placed(self, **words: Any) -> dict[str, Any]:
        """Returns the arguments of `map_batches` for the connected cluster. words: those of the
        class that it makes, besides `workers`.

        Raises MachineError if no machine has enough cores.
        """
        cores = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
        usable = [each for each in cores if each]
        if not usable:
            raise MachineError("the Ray cluster has no CPU; start a worker: ray start --address")
        threads = self.threads or min(usable)
        fitting = sum(each // threads for each in usable)
        if not fitting:
            raise MachineError(
                f"no machine of the Ray cluster has {threads} CPUs; lower threads to {max(usable)}"
            )
        return {
            "fn_constructor_kwargs": {"workers": replace(self, threads=threads), **words},
            "compute": ActorPoolStrategy(size=self.count or fitting),
            "num_cpus": threads,
            "batch_size": None,  # one block
            "batch_format": "pyarrow",
        }


class Worker:
    """A loaded model that answers lines of a batch file."""

    def __init__(self, workers: Workers, created: int = 0) -> None:
        self._name, self._created = workers.name, created
        self._llm = LLM(
            workers.model,
            workers.draft or "auto",
            workers.threads,
            workers.isa,
            small=workers.small,
            chat_template=workers.chat_template,
        )
        self._template = self._llm.tokenizer.template_source if workers.chat_template else ""

    def check(self, line: bytes) -> None:
        """Raises RequestError if a line is not a valid request."""
        read_request(line, self._name, self._template)

    def answers(self, lines: Sequence[bytes]) -> list[Json]:
        """Returns the answers in the order of the lines.

        An answer depends only on its line, the model and `created`, so answering a line again gives
        the same answer. Raises RequestError for a line that is not a valid request.
        """
        requests = tuple(read_request(line, self._name, self._template) for line in lines)
        collected = _Collected()
        batch = Batch(Path(self._name), self._name, self._created, requests)
        answer_batch(self._llm, batch, collected, lambda done, total: None)
        return [collected.answers[request.custom_id] for request in requests]


class _Collected:
    """Collects answers in memory."""

    def __init__(self) -> None:
        self.done: set[str] = set()
        self.answers: dict[str, Json] = {}

    def append(self, answers: Mapping[str, Json]) -> None:
        self.done.update(answers)
        self.answers.update(answers)
