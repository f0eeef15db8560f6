"""A background job works between the steps of a busy engine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from penstock.engine import job_pace
from penstock.engine.job_pace import LONGEST_TURN_S, SHARE, JobPace
from penstock.kernels.weights import Affine, Dense
from penstock.quant.quantize_matrix import MatrixQuantizer

DEADLINE_S = 60.0


class Job:
    """A job whose pieces of work take `piece_s` of a clock that stands still otherwise."""

    def __init__(self, piece_s: float) -> None:
        self.busy = True
        self.cancelled = threading.Event()
        self.now_s = 0.0
        self.pieces = 0
        self.pace = JobPace(lambda: self.busy, self.cancelled, lambda: self.now_s)
        self.piece_s = piece_s
        self._ended = False
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        """Start, and return when the job waits for its first turn."""
        self._thread.start()
        self.wait_until_it_rests()

    def wait_until_it_rests(self) -> None:
        with self.pace._changed:
            assert self.pace._changed.wait_for(lambda: self.pace._waits, DEADLINE_S)

    def step(self, took_s: float) -> None:
        """A step of the engine, and what follows it."""
        self.now_s += took_s
        self.pace.between_steps()

    def end(self) -> None:
        self._ended = True
        self.cancelled.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._ended:
            self.pace.rest()
            if self._ended:
                return
            self.now_s += self.piece_s
            self.pieces += 1


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.setattr(job_pace, "LONGEST_PIECE_S", DEADLINE_S)
    made = Job(0.004)
    yield made
    made.end()


def test_it_waits_for_a_turn_while_the_engine_is_busy(job: Job) -> None:
    step_s = 0.04
    job.piece_s = SHARE * step_s / 1.5
    job.start()
    assert job.pieces == 0
    job.step(step_s)
    assert job.pieces == 2, "until its share of the step is used"


def test_the_engine_waits_until_a_piece_has_ended(job: Job) -> None:
    job.start()
    job.step(0.01)
    assert job.pieces == 1
    job.wait_until_it_rests()


def test_time_beyond_its_share_counts_later(job: Job) -> None:
    job.start()
    counts = []
    for _ in range(20):
        job.step(0.005)
        counts.append(job.pieces)
    assert counts[0] == 1
    worked_s = job.pieces * job.piece_s
    assert SHARE * 20 * 0.005 <= worked_s <= SHARE * job.now_s + job.piece_s


def test_a_long_step_gives_no_long_turn(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_pace, "LONGEST_REST_S", 2 * DEADLINE_S)
    job.piece_s = LONGEST_TURN_S / 4.5
    job.start()
    job.step(DEADLINE_S)
    assert job.pieces == 5


def test_it_goes_on_when_the_engine_is_idle(job: Job) -> None:
    job.start()
    job.busy = False
    with job.pace._changed:
        assert job.pace._changed.wait_for(lambda: job.pieces > 3, DEADLINE_S)


def test_cancelling_ends_a_rest(job: Job) -> None:
    job.start()
    job.end()
    assert job.pieces == 0


def test_it_goes_on_after_the_longest_rest_without_a_step(job: Job) -> None:
    job.start()
    job.now_s += job_pace.LONGEST_REST_S
    job.wait_until_it_rests()
    with job.pace._changed:
        assert job.pace._changed.wait_for(lambda: job.pieces > 0, DEADLINE_S)
    assert job.pieces == 1


@pytest.mark.parametrize("form", ["int4", "int8", "Q4_K", "Q8_0"])
def test_quantizing_calls_rest_every_quarter_of_a_million_numbers(form: Any) -> None:
    calls = 0

    def rest() -> None:
        nonlocal calls
        calls += 1

    values = np.random.default_rng(1).standard_normal((2048, 512), np.float32)
    matrix = Dense(values, "f32")
    with_rests = MatrixQuantizer(1, rest).quantized(matrix, form)
    assert calls >= values.size >> 18
    without = MatrixQuantizer(2).quantized(matrix, form)
    assert isinstance(with_rests, Affine)
    for field in fields(Affine):
        one, other = (getattr(made, field.name) for made in (with_rests, without))
        assert np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other


@pytest.mark.parametrize("form", ["int4", "Q4_K"])
def test_an_exception_of_rest_ends_the_quantization(form: Any) -> None:
    def rest() -> None:
        raise KeyboardInterrupt

    matrix = Dense(np.ones((1024, 512), np.float32), "f32")
    with pytest.raises(KeyboardInterrupt):
        MatrixQuantizer(1, rest).quantized(matrix, form)
