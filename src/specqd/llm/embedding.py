"""Embeds texts with a model: its prompts, its pooling and the lengths of its vectors."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specqd.config.embedding import read_embedding_config
from specqd.errors import FieldError, TooLongError, shown
from specqd.hub import model_name
from specqd.hub.catalogue import is_shortenable
from specqd.llm.inputs import Prompt, token_ids
from specqd.model.embedding import EmbeddingRun
from specqd.model.model import Model
from specqd.text.tokenizer import Tokenizer


class Embedder:
    """Embeds texts with one model. Raises ConfigError for a model that cannot be used so."""

    def __init__(self, directory: Path, model: Model, tokenizer: Tokenizer) -> None:
        self._config = read_embedding_config(directory)
        self._is_shortenable = self._config.is_shortenable or is_shortenable(model_name(directory))
        self._model = model
        self._tokenizer = tokenizer
        self.longest = min(model.max_positions, self._config.max_tokens)  # text, in tokens

    def encode(self, text: Prompt, prompt_name: str | None = None) -> list[int]:
        """The token ids of a text after the prompt of that name, or after the model's default
        prompt. Token ids are taken as they are."""
        prompt = self._prompt(prompt_name)
        if not isinstance(text, str):
            if prompt_name is not None:
                raise FieldError("prompt_name", "needs texts, not token ids; leave it out")
            return token_ids("texts", text)
        return self._tokenizer.encode(prompt + text)

    def begin(self, texts: Sequence[Sequence[int]]) -> EmbeddingRun:
        """Checks the token ids of texts; their vectors are computed step by step."""
        for text in texts:
            if len(text) > self.longest:
                raise TooLongError(
                    f"the text has {len(text)} tokens, and the model embeds at most "
                    f"{self.longest}; shorten the text"
                )
        return EmbeddingRun(self._model, texts, self._config.pooling)

    def vectors(self, run: EmbeddingRun, dimensions: int | None = None) -> NDArray[np.float32]:
        """The vectors of a run that is done, [texts, dimensions]."""
        return run.vectors(dimensions, normalizes=self._config.normalizes)

    def check_dimensions(self, dimensions: object) -> int | None:
        """The requested length of vectors. Raises FieldError unless the model has such vectors."""
        if dimensions is None:
            return None
        width, sizes = self._model.config.hidden_size, self._config.sizes
        if not isinstance(dimensions, int) or not 1 <= dimensions <= width:
            raise FieldError(
                "dimensions", f"{shown(dimensions)} is not a whole number from 1 to {width}"
            )
        if dimensions < width and not self._is_shortenable:
            raise FieldError(
                "dimensions",
                f"the model does not say that its vectors of {width} may be shortened; leave it "
                "out, or state is_matryoshka in config.json if the model was trained so",
            )
        if sizes and dimensions not in (*sizes, width):
            known = ", ".join(map(str, sizes))
            raise FieldError("dimensions", f"the model was trained for {known}; give one of them")
        return dimensions

    def _prompt(self, name: str | None) -> str:
        prompts = self._config.prompts or {}
        name = self._config.default_prompt if name is None else name
        if name is None:
            return ""
        if name not in prompts:
            known = f"known: {', '.join(map(shown, prompts))}" if prompts else "it has none"
            raise FieldError("prompt_name", f"{shown(name)} is not a prompt of the model; {known}")
        if not self._config.pools_prompt and self._config.pooling == "mean" and prompts[name]:
            raise FieldError(
                "prompt_name",
                "the model leaves out its prompts from means (include_prompt is false), which is "
                "not supported",
            )
        return prompts[name]
