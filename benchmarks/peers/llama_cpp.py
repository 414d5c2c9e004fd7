"""llama.cpp: its server, one for each arm, over a local port."""

import json
import socket
import subprocess
from collections.abc import Sequence
from http.client import HTTPConnection
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any

from arms import SMALL, Arm
from prepare import LLAMA_CPP, llama_cpp_tool
from processes import end_with_parent
from protocol import Run

MOST_LOAD_SECONDS = 120.0
MOST_REQUEST_SECONDS = 600.0


class Server:
    def __init__(self, arm: Arm, folder: Path, work: Path, threads: int) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port: int = probe.getsockname()[1]
        binary = llama_cpp_tool(work, "llama-server")
        command = [str(binary), *_flags(arm, folder, threads), "--port", str(self._port)]
        self._process = subprocess.Popen(command, preexec_fn=end_with_parent)
        self._wait()
        self.process = self._process.pid
        self.stored_bytes = (folder / f"{arm.weights}.gguf").stat().st_size
        self.version = LLAMA_CPP
        self.notes = "llama-server, native build, f16 KV cache"
        self.bytes_read: dict[str, int] = {}

    def _wait(self) -> None:
        deadline = monotonic() + MOST_LOAD_SECONDS
        while monotonic() < deadline and self._process.poll() is None:
            try:
                if self._ask("GET", "/health").get("status") == "ok":
                    return
            except OSError:
                pass
            sleep(0.1)
        self._process.kill()
        raise RuntimeError(f"llama-server did not come up: {self._process.args!r}")

    def _ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=MOST_REQUEST_SECONDS)
        try:
            connection.request(method, path, json.dumps(body))
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
            return answer
        finally:
            connection.close()

    def generate(self, arm: str, prompt: Sequence[int], new_tokens: int) -> Run:
        request = {
            "prompt": list(prompt),
            "n_predict": new_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
            "return_tokens": True,
        }
        begun = perf_counter()
        answer = self._ask("POST", "/completion", request)
        wall = perf_counter() - begun
        timings = answer["timings"]
        return Run(
            answer["tokens"],
            timings["prompt_ms"] / 1e3,
            timings["predicted_ms"] / 1e3,
            wall,
            timings.get("draft_n"),
            timings.get("draft_n_accepted"),
        )


def _flags(arm: Arm, folder: Path, threads: int) -> list[str]:
    count = str(threads)
    flags = ["-m", str(folder / f"{arm.weights}.gguf"), "--host", "127.0.0.1", "--no-ui"]
    flags += ["-c", str(arm.context), "-np", "1", "--cache-ram", "0", "-t", count, "-tb", count]
    if not arm.is_flash:
        flags += ["-fa", "off"]
    if arm.draft in ("mxfp4", "q4_0") or arm.draft.startswith(SMALL):
        flags += ["--spec-type", "draft-simple", "-md", str(folder / f"{arm.draft}.gguf")]
        flags += ["-td", count, "-tbd", count, "--spec-draft-n-max", str(arm.length)]
    elif arm.draft != "none":
        flags += ["--spec-type", arm.draft]
    if arm.acceptance is not None:
        assert arm.length is not None
        rates = [arm.acceptance ** (i + 1) for i in range(arm.length)]
        flags += ["--spec-synth-rates", ",".join(f"{rate:.6f}" for rate in rates)]
    return flags


def open_peer(arms: Sequence[Arm], model: Path, work: Path, threads: int) -> Server:
    [arm] = arms
    return Server(arm, work / model.name, work, threads)
