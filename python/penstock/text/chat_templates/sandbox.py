"""The Jinja environment of chat templates: sandboxed, immutable, with limits.

The environment supports the features that `transformers` supports, except filters and methods that
no chat template needs and that only make texts grow. Loop and macro bodies, operators, literals of
containers, calls, filters and output are charged to the budget of the rendering (see
`render_budget`). The template's AST is rewritten at compile time to charge them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import pass_context
from jinja2.visitor import NodeTransformer

from penstock.text.chat_templates.operation_costs import check_method, check_operands
from penstock.text.chat_templates.render_budget import BUDGET, STEPS_PER_ITERATION
from penstock.text.chat_templates.template_functions import template_filters, template_globals

_UNSUPPORTED = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends, nodes.Block)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates. While a template is rendered, `BUDGET` holds its budget."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=_finalize,
            extensions=[GenerationTag, loopcontrols],
        )
        self.filters = template_filters(self.filters)
        self.globals = template_globals()

    def make_globals(self, d: MutableMapping[str, Any] | None) -> MutableMapping[str, Any]:
        """Return the global variables as a plain dictionary, since the mapping that Jinja makes is
        slow to read and every rendering copies it."""
        return {**self.globals, **(d or {})}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for kind in _UNSUPPORTED:
            if tree.find(kind) is not None:
                raise jinja2.TemplateSyntaxError(f"{kind.__name__.lower()} is not supported", 1)
        metered = _Meter().visit(tree)
        assert isinstance(metered, nodes.Template)
        return metered

    # `_Meter` inserts calls of `tick`, `charged` and `joined` into compiled templates.

    def tick(self) -> bool:
        """Charge an iteration of a loop or a macro call."""
        return BUDGET.get().charge_steps(STEPS_PER_ITERATION)

    def charged(self, value: Any) -> Any:
        """Charge the value of a list, tuple or dictionary literal and return the value."""
        BUDGET.get().charge_value(value)
        return value

    def joined(self, *values: Any) -> str:
        """Charge the texts of the values and return the joined text."""
        budget = BUDGET.get()
        return budget.concat(budget.text(value) for value in values)

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        return BUDGET.get().concat(pieces)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            BUDGET.get().charge_chars(len(left) + len(right))  # the most frequent operation
            return left + right
        check_operands(BUDGET.get(), operator, left, right)
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
            check_method(budget, __obj, args)
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
    """Parses `{% generation %}`, which marks the assistant's text for training. Rendering ignores
    the tag."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Meter(NodeTransformer):
    """Rewrites a template's AST so that loops, macros, concatenations and container literals charge
    the budget."""

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


@pass_context  # with the context, Jinja cannot finalize constants at compile time
def _finalize(context: Context, value: Any) -> Any:
    budget = BUDGET.get()
    if isinstance(value, str):
        budget.charge_chars(len(value))
        return value
    return budget.text(value)
