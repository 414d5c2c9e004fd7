"""Runs `specqd serve` in its own process, on a free local port."""

import http.client
import json
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.command_line import PROGRAM

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
_STARTS_WITHIN_S = 60


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def content(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.content["error"]

    @property
    def chunks(self) -> list[Any]:
        """Returns the JSON of each event of a stream, which must be complete."""
        *events, done, rest = self.body.decode().split("\n\n")
        assert (done, rest) == ("data: [DONE]", "")
        assert all(event.startswith("data: ") for event in events)
        return [json.loads(event.removeprefix("data: ")) for event in events]


@dataclass
class Served:
    """A running server and its process."""

    process: "subprocess.Popen[str]"
    port: int
    key: str | None = None
    timeout_s: float = 60

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.timeout_s)

    def ask(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Sends one request. A body that is not bytes is sent as JSON."""
        sent = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        if data is not None:
            sent["Content-Type"] = "application/json"
        connection = self.connect()
        try:
            connection.request(method, path, data, {**sent, **(headers or {})})
            response = connection.getresponse()
            read = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, read, response.read())
        finally:
            connection.close()

    def metric(self, name: str) -> float:
        """Returns the sum of a metric over its labels."""
        text = self.ask("GET", "/metrics").body.decode()
        pattern = rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$"
        found = re.findall(pattern, text, re.MULTILINE)
        assert found, f"{name} is not among the metrics"
        return sum(map(float, found))


@contextmanager
def serving(
    *arguments: str, key: str | None = None, program: Sequence[str] = PROGRAM, threads: int = 1
) -> Iterator[Served]:
    """Runs a server and ends it with SIGTERM. Skips the test if specqd[serve] is missing."""
    for name in ("fastapi", "uvicorn", "prometheus_client"):
        pytest.importorskip(name, reason="needs specqd[serve]")
    environment = {name: value for name, value in os.environ.items() if name != "SPECQD_API_KEY"}
    environment["RUST_BACKTRACE"] = "0"  # the pipe of stderr is read only at the end
    if key is not None:
        environment["SPECQD_API_KEY"] = key
    process = subprocess.Popen(
        [*program, "serve", *arguments, "--port", "0", "--threads", str(threads)],
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    )
    try:
        yield Served(process, port_of(process), key)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


def port_of(process: "subprocess.Popen[str]") -> int:
    assert process.stderr is not None
    deadline = time.monotonic() + _STARTS_WITHIN_S
    while time.monotonic() < deadline and select.select([process.stderr], [], [], 1) is not None:
        line = process.stderr.readline()
        assert line, f"the server ended with status {process.wait()}"
        if found := re.search(r"at http://[^ ]*:(\d+)$", line):
            return int(found[1])
    raise AssertionError("the server does not start")


def add_template(directory: Path, template: str = TEMPLATE) -> Path:
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))
    return directory
