"""Between text and tokens: tokenizer, chat templates, detokenizer, stop strings.

Knows the vocabulary (`dialog`) and what a model brings along (`models.tokenizer_data`); knows no
engine, no wire format, and loads no weight.
"""

from penstock.text.detokenize import IncrementalDetokenizer
from penstock.text.stops import StopStrings
from penstock.text.templates import ChatTemplate
from penstock.text.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "ChatTemplate",
    "IncrementalDetokenizer",
    "StopStrings",
    "Tokenizer",
    "load_tokenizer",
]
