"""Fuzzes one target with coverage of our code: python fuzz/fuzz.py TARGET [SECONDS].

Starts from the seeds and from what earlier runs have found worth keeping, in build/fuzz/TARGET. The
families' records in tests/support/families are seeds of `config` too. An input that fails is
written to fuzz/found/TARGET; commit it with the mend.
"""

import json
import os
import sys
from pathlib import Path

import atheris

from json_mutator import JsonMutator, words_of
from template_mutator import TemplateMutator

with atheris.instrument_imports(include=["specqd"]):
    import targets

HERE = Path(__file__).parent
BUILD = HERE.parent / "build" / "fuzz"
sys.path.append(str(HERE.parent / "tests"))


def main() -> None:
    name, seconds = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "60"
    seeds, found = HERE / "seeds" / name, HERE / "found" / name
    corpus = BUILD / name
    for directory in (corpus, found, seeds):
        directory.mkdir(parents=True, exist_ok=True)
    starts = [seeds, families()] if name == "config" else [seeds]
    options = [f"-max_total_time={seconds}", f"-artifact_prefix={found}/", "-timeout=20"]
    options += ["-rss_limit_mb=4096", "-verbosity=0", "-print_final_stats=1", "-print_funcs=0"]
    options += ["-max_len=65536", *map(str, (corpus, found, *starts))]
    if (program := targets.programs().get(name)) is not None:
        os.execv(program, [program, *options])
    target = targets.TARGETS[name]
    atheris.Setup(
        [sys.argv[0], *options],
        lambda data: targets.check(lambda: target(data)),
        custom_mutator=mutator(name, [p.read_bytes() for start in starts for p in start.iterdir()]),
    )
    atheris.Fuzz()


def families() -> Path:
    """A directory with the `config.json` of each small model of a family."""
    from support.families import SMALL_SHAPES
    from support.random_models import make_config

    directory = BUILD / "families"
    directory.mkdir(parents=True, exist_ok=True)
    for name, shape in SMALL_SHAPES.items():
        (directory / name).write_text(json.dumps(make_config(shape)))
    return directory


def mutator(name: str, seeds: list[bytes]) -> JsonMutator | TemplateMutator:
    def mutate_bytes(data: bytes, size: int) -> bytes:
        return atheris.Mutate(data, size)  # looked up at each call, because Fuzz() rebinds it

    if name == "template":
        return TemplateMutator(mutate_bytes)
    return JsonMutator(mutate_bytes, words_of(seeds))


if __name__ == "__main__":
    main()
