"""A Jinja environment in which an untrusted template cannot use much time or memory.

Owns every place that spends a `Budget`. Knows nothing of chats or models.

Jinja compiles the template, but every block, output, comparison, slice, operator, filter and call
goes through here: a value is bounded before it is made, and its cost is spent afterwards. Methods
and filters outside of the tables below are refused, because they have no known bound.
"""

# ruff: noqa: N802, N805, SIM905  # Jinja names the visitors; word lists read best as text

from __future__ import annotations

import functools
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame, operators
from jinja2.exceptions import SecurityError
from jinja2.filters import make_attrgetter
from jinja2.runtime import BlockReference, Context, LoopContext, Macro, Undefined, str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Cycler, Joiner, Namespace, pass_context

from specqd.text.template_budget import (
    LARGEST_WIDTH,
    Budget,
    TemplateLimitError,
    bound_indent,
    bound_join,
    bound_percent,
    bound_power,
    bound_product,
    bound_replace,
    length,
)

BLOCK_COST = 64  # units for entering a block, as slow as copying a few hundred characters

METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset(
        "capitalize casefold center count endswith find index isalnum isalpha isascii isdecimal "
        "isdigit islower isnumeric isspace istitle isupper join ljust lower lstrip partition "
        "removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split "
        "splitlines startswith strip swapcase title upper zfill".split()
    ),
    dict: frozenset({"get", "items", "keys", "values", "copy"}),
    list: frozenset({"index", "count", "copy"}),
    tuple: frozenset({"index", "count"}),
    LoopContext: frozenset({"cycle", "changed"}),
    Cycler: frozenset({"next", "reset"}),
}
SHALLOW_FILTERS = frozenset(  # these read only the top level of their input
    "attr count d default first items last length list map random reject rejectattr reverse "
    "select selectattr".split()
)
DEEP_FILTERS = frozenset(
    "abs batch capitalize center dictsort e escape float forceescape format groupby indent int "
    "join lower max min replace round safe slice sort string sum title trim truncate unique upper "
    "urlencode wordcount".split()
)
WIDTH_TAKERS = frozenset({"batch", "center", "indent", "ljust", "rjust", "round", "slice", "zfill"})
COMPARING_TESTS = frozenset(
    "== eq equalto != ne > gt greaterthan >= ge < lt lessthan <= le in".split()
)


