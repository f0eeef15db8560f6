"""Registers the path convertor `any`: `{id:any}` matches an id that contains any characters."""

from __future__ import annotations

from starlette.convertors import Convertor, register_url_convertor


class AnyText(Convertor[str]):
    """Matches one or more characters, including slashes and line breaks. Use only at the end of a
    path."""

    regex = "(?s:.+)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("any", AnyText())
