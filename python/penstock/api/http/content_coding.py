"""Content codings that a client accepts (RFC 9110, section 12.5.3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def preferred_coding(
    headers: Iterable[tuple[bytes, bytes]], offered: Sequence[bytes]
) -> bytes | None:
    """Return the content coding with which to answer a request.

    `headers`: the headers of the request, names in lower case.
    `offered`: the codings that the server has, the best first.
    Returns the first one that the client accepts; None: the client accepts none of them, so the
    content is sent as it is.
    """
    accepted: dict[bytes, bool] = {}
    for name, value in headers:
        if name == b"accept-encoding":
            for item in value.lower().split(b","):
                coding, _, parameters = item.partition(b";")
                accepted[coding.strip()] = not _is_zero(parameters)
    others = accepted.get(b"*", False)
    return next((coding for coding in offered if accepted.get(coding, others)), None)


def _is_zero(parameters: bytes) -> bool:
    """Tell whether the weight of a coding is 0, which refuses it."""
    name, _, weight = parameters.partition(b"=")
    try:
        return name.strip() == b"q" and float(weight) == 0
    except ValueError:
        return False
