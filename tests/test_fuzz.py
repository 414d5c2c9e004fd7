"""The seeds of fuzz/, and every input that fuzzing found, are read or give an error of one line.

The inputs of mutators get past a parser.
"""

import json
import random
import sys
from contextlib import suppress
from pathlib import Path

import jinja2
import pytest

FUZZ = Path(__file__).parents[1] / "fuzz"
sys.path.append(str(FUZZ))
import targets  # noqa: E402
from json_mutator import JsonMutator  # noqa: E402
from template_mutator import TemplateMutator  # noqa: E402

INPUTS = sorted(
    path
    for path in FUZZ.glob("*/*/*")
    if path.parent.parent.name in ("seeds", "found") and path.parent.name in targets.TARGETS
)


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: "/".join(path.parts[-3:]))
def test_a_fuzzed_input_is_read_or_rejected(path: Path) -> None:
    target = targets.TARGETS[path.parent.name]
    targets.check(lambda: target(path.read_bytes()))


def test_every_target_has_seeds() -> None:
    assert {path.parent.name for path in INPUTS} == set(targets.TARGETS)


def broken(data: bytes, size: int) -> bytes:
    return b"{%"


def test_half_of_the_changed_json_is_json(chance: random.Random) -> None:
    mutate, documents = JsonMutator(broken, ["a"]), []
    for seed in chance.sample(range(1 << 32), 200):
        changed = mutate(b'{"a": [1, {"b": "c"}], "d": null}', 1000, seed)
        if changed != broken(b"", 0):
            documents.append(json.loads(changed))
    assert 60 < len(documents) < 140
    assert len({json.dumps(document) for document in documents}) > 30


def test_most_changed_templates_are_templates(chance: random.Random) -> None:
    jinja = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"])
    mutate, templates = TemplateMutator(broken), set()
    source = (FUZZ / "seeds" / "template" / "namespace").read_bytes()
    for seed in chance.sample(range(1 << 32), 100):
        changed = mutate(source, 65536, seed).decode()
        with suppress(jinja2.TemplateSyntaxError):
            jinja.parse(changed)
            templates.add(changed)
    assert len(templates) > 40
