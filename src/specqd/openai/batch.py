"""Answers OpenAI's batch files: reads a file of requests, writes a file of answers.

Owns both formats. Killing the process neither loses nor repeats an answer. An answer depends only
on its request, the model and the modification time of the input file, so an interrupted batch that
is resumed gives the same lines as an uninterrupted one. Lines are in order of completion.
"""

import json
import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Protocol

from filelock import lock_descriptor

from specqd.engine.generation import Generation, MakeGrammar
from specqd.engine.reports import chain_of
from specqd.engine.updates import Update
from specqd.errors import RequestError, SpecqdError, TokenizerError, naming_file, shown
from specqd.formats.sync import sync
from specqd.llm import LLM
from specqd.openai.answers import Answer, Reply, Usage, form_of
from specqd.openai.errors import code_of, param_of, refusal
from specqd.openai.extras import Json
from specqd.openai.parts import BlockReader
from specqd.openai.requests import (
    ChatRequest,
    Prepared,
    Request,
    chat_request,
    completion_request,
)
from specqd.openai.responses_answers import ResponsesAnswer
from specqd.openai.responses_requests import ResponsesRequest, responses_request
from specqd.sampling import seed_of
from specqd.text.json_text import check_characters, place_of, read_json

_MEMBERS = ("custom_id", "method", "url", "body")
_PARSERS: Mapping[str, Callable[[object], Request | ResponsesRequest]] = {
    "/v1/completions": completion_request,
    "/v1/chat/completions": chat_request,
    "/v1/responses": responses_request,
}
_HEAD = b'{"id": "batch_req_'  # every output line begins like this
_MOST_SUBMITTED = 64  # samples; more than the engine's batch, so that the batch stays full

