"""Embedded use: runs a model in your own process, with the request types of the server.

from penstock import LLM

with LLM("smollm2-135m-instruct") as llm:
    answer = llm.chat([{"role": "user", "content": "Hello!"}])
    print(answer.choices[0].parts[0].text)
"""

from penstock.llm.embedded_model import EmbeddedModel
from penstock.llm.llm import LLM
from penstock.llm.requests import Options

__all__ = ["LLM", "EmbeddedModel", "Options"]
