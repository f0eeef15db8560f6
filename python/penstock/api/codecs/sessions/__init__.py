"""Exported and imported sessions: messages in the chat API's form, and files with their bodies.

An export can be imported again. Only the order of reasoning and text within a message is lost:
reasoning comes first.
"""

from penstock.api.codecs.sessions.decode import ImportedFile, SerializedSession, decode_session
from penstock.api.codecs.sessions.encode import encode_message

__all__ = ["ImportedFile", "SerializedSession", "decode_session", "encode_message"]
