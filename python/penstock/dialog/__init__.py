"""The vocabulary: what a request is and what happens while it is answered.

Four wire dialects are codecs over these types. Imports `base` only; knows no dialect, no
tokenizer, no engine. All types are frozen and serialise with msgspec.
"""

from penstock.dialog.events import (
    ArgumentsDelta,
    Event,
    PartEnded,
    PartStarted,
    ReasoningDelta,
    RunEnded,
    RunFailed,
    RunStarted,
    TextDelta,
    TokenLogprob,
    TurnEnded,
    Usage,
)
from penstock.dialog.message import Message, Part, Reasoning, Text, ToolCall, ToolResult
from penstock.dialog.request import (
    Constraint,
    FunctionTool,
    GenerateRequest,
    Limits,
    ReasoningPolicy,
    Sampling,
    ToolPolicy,
)

__all__ = [
    "ArgumentsDelta",
    "Constraint",
    "Event",
    "FunctionTool",
    "GenerateRequest",
    "Limits",
    "Message",
    "Part",
    "PartEnded",
    "PartStarted",
    "Reasoning",
    "ReasoningDelta",
    "ReasoningPolicy",
    "RunEnded",
    "RunFailed",
    "RunStarted",
    "Sampling",
    "Text",
    "TextDelta",
    "TokenLogprob",
    "ToolCall",
    "ToolPolicy",
    "ToolResult",
    "TurnEnded",
    "Usage",
]
