"""The turn loop: the one way in which every request is answered."""

from penstock.agent.loop import AgentLoop, FileAttachments

__all__ = ["AgentLoop", "FileAttachments"]
