"""The grammar of a request and the place in the answer where it starts, as the engine receives
them."""

from __future__ import annotations

import msgspec


class GrammarTriggers(msgspec.Struct, frozen=True):
    """The text that makes a grammar start to bind.

    The grammar starts at the first occurrence of one of `texts`, or at the first character that is
    not white space if it is one of `first`. The grammar must accept the text from the start of the
    token that contains the beginning of the trigger.

    Triggers inside reasoning are ignored. Reasoning ends at `reasoning_close`, if the prompt opened
    it (`reasoning_opened`) or the answer begins with `reasoning_open`. An empty string means that
    the model writes no such mark. Control tokens are matched by their names.
    """

    texts: tuple[str, ...]
    first: str = ""
    reasoning_open: str = ""
    reasoning_close: str = ""
    reasoning_opened: bool = False


class Grammar(msgspec.Struct, frozen=True):
    """A grammar that an answer must match.

    `value` is the JSON text of llguidance's serialized form, an object with `grammars`, for every
    kind of constraint.

    `triggers` None: the grammar binds from the first token on, and its end ends the answer.
    Otherwise it binds only after a trigger, costs nothing before it, and never ends an answer: an
    answer that leaves the grammar continues without it.
    """

    value: str
    triggers: GrammarTriggers | None = None
