"""Mutates JSON into other valid JSON, wherever it is among other bytes.

Random changes of bytes rarely give JSON, so they would fuzz only the parser. Half of the time this
mutator changes values, keys and lists instead. It updates a length of eight bytes before the JSON,
as in safetensors files.
"""

import copy
import json
import random
from collections.abc import Callable

ODD = (
    *(None, True, False, 0, 1, -1, 2, 255, 2**31 - 1, 2**31, 2**53, 2**63, -(2**63), 2**64),
    *(0.0, -0.0, 0.5, 1e-320, 1e308, -1e308, float("inf"), float("nan")),
    *("", "a", "\n", "\0", "\ud800", "é" * 40, "a" * 3000, "9" * 400, "{{", "a(", "<s>"),
    *([], {}, [[]], [None], [0] * 40, {"": {}}, [[[[[[[[0]]]]]]]]),
)


class JsonMutator:
    """A custom mutator for the fuzzer: (data, max_size, seed) -> data."""

    def __init__(self, mutate_bytes: Callable[[bytes, int], bytes], words: list[str]) -> None:
        """`words` are keys and strings to insert; `mutate_bytes` is the fuzzer's own mutator."""
        self._mutate_bytes, self._words = mutate_bytes, words or [""]

    def __call__(self, data: bytes, max_size: int, seed: int) -> bytes:
        chance = random.Random(seed)
        document = find_json(data) if chance.random() < 0.5 else None
        if document is None:
            return self._mutate_bytes(data, max_size)
        start, end, value = document
        holder = [value]
        for _ in range(chance.choice((1, 1, 1, 2, 4))):
            self._change(chance, holder)
        try:
            text = json.dumps(holder[0] if holder else None).encode()
        except RecursionError:
            return self._mutate_bytes(data, max_size)
        before = data[:start]
        if start >= 8 and int.from_bytes(before[-8:], "little") == end - start:
            before = before[:-8] + len(text).to_bytes(8, "little")
        changed = before + text + data[end:]
        return changed if len(changed) <= max_size else self._mutate_bytes(data, max_size)

    def _change(self, chance: random.Random, root: list) -> None:
        """Changes one place below `root`, in place."""
        places = [(root, 0)] if root else []
        for container, key in places:  # grows while it is read
            child = container[key]
            if isinstance(child, dict | list):
                keys = child if isinstance(child, dict) else range(len(child))
                places += [(child, each) for each in keys]
        if not places:
            return
        container, key = chance.choice(places)
        if chance.random() < 0.15:
            del container[key]
        elif chance.random() < 0.2:  # copies the value to another key or place
            self._insert(chance, container, copy.deepcopy(container[key]))
        elif chance.random() < 0.25:
            other, other_key = chance.choice(places[1:] or places)
            container[key] = copy.deepcopy(other[other_key])
        elif isinstance(container[key], dict | list) and chance.random() < 0.6:
            self._insert(chance, container[key], self._value(chance, None))
        else:
            container[key] = self._value(chance, container[key])

    def _insert(self, chance: random.Random, container: dict | list, value: object) -> None:
        if isinstance(container, dict):
            container[chance.choice(self._words)] = value
        else:
            container.insert(chance.randint(0, len(container)), value)

    def _value(self, chance: random.Random, now: object) -> object:
        if isinstance(now, bool) or now is None or chance.random() < 0.4:
            return copy.deepcopy(chance.choice((*ODD, chance.choice(self._words))))
        if isinstance(now, int):
            return chance.choice((now + 1, now - 1, -now, now * 2, now << 32, float(now), str(now)))
        if isinstance(now, str):
            mutated = self._mutate_bytes(now.encode("utf-8", "replace"), 2 * len(now) + 16)
            return mutated.decode("utf-8", "replace")
        return copy.deepcopy(chance.choice(ODD))


def find_json(data: bytes) -> tuple[int, int, object] | None:
    """Returns the start, the end and the value of the first JSON object in `data`, or None."""
    start = data.find(b"{")
    if start < 0:
        return None
    text = data[start:].decode("latin-1")  # one character per byte, so that places stay the same
    try:
        _, length = json.JSONDecoder().raw_decode(text)
        return start, start + length, json.loads(data[start : start + length])
    except (ValueError, RecursionError):
        return None


def words_of(seeds: list[bytes]) -> list[str]:
    """Returns all keys and strings in the JSON of the seeds."""
    words: set[str] = set()

    def collect(value: object) -> None:
        if isinstance(value, str):
            words.add(value)
        for each in value if isinstance(value, dict | list) else ():
            collect(each)
        for each in value.values() if isinstance(value, dict) else ():
            collect(each)

    for seed in seeds:
        if (document := find_json(seed)) is not None:
            collect(document[2])
    return sorted(words)
