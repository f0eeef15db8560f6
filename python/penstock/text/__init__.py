"""Converts between text and tokens: tokenizers, chat templates, detokenizer, stop strings.

This package depends on the dialog types (`dialog`) and on a model's tokenizer files
(`models.tokenizer.tokenizer_data`), not on engines, weights or wire formats.
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
