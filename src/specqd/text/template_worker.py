"""The process that renders chat templates: reads requests from its input and writes texts.

Is run by its path, and imports only Jinja and the standard library. Owns Hugging Face's dialect of
Jinja and the limits of a rendering. Jinja's sandbox restricts what an untrusted template can reach,
but neither its time nor its memory: the kernel bounds these or, where it cannot, the parent process
watches them.
"""

import json
import marshal
import signal
import struct
import sys
from datetime import datetime
from functools import lru_cache
from typing import Any, BinaryIO

import jinja2.ext
from jinja2 import Template, nodes
from jinja2.exceptions import TemplateError
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]

MOST_BYTES = 512 << 20  # of memory for the process
MOST_BYTES_PER_BYTE = 32  # further memory per byte of the request
BOUNDS_MEMORY = sys.platform == "linux" and resource is not None  # whether the kernel does
BOUNDS_TIME = hasattr(signal, "setitimer")  # of the processor; whether the kernel does
CPU_TIME_SIGNAL: int = getattr(signal, "SIGPROF", 0)  # ends the process, even within one call of C
LONGEST_MESSAGE = 500  # characters of an error
SIZE = struct.Struct("<Q")  # a request's size in bytes
HEAD = struct.Struct("<cQ")  # a reply's kind, and its size in bytes
TEXT, REFUSAL, FAILURE, OUT_OF_MEMORY = b"T", b"R", b"F", b"M"


class RaisedByTemplateError(TemplateError):
    """The template called `raise_exception`: it rejects these messages."""


class GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` marks text for training; rendering treats it as a scope."""

    tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class Worker:
    """Compiles each template once, and renders it with the clock time that a request states."""

    def __init__(self) -> None:
        self._now = datetime.min
        self._environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationBlock, jinja2.ext.loopcontrols],
        )
        self._environment.filters["tojson"] = tojson
        self._environment.globals |= {
            "raise_exception": raise_exception,
            "strftime_now": self._strftime_now,
        }
        self._compiled = lru_cache(maxsize=16)(self._compile)

    def answer(self, source: str, variables: dict[str, Any], now: str) -> tuple[bytes, str]:
        """Returns the kind of the reply, and its text or error."""
        self._now = datetime.fromisoformat(now)
        try:
            return TEXT, self._compiled(source).render(variables)
        except MemoryError:
            return OUT_OF_MEMORY, ""
        except RaisedByTemplateError as error:
            return REFUSAL, one_line(str(error))
        except Exception as error:  # a template can raise any exception
            return FAILURE, one_line(f"{type(error).__name__}: {error}")

    def _strftime_now(self, layout: str) -> str:
        return self._now.strftime(layout)

    def _compile(self, source: str) -> Template:
        return self._environment.from_string(source)


def raise_exception(message: object) -> None:
    raise RaisedByTemplateError(str(message))


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """Writes JSON without HTML escapes, with the options of `json.dumps` that templates use."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def one_line(message: str) -> str:
    begin = message[: 4 * LONGEST_MESSAGE]
    # Lone surrogates become escapes.
    line = " ".join(begin.encode(errors="backslashreplace").decode().split())
    return line if len(line) <= LONGEST_MESSAGE else line[: LONGEST_MESSAGE - 1] + "…"


def bound_memory(request_bytes: int) -> None:
    """Sets this process's memory limit."""
    if not BOUNDS_MEMORY:
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = MOST_BYTES + MOST_BYTES_PER_BYTE * request_bytes
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def bound_time(seconds: float) -> None:
    """Sets the processor time that is left to this process; 0: any."""
    if BOUNDS_TIME:
        signal.setitimer(signal.ITIMER_PROF, seconds)


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answers requests until the input ends."""
    worker = Worker()
    if resource is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while head := requests.read(SIZE.size):
        [size] = SIZE.unpack(head)
        bound_memory(size)
        seconds, *request = marshal.loads(requests.read(size))
        bound_time(seconds)
        kind, text = worker.answer(*request)
        reply = text.encode("utf-8", "surrogatepass")
        bound_time(0)
        replies.write(HEAD.pack(kind, len(reply)) + reply)
        replies.flush()


if __name__ == "__main__":
    with open(0, "rb") as requests, open(1, "wb") as replies:
        serve(requests, replies)
