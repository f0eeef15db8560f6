"""Chat completions: `POST /v1/chat/completions`."""

from penstock.api.codecs.chat.decode import decode
from penstock.api.codecs.chat.encode import ChatStream, encode
from penstock.api.codecs.dialect import AnswerIdentity, Decoded
from penstock.dialog import GenerateRequest
from penstock.dialog.fold import Answer

__all__ = ["ChatDialect", "ChatStream", "decode", "encode"]


class ChatDialect:
    """The reference chat API, to the letter."""

    id_prefix = "chatcmpl-"

    def decode(self, body: bytes) -> Decoded:
        return decode(body)

    def encoder(self, identity: AnswerIdentity, request: GenerateRequest) -> ChatStream:
        return ChatStream(identity, request)

    def encode(self, identity: AnswerIdentity, request: GenerateRequest, answer: Answer) -> bytes:
        return encode(identity, request, answer)
