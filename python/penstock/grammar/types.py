"""The grammar of a request, as the engine receives it, and the triggers from which on it
applies."""

from __future__ import annotations

import msgspec


class GrammarTriggers(msgspec.Struct, frozen=True):
    """Texts from which on a grammar applies.

    - `texts`: the grammar starts at the first occurrence of one of these texts.
    - `first`: characters. The grammar starts at the first character of the answer that is not white
      space, if it is one of them.
    - `reasoning_open`, `reasoning_close`: the tags around reasoning, "" if the model writes none.
      Triggers inside reasoning are ignored.
    - `reasoning_opened`: the prompt has opened the reasoning.

    The grammar must accept the text from the start of the token that contains the beginning of the
    trigger. Control tokens are matched by their names.
    """

    texts: tuple[str, ...]
    first: str = ""
    reasoning_open: str = ""
    reasoning_close: str = ""
    reasoning_opened: bool = False


class Grammar(msgspec.Struct, frozen=True):
    """A grammar that an answer must match.

    - `value`: the JSON text of llguidance's serialized format, an object with `grammars`, for every
      kind of constraint.
    - `triggers`: None if the grammar applies from the first token on, and its end ends the answer.
      Otherwise the grammar applies only after a trigger, costs nothing before, and never ends an
      answer: an answer that leaves the grammar continues without it.
    """

    value: str
    triggers: GrammarTriggers | None = None
