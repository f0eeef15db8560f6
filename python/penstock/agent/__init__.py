"""Answers requests with a loaded model: sessions, attached files, and the runner per model kind."""

from penstock.agent.load import Runners, SharedState, load_runners
from penstock.agent.loop import AgentLoop, FileAttachments

__all__ = ["AgentLoop", "FileAttachments", "Runners", "SharedState", "load_runners"]
