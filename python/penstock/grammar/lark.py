"""Writing Lark grammars as llguidance reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from penstock.grammar.json_schema.schema_grammar import SPACING, enforceable

ANY_TEXT: Final = r"/(.|\n)*/"
_EMPTY: Final = '""'


def repetition(least: int, most: int | None) -> str:
    """How often what stands before it comes, as a regular expression says it."""
    if most is None:
        return f"{{{least},}}" if least else "*"
    return f"{{{least},{most}}}"


class LarkGrammar:
    """The rules of one grammar. Expressions are Lark text; a rule's name is an expression too.

    `control`: text -> id of the control tokens, which no literal of plain text can spell.
    """

    def __init__(self, control: Mapping[str, int]) -> None:
        self._control = control
        marks = sorted(control, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, marks)) or r"(?!)")
        self._rules: list[str] = []
        self._known: dict[str, str] = {}

    def text(self, start: str) -> str:
        """The whole grammar, which begins with the expression `start`."""
        return "\n".join(["%llguidance {}", f"start: {start}", *self._rules]) + "\n"

    def literal(self, text: str) -> str:
        """An expression for exactly this text, its control tokens as such."""
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
        """Whether a mark begins with a control token, which no text is taken for."""
        match = self._pattern.search(mark)
        return match is not None and match.start() == 0

    def marks_in_text(self, marks: Iterable[str]) -> list[str]:
        """An expression for each of the marks that is a control token, with text before it, which
        no expression for text allows."""
        text = self.rule(ANY_TEXT)
        return [f"{text} {self.literal(mark)}" for mark in marks if mark in self._control]

    def up_to(self, mark: str) -> str:
        """Any text up to and with a mark."""
        if mark in self._control:
            return f"{self.rule(ANY_TEXT)} {self.literal(mark)}"
        head, tail = mark, ""
        if (match := self._pattern.search(mark)) is not None:
            if match.start() == 0:  # the token alone tells that the mark has begun
                return f"{self.rule(ANY_TEXT)} {self.literal(mark)}"
            head, tail = mark[: match.start()], mark[match.start() :]
        lazy = self.rule(f"{ANY_TEXT} {json.dumps(head)}", "[lazy]")
        return f"{lazy} {self.literal(tail)}" if tail else lazy

    def counted_up_to(self, mark: str, least: int, most: int | None) -> str:
        """As `up_to`, for text of so many characters; the mark may begin with white space."""
        text = rf"/(.|\n){repetition(least, most)}/"
        if self._pattern.search(mark):  # no text has a control token in it
            return f"{self.terminal(text)} {self.literal(mark)}"
        without = rf"~(/(.|\n)*/ {json.dumps(mark.strip())} /(.|\n)*/)"
        return self.terminal(f"({text} & {without}) {json.dumps(mark)}")

    def rule(self, expression: str, options: str = "") -> str:
        """A rule of its own; the same expression gets the same one."""
        key = options + expression
        if key not in self._known:
            name = f"r{len(self._rules)}"
            self._known[key] = name
            self._rules.append(f"{name}{options}: {expression}")
        return self._known[key]

    def named(self, name: str, expression: str) -> str:
        """A rule of this name, which may refer to itself."""
        if name not in self._known:
            self._known[name] = name
            self._rules.append(f"{name}: {expression}")
        return name

    def terminal(self, expression: str) -> str:
        """A terminal: a regular expression, matched as one lexeme."""
        key = "terminal " + expression
        if key not in self._known:
            name = f"T{len(self._rules)}"
            self._known[key] = name
            self._rules.append(f"{name}: {expression}")
        return self._known[key]

    def schema(self, schema: dict[str, Any], *, strict: bool) -> str:
        """Any JSON that a schema allows. Not `strict`: keywords that cannot be enforced are
        ignored."""
        own = schema.get("x-guidance")
        options = {**SPACING, "lenient": not strict, **(own if isinstance(own, dict) else {})}
        return self.rule(
            "%json " + json.dumps({**enforceable(schema, strict=strict), "x-guidance": options})
        )

    def one_of(self, expressions: Iterable[str]) -> str:
        return self.rule(" | ".join(dict.fromkeys(expressions)))

    def quoted(self, quote: str, inside: str) -> str:
        """A regular expression between two quotes, as one lexeme if they are plain text."""
        if quote in self._control:
            return f"{self.literal(quote)} {self.terminal(inside)} {self.literal(quote)}"
        return self.terminal(f"{json.dumps(quote)} {inside} {json.dumps(quote)}")

    def repeated(self, item: str, between: str, least: int = 0, most: int | None = None) -> str:
        """An expression any number of times, none included, or as often as is said."""
        if most == 0:
            return _EMPTY
        more = f"{self.literal(between)} {item}" if between else item
        count = repetition(max(least - 1, 0), None if most is None else most - 1)
        return f"({item} ({more}){count})" + ("" if least else "?")

    def members(self, items: Sequence[tuple[str, str, bool]], between: str) -> str:
        """Members in their order with `between` between two of them; (how it begins, the rest as
        an expression, whether it is required).

        `between` and beginning are one literal: two literals of which one begins like the other
        would be told apart too late.
        """
        some = none = _EMPTY  # what follows where members came before, and where none did
        for head, rest, required in reversed(items):
            joined = self.rule(f"{self.literal(between + head)} {rest} {some}")
            alone = self.rule(f"{self.literal(head)} {rest} {some}")
            if not required:
                joined = self.rule(f"{joined} | {some}")
                alone = self.rule(f"{alone} | {none}")
            some, none = joined, alone
        return none
