"""Serialized sessions: messages in the form of OpenAI's chat API, files with their bodies.

What is exported can be imported again; nothing of a message is lost but the order of reasoning and
text within one message: reasoning comes first.
"""

from penstock.api.codecs.sessions.decode import ImportedFile, SerializedSession, decode_session
from penstock.api.codecs.sessions.encode import encode_message

__all__ = ["ImportedFile", "SerializedSession", "decode_session", "encode_message"]
