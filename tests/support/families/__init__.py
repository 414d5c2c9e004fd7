"""One record for each family, and what follows from them all. Knows no readers and no tensors."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from support.families import (
    convolutions,
    experts,
    gemma,
    latent,
    llama,
    neox,
    norms_after,
    recurrent,
    ungated,
)
from support.families.family import Family
from support.shapes import Shape

FAMILIES: Mapping[str, Family] = {
    **llama.FAMILIES,
    **ungated.FAMILIES,
    **norms_after.FAMILIES,
    **gemma.FAMILIES,
    **neox.FAMILIES,
    **experts.FAMILIES,
    **recurrent.FAMILIES,
    **convolutions.FAMILIES,
    **latent.FAMILIES,
}


def _named(shapes: str, separator: str) -> Iterator[tuple[str, Shape]]:
    for model_type, family in FAMILIES.items():
        for name, shape in getattr(family, shapes).items():
            full = f"{model_type}{separator}{name}" if name else model_type
            yield full, replace(shape, model_type=model_type)


SMALL_SHAPES: Mapping[str, Shape] = dict(_named("shapes", ", "))
PARITY_SHAPES: Mapping[str, Shape] = dict(_named("parity", " "))
PLAIN = ("llama", "mistral", "qwen3")
FAMILY_SHAPES: Mapping[str, Shape] = {
    name: shape for name, shape in SMALL_SHAPES.items() if name not in PLAIN
}
