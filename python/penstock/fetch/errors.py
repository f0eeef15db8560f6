"""How a fetch can fail. None of these tells what a name resolves to, or what a connection said: a
client must not learn from them what there is behind this machine."""

from __future__ import annotations

from penstock.base.errors import InvalidRequest


class UrlForbidden(InvalidRequest):
    """Scheme or address is one that nothing is fetched from."""

    code = "url_not_allowed"


class UrlUnreachable(InvalidRequest):
    """No name, no connection, no end in time, or no answer with content."""

    code = "url_unreachable"


class UrlTooLarge(InvalidRequest):
    code = "url_too_large"
