"""From what a client wrote to a grammar that the engine takes, or to an error that says where.

All forms become llguidance's serialized one. It is tried in a child process, under bounds of time,
memory and depth, before anyone else compiles it; what was tried is remembered by its content.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections import OrderedDict
from typing import Any, Final

import msgspec

from penstock.base.errors import InvalidRequest, Unavailable
from penstock.dialog import Constraint
from penstock.grammar.gbnf import GbnfError, gbnf_grammar
from penstock.grammar.json_schema.closed_objects import closed
from penstock.grammar.json_schema.number_precision import inexact_number_of
from penstock.grammar.json_schema.schema_grammar import (
    SchemaFault,
    schema_fault,
    schema_grammar,
    without_fault,
)
from penstock.grammar.json_schema.termination import can_terminate
from penstock.grammar.lark_termination import EndlessRule, inline_schemas, without_endless_rules
from penstock.grammar.trial import GrammarTrial, TrialFailed, TrialUnavailable
from penstock.grammar.vocabulary import Vocabulary

MAX_GRAMMAR_CHARS: Final = 256 * 1024
CACHE_BYTES: Final = 16 * 1024 * 1024
_MAX_REASON_CHARS: Final = 500
_MAX_DROPPED: Final = 32
"""Keywords that are left out of one schema; each takes some trials."""
_SEARCH_S: Final = 4.0
"""How long the place of an error, and what can be enforced without it, may be looked for."""

_REGEX_ERROR = re.compile(r"(?s)regex parse error:\n(?P<shown>.*)\nerror: (?P<reason>[^\n]+)")
_EXCERPT = re.compile(r"(?s)\n +\d+ \| .*")
_POSITION = re.compile(r"^(?:at )?(?P<line>\d+)\((?P<column>\d+)\): ")
_SHOWN_INDENT = 4
_UNSATISFIABLE = "NoExtensionBias"
"""llguidance's word for a start that no token can follow."""
_SHORTENED = "<non-verbose/>"
_NAMES: Final = {
    "json_schema": "the JSON schema",
    "regex": "the regular expression",
    "lark": "the Lark grammar",
    "gbnf": "the GBNF grammar",
    "llguidance": "the grammar",
}


