"""The turn loop: the one way in which every request is answered."""

from penstock.agent.embedding_loop import EmbeddingLoop
from penstock.agent.load import Loop, Runner, load_loop, load_runner, loop_over
from penstock.agent.loop import AgentLoop, FileAttachments
from penstock.agent.rerank_loop import RerankLoop

__all__ = [
    "AgentLoop",
    "EmbeddingLoop",
    "FileAttachments",
    "Loop",
    "RerankLoop",
    "Runner",
    "load_loop",
    "load_runner",
    "loop_over",
]
