"""Makes the grammar that a request's schema, pattern, tools and budget for reasoning require."""

from specqd.engine.generation import MakeGrammar
from specqd.engine.thinking import after_reasoning
from specqd.grammars import Grammars, check_bounds
from specqd.openai.requests import Prepared

_TOOLS = "tools"  # the field's name in errors


def request_grammar(grammars: Grammars, prepared: Prepared) -> MakeGrammar | None:
    """Returns a function that makes one grammar per sample, or None if the request has none.

    A text may reason first if the model does. Raises FieldError if a grammar cannot be built. Takes
    up to 1 s: do not call it on the event loop or between rounds.
    """
    if not prepared.has_rules:
        return None
    return after_reasoning(
        _answer_grammar(grammars, prepared),
        prepared.reasoning,
        prepared.params.thinking_token_budget,
        grammars.tokenizer,
        grammars.vocabulary,
        grammars.eos_token_ids,
    )


def _answer_grammar(grammars: Grammars, prepared: Prepared) -> MakeGrammar | None:
    options, use = prepared.request.options, prepared.tool_use
    schema, field = options.schema, options.rules_field
    if options.pattern is not None:
        return grammars.of_pattern(options.pattern, field)
    if use is None or prepared.call_form is None or not (use.has_rules or schema is not None):
        return None if schema is None else grammars.of_schema(schema, field)
    if schema is not None:
        grammars.of_schema(schema, field)  # so that an error names its field
    check_bounds([tool.parameters for tool in use.callable], _TOOLS)
    return grammars.of_lark(prepared.call_form.rules(use, schema), _TOOLS)
