"""Makes the grammar that a request's schema, pattern and tools require."""

from specqd.engine.generation import MakeGrammar
from specqd.grammars import Grammars, check_bounds
from specqd.openai.requests import Prepared

_TOOLS = "tools"  # the field's name in errors


def request_grammar(grammars: Grammars, prepared: Prepared) -> MakeGrammar | None:
    """Returns a function that makes one grammar per sample, or None if the request has none.

    Raises FieldError if a grammar cannot be built. Takes up to 1 s: do not call it on the event
    loop or between rounds.
    """
    options, use = prepared.request.options, prepared.tool_use
    schema, field = options.schema, options.rules_field
    if not prepared.has_rules:
        return None
    if options.pattern is not None:
        return grammars.of_pattern(options.pattern, field)
    if use is None or prepared.call_form is None:
        assert schema is not None
        return grammars.of_schema(schema, field)
    if schema is not None:
        grammars.of_schema(schema, field)  # so that an error names its field
    check_bounds([tool.parameters for tool in use.callable], _TOOLS)
    return grammars.of_lark(prepared.call_form.rules(use, schema), _TOOLS)
