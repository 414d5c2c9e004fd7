"""The results of a call: completions with the origins of their tokens, and statistics."""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import Any

from specqd.engine.generation import FinishReason, Generation, Origin, TokenLogprob
from specqd.engine.reports import Stats
from specqd.engine.updates import Update
from specqd.llm.notebook import html_of
from specqd.llm.replies import Reply
from specqd.text.tokenizer import Tokenizer

_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True, repr=False)
class Completion:
    """One sample. `tokens` are the new tokens, the stop token included. `reply` has the parts of a
    chat's answer."""

    tokens: list[int]
    text: str
    finish_reason: FinishReason
    seed: int
    logprobs: list[TokenLogprob] | None = None
    origins: list[Origin] = field(default_factory=list, compare=False)  # of the tokens
    reply: Reply | None = None  # of `chat` and `stream_chat`

    @classmethod
    def of(cls, generation: Generation) -> "Completion":
        """The completion of a sample that has ended."""
        return cls.of_updates([Update.of(0, generation)], generation.params.logprobs is not None)

    @classmethod
    def of_updates(cls, parts: SequenceOf[Update], has_logprobs: bool) -> "Completion":
        """The completion of one sample, from all its updates."""
        last = parts[-1]
        assert last.finish_reason is not None
        assert last.seed is not None
        logprobs = [logprob for part in parts for logprob in part.logprobs]
        return cls(
            tokens=[token for part in parts for token in part.tokens],
            text="".join(part.text for part in parts),
            finish_reason=last.finish_reason,
            seed=last.seed,
            logprobs=logprobs if has_logprobs else None,
            origins=[origin for part in parts for origin in part.origins],
        )

    @property
    def token_ids(self) -> list[int]:
        """`tokens` under the name that vLLM uses."""
        return self.tokens

    def __repr__(self) -> str:
        return f"Completion({_described(self)}, seed {self.seed})"


@dataclass(frozen=True, repr=False)
class Result:
    """The `n` completions of one prompt, and the call's statistics.

    A completion's text is what its tokens add to the prompt's text; a chat's answer is a text of
    its own.

    A notebook shows the text with each token in the colour of the level that first proposed it.
    """

    prompt_tokens: list[int]
    completions: list[Completion]
    stats: Stats
    prompt_logprobs: list[TokenLogprob] | None = None  # of all its tokens but the first
    _tokenizer: Tokenizer | None = field(default=None, compare=False)  # to show single tokens
    _is_answer: bool = field(default=False, compare=False)  # of a chat

    @classmethod
    def of(
        cls,
        prompt: list[int],
        generations: SequenceOf[Generation],
        stats: Stats,
        tokenizer: Tokenizer,
        *,
        is_answer: bool,
    ) -> "Result":
        """The result of one prompt, whose samples have all ended."""
        first, completions = generations[0], [Completion.of(each) for each in generations]
        scored = first.prompt_logprobs if first.params.prompt_logprobs is not None else None
        return cls(prompt, completions, stats, scored, tokenizer, is_answer)

    @property
    def text(self) -> str:
        """The first completion's text."""
        return self.completions[0].text

    @property
    def tokens(self) -> list[int]:
        """The first completion's tokens."""
        return self.completions[0].tokens

    @property
    def reply(self) -> Reply | None:
        """The parts of the first answer of `chat`: content, reasoning, calls of tools."""
        return self.completions[0].reply

    @property
    def continued(self) -> SequenceOf[int]:
        """The tokens whose text the completions continue, none for a chat's answer."""
        return () if self._is_answer else self.prompt_tokens

    @property
    def outputs(self) -> list[Completion]:
        """`completions` under the name that vLLM uses."""
        return self.completions

    @property
    def prompt_token_ids(self) -> list[int]:
        """`prompt_tokens` under the name that vLLM uses."""
        return self.prompt_tokens

    @property
    def prompt(self) -> str | None:
        """The text of the prompt's tokens, without special tokens; None after pickling."""
        return None if self._tokenizer is None else self._tokenizer.decode(self.prompt_tokens)

    def __repr__(self) -> str:
        others = f" and {len(self.completions) - 1} more" if len(self.completions) > 1 else ""
        return f"Result({_described(self.completions[0])}{others})"

    def _repr_html_(self) -> str:
        chain = self.stats.chain
        return "".join(
            html_of(
                each.tokens, each.text, each.origins, chain, self._tokenizer, after=self.continued
            )
            for each in self.completions
        )

    def __getstate__(self) -> dict[str, Any]:
        """All but the tokenizer, which is large."""
        return {**self.__dict__, "_tokenizer": None}


def _described(completion: Completion) -> str:
    text = repr(completion.text)
    if len(text) > _SHOWN_CHARACTERS:
        text = f"{text[:_SHOWN_CHARACTERS]}...{text[0]}"
    return f"{text}, {len(completion.tokens)} tokens, {completion.finish_reason!r}"
