"""Text completions (legacy): `POST /v1/completions`."""

from penstock.api.codecs.completions.decode import decode
from penstock.api.codecs.completions.encode import CompletionStream, encode
from penstock.api.codecs.dialect import AnswerIdentity, Decoded
from penstock.api.codecs.request_fields.openai_compat import NO_COMPAT, OpenAICompat
from penstock.dialog import GenerateRequest
from penstock.dialog.fold import Answer

__all__ = ["CompletionStream", "CompletionsDialect", "decode", "encode"]


class CompletionsDialect:
    """OpenAI's Completions dialect."""

    id_prefix = "cmpl-"

    def decode(self, body: bytes, compat: OpenAICompat = NO_COMPAT) -> Decoded:
        return decode(body, compat)

    def encoder(self, identity: AnswerIdentity, request: GenerateRequest) -> CompletionStream:
        return CompletionStream(identity, request)

    def encode(self, identity: AnswerIdentity, request: GenerateRequest, answer: Answer) -> bytes:
        return encode(identity, request, answer)