Progress = Callable[[int, int], None]
GrammarOf = Callable[[Prepared], MakeGrammar | None]


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A line of the input file."""

    custom_id: str
    key: str  # a digest of the line, the model's name and the template that replaces its own
    parsed: Request | ResponsesRequest
    problem: RequestError | None  # why it cannot be answered
    line: bytes

    @property
    def request(self) -> Request:
        """The request as a completion or chat."""
        return self.parsed.chat if isinstance(self.parsed, ResponsesRequest) else self.parsed


@dataclass(frozen=True, slots=True)
class Batch:
    """All requests of an input file."""

    path: Path
    model: str  # the model's name in the answers
    created: int  # when the input was last modified, in seconds since 1970
    requests: tuple[BatchRequest, ...]


def read_batch(path: Path, model: str, template: str = "") -> Batch:
    """Reads and checks an input file. Raises RequestError, which names the first wrong line.

    model, template: as in `read_request`.
    """
    with path.open("rb") as file:
        created = int(os.fstat(file.fileno()).st_mtime)
        requests: dict[str, BatchRequest] = {}
        first: dict[str, int] = {}
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                request = read_request(line, model, template)
                if request.custom_id in first:
                    where = f"line {first[request.custom_id]}"
                    raise RequestError(
                        f"custom_id: {shown(request.custom_id)} is used by {where} too; "
                        "give each request its own"
                    )
            except RequestError as error:
                raise RequestError(f"{path}:{number}: {error}") from error
            first[request.custom_id] = number
            requests[request.custom_id] = request
    if not requests:
        raise RequestError(
            f"{path}: has no request; write one object with {', '.join(_MEMBERS)} per line"
        )
    return Batch(path, model, created, tuple(requests.values()))


def read_request(line: bytes, model: str, template: str = "") -> BatchRequest:
    """Reads and checks a line of the input. Raises RequestError.

    model: the model's name in the answers. template: a chat template in place of the model's own.
    The answer depends on both, and so does its key.
    """
    try:
        entry = read_json(line.rstrip())
    except (ValueError, RecursionError) as error:
        problem = f"is not JSON in UTF-8{place_of(error)}; write one request per line"
        raise RequestError(problem) from error
    if not isinstance(entry, dict):
        raise RequestError(f"is not an object with {', '.join(_MEMBERS)}")
    for name in entry:
        if name not in _MEMBERS:
            raise RequestError(f"{shown(name)}: is not known; a line has {', '.join(_MEMBERS)}")
    custom_id, url = entry.get("custom_id"), entry.get("url")
    if not isinstance(custom_id, str) or not custom_id:
        raise RequestError(f"custom_id: {shown(custom_id)} is not a string that names the request")
    if entry.get("method") != "POST":
        raise RequestError(f'method: {shown(entry.get("method"))} is not "POST"')
    if not isinstance(url, str) or url not in _PARSERS:
        raise RequestError(f"url: {shown(url)} is not supported; known: {', '.join(_PARSERS)}")
    try:
        parsed = _PARSERS[url](entry.get("body"))
    except RequestError as error:
        raise RequestError(f"body.{error}".replace("body.body:", "body:")) from error
    given = [template] if template else []
    content = json.dumps([model, entry, *given], sort_keys=True)
    key = sha256(content.encode()).hexdigest()[:32]
    request = BatchRequest(custom_id, key, parsed, None, line)
    if request.request.options.is_streamed:
        raise RequestError("body.stream: answers of a batch cannot be streamed; leave it out")
    try:
        check_characters(entry["body"], line)
    except RequestError as error:
        return replace(request, problem=error)
    return request


class Sink(Protocol):
    """Receives answers as soon as they are complete."""

    done: set[str]  # the custom_ids of requests that have an answer

    def append(self, answers: Mapping[str, Json]) -> None:
        """Adds answers, given by custom_id."""
        ...


class Answers:
    """The output file in progress. Lines are on the disk before they count as done."""

    def __init__(self, file: BinaryIO, done: Collection[str]) -> None:
        self.done = set(done)  # custom_ids
        self._file = file

    def append(self, answers: Mapping[str, Json]) -> None:
        """Adds lines, given by custom_id. They are on the disk when this returns."""
        lines = [json.dumps(answer) + "\n" for answer in answers.values()]
        with naming_file(Path(self._file.name)):
            self._file.write("".join(lines).encode())
            self._file.flush()
            os.fsync(self._file.fileno())
        self.done.update(answers)


@contextmanager
def open_answers(path: Path, batch: Batch) -> Iterator[Answers]:
    """Opens a new output file, or one of an earlier run, and removes an incomplete last line.

    Raises RequestError if the file answers another batch or another process is writing to it.
    """
    is_new = not path.exists()
    if not is_new and not path.is_file():
        raise RequestError(f"{path}: is not a file; name a file for the answers")
    with _named_file(path) as file:
        with naming_file(path):
            is_ours = lock_descriptor(file.fileno(), blocking=False)
        if not is_ours:
            raise RequestError(f"{path}: another process is writing to it; wait until it has ended")
        if is_new:
            sync(path.absolute().parent)
        done = _read_answers(file, path, batch)
        yield Answers(file, done)


@contextmanager
def _named_file(path: Path) -> Iterator[BinaryIO]:
    """Opens the file. Its errors name it, even when closing it repeats a write that failed."""
    file = path.open("a+b")
    try:
        yield file
    finally:
        with naming_file(path):
            file.close()


def _read_answers(file: BinaryIO, path: Path, batch: Batch) -> list[str]:
    """Returns the custom_ids of complete lines. Removes an incomplete last line."""
    keys = {request.custom_id: request.key for request in batch.requests}
    done: list[str] = []
    whole = 0
    file.seek(0)
    for number, line in enumerate(file, 1):
        where = f"{path}:{number}"
        if not line.endswith(b"\n"):
            if not line.startswith(_HEAD[: len(line)]):
                raise RequestError(f"{where}: is not an answer to a batch; name another file")
            file.truncate(whole)
            os.fsync(file.fileno())
            break
        whole += len(line)
        custom_id, request_id = _named(line, where)
        if request_id != f"batch_req_{keys.get(custom_id)}":
            raise RequestError(
                f"{where}: answers a request {shown(custom_id)} that is not in {batch.path} for "
                f"{batch.model}; name another file"
            )
        done.append(custom_id)
    return done


def _named(line: bytes, where: str) -> tuple[str, str]:
    try:
        answer = json.loads(line)
        return str(answer["custom_id"]), str(answer["id"])
    except (ValueError, RecursionError, LookupError, TypeError) as error:
        raise RequestError(f"{where}: is not an answer to a batch; name another file") from error


@dataclass(frozen=True, slots=True)
class _Running:
    """A request that the engine is answering."""

    line: BatchRequest
    prepared: Prepared
    samples: list[Generation]

    @property
    def is_done(self) -> bool:
        return all(sample.finish_reason is not None for sample in self.samples)

    @property
    def error(self) -> SpecqdError | None:
        return next((s.error for s in self.samples if s.error is not None), None)


def answer_batch(llm: LLM, batch: Batch, answers: Sink, progress: Progress) -> int:
    """Answers the requests that have no answer yet; returns how many of them got an error.

    Each answer equals that of the request alone. A request that this model cannot run, such as one
    with too long a prompt, gets an error as its answer. Raises RequestError if the batch has chats
    and the model has no chat template, or if it has grammars and llguidance is not installed.
    """
    asks_chats = any(isinstance(each.request, ChatRequest) for each in batch.requests)
    if asks_chats and not llm.tokenizer.has_chat_template:
        raise RequestError(
            f"{batch.path}: has chats, but {batch.model} has no chat template; use "
            "/v1/completions or another model"
        )
    grammar_of = _grammar_of(llm, batch)
    waiting = deque(each for each in batch.requests if each.custom_id not in answers.done)
    running: list[_Running] = []
    refused = 0
    try:
        while waiting or running:
            progress(len(answers.done), len(batch.requests))
            while waiting and sum(len(each.samples) for each in running) < _MOST_SUBMITTED:
                line = waiting.popleft()
                try:
                    running.append(_submit(llm, line, grammar_of))
                except (RequestError, TokenizerError) as error:  # TokenizerError: a template failed
                    answers.append({line.custom_id: _refusal(line, error)})
                    refused += 1
            llm.engine.step()
            if finished := [each for each in running if each.is_done]:
                running = [each for each in running if not each.is_done]
                lines = {each.line.custom_id: _line(each, batch, llm) for each in finished}
                answers.append(lines)
                refused += sum(map(is_refused, lines.values()))
    finally:
        for sample in (sample for each in running for sample in each.samples):
            llm.engine.cancel(sample)
    progress(len(answers.done), len(batch.requests))
    return refused


def _grammar_of(llm: LLM, batch: Batch) -> GrammarOf | None:
    """Returns None if no request has a grammar: only grammars need llguidance."""
    if not any(each.request.has_rules for each in batch.requests):
        return None
    grammars = llm.rules.grammars
    from specqd.openai.grammar import request_grammar

    return partial(request_grammar, grammars)


def _submit(llm: LLM, line: BatchRequest, grammar_of: GrammarOf | None) -> _Running:
    if line.problem is not None:
        raise line.problem
    prepared = Prepared.of(line.request, llm.tokenizer)
    if prepared.params.seed is None:  # a digest of the line, so that each run gives this answer
        prepared = replace(prepared, params=replace(prepared.params, seed=seed_of(line.key)))
    make_grammar = grammar_of(prepared) if grammar_of is not None else None
    salt = line.request.options.cache_salt
    request = prepared.for_engine(llm.defaults, make_grammar, salt)
    return _Running(line, prepared, llm.engine.submit(request))


def _line(running: _Running, batch: Batch, llm: LLM) -> Json:
    line, prepared, samples = running.line, running.prepared, running.samples
    usage = Usage.of(prepared)
    usage.completion_tokens = sum(sample.count for sample in samples)
    answer = _reply(line, prepared, usage, batch, llm)
    try:
        if running.error is not None:
            raise running.error
        whole = answer.whole([Update.of(i, sample) for i, sample in enumerate(samples)])
    except SpecqdError as error:  # also the tokenizer's, from spelling tokens
        return _refusal(line, error)
    return _response(line, 200, whole)


def _reply(line: BatchRequest, prepared: Prepared, usage: Usage, batch: Batch, llm: LLM) -> Reply:
    if isinstance(line.parsed, ResponsesRequest):
        echoed = line.parsed.echoed(llm.defaults)
        return ResponsesAnswer(
            batch.model,
            usage,
            line.key,
            batch.created,
            echoed,
            blocks=BlockReader(prepared),
            tokenizer=llm.tokenizer,
        )
    form = form_of(prepared, llm.tokenizer, line.key, chain_of(llm.engine.level))
    return Answer(form, batch.model, usage, line.key, batch.created)


def is_refused(answer: Json) -> bool:
    """Returns whether an output line is an error."""
    return bool(answer["response"]["status_code"] != 200)


def _refusal(line: BatchRequest, error: SpecqdError) -> Json:
    kind, param, code = "invalid_request_error", param_of(error), code_of(error)
    return _response(line, 400, refusal(str(error), kind, param, code))


def _response(line: BatchRequest, status: int, body: Json) -> Json:
    return {
        "id": f"batch_req_{line.key}",
        "custom_id": line.custom_id,
        "response": {"status_code": status, "request_id": f"req_{line.key}", "body": body},
        "error": None,
    }
