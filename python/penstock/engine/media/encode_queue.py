"""Encodes the media of waiting requests in pieces between the steps.

Requests are served in order of arrival. Each distinct item is encoded once, and every request that
waits for it goes on when it is encoded.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from penstock.base.errors import InvalidRequest, Overloaded, ServiceError
from penstock.engine.media.encoder_cache import EncoderCache
from penstock.engine.media.piece_sizes import PieceSizes
from penstock.engine.types import EngineGauges, MediaItem
from penstock.models.media.prepared import MediaKind
from penstock.runtime.media import EncodeError, Encoding, RuntimeMedia

log = logging.getLogger(__name__)

MIB: Final = 1 << 20
MAX_WAITING_BYTES: Final = 512 * MIB
"""Most bytes of prepared media that wait to be encoded."""

_ENOUGH: Final = 0.5
"""Pieces that take this part of the time are enough: many small pieces take longer in all."""

NOT_ENCODED: Final = "the {kind} could not be encoded"


def num_rows(item: MediaItem) -> int:
    """Return the number of tokens that take rows of an item."""
    return sum(count for _, count in item.runs)


@dataclass(slots=True)
class _Job:
    """The item that is being encoded. `rows`: the number of rows that its prompts have tokens
    for."""

    digest: bytes
    kind: MediaKind
    rows: int
    pieces: Encoding


class EncodeQueue:
    """The requests whose media are not all encoded. Not thread-safe: one thread calls all methods.

    A request holds its items in the cache from the moment when all of them are encoded until
    `release`: a preempted sequence computes its prompt again. Before that, only the oldest waiting
    request holds those that are encoded already, so that waiting requests cannot block each other.

    - `last_s`: seconds that the last `advance` took.
    """

    def __init__(
        self,
        media: RuntimeMedia,
        cache: EncoderCache,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cache = cache
        self._hits = self._misses = self._encoded = 0
        self._encode_s = 0.0
        self.last_s = 0.0
        self._media = media
        self._clock = clock
        self._waiting: dict[str, dict[bytes, MediaItem]] = {}  # in order of arrival
        self._held: dict[str, tuple[bytes, ...]] = {}
        self._job: _Job | None = None
        self._bytes_per_row = media.row_bytes
        self._sizes = PieceSizes()

    @property
    def has_work(self) -> bool:
        """Whether `advance` can encode a piece now."""
        return self._job is not None or self._next() is not None

    def check(self, items: Iterable[MediaItem]) -> None:
        """Raise InvalidRequest if the encoded items of one request exceed the encoder cache, or an
        item has another number of tokens than in another request, and Overloaded if too many
        prepared media wait."""
        distinct = {item.digest: item for item in items}
        needed = sum(map(num_rows, distinct.values())) * self._bytes_per_row
        if needed > self.cache.max_bytes:
            raise InvalidRequest(
                f"the media of this request need {-(-needed // MIB)} MiB when encoded; the limit is"
                f" {self.cache.max_bytes // MIB} MiB (encoder_cache_mb)",
                field="prompt",
                code="media_too_large",
            )
        waiting = self._waiting_items()
        for digest, item in distinct.items():
            known = waiting.get(digest)
            rows = self.cache.num_rows(digest) if known is None else num_rows(known)
            if rows not in (None, num_rows(item)):
                raise InvalidRequest(
                    f"the {item.media.kind} has {num_rows(item)} tokens, but {rows} embeddings",
                    field="prompt",
                )
        size = sum(len(item.media.data) for item in (waiting | distinct).values())
        if waiting and size > MAX_WAITING_BYTES:
            raise Overloaded(
                f"{len(waiting)} images, videos or recordings are waiting already; try again later",
                retry_after_s=1,
            )

    def report(self, gauges: EngineGauges) -> None:
        """Set the gauges and counters of media."""
        gauges.encoder_cache_bytes = self.cache.size_bytes
        gauges.encoder_cache_hits = self._hits
        gauges.encoder_cache_misses = self._misses
        gauges.media_items_encoded = self._encoded
        gauges.media_encode_seconds = self._encode_s

    def enter(self, request_id: str, items: Iterable[MediaItem]) -> bool:
        """Queue the media of a request. Return True if all of them are encoded already; the request
        holds them then."""
        waiting = self._waiting_items()
        # Equal items share the memory of the first one.
        distinct = {item.digest: waiting.get(item.digest, item) for item in items}
        if not distinct:
            return True
        known = sum(digest in self.cache or digest in waiting for digest in distinct)
        self._hits += known
        self._misses += len(distinct) - known
        if all(digest in self.cache for digest in distinct):
            self._hold(request_id, distinct)
            return True
        self._waiting[request_id] = distinct
        self._hold_oldest()
        return False

    def leave(self, request_id: str) -> None:
        """Forget a request that has finished or was aborted. Its items may be evicted now, and an
        item that no other request waits for is not encoded further."""
        if request_id not in self._held and request_id not in self._waiting:
            return
        self._release(request_id)
        self._waiting.pop(request_id, None)
        job = self._job
        if job is not None and not any(job.digest in own for own in self._waiting.values()):
            job.pieces.close()
            self._job = None
        self._hold_oldest()

    @property
    def num_waiting(self) -> int:
        """The number of requests whose media are not all encoded."""
        return len(self._waiting)

    def advance(self, budget_s: float | None) -> dict[str, str | None]:
        """Encode pieces for about `budget_s` seconds, at least one; None: one large piece. Return
        the requests whose media are all encoded now, with None, and the requests whose media cannot
        be encoded, with the error message for the client."""
        news: dict[str, str | None] = {}
        begin = now = self._clock()
        while (job := self._job or self._start()) is not None:
            left_s = math.inf if budget_s is None else budget_s - (now - begin)
            self._sizes.allow(left_s)
            self._advance(job, news)
            before, now = now, self._clock()
            self._sizes.observe(now - before)
            if budget_s is None or now - begin >= _ENOUGH * budget_s:
                break
        self.last_s = now - begin
        self._encode_s += self.last_s
        return news

    def _waiting_items(self) -> dict[bytes, MediaItem]:
        return {digest: item for own in self._waiting.values() for digest, item in own.items()}

    def _start(self) -> _Job | None:
        """Start to encode the next item, if there is one and it has room. Return its job."""
        item = self._next()
        if item is not None:
            pieces = self._media.encode(item.media, self._sizes.budget)
            self._job = _Job(item.digest, item.media.kind, num_rows(item), pieces)
        return self._job

    def _next(self) -> MediaItem | None:
        """Return the next item of the oldest waiting request. Return None if nothing waits, or the
        item has no room beside the items of the requests that are being computed."""
        oldest = next(iter(self._waiting), None)
        if oldest is None:
            return None
        item = next(one for key, one in self._waiting[oldest].items() if key not in self.cache)
        size = num_rows(item) * self._bytes_per_row
        others = any(request_id != oldest for request_id in self._held)
        fits = self.cache.held_bytes + size <= self.cache.max_bytes
        return item if fits or not others else None

    def _advance(self, job: _Job, news: dict[str, str | None]) -> None:
        """Encode one piece of an item. If it is the last one, store the item."""
        try:
            next(job.pieces)
        except StopIteration as done:
            encoded = done.value
        except (EncodeError, ServiceError) as error:
            self._fail(job, str(error), news)
            return
        except Exception:  # the outermost loop of the tower: only the requests of the item end
            log.exception("a tower failed")
            self._fail(job, NOT_ENCODED.format(kind=job.kind), news)
            return
        else:
            return
        if len(encoded.rows) != job.rows:
            reason = f"the {job.kind} gave {len(encoded.rows)} embeddings for {job.rows} tokens"
            self._fail(job, reason, news)
            return
        self._job = None
        self.cache.add(job.digest, encoded)
        self._encoded += 1
        row_bytes = self._media.row_bytes * (1 + len(encoded.deep))
        self._bytes_per_row = max(self._bytes_per_row, row_bytes)
        for request_id, items in list(self._waiting.items()):
            if all(digest in self.cache for digest in items):
                del self._waiting[request_id]
                self._hold(request_id, items)
                news[request_id] = None
        self._hold_oldest()

    def _fail(self, job: _Job, reason: str, news: dict[str, str | None]) -> None:
        self._job = None
        for request_id in [id for id, items in self._waiting.items() if job.digest in items]:
            self.leave(request_id)
            news[request_id] = reason

    def _hold_oldest(self) -> None:
        """Hold the encoded items of the oldest waiting request, which is served next."""
        oldest = next(iter(self._waiting), None)
        if oldest is not None:
            self._hold(oldest, [one for one in self._waiting[oldest] if one in self.cache])

    def _hold(self, request_id: str, digests: Iterable[bytes]) -> None:
        """Hold `digests` for a request, instead of the items that it held before."""
        new = tuple(digests)
        self.cache.hold(new)
        self._release(request_id)
        self._held[request_id] = new

    def _release(self, request_id: str) -> None:
        self.cache.release(self._held.pop(request_id, ()))
