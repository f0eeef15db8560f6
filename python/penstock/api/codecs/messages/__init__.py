"""Anthropic's Messages: `POST /v1/messages` and `POST /v1/messages/count_tokens`."""

from penstock.api.codecs.dialect import AnswerIdentity, Decoded
from penstock.api.codecs.messages.decode import decode
from penstock.api.codecs.messages.encode import encode
from penstock.api.codecs.messages.stream import MessageStream
from penstock.api.codecs.request_fields.openai_compat import NO_COMPAT, OpenAICompat
from penstock.dialog import GenerateRequest
from penstock.dialog.fold import Answer

__all__ = ["MessageStream", "MessagesDialect", "decode", "encode"]


class MessagesDialect:
    """Anthropic's Messages dialect."""

    id_prefix = "msg_"

    def decode(self, body: bytes, compat: OpenAICompat = NO_COMPAT) -> Decoded:
        return decode(body, compat)

    def encoder(self, identity: AnswerIdentity, request: GenerateRequest) -> MessageStream:
        return MessageStream(identity, request)

    def encode(self, identity: AnswerIdentity, request: GenerateRequest, answer: Answer) -> bytes:
        return encode(identity, request, answer)
