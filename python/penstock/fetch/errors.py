"""Errors of a fetch. They reveal neither resolved addresses nor the messages of connection errors,
so that clients cannot explore the server's network."""

from __future__ import annotations

from penstock.base.errors import InvalidRequest


class UrlForbidden(InvalidRequest):
    """The server does not fetch a URL with this scheme or this address."""

    code = "url_not_allowed"


class UrlUnreachable(InvalidRequest):
    """The fetch failed: no address for the name, no connection, an unusable response, or a
    timeout."""

    code = "url_unreachable"


class UrlTooLarge(InvalidRequest):
    """The content of the URL exceeds the size limit."""

    code = "url_too_large"
