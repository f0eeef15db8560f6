"""Between text and tokens: tokenizer, chat templates, detokenizer, stop strings.

Knows the vocabulary (`dialog`) and what a model brings along (`models.tokenizer_data`); knows no
engine, no wire format, and loads no weight.
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
