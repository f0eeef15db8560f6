"""The codecs of one body each read any JSON and any bytes, or refuse them by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.codecs.adapters import decode_load, decode_unload
from penstock.api.codecs.approvals import decode_decision
from penstock.api.codecs.embeddings import decode
from penstock.api.codecs.reranking import decode as decode_rerank
from penstock.base.errors import ServiceError
from penstock.dialog import AdapterRevision

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["approve", "deny", "base64", "float"])
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
CODECS: dict[str, tuple[Callable[[bytes], Any], tuple[str, ...]]] = {
    "reranking": (
        decode_rerank,
        (
            "query",
            "documents",
            "model",
            "top_n",
            "return_documents",
            "truncate_sequence",
            "adapter",
        ),
    ),
    "embeddings": (
        decode,
        (
            "input",
            "model",
            "encoding_format",
            "truncate_sequence",
            "adapter",
            "dimensions",
            "user",
        ),
    ),
    "load": (
        lambda body: decode_load(body, b"application/json"),
        ("lora_name", "lora_path", "load_inplace", "replace", "expected_generation", "model"),
    ),
    "unload": (
        lambda body: decode_unload(body, b"application/json"),
        ("lora_name", "expected_generation", "model"),
    ),
    "approval": (decode_decision, ("decision", "message", "remember_for_session")),
}


def read(codec: str, body: bytes) -> Any:
    """What the codec makes of a body; None where it refuses: a client's mistake, told in words."""
    try:
        return CODECS[codec][0](body)
    except ServiceError as error:
        assert 400 <= error.status < 500
        assert error.message and error.code
        return None


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.data())
def test_any_json_is_read_or_refused(codec: str, data: st.DataObject) -> None:
    names = st.sampled_from(CODECS[codec][1])
    fields = data.draw(st.dictionaries(names | st.text(max_size=3), JSON, max_size=7))
    read(codec, json.dumps(fields).encode())


@pytest.mark.parametrize("codec", CODECS)
@given(body=st.binary(max_size=60) | JSON.map(lambda value: json.dumps([value]).encode()))
def test_any_other_bytes_are_refused(codec: str, body: bytes) -> None:
    assert read(codec, body) is None


ENTRY = st.text(min_size=1, max_size=20) | st.lists(st.integers(0, 2**31 - 1), min_size=1)


@given(st.lists(ENTRY, min_size=1, max_size=5), st.booleans(), st.text("ab", min_size=1))
def test_inputs_are_what_was_sent(inputs: list[Any], truncate: bool, alias: str) -> None:
    body = {"input": inputs, "truncate_sequence": truncate, "adapter": alias}
    request = read("embeddings", json.dumps(body).encode()).request
    assert [given if isinstance(given, str) else list(given) for given in request.inputs] == inputs
    assert (request.truncate, request.adapter) == (truncate, alias)
    assert not isinstance(request.adapter, AdapterRevision)
