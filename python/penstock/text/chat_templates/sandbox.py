"""The Jinja environment of chat templates: sandboxed, immutable, with limits.

It supports the features that `transformers` supports, except filters and methods that no chat
template needs and that only make texts grow. Everything that repeats or grows is charged: loop and
macro bodies, operators, list literals, calls, filters, output. The AST is rewritten once, at
compile time, so that no construct escapes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, MutableMapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Namespace, pass_context
from jinja2.visitor import NodeTransformer

from penstock.text.chat_templates.filter_costs import check_filter, check_replace
from penstock.text.chat_templates.render_budget import (
    MAX_INTEGER_BITS,
    STEPS_PER_ITERATION,
    Budget,
    TemplateLimit,
)

BUDGET: ContextVar[Budget] = ContextVar("template_budget")

# fmt: off
_FILTERS = (
    "abs", "attr", "batch", "capitalize", "center", "count", "d", "default", "dictsort", "e",
    "escape", "filesizeformat", "first", "float", "format", "groupby", "indent", "int", "items",
    "join", "last", "length", "list", "lower", "map", "max", "min", "pprint", "reject",
    "rejectattr", "replace", "reverse", "round", "safe", "select", "selectattr", "slice", "sort",
    "string", "sum", "title", "trim", "truncate", "unique", "upper", "urlencode", "wordcount",
    "wordwrap",
)
# These return a part of a value without visiting the rest: nothing to charge.
_LIGHT_FILTERS = frozenset({"attr", "count", "d", "default", "first", "last", "length"})
_STRING_METHODS = frozenset({
    "capitalize", "casefold", "center", "count", "endswith", "find", "index", "isalnum", "isalpha",
    "isascii", "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper",
    "join", "ljust", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace",
    "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip", "split", "splitlines",
    "startswith", "strip", "swapcase", "title", "upper", "zfill",
})
_CONTAINER_METHODS = frozenset({"copy", "count", "get", "index", "items", "keys", "values"})
# fmt: on
_UNSUPPORTED = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends, nodes.Block)


class Refusal(jinja2.TemplateError):
    """The template called `raise_exception`: the model does not support these messages."""


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates. While one is rendered, `BUDGET` holds its budget."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=_finalize,
            extensions=[GenerationTag, loopcontrols],
        )
        known = self.filters
        self.filters = {name: _metered(name, known[name]) for name in _FILTERS}
        self.filters["tojson"] = _to_json
        self.globals = {
            "range": _bounded_range,
            "dict": _make_dict,
            "namespace": TemplateNamespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    def make_globals(self, d: MutableMapping[str, Any] | None) -> MutableMapping[str, Any]:
        """Return a plain dictionary, which every rendering copies; Jinja's own is slow to read."""
        return {**self.globals, **(d or {})}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for kind in _UNSUPPORTED:
            if tree.find(kind) is not None:
                raise jinja2.TemplateSyntaxError(f"{kind.__name__.lower()} is not supported", 1)
        metered = _Meter().visit(tree)
        assert isinstance(metered, nodes.Template)
        return metered

    # `_Meter` inserts calls of these into compiled templates.

    def tick(self) -> bool:
        """Charge an iteration of a loop or a macro call."""
        return BUDGET.get().charge_steps(STEPS_PER_ITERATION)

    def charged(self, value: Any) -> Any:
        """Charge a literal and return it."""
        BUDGET.get().charge_value(value)
        return value

    def joined(self, *values: Any) -> str:
        """Join values as text, charged."""
        budget = BUDGET.get()
        return budget.concat(budget.text(value) for value in values)

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        return BUDGET.get().concat(pieces)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            BUDGET.get().charge_chars(len(left) + len(right))  # the most frequent operation
            return left + right
        _check_operands(BUDGET.get(), operator, left, right)
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, list | tuple):
            BUDGET.get().charge_value(result)
        return result

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if __obj == __self.tick:  # once per iteration of every loop
            return __self.tick()
        budget = BUDGET.get()
        budget.charge_steps()
        if isinstance(__obj, Macro):
            budget.charge_value((args, tuple(kwargs.values())))
        else:
            _check_method(budget, __obj, args)
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        pattern = str(value.__self__)
        if value.__name__ == "format_map":
            raise SecurityError("format_map is not allowed in a chat template")

        def bounded_format(*args: Any, **kwargs: Any) -> str:
            BUDGET.get().check_pattern(pattern, (args, kwargs))
            return SandboxedFormatter(self).vformat(pattern, args, kwargs)

        return bounded_format


class GenerationTag(Extension):
    """`{% generation %}` marks the assistant's text for training; rendering ignores it."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateNamespace(Namespace):
    """`namespace(...)` without attributes that reach into Python and without a revealing repr."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        attributes = dict(*args[1:], **kwargs)
        if any(str(name).startswith("_") for name in attributes):
            raise SecurityError("names in a namespace must not begin with an underscore")
        Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise SecurityError("names in a namespace must not begin with an underscore")
        Namespace.__setitem__(self, name, value)

    def __repr__(self) -> str:
        return "<Namespace>"


