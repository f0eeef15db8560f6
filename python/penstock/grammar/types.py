"""What an answer must match, and where in it that begins: a grammar on its way to the engine."""

from __future__ import annotations

import msgspec


class GrammarTriggers(msgspec.Struct, frozen=True):
    """Where in an answer a grammar starts to bind: at the first of `texts`, or at the first
    character that is not white space if it is one of `first`. The grammar must accept the text
    from the token on that holds the beginning of what was found.

    Nothing is looked for in reasoning: text up to `reasoning_close`, if the prompt has opened it
    (`reasoning_opened`) or the answer begins with `reasoning_open`. "": there is none. Control
    tokens are found by their names.
    """

    texts: tuple[str, ...]
    first: str = ""
    reasoning_open: str = ""
    reasoning_close: str = ""
    reasoning_opened: bool = False


class Grammar(msgspec.Struct, frozen=True):
    """What an answer must match: llguidance's own serialized form, the JSON text of an object with
    `grammars`, whatever the client wrote.

    `triggers` None: it binds from the first token on, and its end ends the answer. Else it binds
    from
    there on only, costs nothing before, and never ends an answer: what it cannot follow is free.
    """

    value: str
    triggers: GrammarTriggers | None = None
