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
    """Builds the rules of one grammar.

    Methods take and return expressions: Lark text, such as the name of a rule.

    `control`: text -> id of the control tokens. Expressions for text never match a control token.
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
        """Return an expression for exactly this text. Control tokens in it are matched by id."""
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
        """Whether `mark` begins with a control token, so that it cannot be plain text."""
        match = self._pattern.search(mark)
        return match is not None and match.start() == 0

    def marks_in_text(self, marks: Iterable[str]) -> list[str]:
        """Return one expression for each mark that is a control token: any text, then the mark.
        Expressions for plain text do not allow control tokens."""
        text = self.rule(ANY_TEXT)
        return [f"{text} {self.literal(mark)}" for mark in marks if mark in self._control]

    def up_to(self, mark: str) -> str:
        """Return an expression for any text up to and including `mark`."""
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
        """Return an expression for `least` to `most` characters of text, then `mark`. The mark may
        begin with white space."""
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
        """Add the rule `name`, which may refer to itself, and return its name. Does nothing if the
        rule exists."""
        if name not in self._known:
            self._known[name] = name
            self._rules.append(f"{name}: {expression}")
        return name

    def terminal(self, expression: str) -> str:
        """Return the name of a terminal for an expression, which is matched as one lexeme."""
        key = "terminal " + expression
        if key not in self._known:
            name = f"T{len(self._rules)}"
            self._known[key] = name
            self._rules.append(f"{name}: {expression}")
        return self._known[key]

    def schema(self, schema: dict[str, Any], *, strict: bool) -> str:
        """Return an expression for the JSON values that a schema allows. Without `strict`, keywords
        that cannot be enforced are ignored."""
        own = schema.get("x-guidance")
        options = {**SPACING, "lenient": not strict, **(own if isinstance(own, dict) else {})}
        prepared = {**enforceable_schema(schema, strict=strict), "x-guidance": options}
        return self.rule("%json " + json.dumps(prepared))

    def one_of(self, expressions: Iterable[str]) -> str:
        return self.rule(" | ".join(dict.fromkeys(expressions)))

    def quoted(self, quote: str, inside: str) -> str:
        """Return an expression for text between two quotes, which is one lexeme if `quote` is plain
        text. `inside`: a regular expression for the text."""
        if quote in self._control:
            return f"{self.literal(quote)} {self.terminal(inside)} {self.literal(quote)}"
        return self.terminal(f"{json.dumps(quote)} {inside} {json.dumps(quote)}")

    def repeated(self, item: str, separator: str, least: int = 0, most: int | None = None) -> str:
        """Return an expression for `least` to `most` items with `separator` between them. `most`
        None: no limit."""
        if most == 0:
            return _EMPTY
        more = f"{self.literal(separator)} {item}" if separator else item
        count = repetition(max(least - 1, 0), None if most is None else most - 1)
        return f"({item} ({more}){count})" + ("" if least else "?")

    def members(self, items: Sequence[tuple[str, str, bool]], separator: str) -> str:
        """Return an expression for the members of an object in order, with `separator` between
        them.

        Each item is (literal start, expression for the rest, whether the member is required).
        Separator and start are one literal: if one of two literals were a prefix of the other, the
        lexer would decide too late.
        """
        some = none = _EMPTY  # the remaining members after at least one member, after no member
        for head, rest, required in reversed(items):
            joined = self.rule(f"{self.literal(separator + head)} {rest} {some}")
            alone = self.rule(f"{self.literal(head)} {rest} {some}")
            if not required:
                joined = self.rule(f"{joined} | {some}")
                alone = self.rule(f"{alone} | {none}")
            some, none = joined, alone
        return none
