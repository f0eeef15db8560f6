"""Converts between text and tokens: tokenizers, chat templates, detokenizer, stop strings.

This package knows the dialog types (`dialog`) and a model's tokenizer files
(`models.tokenizer_data`). It knows no engine and no wire format, and loads no weights.
"""

from penstock.text.chat_templates.chat_template import ChatTemplate
from penstock.text.detokenizer import IncrementalDetokenizer
from penstock.text.stops import StopStrings
from penstock.text.tokenizers.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "ChatTemplate",
    "IncrementalDetokenizer",
    "StopStrings",
    "Tokenizer",
    "load_tokenizer",
]