class GrammarCompiler:
    """Checks the constraints of one model's requests. Safe to use from several threads; `compile`
    blocks while a grammar is tried, at most some seconds, the first time for the tokenizer too."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        self._trial = GrammarTrial(vocabulary, vocab_size)
        self._known: OrderedDict[Constraint, str | InvalidRequest] = OrderedDict()
        self._known_bytes = 0
        self._lock = threading.Lock()

    def known(self, constraint: Constraint) -> str | None:
        """The grammar of a constraint that was compiled before; None where it was not. Does not
        block. Raises InvalidRequest for one that was refused before."""
        with self._lock:
            found = self._known.get(constraint)
            if found is not None:
                self._known.move_to_end(constraint)
        if isinstance(found, InvalidRequest):
            raise _again(found)
        return found

    def compile(self, constraint: Constraint) -> str:
        """The serialized grammar. Raises InvalidRequest naming the field and, in a JSON schema, the
        place; Unavailable where this machine is too busy to try it."""
        found = self.known(constraint)
        if found is not None:
            return found
        try:
            grammar = self._tried(constraint)
        except InvalidRequest as error:
            self._remember(constraint, _again(error))
            raise
        self._remember(constraint, grammar)
        return grammar

    def close(self) -> None:
        """End the child processes. May be called again."""
        self._trial.close()

    def _tried(self, constraint: Constraint) -> str:
        """The grammar, tried; of a schema that is not strict, as much as can be enforced."""
        tried, place, error = _closed(constraint), "", ""
        search = _Search(self._trial)
        for _ in range(_MAX_DROPPED):
            grammar = serialize(tried)
            try:
                found = search.error_of(grammar)
            except TrialFailed as failure:
                if isinstance(failure, TrialUnavailable) and not error:
                    raise _too_busy(constraint) from failure
                reason = _plain(constraint, error or str(failure))
                raise _refusal(constraint, reason, place) from failure
            if found is None:
                return grammar
            error = found
            place, rest = self._fault(tried, error, search)
            if rest is None:
                break
            tried = Constraint("json_schema", rest, strict=False)
        raise _refusal(constraint, _plain(constraint, error), place)

    def _fault(self, constraint: Constraint, error: str, search: _Search) -> tuple[str, str | None]:
        """(the place of an error, the schema without it where that may be left out)."""
        if constraint.kind != "json_schema":
            return "", None
        schema, find, place = constraint.value, search.error_of, ""
        with contextlib.suppress(TrialFailed):
            place = schema_fault(schema, error, find, strict=constraint.strict)
            if not constraint.strict:
                return place, without_fault(schema, place, error, find)
        return place, None

    def _remember(self, constraint: Constraint, result: str | InvalidRequest) -> None:
        with self._lock:
            if constraint in self._known:
                return
            self._known[constraint] = result
            self._known_bytes += _weight(constraint)
            while self._known_bytes > CACHE_BYTES:
                oldest, _ = self._known.popitem(last=False)
                self._known_bytes -= _weight(oldest)


class _Search:
    """The trials of one constraint: the first has the time that any grammar has, all others share
    `_SEARCH_S`."""

    def __init__(self, trial: GrammarTrial) -> None:
        self._trial = trial
        self._deadline_s: float | None = None

    def error_of(self, grammar: str) -> str | None:
        """As `GrammarTrial.error_of`."""
        if self._deadline_s is None:
            error = self._trial.error_of(grammar)
            self._deadline_s = time.monotonic() + _SEARCH_S
            return error
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TrialFailed("it takes too long to find what is wrong with it")
        return self._trial.error_of(grammar, left_s)


def _closed(constraint: Constraint) -> Constraint:
    """A schema that is to be closed, closed."""
    if not constraint.closed or len(constraint.value) > MAX_GRAMMAR_CHARS:
        return constraint
    schema = json.loads(constraint.value)
    value = json.dumps(closed(schema)) if isinstance(schema, dict) else constraint.value
    return msgspec.structs.replace(constraint, value=value, closed=False)


def serialize(constraint: Constraint) -> str:
    """llguidance's serialized form, not tried yet. Raises InvalidRequest for what is too large or
    no grammar of its kind."""
    if len(constraint.value) > MAX_GRAMMAR_CHARS:
        raise _refusal(constraint, f"it has more than {MAX_GRAMMAR_CHARS} characters")
    match constraint.kind:
        case "json_schema":
            try:
                return schema_grammar(constraint.value, strict=constraint.strict)
            except SchemaFault as error:
                raise _refusal(constraint, str(error), error.place) from error
            except ValueError as error:
                raise _refusal(constraint, str(error)) from error
        case "regex":
            from llguidance import LLMatcher

            return LLMatcher.grammar_from_regex(constraint.value)
        case "lark":
            lark = _without_endless_rules(constraint, constraint.value)
            return json.dumps({"grammars": [{"lark_grammar": lark}]})
        case "gbnf":
            try:
                return gbnf_grammar(constraint.value)
            except GbnfError as error:
                raise _refusal(constraint, str(error)) from error
        case "llguidance":
            return _checked(constraint)


class _Grammars(msgspec.Struct):
    grammars: list[dict[str, Any]]


def _checked(constraint: Constraint) -> str:
    try:
        msgspec.json.decode(constraint.value, type=_Grammars)
    except msgspec.DecodeError as error:
        raise _refusal(constraint, f"it is no object with `grammars`: {error}") from error
    whole = json.loads(constraint.value)
    for grammar in whole["grammars"]:
        if isinstance(lark := grammar.get("lark_grammar"), str):
            grammar["lark_grammar"] = _without_endless_rules(constraint, lark)
        if not can_terminate(grammar.get("json_schema")):
            raise _refusal(constraint, "no value that fits its `json_schema` comes to an end")
        _refuse_inexact(constraint, grammar.get("json_schema"))
    return json.dumps(whole)


def _without_endless_rules(constraint: Constraint, lark: str) -> str:
    for schema in inline_schemas(lark):
        _refuse_inexact(constraint, schema)
    try:
        return without_endless_rules(lark)
    except EndlessRule as error:
        raise _refusal(constraint, str(error)) from error


def _refuse_inexact(constraint: Constraint, schema: Any) -> None:
    lost = inexact_number_of(schema)
    if lost is not None:
        place, keyword, number = lost
        reason = f"`{keyword}` cannot be kept to the last digit of {number}"
        raise _refusal(constraint, reason, place)


def _plain(constraint: Constraint, error: str) -> str:
    """What llguidance says of what the client wrote: without the grammar that a regular expression
    was made part of, without excerpts, and without words of its own."""
    error = error.replace(_SHORTENED, "").strip()
    if error == _UNSATISFIABLE:
        return "it allows no answer at all"
    position = _POSITION.match(error) if constraint.kind == "lark" else None
    where = f"line {position['line']}, column {position['column']}: " if position else ""
    of_regex = _REGEX_ERROR.search(error)
    if of_regex is None:
        return where + _EXCERPT.sub("", _POSITION.sub("", error))
    shown = of_regex["shown"].splitlines()
    character = shown[-1].find("^") - _SHOWN_INDENT + 1
    at = f" at character {character}" if len(shown) == 2 and character > 0 else ""
    return where + of_regex["reason"] + at


def _refusal(constraint: Constraint, reason: str, place: str = "") -> InvalidRequest:
    at = f" at {place}" if place else ""
    reason = " ".join(reason.split())[:_MAX_REASON_CHARS]
    message = f"{_NAMES[constraint.kind]} cannot be used{at}: {reason}"
    return InvalidRequest(message, field=_field(constraint))


def _too_busy(constraint: Constraint) -> Unavailable:
    message = f"{_NAMES[constraint.kind]} could not be compiled in time; try again"
    return Unavailable(message, field=_field(constraint), retry_after_s=1)


def _field(constraint: Constraint) -> str:
    return "response_format" if constraint.kind == "json_schema" else "grammar"


def _again(error: InvalidRequest) -> InvalidRequest:
    """The same, without the frames that one which was raised holds on to."""
    return InvalidRequest(error.message, field=error.field)


def _weight(constraint: Constraint) -> int:
    return 1024 + 3 * len(constraint.value)
