"""The exceptions for errors that a client or an operator can cause.

    ServiceError                an error response: status, code, message, field
      InvalidRequest            400: a field is missing, mistyped, out of range or unsupported
      ContextLengthExceeded     400: the prompt does not fit the context
      NotFound                  404: model, response, file, ...
      Conflict                  409: the request conflicts with the current state
      PayloadTooLarge           413
      Overloaded                429: the queue is full; carries Retry-After
      EngineFault               500: a bug in Penstock; the engine failed this request
      Unavailable               503: the engine is starting or restarting, metrics are off
    ModelError                  a model or its files cannot be loaded (start-up; names file and key)

Broken invariants of Penstock itself are `assert` statements, never these exceptions.
"""

from __future__ import annotations

from typing import Final

MAX_MODEL_ERROR_CHARS: Final = 2000


class ServiceError(Exception):
    """An error that becomes an HTTP response.

    `message`: a text for the client, without stack traces, paths and output of other programs.
    `field`: the request field that caused the error.
    `code`: a machine-readable code; None: the code of the class.
    `retry_after_s`: the value of the header Retry-After, if a retry may succeed.
    """

    status = 500
    kind = "server_error"
    code = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.code = code or type(self).code
        self.retry_after_s = retry_after_s


class InvalidRequest(ServiceError):
    status = 400
    kind = "invalid_request_error"
    code = "invalid_value"


class ContextLengthExceeded(InvalidRequest):
    code = "context_length_exceeded"


class NotFound(ServiceError):
    status = 404
    kind = "invalid_request_error"
    code = "not_found"


class Conflict(ServiceError):
    status = 409
    kind = "invalid_request_error"
    code = "conflict"


class PayloadTooLarge(ServiceError):
    status = 413
    kind = "invalid_request_error"
    code = "payload_too_large"


class Overloaded(ServiceError):
    status = 429
    kind = "rate_limit_error"
    code = "queue_full"


class EngineFault(ServiceError):
    status = 500
    code = "engine_fault"


class Unavailable(ServiceError):
    status = 503
    code = "unavailable"


class ModelError(Exception):
    """A model cannot be loaded. The message names the file and the key or tensor at fault. It
    quotes model files, which are untrusted, so its control characters are escaped."""

    def __init__(self, message: str) -> None:
        super().__init__(_printable(message))


def _printable(text: str) -> str:
    cut = text[:MAX_MODEL_ERROR_CHARS]
    if not cut.isprintable():
        cut = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)
    return cut if len(text) <= MAX_MODEL_ERROR_CHARS else f"{cut}..."