class BudgetedCompiler(CodeGenerator):
    """Jinja's compiler, with a call of the environment wherever work or memory is used."""

    def blockvisit(self, nodes: Iterable[nodes.Node], frame: Frame) -> None:
        self.writeline(f"environment.spend({BLOCK_COST})")
        super().blockvisit(nodes, frame)

    def visit_Output(self, node: nodes.Output, frame: Frame) -> None:
        literal = sum(len(n.data) for n in node.nodes if isinstance(n, nodes.TemplateData))
        if literal:
            self.writeline(f"environment.spend({literal})")
        super().visit_Output(node, frame)

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        if node.test is not None:
            tick = nodes.EnvironmentAttribute("tick()")  # written out after "environment."
            node.test = nodes.And(tick, node.test)
        super().visit_For(node, frame)

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        self.write("(environment.weighed(")
        self.visit(node.expr, frame)
        self.write(")")
        for operand in node.ops:
            self.write(f" {operators[operand.op]} environment.weighed(")
            self.visit(operand.expr, frame)
            self.write(")")
        self.write(")")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if isinstance(node.arg, nodes.Slice):
            self._write_made(super().visit_Getitem, node, frame)
        else:
            super().visit_Getitem(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concatenated((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self._write_made(super().visit_List, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx == "load":
            self._write_made(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self.write("environment.made({")
        for pair in node.items:
            self.write("environment.weighed(")
            self.visit(pair.key, frame)
            self.write("): ")
            self.visit(pair.value, frame)
            self.write(", ")
        self.write("})")

    def visit_ScopedEvalContextModifier(
        self, node: nodes.ScopedEvalContextModifier, frame: Frame
    ) -> None:
        self.fail("autoescape is not supported", node.lineno)

    def _write_made(self, visit: Callable[[Any, Frame], None], node: Any, frame: Frame) -> None:
        self.write("environment.made(")
        visit(node, frame)
        self.write(")")


class BudgetedEnvironment(ImmutableSandboxedEnvironment):
    """One rendering's environment: a sandbox that spends `budget`.

    `functions` become globals, `filters` extend the known ones; both must bound their own work.
    """

    code_generator_class = BudgetedCompiler
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(
        self,
        budget: Budget,
        functions: Mapping[str, Callable[..., Any]],
        filters: Mapping[str, Callable[..., Any]],
        **options: Any,
    ) -> None:
        super().__init__(optimized=False, finalize=finalized, **options)
        self.budget = budget
        self.spend, self.made = budget.spend, budget.made  # the compiled template calls these
        del self.globals["lipsum"]
        self.globals |= {"namespace": PlainNamespace, "dict": make_dict, **functions}
        self._functions = tuple(self.globals.values())
        known: dict[str, Callable[..., Any]] = {**self.filters, "sum": added_up}
        self.filters = {
            **{name: self._shallow(known[name]) for name in SHALLOW_FILTERS},
            **{name: self._deep(name, known[name]) for name in DEEP_FILTERS},
            **filters,
        }
        for name in COMPARING_TESTS:
            self.tests[name] = self._deep(name, self.tests[name])

    def tick(self) -> bool:
        self.budget.spend(BLOCK_COST)
        return True

    def handle_exception(self, source: str | None = None) -> Any:
        raise  # without Jinja's rewriting of the traceback, slow for a deep stack

    def weighed(self, value: Any) -> Any:
        self.budget.weigh(value)
        return value

    def concatenated(self, parts: Sequence[Any]) -> str:
        self.budget.admit(sum(map(self.budget.weigh, parts)))
        return str(self.made(str_join(parts)))

    def getitem(self, obj: Any, argument: Any) -> Any:
        if not isinstance(argument, str | int):
            self.budget.weigh(argument)  # it will be hashed, or named in an error
        return super().getitem(obj, argument)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            bound_percent(self.budget, left, right)
        elif operator == "*":
            bound_product(self.budget, left, right)
        elif operator == "**":
            bound_power(left, right)
        elif operator == "+":
            self.budget.admit(length(left) + length(right))
        return self.made(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        # The double underscores let a macro have parameters of any name, as in Jinja.
        if isinstance(__obj, Macro | BlockReference | LoopContext | Joiner | Undefined):
            return __self.made(super().call(__context, __obj, *args, **kwargs))
        hidden = ("_loop_vars", "_block_vars")  # Jinja's own
        given = {name: value for name, value in kwargs.items() if name not in hidden}
        for value in (*args, *given.values()):
            __self.budget.weigh(value)
        __self.budget.spend(BLOCK_COST)
        if any(__obj is function for function in __self._functions):
            return __self.made(super().call(__context, __obj, *args, **kwargs))
        owner = getattr(__obj, "__self__", None)
        if isinstance(__obj, types.BuiltinMethodType | types.MethodType):
            name = __obj.__name__
            if not any(isinstance(owner, kind) and name in METHODS[kind] for kind in METHODS):
                raise SecurityError(f"method {name} of {type(owner).__name__} is not supported")
            if name == "join":
                bound_join(__self.budget, args[0] if args else (), owner)
            else:
                __self._bound_growth(name, owner, args, given)
        elif not isinstance(__obj, BoundedFormat):
            raise SecurityError(f"a {type(__obj).__name__} cannot be called")
        return __self.made(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        return BoundedFormat(self, value.__self__, by_map=value.__name__ == "format_map")

    def _shallow(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)  # it also carries over which context the filter asks for
        def bounded(*args: Any, **kwargs: Any) -> Any:
            self.budget.spend(BLOCK_COST)
            return self.made(function(*args, **kwargs))

        return bounded

    def _deep(self, name: str, function: Any) -> Callable[..., Any]:
        skipped = 1 if hasattr(function, "jinja_pass_arg") else 0

        @functools.wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            value, *others = args[skipped:]
            self.budget.spend(BLOCK_COST + self.budget.weigh(value))
            for other in (*others, *kwargs.values()):
                self.budget.weigh(other)
            self._bound_growth(name, value, others, kwargs)
            return self.made(function(*args, **kwargs))

        return bounded

    def _bound_growth(
        self, name: str, value: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Bounds the result of the method or filter `name` on `value` before it is made."""
        if name in WIDTH_TAKERS:
            for number in (*args, *kwargs.values()):
                if isinstance(number, int) and abs(number) > LARGEST_WIDTH:
                    raise TemplateLimitError(f"it asks {name} for {number}, more than it may")
        match name:
            case "replace":
                given = {**dict(zip(("old", "new"), args, strict=False)), **kwargs}
                bound_replace(self.budget, value, given.get("old", ""), given.get("new", ""))
            case "join":
                given = {**dict(zip(("d",), args, strict=False)), **kwargs}
                bound_join(self.budget, value, given.get("d", ""))
            case "indent":
                given = {**dict(zip(("width",), args, strict=False)), **kwargs}
                bound_indent(self.budget, value, given.get("width", 4))
            case "format":
                bound_percent(self.budget, str(value), kwargs or args)


class BoundedFormat:
    """`text.format` or `text.format_map`, sandboxed; each field spends its cost."""

    def __init__(self, environment: BudgetedEnvironment, text: str, *, by_map: bool) -> None:
        self._formatter = BoundedFormatter(environment, environment.budget)
        self._text = text
        self._by_map = by_map

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        if self._by_map:
            (kwargs,), args = args, ()
        return self._formatter.vformat(self._text, args, kwargs)


class BoundedFormatter(SandboxedFormatter):
    """Formats fields up to `LARGEST_WIDTH` wide."""

    def __init__(self, environment: BudgetedEnvironment, budget: Budget) -> None:
        super().__init__(environment)
        self._budget = budget

    def convert_field(self, value: Any, conversion: Any) -> Any:
        self._budget.weigh(value)
        return super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> str:
        self._budget.weigh(value)
        if re.search(r"\d{5}", format_spec):
            raise TemplateLimitError("it formats a field wider than it may")
        text = str(super().format_field(value, format_spec))
        self._budget.spend(BLOCK_COST + len(text))
        return text


class PlainNamespace(Namespace):
    """Jinja's `namespace` without underscored names, printed without its values."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # so that `self` may be one of the names
        self, *others = args
        Namespace.__init__(self, {})
        for name, value in dict(*others, **kwargs).items():
            self[name] = value

    def __setitem__(self, name: Any, value: Any) -> None:
        if str(name).startswith("_"):
            raise SecurityError(f"a namespace cannot hold {name!r}: it starts with an underscore")
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"


def make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


@pass_context
def finalized(context: Context, value: Any) -> Any:
    """Spends the cost of a value; Jinja calls this before it prints one."""
    budget = _environment(context).budget
    budget.spend(budget.weigh(value))
    return value


@pass_context
def added_up(context: Context, items: Any, attribute: Any = None, start: Any = 0) -> Any:
    """Jinja's `sum` with every addition bounded."""
    environment = _environment(context)
    read = make_attrgetter(environment, attribute) if attribute is not None else None
    for item in items:
        value = read(item) if read else item
        start = environment.call_binop(context, "+", start, value)
    return start


def _environment(context: Context) -> BudgetedEnvironment:
    environment = context.environment
    assert isinstance(environment, BudgetedEnvironment)
    return environment
