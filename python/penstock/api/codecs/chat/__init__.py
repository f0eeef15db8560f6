"""Chat completions: `POST /v1/chat/completions`."""

from penstock.api.codecs.chat.decode import decode
from penstock.api.codecs.chat.encode import TOOL_CALLS, ChatAnswers, ChatStream, encode
from penstock.api.codecs.dialect import Decoded
from penstock.api.codecs.request_fields.openai_compat import AS_SPECIFIED, Accepted

__all__ = ["ChatDialect", "ChatStream", "decode", "encode"]


class ChatDialect(ChatAnswers):
    """OpenAI's chat API, to the letter."""

    id_prefix = "chatcmpl-"

    def __init__(self) -> None:
        super().__init__(TOOL_CALLS)

    def decode(self, body: bytes, accepted: Accepted = AS_SPECIFIED) -> Decoded:
        return decode(body, accepted)
