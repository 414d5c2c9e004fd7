"""The sampling that a model's authors recommend, from `generation_config.json`."""

from dataclasses import dataclass, replace
from pathlib import Path

from specqd.config.fields import POSITIVE, Fields


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """The contents of `generation_config.json`; None for a field that it does not state.

    The fields count only if `do_sample` is true. False or absent means greedy.
    """

    do_sample: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    eos_token_ids: tuple[int, ...] | None = None

    @property
    def is_stated(self) -> bool:
        """Whether they say how to sample."""
        return self.do_sample is not None or self.temperature is not None

    @property
    def effective_temperature(self) -> float:
        """0 (greedy) unless `do_sample`; then the stated temperature, or 1."""
        if not self.do_sample:
            return 0.0
        return 1.0 if self.temperature is None else self.temperature

    def with_openai_temperature(self) -> "GenerationDefaults":
        """With OpenAI's temperature 1 where they do not say how to sample."""
        return self if self.is_stated else replace(self, do_sample=True)


def read_generation_defaults(directory: Path) -> GenerationDefaults:
    """Reads `generation_config.json`; every field is None if the directory has no such file."""
    path = directory / "generation_config.json"
    if not path.exists():
        return GenerationDefaults()
    fields = Fields.read(path)
    stated = {name for name, value in fields.values.items() if value is not None}
    return GenerationDefaults(
        do_sample=fields.flag("do_sample", False) if "do_sample" in stated else None,
        temperature=fields.optional_number("temperature", 0.0, 1e30),
        top_p=fields.optional_number("top_p", 0.0, 1.0),
        top_k=max(fields.integer("top_k", 0, least=-1), 0) if "top_k" in stated else None,
        min_p=fields.optional_number("min_p", 0.0, 1.0),
        repetition_penalty=fields.optional_number("repetition_penalty", *POSITIVE),
        eos_token_ids=fields.id_or_ids("eos_token_id", ()) if "eos_token_id" in stated else None,
    )
