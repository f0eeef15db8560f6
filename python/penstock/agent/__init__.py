"""Answers requests with a loaded model, including sessions and attached files."""

from penstock.agent.load import Runners, SharedState, load_runners
from penstock.agent.loop import AgentLoop, FileAttachments

__all__ = ["AgentLoop", "FileAttachments", "Runners", "SharedState", "load_runners"]
