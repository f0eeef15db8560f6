"""Detects files that end before the length that they declare.

The demuxers of FFmpeg return the beginning of such a file without an error.
"""

from __future__ import annotations

from typing import Final

from penstock.media.formats import StreamFormat

_STREAMED_SIZE: Final = 0x7FFF0000
"""Sizes of a WAV file from here on mean that its writer did not know the size."""
_SEGMENT: Final = 0x18538067
_EBML: Final = 0x1A45DFA3


def is_truncated(data: bytes, media_format: StreamFormat) -> bool:
    """Return whether `data` lacks bytes. MP3, Ogg and live streams do not declare their length."""
    match media_format:
        case StreamFormat.WAV:
            return _wav_end(data) > len(data)
        case StreamFormat.MP4:
            return _boxes_end(data) > len(data)
        case StreamFormat.MATROSKA:
            return _segment_end(data) > len(data)
        case StreamFormat.FLAC | StreamFormat.OGG | StreamFormat.MP3:
            return False


def _wav_end(data: bytes) -> int:
    """Return the end of the chunk with the samples."""
    at = 12
    while at + 8 <= len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        if data[at : at + 4] == b"data":
            return 0 if size >= _STREAMED_SIZE else at + 8 + size
        at += 8 + size + size % 2
    return at


def _boxes_end(data: bytes) -> int:
    """Return the end of the last box at the top level of an ISO file."""
    at = 0
    while at + 8 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if size == 1:
            size = int.from_bytes(data[at + 8 : at + 16], "big")
        if size < 8:  # 0: the box ends with the file
            return len(data)
        at += size
    return at if at > len(data) else len(data)


def _segment_end(data: bytes) -> int:
    """Return the end of the segment of a Matroska file; 0 if its size is unknown."""
    header_end = _element_end(data, 0, _EBML)
    return _element_end(data, header_end, _SEGMENT) if header_end else 0


def _element_end(data: bytes, at: int, element: int) -> int:
    """Return the end of the EBML element that starts at `at`; 0 if it is another element or its
    size is unknown."""
    if at + 5 > len(data) or int.from_bytes(data[at : at + 4], "big") != element:
        return 0
    width = 9 - data[at + 4].bit_length()
    unknown = (1 << 7 * width) - 1
    size = int.from_bytes(data[at + 4 : at + 4 + width], "big") & unknown
    return 0 if size == unknown else at + 4 + width + size
