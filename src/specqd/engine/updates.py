"""New tokens and text of a sample, on their way to a reader. Knows no transport and no format."""

from dataclasses import dataclass, field

from specqd.engine.generation import Acceptance, FinishReason, Generation, Origin, TokenLogprob
from specqd.engine.reports import Progress
from specqd.errors import SpecqdError


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """How far the prompt of a sample without tokens is read, in tokens."""

    read: int  # the cached ones included
    total: int
    cached: int  # that another request had read
    seconds: float  # since the job was submitted


@dataclass(frozen=True, slots=True)
class Update:
    """A part of one sample, or all of it."""

    sample: int  # counted over all prompts of the request
    text: str
    tokens: list[int]
    logprobs: list[TokenLogprob]
    finish_reason: FinishReason | None
    error: SpecqdError | None
    seed: int | None = None
    stop_text: str | None = None  # the stop string that ended the text
    origins: list[Origin] = field(default_factory=list)  # of the tokens
    progress: Progress | None = None  # if requested
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)  # in the first update
    acceptance: Acceptance | None = None  # in the last update
    prompt_progress: PromptProgress | None = None  # if requested; such an update has nothing else

    @classmethod
    def of_prompt(cls, sample: int, generation: Generation, seconds: float) -> "Update":
        """How far the prompt of the generation is read, `seconds` after the job was submitted."""
        length, cached = generation.sequence.prompt_length, generation.cached_prompt_tokens
        progress = PromptProgress(generation.prompt_read, length, cached, seconds)
        return cls(sample, "", [], [], None, None, prompt_progress=progress)

    @classmethod
    def of(
        cls,
        sample: int,
        generation: Generation,
        *,
        tokens: int = 0,
        characters: int = 0,
        progress: Progress | None = None,
    ) -> "Update":
        """All of the generation after the `tokens` and `characters` of earlier updates."""
        is_over = generation.finish_reason is not None
        return cls(
            sample,
            generation.text[characters:],
            generation.sequence.tokens[generation.sequence.prompt_length + tokens :],
            logprobs=generation.logprobs[tokens:],
            finish_reason=generation.finish_reason,
            error=generation.error,
            seed=generation.seed,
            stop_text=generation.stop_text,
            origins=generation.origins[tokens:],
            progress=progress,
            prompt_logprobs=[] if tokens else generation.prompt_logprobs,
            acceptance=generation.acceptance if is_over else None,
        )
