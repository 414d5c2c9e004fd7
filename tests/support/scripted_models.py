"""Models that write given texts: each token has one successor, so the last token of the prompt
selects the text. Knows nothing of our readers.

A grammar forces text in the tokenizer's own tokens, here bytes. The model then leaves its script,
and all allowed tokens are equally likely.
"""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from specqd.text.stream import byte_alphabet
from support.random_models import (
    EOS,
    FIRST_PAIR,
    Shape,
    bf16_bits,
    make_model,
    make_tensors,
    write_safetensors,
)
from support.served import add_template

# Answers by script: none, one and two calls of a tool.
_WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich <3"}}\n</tool_call>'
_STOP = '<tool_call>\n{"name": "stop", "arguments": {"is_now": true}}\n</tool_call>'
CALLING = {
    "A": "Grüezi, no call.",
    "B": f"Let me look.\n{_WEATHER}",
    "C": f"{_STOP}\n{_WEATHER}",
}

HERMES = (
    '{% if tools %}[tools]{% for t in tools %}{{ t | tojson }}{{ "\\n" }}{% endfor %}{% endif %}'
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}"
    '<tool_call>{{ "\\n" }}{"name": "{{ c.function.name }}", "arguments": '
    '{{ c.function.arguments | tojson }}}{{ "\\n" }}</tool_call>{% endfor %}{% endfor %}'
    "{% if add_generation_prompt %}[assistant]{{ script }}{% endif %}"
)
LLAMA = (
    "{% if tools %}[tools]{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if m.tool_calls %}"
    "{% set f = m.tool_calls[0].function %}"
    '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}{% endif %}[end]'
    "{% endfor %}{% if add_generation_prompt %}[assistant]{{ script }}{% endif %}"
)
# Llama 3's own templates have this check.
LLAMA_OF_ONE_CALL = LLAMA.replace(
    "{% set f =",
    "{% if m.tool_calls | length != 1 %}"
    "{{ raise_exception('This model only supports single tool-calls at once!') }}{% endif %}"
    "{% set f =",
)
_SHAPE = Shape(hidden=128, heads=4, kv_heads=2, head_dim=32, layers=1, vocab=1024, context=4096)


def make_scripted_model(
    directory: Path,
    scripts: Mapping[str, str],
    template: str,
    seed: int,
    special: Sequence[str] = (),
) -> Path:
    """Writes a model that answers a prompt whose last ASCII character is c with scripts[c].

    special: tokens that decoding skips; each may occur once in all scripts.
    """
    make_model(directory, _SHAPE, seed)
    followers, names = _chains(scripts, random.Random(seed), special)
    tensors = make_tensors(_SHAPE, seed)
    rng = np.random.default_rng(seed)
    embedding = rng.standard_normal((_SHAPE.vocab, _SHAPE.hidden), np.float32)
    head = np.zeros_like(embedding)
    for token, follower in followers.items():
        head[follower] += embedding[token]
    for name, bits in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            bits[...] = 0
        elif name == "model.norm.weight":
            bits[...] = bf16_bits(np.ones(_SHAPE.hidden, np.float32))
    tensors["model.embed_tokens.weight"] = bf16_bits(embedding)
    tensors["lm_head.weight"] = bf16_bits(head)
    write_safetensors(directory / "model.safetensors", tensors)
    _rename_tokens(directory, names, special)
    return add_template(directory, template)


def _chains(
    scripts: Mapping[str, str], rng: random.Random, special: Sequence[str]
) -> tuple[dict[int, int], list[str]]:
    """Returns each token's successor, and the names of the tokens from FIRST_PAIR on."""
    spelled = {byte: character for character, byte in byte_alphabet().items()}
    followers: dict[int, int] = {}
    names: list[str] = []
    for character, script in scripts.items():
        last = ord(character)
        attempts = (_pieces(script, rng, names, spelled, special) for _ in range(1000))
        for piece in next(filter(None, attempts)):
            names.append(piece)
            token = FIRST_PAIR + len(names) - 1
            followers[last] = token
            last = token
        followers[last] = EOS
    return followers, names


def _pieces(
    script: str,
    rng: random.Random,
    taken: Sequence[str],
    spelled: Mapping[int, str],
    special: Sequence[str],
) -> list[str] | None:
    """Splits the script into random pieces of bytes, all different and unused. Returns None if the
    last piece is used already."""
    rest, pieces = script.encode(), list[str]()
    while rest:
        mark = next((mark for mark in special if rest.startswith(mark.encode())), None)
        if mark is not None:
            pieces.append(mark)
            rest = rest[len(mark) :]
            continue
        ends = [at for mark in special if (at := rest.find(mark.encode())) > 0]
        least = rng.randrange(2, 7)
        for length in range(least, len(rest) + 1):
            piece = "".join(spelled[byte] for byte in rest[:length])
            if piece not in taken and piece not in pieces:
                break
        else:
            return None
        if any(length > end for end in ends):
            return None
        pieces.append(piece)
        rest = rest[length:]
    return pieces


def _rename_tokens(directory: Path, names: Sequence[str], special: Sequence[str]) -> None:
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    kept = {token: i for token, i in vocabulary.items() if i < FIRST_PAIR}
    new = {name: FIRST_PAIR + i for i, name in enumerate(names)}
    tokenizer["model"] |= {"vocab": kept | new, "merges": []}
    like = tokenizer["added_tokens"][0]
    tokenizer["added_tokens"] += [
        like | {"id": new[mark], "content": mark} for mark in special if mark in new
    ]
    path.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
