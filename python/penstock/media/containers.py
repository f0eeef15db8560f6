"""Opens audio and video files with PyAV, with few demuxers and decoders."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Final

from penstock.base.errors import InvalidRequest
from penstock.media.formats import StreamFormat
from penstock.media.truncation import is_truncated
from penstock.models.media.prepared import MediaKind

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.stream import Stream

_DEMUXERS: Final[Mapping[StreamFormat, str]] = {
    StreamFormat.WAV: "wav",
    StreamFormat.FLAC: "flac",
    StreamFormat.OGG: "ogg",
    StreamFormat.MP3: "mp3",
    StreamFormat.MP4: "mov,mp4,m4a,3gp,3g2,mj2",
    StreamFormat.MATROSKA: "matroska,webm",
}
VIDEO_CODECS: Final = ("h264", "hevc", "vp8", "vp9", "libdav1d", "av1", "mpeg4")
AUDIO_CODECS: Final = (
    "aac", "mp3", "mp3float", "opus", "libopus", "vorbis", "flac", "alac",
    "pcm_u8", "pcm_s16le", "pcm_s16be", "pcm_s24le", "pcm_s24be", "pcm_s32le", "pcm_s32be",
    "pcm_f32le", "pcm_f32be", "pcm_f64le", "pcm_alaw", "pcm_mulaw",
)  # fmt: skip


def load_libraries() -> None:
    """Import PyAV and silence FFmpeg. A sealed process can import nothing more."""
    import av
    import av.logging

    av.logging.set_level(None)


def open_container(kind: MediaKind, data: bytes, stream_format: StreamFormat) -> InputContainer:
    """Open an audio or video file. The format is given, so FFmpeg does not probe others.

    Raises InvalidRequest if the file is truncated, and exceptions of PyAV if it is damaged.
    """
    import av

    if is_truncated(data, stream_format):
        raise InvalidRequest(f"the {kind} is truncated", code=f"invalid_{kind}")
    demuxer = _DEMUXERS[stream_format]
    options = {
        "codec_whitelist": ",".join((*VIDEO_CODECS, *AUDIO_CODECS)),
        "format_whitelist": demuxer,
        "protocol_whitelist": "",
    }
    name = demuxer.partition(",")[0]
    return av.open(BytesIO(data), "r", format=name, container_options=options)


def declared_duration_s(container: InputContainer, stream: Stream) -> float:
    """Return the seconds that a file declares for itself or for a stream, whichever is longer; 0 if
    it declares neither."""
    whole = 0.0 if container.duration is None else container.duration / 1e6
    if stream.duration is None or stream.time_base is None:
        return whole
    return max(whole, float(stream.duration * stream.time_base))
