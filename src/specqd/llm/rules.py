"""Makes the grammars that sampling parameters require. Knows no engine."""

from collections.abc import Sequence as SequenceOf
from threading import Lock
from typing import TYPE_CHECKING

from specqd.engine.generation import MakeGrammar
from specqd.engine.thinking import after_reasoning
from specqd.errors import FieldError, RequestError
from specqd.extras import install_command
from specqd.sampling import SamplingParams
from specqd.text.reasoning import reasoning_of
from specqd.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from specqd.grammars import Grammars


class Rules:
    """The grammars of one model. vocabulary: the number of its token ids."""

    def __init__(
        self, tokenizer: Tokenizer, vocabulary: int, eos_token_ids: SequenceOf[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._eos = sorted(eos_token_ids)
        self._making = Lock()
        self._grammars: Grammars | None = None

    @property
    def grammars(self) -> "Grammars":
        """Those of schemas and patterns. Raises RequestError without the package that they need."""
        with self._making:  # calls of several threads share the tables
            if self._grammars is None:
                try:
                    from specqd.grammars import Grammars
                except ImportError as error:
                    problem = "schemas, patterns and tools need llguidance"
                    raise RequestError(f"{problem}; {install_command('structured')}") from error
                self._grammars = Grammars(self._tokenizer, self._vocabulary, self._eos)
            return self._grammars

    def of(
        self, params: SamplingParams, prompts: SequenceOf[SequenceOf[int]]
    ) -> MakeGrammar | None:
        """Makes the grammars of the parameters' schema, pattern and budget, one for each sample.

        Returns None if they have none of these. A schema or pattern applies after the reasoning
        that a prompt has begun. Takes up to a second. Raises FieldError if they cannot be enforced.
        """
        budget, make = params.thinking_token_budget, None
        if params.schema is not None:
            make = self.grammars.of_schema(params.schema, "schema")
        elif params.pattern is not None:
            make = self.grammars.of_pattern(params.pattern, "pattern")
        if make is None and budget is None:
            return None
        found = {reasoning_of(self._tokenizer, prompt) for prompt in prompts}
        if len(found) > 1:
            problem = "some of the prompts have begun their reasoning; give those in another call"
            raise FieldError("prompts", problem)
        reasoning = next(iter(found), None)
        if budget is None and (reasoning is None or not reasoning.is_open):
            return make
        tokenizer, vocabulary = self._tokenizer, self._vocabulary
        return after_reasoning(make, reasoning, budget, tokenizer, vocabulary, self._eos)
