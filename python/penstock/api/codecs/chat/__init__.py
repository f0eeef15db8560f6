"""Chat completions: `POST /v1/chat/completions`."""

from penstock.api.codecs.chat.decode import decode
from penstock.api.codecs.chat.encode import TOOL_CALLS, ChatAnswers, ChatStream, encode
from penstock.api.codecs.dialect import Decoded
from penstock.api.codecs.request_fields.openai_compat import NO_COMPAT, OpenAICompat

__all__ = ["ChatDialect", "ChatStream", "decode", "encode"]


class ChatDialect(ChatAnswers):
    """OpenAI's Chat Completions dialect."""

    id_prefix = "chatcmpl-"

    def __init__(self) -> None:
        super().__init__(TOOL_CALLS)

    def decode(self, body: bytes, compat: OpenAICompat = NO_COMPAT) -> Decoded:
        return decode(body, compat)
