"""New tokens and text of a sample, on their way to a reader. Knows no transport and no format."""

from dataclasses import dataclass, field

from specqd.engine.generation import Acceptance, FinishReason, Generation, Origin, TokenLogprob
from specqd.engine.reports import Progress
from specqd.errors import SpecqdError


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
