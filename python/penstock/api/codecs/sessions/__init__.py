"""Serialized sessions: messages in the form of OpenAI's chat API, files with their bodies.

An export can be imported again. A message loses only the order of its reasoning and text:
reasoning comes first.
"""

from penstock.api.codecs.sessions.decode import ImportedFile, SerializedSession, decode_session
from penstock.api.codecs.sessions.encode import encode_message

__all__ = ["ImportedFile", "SerializedSession", "decode_session", "encode_message"]
