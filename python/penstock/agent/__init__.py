"""The turn loop: the one way in which every request is answered."""

from penstock.agent.embedding_loop import EmbeddingLoop
from penstock.agent.load import Runner, load_loop, load_runner, loop_over
from penstock.agent.loop import AgentLoop, FileAttachments

__all__ = [
    "AgentLoop",
    "EmbeddingLoop",
    "FileAttachments",
    "Runner",
    "load_loop",
    "load_runner",
    "loop_over",
]
