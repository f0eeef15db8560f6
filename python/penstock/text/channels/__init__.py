"""Channels: what of a model's words is text, what is reasoning, what calls a function.

`ChannelParser` tells them apart while they are written; `families` describes what the families of
models write, `detect` finds out which one a model belongs to.
"""

from penstock.text.channels.detect import detect_channels
from penstock.text.channels.families import SYNTAXES
from penstock.text.channels.parser import ChannelParser
from penstock.text.channels.pieces import (
    ArgumentsPiece,
    CallEnd,
    CallStart,
    Piece,
    ReasoningPiece,
    TextPiece,
)
from penstock.text.channels.syntax import Channels, Harmony, ReasoningSyntax, ToolSyntax

__all__ = [
    "SYNTAXES",
    "ArgumentsPiece",
    "CallEnd",
    "CallStart",
    "ChannelParser",
    "Channels",
    "Harmony",
    "Piece",
    "ReasoningPiece",
    "ReasoningSyntax",
    "TextPiece",
    "ToolSyntax",
    "detect_channels",
]
