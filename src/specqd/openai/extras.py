"""Members of OpenAI's JSON that this server adds: origins, progress, token ids and seeds.

Knows updates and the texts of tokens. Does not know in which answer they are sent.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from specqd.engine.generation import Origin
from specqd.engine.updates import PromptProgress, Update
from specqd.openai.requests import Prepared
from specqd.text.token_texts import TokenTexts
from specqd.text.tokenizer import Tokenizer

Json = dict[str, Any]


@dataclass(slots=True)
class Extras:
    """The further members of the choices of one answer."""

    _prepared: Prepared
    _tokenizer: Tokenizer
    _chain: Sequence[str]
    _texts: dict[int, tuple[TokenTexts, deque[Origin]]] = field(default_factory=dict)  # by sample

    def of_whole(self, update: Update, prompt: Sequence[int]) -> Json:
        """Returns the extra members that only a choice of a whole answer has."""
        has_ids = self._prepared.request.options.has_token_ids
        return {"seed": update.seed} | ({"prompt_token_ids": list(prompt)} if has_ids else {})

    def of(self, update: Update) -> Json:
        """Returns the requested extra members of any choice."""
        options = self._prepared.request.options
        extras: Json = {"token_ids": update.tokens} if options.has_token_ids else {}
        if options.has_origins:
            extras["origins"] = self._origins(update)
        if update.progress is not None:
            extras["progress"] = update.progress.described()
        return extras

    def _origins(self, update: Update) -> list[Json]:
        """Returns the origins of the tokens whose text is final; the others follow later."""
        if update.sample not in self._texts:
            skips_special_tokens = self._prepared.params.skip_special_tokens
            stream = self._tokenizer.stream(
                skip_special_tokens=skips_special_tokens,
                after=self._prepared.continued(update.sample),
            )
            self._texts[update.sample] = (TokenTexts(stream), deque())
        texts, waiting = self._texts[update.sample]
        waiting.extend(update.origins)
        is_last = update.finish_reason is not None
        known = texts.feed(update.tokens, update.text, is_last=is_last)
        return [self._origin(text, waiting.popleft()) for text in known]

    def _origin(self, text: str, origin: Origin) -> Json:
        return {
            "text": text,
            "depth": origin.depth,
            "level": self._chain[origin.depth],
            "probability": origin.probability if isfinite(origin.probability) else None,
        }


def prompt_member(progress: PromptProgress) -> Json:
    """Returns the member of a chunk that llama.cpp's server has too."""
    counts = {"total": progress.total, "cache": progress.cached, "processed": progress.read}
    return {"prompt_progress": counts | {"time_ms": round(1000 * progress.seconds)}}
