"""Hypothesis strategies for the events of runs in which server tools ran."""

from __future__ import annotations

from typing import Literal

from hypothesis import strategies as st

from penstock.dialog import (
    CustomActivity,
    Event,
    FileProduced,
    PythonActivity,
    RunEnded,
    RunStarted,
    SearchActivity,
    ServerTool,
    ShellActivity,
    ToolActivity,
    ToolCompleted,
    TurnEnded,
)
from penstock.dialog.events import Finish
from tests.support.event_strategies import USAGE, WORDS, parts
from tests.support.server_tool_runs import (
    CALLS,
    FILES,
    MCP,
    PYTHON,
    SEARCH,
    SHELL,
    call_events,
    missing,
    produced,
)

STATUSES = st.sampled_from(["success", "error", "timeout", "denied"])


@st.composite
def calls(draw: st.DrawFn) -> tuple[ServerTool, ToolActivity, ToolActivity]:
    """Generate a tool, its input, and its input with results."""
    status = draw(STATUSES)
    word, other = draw(WORDS), draw(WORDS)
    commands = tuple(draw(st.lists(WORDS, max_size=2)))
    made: list[tuple[ServerTool, ToolActivity, ToolActivity]] = [
        *CALLS,
        (
            PYTHON,
            PythonActivity(code=word),
            PythonActivity(code=word, status=status, stdout=other, exception=word or None),
        ),
        (
            SHELL,
            ShellActivity(commands=commands),
            ShellActivity(
                commands=commands,
                status=status,
                stdout=word,
                stderr=other,
                exit_code=draw(st.one_of(st.none(), st.integers(0, 255))),
                timed_out=status == "timeout",
            ),
        ),
        (SEARCH, SearchActivity(query=word), SearchActivity(query=word, status=status)),
        (FILES, CustomActivity(arguments=word), CustomActivity(arguments=word, status=status)),
        (MCP, CustomActivity(arguments=word), CustomActivity(arguments=word, status=status)),
    ]
    return draw(st.sampled_from(made))


@st.composite
def rounds(draw: st.DrawFn, part: int, round: int, choice: int = 0) -> tuple[list[Event], int]:
    """Generate one round: parts of the model, then calls of server tools, which run in order or
    side by side. `part`: the first index. Returns (events, next index)."""
    events: list[Event] = []
    for _ in range(draw(st.integers(0, 2))):
        events += draw(parts(choice, part))
        part += 1
    started: list[Event] = []
    ended: list[list[Event]] = []
    for _ in range(draw(st.integers(0, 3))):
        files = tuple(
            produced(draw(WORDS), "cntr_1", number) for number in range(draw(st.integers(0, 2)))
        )
        start, *rest = call_events(part, round, *draw(calls()), files, choice=choice)
        part += 1
        started.append(start)
        ended.append(rest)
    if draw(st.booleans()):
        return [
            *events,
            *started,
            *(e for rest in draw(st.permutations(ended)) for e in rest),
        ], part
    in_order = [e for start, rest in zip(started, ended, strict=True) for e in (start, *rest)]
    return [*events, *in_order], part


@st.composite
def agent_event_streams(draw: st.DrawFn) -> list[Event]:
    """Generate a whole run with server tools, of one choice."""
    middle: list[Event] = []
    part = 0
    for round in range(draw(st.integers(0, 3))):
        events, part = draw(rounds(part, round))
        middle += events
    if draw(st.booleans()):
        middle.append(FileProduced(0, missing("b.csv", "cntr_1")))
    finishes: list[Finish] = ["stop", "length", "tool_calls", "rounds"]
    statuses: list[Literal["completed", "incomplete", "cancelled"]]
    statuses = ["completed", "incomplete", "cancelled"]
    finish, status = draw(st.sampled_from(finishes)), draw(st.sampled_from(statuses))
    usage = draw(USAGE)
    return [
        RunStarted("m", 7, 3, session="sess_1"),
        *middle,
        TurnEnded(0, finish, usage),
        RunEnded(status, usage),
    ]


def completed_calls(run: list[Event]) -> list[ToolCompleted]:
    return [event for event in run if isinstance(event, ToolCompleted)]
