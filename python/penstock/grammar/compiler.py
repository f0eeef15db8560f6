"""Compiles a client's constraint to the grammar that the engine receives, or raises an error that
locates the fault.

All kinds of constraint become a grammar in llguidance's serialized format. A child process with
limits of time, memory and stack compiles each grammar first, as a trial. Results are cached by the
constraint's content.
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
from penstock.grammar.gbnf import gbnf_grammar
from penstock.grammar.gbnf_parser import GbnfError
from penstock.grammar.json_schema.closed_objects import without_extra_keys
from penstock.grammar.json_schema.number_precision import inexact_number_of
from penstock.grammar.json_schema.schema_grammar import (
    SchemaFault,
    schema_fault,
    schema_grammar,
    without_fault,
)
from penstock.grammar.json_schema.termination import can_terminate
from penstock.grammar.lark_parser import inline_schemas
from penstock.grammar.lark_termination import EndlessRule, without_endless_rules
from penstock.grammar.trial import GrammarTrial, TrialFailed, TrialUnavailable
from penstock.grammar.vocabulary import Vocabulary

MAX_GRAMMAR_CHARS: Final = 256 * 1024
CACHE_BYTES: Final = 16 * 1024 * 1024
_MAX_REASON_CHARS: Final = 500
_MAX_DROPPED: Final = 32
"""Maximum number of keywords that are removed from one schema. Each removal costs several
trials."""
_SEARCH_S: Final = 4.0
"""Time limit for locating errors in a schema and removing keywords that cannot be enforced."""

_REGEX_ERROR = re.compile(r"(?s)regex parse error:\n(?P<shown>.*)\nerror: (?P<reason>[^\n]+)")
_EXCERPT = re.compile(r"(?s)\n +\d+ \| .*")
_POSITION = re.compile(r"^(?:at )?(?P<line>\d+)\((?P<column>\d+)\): ")
_SHOWN_INDENT = 4
_UNSATISFIABLE = "NoExtensionBias"
"""llguidance's message for a start state in which no token is allowed."""
_SHORTENED = "<non-verbose/>"
_NAMES: Final = {
    "json_schema": "the JSON schema",
    "regex": "the regular expression",
    "lark": "the Lark grammar",
    "gbnf": "the GBNF grammar",
    "llguidance": "the grammar",
}


class GrammarCompiler:
    """Compiles the constraints of one model's requests. Thread-safe.

    `compile` blocks during the trial of a grammar: at most some seconds, and on the first call also
    until the tokenizer is built.
    """

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        self._trial = GrammarTrial(vocabulary, vocab_size)
        self._known: OrderedDict[Constraint, str | InvalidRequest] = OrderedDict()
        self._known_bytes = 0
        self._lock = threading.Lock()

    def cached(self, constraint: Constraint) -> str | None:
        """Return the grammar of a constraint that was compiled before, or None. Does not block.

        Raises InvalidRequest if the constraint was refused before.
        """
        with self._lock:
            found = self._known.get(constraint)
            if found is not None:
                self._known.move_to_end(constraint)
        if isinstance(found, InvalidRequest):
            raise _without_traceback(found)
        return found

    def compile(self, constraint: Constraint) -> str:
        """Return the serialized grammar of a constraint.

        Raises InvalidRequest that names the request field and, for a JSON schema, the JSON pointer
        to the fault; Unavailable if the machine is too busy to try the grammar.
        """
        found = self.cached(constraint)
        if found is not None:
            return found
        try:
            grammar = self._compile_and_try(constraint)
        except InvalidRequest as error:
            self._remember(constraint, _without_traceback(error))
            raise
        self._remember(constraint, grammar)
        return grammar

    def close(self) -> None:
        """Stop the child processes. May be called again."""
        self._trial.close()

    def _compile_and_try(self, constraint: Constraint) -> str:
        """Return a constraint's grammar after a successful trial. Keywords that cannot be enforced
        are removed from a schema that is not strict."""
        tried, place, error = _with_closed_objects(constraint), "", ""
        search = _Search(self._trial)
        for _ in range(_MAX_DROPPED):
            grammar = serialize(tried)
            try:
                found = search.error_of(grammar)
            except TrialFailed as failure:
                if isinstance(failure, TrialUnavailable) and not error:
                    raise _too_busy(constraint) from failure
                reason = _client_message(constraint, error or str(failure))
                raise _refusal(constraint, reason, place) from failure
            if found is None:
                return grammar
            error = found
            place, rest = self._find_fault(tried, error, search)
            if rest is None:
                break
            tried = Constraint("json_schema", rest, strict=False)
        raise _refusal(constraint, _client_message(constraint, error), place)

    def _find_fault(
        self, constraint: Constraint, error: str, search: _Search
    ) -> tuple[str, str | None]:
        """Locate the fault in a JSON schema that causes `error`.

        Returns (JSON pointer to the faulty part, schema without the faulty keyword). The pointer is
        "" if the fault is not found. The schema is None if the keyword must not be removed, as in a
        strict schema, or if no single keyword is the cause.
        """
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
            self._known_bytes += _size_bytes(constraint)
            while self._known_bytes > CACHE_BYTES:
                oldest, _ = self._known.popitem(last=False)
                self._known_bytes -= _size_bytes(oldest)


class _Search:
    """Runs the trials of one constraint. The first trial has the usual time limit; all later trials
    share `_SEARCH_S`."""

    def __init__(self, trial: GrammarTrial) -> None:
        self._trial = trial
        self._deadline_s: float | None = None

    def error_of(self, grammar: str) -> str | None:
        """Return the error of a grammar, or None if it is valid. Raises TrialFailed."""
        if self._deadline_s is None:
            error = self._trial.error_of(grammar)
            self._deadline_s = time.monotonic() + _SEARCH_S
            return error
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TrialFailed("it takes too long to find what is wrong with it")
        return self._trial.error_of(grammar, left_s)


def _with_closed_objects(constraint: Constraint) -> Constraint:
    """Apply `Constraint.closed`: forbid keys that the schema does not list."""
    if not constraint.closed or len(constraint.value) > MAX_GRAMMAR_CHARS:
        return constraint
    schema = json.loads(constraint.value)
    value = json.dumps(without_extra_keys(schema)) if isinstance(schema, dict) else constraint.value
    return msgspec.structs.replace(constraint, value=value, closed=False)


def serialize(constraint: Constraint) -> str:
    """Return the grammar of a constraint in llguidance's serialized format, without a trial.

    Raises InvalidRequest if the constraint is too large or malformed.
    """
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
        raise _refusal(constraint, f"it must be an object with `grammars`: {error}") from error
    whole = json.loads(constraint.value)
    for grammar in whole["grammars"]:
        if isinstance(lark := grammar.get("lark_grammar"), str):
            grammar["lark_grammar"] = _without_endless_rules(constraint, lark)
        if not can_terminate(grammar.get("json_schema")):
            raise _refusal(constraint, "no finite value matches its `json_schema`")
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
    inexact = inexact_number_of(schema)
    if inexact is not None:
        place, reason = inexact
        raise _refusal(constraint, reason, place)


def _client_message(constraint: Constraint, error: str) -> str:
    """Rewrite llguidance's error message for the client: remove excerpts and internal words, and
    give positions in the client's text."""
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


def _without_traceback(error: InvalidRequest) -> InvalidRequest:
    """Return a copy of an error without its traceback, which would keep stack frames alive."""
    return InvalidRequest(error.message, field=error.field)


def _size_bytes(constraint: Constraint) -> int:
    return 1024 + 3 * len(constraint.value)
