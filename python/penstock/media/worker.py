"""A decoding process: `python -m penstock.media.worker`.

Decoders are written in C and read hostile bytes. So this process loads them and the processor of
the model, gives up all rights, and only then reads the first item. Its connection is the socket at
descriptor 0; it reads a `WorkerSetup` and then one `Job` after the other (`media.protocol`).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import TypeVar

import msgspec

from penstock.base.errors import InvalidRequest, ModelError
from penstock.media import audio, images, video
from penstock.media.formats import ImageFormat, StreamFormat, format_for
from penstock.media.limits import MediaLimits
from penstock.media.plain_processor import PlainProcessor
from penstock.media.protocol import LENGTH, Answer, Job, Ready, WorkerSetup, decode, encode
from penstock.media.rehearsal import rehearse
from penstock.media.seal import SealError, limit_cpu_time, seal
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.media import media_spec
from penstock.models.media.prepared import PreparedMedia
from penstock.models.media.processor import MediaProcessor

_M = TypeVar("_M", bound=msgspec.Struct)


def main() -> None:
    run(processor_of)


def processor_of(files: ModelFiles | None) -> MediaProcessor:
    """Return the processor of a model. Raises ModelError if the model takes no media."""
    if files is None:
        return PlainProcessor()
    spec = media_spec(files)
    if spec is None:
        raise ModelError(f"{files.model_id} takes text only")
    return spec.processor


def run(load: Callable[[ModelFiles | None], MediaProcessor]) -> None:
    """Serve the connection until it is closed. `load`: returns the processor of a model."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the server handles them and ends this process
        signal.signal(number, signal.SIG_IGN)
    connection = _take_connection()
    setup = _receive(connection, WorkerSetup)
    if setup is None:
        return
    try:
        processor = load(setup.files)
        rehearse(processor)
        seal(setup.limits.memory_bytes)
    except (ModelError, SealError) as error:
        _send(connection, Ready(str(error)))
        return
    except Exception as error:  # the server logs why media cannot be decoded
        _send(connection, Ready(f"{_origin(error)}: {error}"))
        return
    _send(connection, Ready())
    while (job := _receive(connection, Job)) is not None:
        limit_cpu_time(setup.limits.cpu_time_s(job.kind))
        _send(connection, answer(job, processor, setup.limits))
        del job


def answer(job: Job, processor: MediaProcessor, limits: MediaLimits) -> Answer:
    """Decode and prepare an item."""
    try:
        return Answer(prepare(job, processor, limits))
    except InvalidRequest as error:
        return Answer(code=error.code, message=error.message)
    except MemoryError:
        message = f"the {job.kind} takes too much memory to decode"
        return Answer(code="media_too_large", message=message)
    except Exception as error:  # the libraries raise errors of any type for damaged files
        message = f"the {job.kind} is damaged and cannot be decoded"
        return Answer(code=f"invalid_{job.kind}", message=message, origin=_origin(error))


def prepare(job: Job, processor: MediaProcessor, limits: MediaLimits) -> PreparedMedia:
    """Decode and prepare an item. Raises InvalidRequest, and any exception of a library for a
    damaged file."""
    if job.kind not in processor.placeholders:
        raise InvalidRequest(f"the model takes no {job.kind}", code="unsupported_media")
    times = processor.frame_times
    match job.kind, format_for(job.kind, job.data):
        case "image", ImageFormat() as found:
            return processor.image(images.decode_image(job.data, found, limits))
        case "video", ImageFormat() as found:
            return processor.video(images.decode_animation(job.data, found, limits, times))
        case "video", StreamFormat() as found:
            return processor.video(video.decode_video(job.data, found, limits, times))
        case "audio", StreamFormat() as found:
            rate_hz = processor.sampling_rate
            return processor.audio(audio.decode_audio(job.data, found, limits, rate_hz))
    raise AssertionError("format_for returns a format of the kind")


def _origin(error: Exception) -> str:
    """Return the type of an exception and the line that raised it, without its text."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    module = "" if place is None else place.tb_frame.f_globals.get("__name__", "")
    return f"{type(error).__name__} in {module}:{0 if place is None else place.tb_lineno}"


def _take_connection() -> int:
    """Return a copy of descriptor 0, and replace the standard streams: libraries print to them."""
    connection = os.dup(0)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.close(null)
    return connection


def _receive(connection: int, kind: type[_M]) -> _M | None:
    """Read a message; None if the connection was closed."""
    head = _read(connection, LENGTH.size)
    body = None if head is None else _read(connection, LENGTH.unpack(head)[0])
    return None if body is None else decode(body, kind)


def _read(connection: int, size: int) -> bytearray | None:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = os.readv(connection, [view])
        if count == 0:
            return None
        view = view[count:]
    return data


def _send(connection: int, message: msgspec.Struct) -> None:
    body = encode(message)
    for part in (LENGTH.pack(len(body)), body):
        view = memoryview(part)
        while view:
            view = view[os.write(connection, view) :]


if __name__ == "__main__":
    main()
