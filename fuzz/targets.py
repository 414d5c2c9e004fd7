"""The targets of fuzzing. Each reads bytes as one kind of untrusted input.

A target may raise only SpecqdError, with a message of one line. tests/test_fuzz.py runs the seeds
and every input that was found. Programs in native/ fuzz parts of the core. Knows nothing of the
fuzzer.
"""

import json
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from specqd.anthropic.requests import messages_request
from specqd.config import read_config, read_generation_defaults
from specqd.errors import SpecqdError
from specqd.formats.gguf_tensors import GgufTensors
from specqd.formats.safetensors import INDEX, PACKED_WEIGHTS, WEIGHTS, TensorDirectory
from specqd.model.model import Machine, Model
from specqd.openai.requests import chat_request, completion_request
from specqd.openai.responses_requests import responses_request
from specqd.text.chat_template import ChatTemplate
from specqd.text.tokenizer import Tokenizer

PACKED_CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 258,
    "max_position_embeddings": 64,
}
MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # files in memory: twice the inputs
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "tekken.json")


@contextmanager
def directory_of(name: str, data: bytes) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        (Path(directory) / name).write_bytes(data)
        yield Path(directory)


@cache
def machine() -> Machine:
    return Machine.choose(1)


def gguf(data: bytes) -> None:
    with directory_of("m.gguf", data) as directory:
        path = directory / "m.gguf"
        readers = (read_config, _gguf_tensors, _tokenizer)
        for read in readers:
            check(lambda read=read: read(path))


def _gguf_tensors(path: Path) -> None:
    tensors = GgufTensors.open(path)
    for name, stored in tensors._names.items():
        check(
            lambda name=name, stored=stored: tensors.bf16(name, tensors._gguf.tensors[stored].shape)
        )


def _tokenizer(path: Path) -> None:
    tokenizer = Tokenizer.open(path)
    tokenizer.decode(tokenizer.encode("a bc 1"))


def safetensors(data: bytes) -> None:
    with directory_of(WEIGHTS, data) as directory:
        tensors = TensorDirectory.open(directory)
        for name, view in tensors.items():
            check(lambda name=name, view=view: tensors.bf16(name, view.shape))


def index(data: bytes) -> None:
    with directory_of(INDEX, data) as directory:
        TensorDirectory.open(directory)


def packed(data: bytes) -> None:
    with directory_of(PACKED_WEIGHTS, data) as directory:
        (directory / "config.json").write_text(json.dumps(PACKED_CONFIG))
        model = Model.open(directory, machine=machine(), cache_positions=64, max_rows=4)
        model.logits([1, 2, 3])


def config(data: bytes) -> None:
    with directory_of("config.json", data) as directory:
        shutil.copy(directory / "config.json", directory / "generation_config.json")
        check(lambda: read_config(directory))
        check(lambda: read_generation_defaults(directory))


def tokenizer(data: bytes) -> None:
    """The first byte selects the file that the others become."""
    name = TOKENIZER_FILES[data[0] % len(TOKENIZER_FILES) if data else 0]
    with directory_of(name, data[1:]) as directory:
        if name == "tokenizer_config.json":
            seed = Path(__file__).parent / "seeds" / "tokenizer" / "json"
            (directory / "tokenizer.json").write_bytes(seed.read_bytes()[1:])
        _tokenizer(directory)


def template(data: bytes) -> None:
    source = data.decode("utf-8", "replace")
    variables = {"bos_token": "<s>", "eos_token": "</s>"}
    ChatTemplate(source, "m", cpu_seconds=0.2).render(MESSAGES, tools=[{}], variables=variables)


def requests(data: bytes) -> None:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        return
    for read in (completion_request, chat_request, responses_request, messages_request):
        check(lambda read=read: read(body))


def check(attempt: Callable[[], object]) -> None:
    """Runs an attempt. Lets every exception pass but a SpecqdError of one line."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            attempt()
        except SpecqdError as error:
            if "\n" in str(error):
                raise AssertionError(f"an error of several lines: {error}") from error


TARGETS: dict[str, Callable[[bytes], None]] = {
    each.__name__: each
    for each in (gguf, safetensors, index, packed, config, tokenizer, template, requests)
}


def programs() -> dict[str, str]:
    """Returns the fuzzers of the core that `.ci/fuzzers` has built, by name."""
    here = Path(__file__).parent
    built = here.parent / "build" / "fuzzers" / "fuzz" / "native"
    sources = sorted((here / "native").glob("*.cpp"))
    return {path.stem: str(built / path.stem) for path in sources if (built / path.stem).exists()}


if __name__ == "__main__":
    print(*TARGETS, *programs(), sep="\n")
