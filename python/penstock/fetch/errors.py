"""Errors of a fetch. They reveal neither resolved addresses nor the text of connection errors, so
that clients cannot explore the server's network."""

from __future__ import annotations

from penstock.base.errors import InvalidRequest


class UrlForbidden(InvalidRequest):
    """The scheme or the address of the URL is not allowed."""

    code = "url_not_allowed"


class UrlUnreachable(InvalidRequest):
    """The name, the connection or the response failed, or the fetch timed out."""

    code = "url_unreachable"


class UrlTooLarge(InvalidRequest):
    """The content of the URL exceeds the size limit."""

    code = "url_too_large"