class _Meter(NodeTransformer):
    """Rewrites a template so that everything that repeats or grows calls the environment first."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("tick")))
        if node.test is not None:
            node.test = nodes.And(_call("tick"), node.test)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("tick")))
        return node

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("tick")))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("joined", *node.nodes)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return self._literal(node, node.items)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return node if node.ctx == "store" else self._literal(node, node.items)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        return self._literal(node, [pair.value for pair in node.items])

    def _literal(self, node: nodes.Expr, items: list[nodes.Expr]) -> nodes.Node:
        constant = all(isinstance(item, nodes.Const) for item in items)
        self.generic_visit(node)
        return node if constant else _call("charged", node)


def _call(name: str, *args: nodes.Expr) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), list(args), [], None, None)


@pass_context  # needing the context keeps constants from being finalized at compile time
def _finalize(context: Context, value: Any) -> Any:
    budget = BUDGET.get()
    if isinstance(value, str):
        budget.charge_chars(len(value))
        return value
    return budget.text(value)


def _check_operands(budget: Budget, operator: str, left: Any, right: Any) -> None:
    budget.charge_steps()
    if isinstance(left, int) and isinstance(right, int):
        _check_integers(operator, left, right)
    elif operator == "*":
        for sized, times in ((left, right), (right, left)):
            if isinstance(sized, str | list | tuple) and isinstance(times, int):
                budget.charge_chars(max(0, times) * len(sized))
    elif operator == "%" and isinstance(left, str):
        budget.check_pattern(left, right)
    elif isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
        budget.charge_chars(len(left) + len(right))


def _check_integers(operator: str, left: int, right: int) -> None:
    bits = left.bit_length() + right.bit_length()
    if operator == "**":
        bits = left.bit_length() * abs(right)
    if bits > MAX_INTEGER_BITS:
        raise TemplateLimit("a number is too large")


def _check_method(budget: Budget, function: Any, args: tuple[Any, ...]) -> None:
    """Charge methods of strings and containers. Raises SecurityError for unknown ones."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, str):
        name = function.__name__
        if name not in _STRING_METHODS:
            raise SecurityError(f"{name} is not allowed in a chat template")
        budget.charge_chars(len(owner))
        if name == "replace" and len(args) >= 2:
            check_replace(budget, owner, args[0], args[1])
        elif name == "join" and args:
            budget.charge_chars(budget.charge_value(args[0]) + len(owner) * len(args[0]))
        elif name in ("center", "ljust", "rjust", "zfill") and args:
            budget.check_width(args[0])
    elif isinstance(owner, list | tuple | dict | int | float) and not isinstance(owner, bool):
        if function.__name__ not in _CONTAINER_METHODS:
            raise SecurityError(f"{function.__name__} is not allowed in a chat template")
        budget.charge_steps(1 + (len(owner) if isinstance(owner, list | tuple) else 0))


def _metered(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that weighs what goes in, and makes lists instead of generators."""
    takes_first = hasattr(function, "jinja_pass_arg")

    def bounded(*args: Any, **kwargs: Any) -> Any:
        budget = BUDGET.get()
        rest = args[int(takes_first) :]
        budget.charge_steps()
        if name not in _LIGHT_FILTERS:
            budget.charge_value((rest, tuple(kwargs.values())))
            check_filter(budget, name, rest, kwargs)
        result = function(*args, **kwargs)
        if hasattr(result, "__next__"):
            result = _drain(budget, result)
        if isinstance(result, list | tuple) and name not in _LIGHT_FILTERS:
            budget.charge_value(result)
        return result

    if takes_first:
        bounded.jinja_pass_arg = function.jinja_pass_arg  # type: ignore[attr-defined]
    return bounded


def _drain(budget: Budget, items: Iterable[Any]) -> list[Any]:
    made = []
    for item in items:
        budget.charge_steps()
        made.append(item)
    return made


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as `transformers` writes it: no HTML escapes, separators with spaces."""
    budget = BUDGET.get()
    chars = budget.charge_value(value)
    if isinstance(indent, int) and indent > 16:
        raise TemplateLimit("an indent is too wide")
    budget.charge_chars(chars)
    text = json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
    budget.charge_chars(len(text))
    return text


def _bounded_range(*args: int) -> range:
    numbers = range(*args)
    BUDGET.get().charge_steps(len(numbers))
    return numbers


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    made: dict[Any, Any] = dict(*args, **kwargs)
    BUDGET.get().charge_value(made)
    return made


def _raise_exception(message: object) -> None:
    raise Refusal(str(message)[:500])


def _strftime_now(pattern: str) -> str:
    if len(pattern) > 256:
        raise TemplateLimit("a date format is too long")
    return datetime.now().strftime(pattern)
