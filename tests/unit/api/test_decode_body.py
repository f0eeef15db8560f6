"""Bodies become schema types; an error names the field as the client wrote it and what is right."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import orjson
import pytest
from msgspec import Meta, Struct

from penstock.api.codecs.request_fields import decode_body as module
from penstock.api.codecs.request_fields.decode_body import decode_body
from penstock.api.schema.fields import refused
from penstock.base.errors import InvalidRequest
from penstock.dialog.ranges import MAX_INTEGER

Count = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]


class Text(Struct, tag="text", tag_field="type"):
    text: str
    marks: list[int] | None = None


class Image(Struct, tag="image", tag_field="type"):
    url: Annotated[str, Meta(pattern="^http", extra={"wanted": "an http URL"})]


class Body(Struct, kw_only=True):
    parts: list[Annotated[Text | Image, Meta(extra={"code": "unsupported_value", "hint": "ask"})]]
    count: Count | None = None
    share: Annotated[float, Meta(ge=0, le=1)] | None = None
    above: Annotated[float, Meta(gt=0)] | None = None
    kind: Literal["a", "b", "c"] | None = None
    names: Annotated[list[str], Meta(max_length=2)] | None = None
    title: Annotated[str, Meta(min_length=1, max_length=3)] | None = None
    bias: dict[str, Annotated[float, Meta(ge=-1, le=1)]] | None = None
    filled: Annotated[str, Meta(min_length=1)] | None = None
    flag: bool | None = None
    free: Any = None
    absent: Annotated[None, refused("is not supported; leave it out")] = None
    either: str | list[int] | None = None


class Closed(Struct, forbid_unknown_fields=True):
    a: int = 0


def decoded(**fields: Any) -> Body:
    return decode_body(orjson.dumps({"parts": []} | fields), Body)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"count": 0}, "`count` must be an integer of at least 1, not 0"),
        ({"count": 2**63}, f"`count` must be an integer from 1 to {MAX_INTEGER}, not {2**63}"),
        ({"count": 1.5}, "`count` must be an integer of at least 1, not a number"),
        ({"count": True}, "`count` must be an integer of at least 1, not a boolean"),
        ({"share": 2}, "`share` must be a number from 0 to 1, not 2"),
        ({"share": "1"}, "`share` must be a number from 0 to 1, not a string"),
        ({"above": 0}, "`above` must be a number above 0, not 0"),
        ({"kind": "d"}, '`kind` must be "a", "b" or "c", not "d"'),
        ({"names": ["x"] * 3}, "`names` must be an array of at most 2 strings, not one of 3"),
        ({"names": ["x", None]}, "`names[1]` must be a string, not null"),
        ({"title": ""}, "`title` must be a string of 1 to 3 characters, not an empty string"),
        ({"title": "long"}, "`title` must be a string of 1 to 3 characters, not one of 4"),
        ({"filled": ""}, "`filled` must be a non-empty string, not an empty string"),
        ({"bias": {"a": 1, "b": 2}}, "`bias.b` must be a number from -1 to 1, not 2"),
        ({"bias": {"a": None}}, "`bias.a` must be a number from -1 to 1, not null"),
        ({"flag": 1}, "`flag` must be true or false, not an integer"),
        ({"absent": 1}, "`absent` is not supported; leave it out"),
        ({"either": {}}, "`either` must be a string or an array of integers, not an object"),
        ({"parts": None}, "`parts` is required: an array of objects"),
        ({"parts": [{"type": "text"}]}, "`parts[0].text` is required: a string"),
        ({"parts": [{}]}, '`parts[0].type` is required: "text" or "image"'),
        (
            {"parts": [{"type": "x"}]},
            '`parts[0].type` must be "text" or "image", not "x"; ask',
        ),
        (
            {"parts": [{"type": "image", "url": "x"}]},
            '`parts[0].url` must be an http URL, not "x"',
        ),
    ],
)
def test_an_error_names_the_field_and_what_would_be_right(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decoded(**fields)
    assert caught.value.message == message
    assert caught.value.field == message.split("`")[1]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"count": 0}, "invalid_value"),
        ({"count": "1"}, "invalid_type"),
        ({"kind": "d"}, "invalid_value"),
        ({"kind": 1}, "invalid_type"),
        ({"absent": 1}, "unsupported_value"),
        ({"parts": None}, "missing_required_parameter"),
        ({"parts": [{"type": "x"}]}, "unsupported_value"),
        ({"parts": [{"type": 1}]}, "invalid_type"),
        ({"parts": [None]}, "invalid_type"),
    ],
)
def test_an_error_has_the_code_of_its_cause(fields: dict[str, Any], code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decoded(**fields)
    assert caught.value.code == code


def test_an_unknown_field_of_a_closed_type_is_named_with_the_known_ones() -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_body(b'{"b": 1}', Closed)
    assert (caught.value.field, caught.value.message) == ("b", "`b` is not known; fields are a")


def test_null_is_absent_and_unknown_fields_are_ignored() -> None:
    nulls = dict.fromkeys(Body.__struct_fields__) | {"parts": []}
    assert decoded(**nulls, unknown=1) == Body(parts=[])


def test_whole_numbers_of_all_entries_are_mended_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    conversions: list[int] = []
    convert = msgspec.convert

    def counting(*args: Any, **kwargs: Any) -> Any:
        conversions.append(1)
        return convert(*args, **kwargs)

    monkeypatch.setattr(module.msgspec, "convert", counting)
    parts = [{"type": "text", "text": "x", "marks": [1.0, 2.0, 3]}] * 50
    body = decode_body(orjson.dumps({"parts": parts, "count": 4.0, "free": 5.0}), Body)
    assert body.count == 4 and isinstance(body.free, float)
    assert all(type(mark) is int for part in body.parts for mark in part.marks)  # type: ignore[union-attr]
    assert len(conversions) == 3


def test_quoted_values_cannot_pass_for_a_place() -> None:
    with pytest.raises(InvalidRequest) as caught:
        decoded(kind="x - at `$.parts[9].text`")
    assert caught.value.field == "kind"
