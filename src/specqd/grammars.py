"""Makes grammars for JSON schemas, regular expressions and Lark rules, within bounds.

The only module that needs llguidance. Knows schemas and tokens. Knows nothing of the levels that
request masks for their proposals.
"""

import json
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from threading import Lock
from typing import Any

import llguidance
import numpy as np
from numpy.typing import NDArray

from specqd.engine.generation import MakeGrammar
from specqd.errors import FieldError
from specqd.text.json_schema import prepared
from specqd.text.tokenizer import Tokenizer

MOST_SCHEMA_CHARACTERS = 1 << 16
DEEPEST_SCHEMA = 32
# llguidance's work limit for a schema's patterns: a tenth of its default, at most 0.2 s. Schemas of
# MOST_SCHEMA_CHARACTERS with common patterns need less than half of it.
_LEXER_FUEL = 100_000


class Grammars:
    """Makes grammars over one tokenizer. The first grammar builds the tokenizer's tables, unless
    `prepare` has built them."""

    def __init__(
        self, tokenizer: Tokenizer, vocabulary: int, eos_token_ids: SequenceOf[int]
    ) -> None:
        self.tokenizer = tokenizer
        self.vocabulary = vocabulary
        self.eos_token_ids = list(eos_token_ids)
        self._building = Lock()
        self._tables: llguidance.LLTokenizer | None = None

    def prepare(self) -> None:
        """Builds the tables, for which a large vocabulary takes a second without releasing the GIL.
        If they cannot be built, each grammar raises the error, as it does without this call."""
        if not self.eos_token_ids:
            return
        try:
            self._built()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # also a panic of the library
            pass

    def of_schema(self, schema: Mapping[str, Any], field: str = "response_format") -> MakeGrammar:
        """Returns a function that makes one grammar of a JSON schema for each sample.

        Raises FieldError, which names `field`, if a grammar cannot be built. Takes up to 1 s: do
        not call it on the event loop or between rounds. So do the other methods.
        """
        check_bounds([schema], field)
        written = llguidance.LLMatcher.grammar_from_json_schema
        return self._of_rules(lambda: written(prepared(schema)), field)

    def of_pattern(self, pattern: str, field: str) -> MakeGrammar:
        """The same of a regular expression that the whole text must match."""
        if len(pattern) > MOST_SCHEMA_CHARACTERS:
            raise FieldError(
                field, f"is longer than {MOST_SCHEMA_CHARACTERS} characters; make it shorter"
            )
        written = llguidance.LLMatcher.grammar_from_regex
        return self._of_rules(lambda: written(pattern), field, "pattern")

    def of_lark(self, rules: str, field: str) -> MakeGrammar:
        """The same of rules in llguidance's dialect of Lark."""
        return self._of_rules(lambda: llguidance.LLMatcher.grammar_from_lark(rules), field)

    def _of_rules(self, write: Callable[[], str], field: str, kind: str = "schema") -> MakeGrammar:
        limits = llguidance.LLParserLimits(initial_lexer_fuel=_LEXER_FUEL)
        try:
            tokens = self._tokens(field)
            matcher = llguidance.LLMatcher(tokens, write(), log_level=0, limits=limits)
            first = matcher.deep_copy()
            bits = first.compute_bitmask()  # the slowest mask; here it delays no other request
        except ValueError as error:
            raise _not_enforceable(error, field, kind) from error
        if first.is_error():
            raise _not_enforceable(first.get_error(), field, kind)
        words = -(-self.vocabulary // 32)
        mask = np.frombuffer(bits, np.uint32)[:words]
        return lambda: TextGrammar(matcher, mask)

    def _tokens(self, field: str) -> llguidance.LLTokenizer:
        if not self.eos_token_ids:
            raise FieldError(
                field, "this model has no end token, which restricted text needs; leave it out"
            )
        return self._built()

    def _built(self) -> llguidance.LLTokenizer:
        with self._building:  # two requests at once must not both build them
            if self._tables is None:
                self._tables = llguidance.LLTokenizer(
                    self.tokenizer.to_json(self.vocabulary),
                    n_vocab=self.vocabulary,
                    eos_token=self.eos_token_ids,
                )
            return self._tables


class TextGrammar:
    """The Grammar of one sample. Computing masks for a proposal keeps the accepted tokens."""

    def __init__(self, fresh: llguidance.LLMatcher, first: NDArray[np.uint32]) -> None:
        """first: the mask of the first token."""
        self._fresh = fresh  # only copied, never advanced
        self._matcher = fresh.deep_copy()
        self._words = len(first)
        self._accepted: list[int] = []
        self._ahead: list[int] = []  # tokens that the matcher has read after the accepted ones
        # The masks computed so far, by the tokens ahead.
        self._rows: dict[tuple[int, ...], NDArray[np.uint32] | None] = {(): first}

    def accept(self, token: int) -> None:
        self._rows.clear()
        self._accepted.append(token)
        if self._ahead and self._ahead[0] == token:
            del self._ahead[0]
            return
        self._go_back(0)
        self._matcher.consume_token(token)

    def masks(self, proposal: SequenceOf[int]) -> NDArray[np.uint32]:
        """Returns masks as Grammar says. They allow no token after llguidance has given up."""
        masks = np.full((len(proposal) + 1, self._words), 0xFFFFFFFF, np.uint32)
        for length in range(len(proposal) + 1):
            ahead = tuple(proposal[:length])
            if ahead not in self._rows:
                self._rows[ahead] = self._row(ahead)
            row = self._rows[ahead]
            if row is None:
                break
            masks[length] = row
        return masks

    def _row(self, ahead: tuple[int, ...]) -> NDArray[np.uint32] | None:
        """Returns the mask after the tokens ahead, or None if these break the rules."""
        pairs = zip(self._ahead, ahead, strict=False)
        self._go_back(next((i for i, (a, b) in enumerate(pairs) if a != b), len(ahead)))
        for token in ahead[len(self._ahead) :]:
            if self._matcher.try_consume_tokens([token]) == 0:
                if self._matcher.is_error():
                    self._start_again()
                return None
            self._ahead.append(token)
        allowed = self._allowed()
        if allowed is None:
            if ahead:
                self._start_again()  # a rejected proposal must not end the text
            return np.zeros(self._words, np.uint32)
        return allowed

    def _allowed(self) -> NDArray[np.uint32] | None:
        """Returns the next mask, or None if llguidance has given up on a text of too much work."""
        if self._matcher.is_error():
            return None
        try:
            bits = self._matcher.compute_bitmask()
        except ValueError:
            return None
        if self._matcher.is_error():
            return None
        return np.frombuffer(bits, np.uint32)[: self._words]

    def _start_again(self) -> None:
        self._matcher = self._fresh.deep_copy()
        self._matcher.consume_tokens(self._accepted)
        self._ahead.clear()

    def _go_back(self, length: int) -> None:
        """Forgets all but the first `length` tokens ahead."""
        surplus = len(self._ahead) - length
        if surplus > 0:
            self._matcher.rollback(surplus)
            del self._ahead[length:]


def check_bounds(schemas: SequenceOf[Mapping[str, Any]], field: str) -> None:
    """Raises FieldError if schemas have remote references, are nested too deeply or too long."""
    level: list[Any] = list(schemas)
    for _ in range(DEEPEST_SCHEMA):
        for each in level:
            if isinstance(each, dict) and not _is_local(each.get("$ref")):
                raise FieldError(field, "a $ref points outside the schema; begin each with #")
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    if level:
        raise FieldError(
            field, f"the schema is nested deeper than {DEEPEST_SCHEMA}; make it flatter"
        )
    if sum(len(json.dumps(schema)) for schema in schemas) > MOST_SCHEMA_CHARACTERS:
        raise FieldError(
            field,
            f"the schema is longer than {MOST_SCHEMA_CHARACTERS} characters; make it shorter",
        )


def _is_local(reference: object) -> bool:
    return not isinstance(reference, str) or reference.startswith("#")


def _not_enforceable(error: object, field: str, kind: str) -> FieldError:
    lines = str(error).splitlines() or ["llguidance does not say why"]
    found = next((each for each in lines if each.startswith("error: ")), lines[0])
    return FieldError(field, f"the {kind} cannot be enforced: {found[:300]}")
