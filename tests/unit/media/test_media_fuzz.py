"""Mutated files are prepared or refused, and the pool works afterwards."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.base.errors import InvalidRequest
from penstock.media.formats import format_for
from tests.support.media_files import (
    AUDIO_FORMATS,
    IMAGE_FORMATS,
    VIDEO_FORMATS,
    gray_frames,
    image_file,
    picture,
    sound_file,
    tone,
    video_file,
)

KINDS = {
    **dict.fromkeys(AUDIO_FORMATS, "audio"),
    **dict.fromkeys(IMAGE_FORMATS, "image"),
    **dict.fromkeys(VIDEO_FORMATS, "video"),
}
INTERESTING = (b"\0" * 4, b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\x01")
PNG = image_file(picture(), "PNG")


@lru_cache
def valid_file(name):
    if KINDS[name] == "image":
        return image_file(picture(), name)
    if KINDS[name] == "audio":
        return sound_file(tone(48_000, 0.1), 48_000, name)
    return video_file(gray_frames(6), name, key_every=3)


def prepare(pool, kind, data):
    """Prepare an item or have it refused, in either case as the interface promises."""
    try:
        prepared = pool.prepare(kind, data)
    except InvalidRequest as error:
        assert error.field == "input"
        assert error.message.isprintable()
        return
    assert prepared.kind == kind
    assert np.isfinite(prepared.array()).all()


@pytest.mark.parametrize("name", KINDS)
def test_random_mutations(pool, name):
    data, random = valid_file(name), np.random.default_rng(len(name))
    for _ in range(30):
        mutated = bytearray(data)
        for at in random.integers(4, len(data), random.integers(1, 12)):
            mutated[at] = random.integers(256)
        prepare(pool, KINDS[name], bytes(mutated))
    np.testing.assert_array_equal(pool.prepare("image", PNG).array(), picture())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_structured_mutations(pool, data):
    name = data.draw(st.sampled_from(list(KINDS)))
    valid = valid_file(name)
    mutated = bytearray(valid)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(len(mutated) - 1, 300)))
        match data.draw(st.sampled_from(["overwrite", "insert", "remove", "repeat"])):
            case "overwrite":
                mutated[at : at + 4] = data.draw(st.sampled_from(INTERESTING))
            case "insert":
                mutated[at:at] = data.draw(st.binary(min_size=1, max_size=16))
            case "remove":
                del mutated[at : at + data.draw(st.integers(1, 32))]
            case "repeat":
                mutated[at:at] = mutated[at : at + 64]
        mutated = mutated or bytearray(b"x")
    prepare(pool, KINDS[name], bytes(mutated))
    np.testing.assert_array_equal(pool.prepare("image", PNG).array(), picture())


@settings(max_examples=40, deadline=None)
@given(kind=st.sampled_from(["image", "audio", "video"]), data=st.binary(min_size=1, max_size=80))
def test_any_bytes_are_refused_or_have_a_format(kind, data):
    try:
        format_for(kind, data)
    except InvalidRequest as error:
        assert error.code in (f"invalid_{kind}", "unsupported_media_format")
