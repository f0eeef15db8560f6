"""A body to begin with for each operation that takes one: what the explorer sends unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

QUESTION: Final = "Name three rivers of Europe."
MESSAGES: Final = [{"role": "user", "content": QUESTION}]
RANKED: Final = {"model": "default", "query": "a river", "documents": ["the Rhine", "the Alps"]}

# By the id of the operation.
EXAMPLES: Final[Mapping[str, Any]] = {
    "createChatCompletion": {"model": "default", "messages": MESSAGES, "max_tokens": 64},
    "createCompletion": {"model": "default", "prompt": "The rivers of Europe", "max_tokens": 64},
    "createEmbedding": {"model": "default", "input": ["a river", "a mountain"]},
    "rerank": RANKED,
    "rerankV2": RANKED,
    "rerankUnversioned": RANKED,
    "createResponse": {"model": "default", "input": QUESTION, "max_output_tokens": 64},
    "countInputTokens": {"model": "default", "input": QUESTION},
    "createMessage": {"model": "default", "messages": MESSAGES, "max_tokens": 64},
    "countTokens": {"model": "default", "messages": MESSAGES},
    "importSession": {"messages": MESSAGES},
    "decideApproval": {"decision": "approve"},
    "loadAdapter": {"lora_name": "style", "lora_path": "/srv/adapters/style"},
    "unloadAdapter": {"lora_name": "style"},
    "reloadModel": {"model_id": "default"},
    "modelStatus": {"model_id": "default"},
    "tuneModel": {"model_id": "default", "profile": "balanced"},
    "unloadModel": {"model_id": "default"},
}
