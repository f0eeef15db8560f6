"""Builds Lark grammars in llguidance's dialect."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from penstock.grammar.json_schema.schema_grammar import SPACING, enforceable_schema

ANY_TEXT: Final = r"/(.|\n)*/"
_EMPTY: Final = '""'


def repetition(least: int, most: int | None) -> str:
    """Return the quantifier of a regular expression for `least` to `most` repetitions."""
    if most is None:
        return f"{{{least},}}" if least else "*"
    return f"{{{least},{most}}}"


class LarkGrammar:
    """Builds the rules of one grammar. Expressions are Lark text; the name of a rule is an
    expression too.

    `control` maps the text of each control token to its id. A literal of plain text cannot match
    such a token.
    """

    def __init__(self, control: Mapping[str, int]) -> None:
        self._control = control
        marks = sorted(control, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, marks)) or r"(?!)")
        self._rules: list[str] = []
        self._known: dict[str, str] = {}

    def text(self, start: str) -> str:
        """Return the whole grammar, with the expression `start` as its start rule."""
        return "\n".join(["%llguidance {}", f"start: {start}", *self._rules]) + "\n"

    def literal(self, text: str) -> str:
        """Return an expression for exactly this text, with its control tokens as tokens."""
        pieces: list[str] = []
        at = 0
        for match in self._pattern.finditer(text):
            if match.start() > at:
                pieces.append(json.dumps(text[at : match.start()]))
            pieces.append(f"<[{self._control[match[0]]}]>")
            at = match.end()
        if at < len(text):
            pieces.append(json.dumps(text[at:]))
        return " ".join(pieces) or _EMPTY

    def has_control(self, mark: str) -> bool:
        """Whether a mark begins with a control token, which cannot be confused with text."""
        match = self._pattern.search(mark)
        return match is not None and match.start() == 0

    def marks_in_text(self, marks: Iterable[str]) -> list[str]:
        """Return an expression for each mark that is a control token, preceded by any text.
        Expressions for text do not allow control tokens."""
        text = self.rule(ANY_TEXT)
        return [f"{text} {self.literal(mark)}" for mark in marks if mark in self._control]

    def up_to(self, mark: str) -> str:
        """Return an expression for any text up to and including a mark."""
        if mark in self._control:
            return f"{self.rule(ANY_TEXT)} {self.literal(mark)}"
        head, tail = mark, ""
        if (match := self._pattern.search(mark)) is not None:
            if match.start() == 0:  # the control token alone identifies the mark
                return f"{self.rule(ANY_TEXT)} {self.literal(mark)}"
            head, tail = mark[: match.start()], mark[match.start() :]
        lazy = self.rule(f"{ANY_TEXT} {json.dumps(head)}", "[lazy]")
        return f"{lazy} {self.literal(tail)}" if tail else lazy

    def counted_up_to(self, mark: str, least: int, most: int | None) -> str:
        """As `up_to`, for text of `least` to `most` characters. The mark may begin with white
        space."""
        text = rf"/(.|\n){repetition(least, most)}/"
        if self._pattern.search(mark):  # text cannot contain a control token
            return f"{self.terminal(text)} {self.literal(mark)}"
        without = rf"~(/(.|\n)*/ {json.dumps(mark.strip())} /(.|\n)*/)"
        return self.terminal(f"({text} & {without}) {json.dumps(mark)}")

    def rule(self, expression: str, options: str = "") -> str:
        """Return the name of a rule for an expression. Equal expressions share one rule."""
        key = options + expression
        if key not in self._known:
            name = f"r{len(self._rules)}"
            self._known[key] = name
            self._rules.append(f"{name}{options}: {expression}")
        return self._known[key]

    def named(self, name: str, expression: str) -> str:
        """Add a rule with this name, which may refer to itself."""
        if name not in self._known:
            self._known[name] = name
            self._rules.append(f"{name}: {expression}")
        return name

    def terminal(self, expression: str) -> str:
        """Return the name of a terminal: a regular expression that is matched as one lexeme."""
        key = "terminal " + expression
        if key not in self._known:
            name = f"T{len(self._rules)}"
            self._known[key] = name
            self._rules.append(f"{name}: {expression}")
        return self._known[key]

    def schema(self, schema: dict[str, Any], *, strict: bool) -> str:
        """Return an expression for the JSON that a schema allows. Without `strict`, keywords that
        cannot be enforced are ignored."""
        own = schema.get("x-guidance")
        options = {**SPACING, "lenient": not strict, **(own if isinstance(own, dict) else {})}
        prepared = {**enforceable_schema(schema, strict=strict), "x-guidance": options}
        return self.rule("%json " + json.dumps(prepared))

    def one_of(self, expressions: Iterable[str]) -> str:
        return self.rule(" | ".join(dict.fromkeys(expressions)))

    def quoted(self, quote: str, inside: str) -> str:
        """Return an expression for text between two quotes: one lexeme if the quote is plain text.
        `inside` is a regular expression."""
        if quote in self._control:
            return f"{self.literal(quote)} {self.terminal(inside)} {self.literal(quote)}"
        return self.terminal(f"{json.dumps(quote)} {inside} {json.dumps(quote)}")

    def repeated(self, item: str, separator: str, least: int = 0, most: int | None = None) -> str:
        """Return an expression for `least` to `most` items, any number by default, with `separator`
        between them."""
        if most == 0:
            return _EMPTY
        more = f"{self.literal(separator)} {item}" if separator else item
        count = repetition(max(least - 1, 0), None if most is None else most - 1)
        return f"({item} ({more}){count})" + ("" if least else "?")

    def members(self, items: Sequence[tuple[str, str, bool]], separator: str) -> str:
        """Return an expression for members in their order, with `separator` between them.

        Each item is (literal start, expression for the rest, whether it is required). Separator and
        start are one literal: with two literals of which one is a prefix of the other, the lexer
        would decide too late.
        """
        some = none = _EMPTY  # the rest after at least one member, and after none
        for head, rest, required in reversed(items):
            joined = self.rule(f"{self.literal(separator + head)} {rest} {some}")
            alone = self.rule(f"{self.literal(head)} {rest} {some}")
            if not required:
                joined = self.rule(f"{joined} | {some}")
                alone = self.rule(f"{alone} | {none}")
            some, none = joined, alone
        return none
