"""The convertor for parameters of paths that may hold any character; routes name it `{id:any}`."""

from __future__ import annotations

from starlette.convertors import Convertor, register_url_convertor


class AnyText(Convertor[str]):
    """One character or more, slashes and line ends too. Only for the last part of a path."""

    regex = "(?s:.+)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("any", AnyText())
