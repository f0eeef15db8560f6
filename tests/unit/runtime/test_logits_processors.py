"""Logit bias, penalties and DRY of rows: the lists that the sampler gets, and when."""

from __future__ import annotations

import math

import numpy as np
import pytest
from fake_backend import VOCAB, FakeBackend

from penstock.dialog import Sampling
from penstock.kernels.sampler_inputs import SamplingRows
from penstock.runtime.cpu.runtime import CpuRuntime
from penstock.runtime.dry import DryRows, DryState
from penstock.runtime.protocol import RuntimeInfo
from penstock.runtime.row_table import RowTable
from penstock.scheduler import Admit, AppendBlocks, Chunk, SampledToken, StepPlan
from tests.support.dry_sequence_breakers import breakers_of

BLOCK = 4
PENALIZED = Sampling(presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=1.5)
DRY = Sampling(dry_multiplier=1.0, dry_base=2.0, dry_allowed_length=1, dry_breakers=())


class Driver:
    """A runtime whose rows are admitted and stepped by hand."""

    def __init__(self) -> None:
        self.backend = FakeBackend(40, BLOCK)
        info = RuntimeInfo("m", "f", VOCAB, 64, 40, BLOCK, 0)
        self.runtime = CpuRuntime(RowTable(4, 64, BLOCK), self.backend, info, "")
        self._known: dict[int, int] = {}

    def admit(
        self, row: int, tokens: list[int], prompt: int, sampling: Sampling, top: int | None = None
    ) -> SampledToken:
        blocks = AppendBlocks(row, tuple(range(row * 10, row * 10 + 10)))
        admit = Admit(row, tuple(tokens), prompt, sampling, 7, top)
        self._known[row] = len(tokens)
        chunks = (Chunk(row, 0, len(tokens), True),)
        return self._execute(StepPlan(0, (), (admit,), (blocks,), chunks))[0]

    def step(self, *rows: int, releases: tuple[int, ...] = ()) -> tuple[SampledToken, ...]:
        chunks = tuple(Chunk(row, self._known[row], 1, True) for row in rows)
        return self._execute(StepPlan(0, releases, (), (), chunks))

    def _execute(self, plan: StepPlan) -> tuple[SampledToken, ...]:
        sampled = self.runtime.execute(plan).sampled
        for each in sampled:
            self._known[each.row] += each.row in self._known and plan.admissions == ()
        return sampled

    @property
    def sampling_rows(self) -> SamplingRows:
        assert self.backend.last_sampling is not None
        return self.backend.last_sampling


@pytest.fixture
def driver() -> Driver:
    return Driver()


def seen(rows: SamplingRows, index: int) -> dict[int, int]:
    assert rows.seen is not None
    row = rows.seen.row(index)
    return dict(zip(row.tokens.tolist(), row.counts.tolist(), strict=True))


def penalties(rows: SamplingRows, index: int) -> dict[int, float]:
    assert rows.dry is not None
    row = rows.dry.row(index)
    return dict(zip(row.tokens.tolist(), row.values.tolist(), strict=True))


def test_rows_without_logits_processors_get_none(driver: Driver) -> None:
    driver.admit(0, [1, 2, 3], 3, Sampling(temperature=0.5))
    driver.step(0)
    assert not driver.sampling_rows.adjusts


def test_the_prompt_is_seen_and_the_answer_counted(driver: Driver) -> None:
    first = driver.admit(0, [1, 2, 1], 3, PENALIZED)
    assert seen(driver.sampling_rows, 0) == {1: 0, 2: 0}
    driver.step(0)
    assert seen(driver.sampling_rows, 0)[first.token_id] == 1
    assert driver.sampling_rows.seen is not None
    assert driver.sampling_rows.seen.presence.tolist() == [0.5]
    assert driver.sampling_rows.seen.frequency.tolist() == [0.25]
    assert driver.sampling_rows.seen.repetition.tolist() == [1.5]


def test_only_a_repetition_penalty_uses_the_prompt(driver: Driver) -> None:
    driver.admit(0, [1, 2, 1], 3, Sampling(presence_penalty=1.0))
    assert seen(driver.sampling_rows, 0) == {}


def test_after_a_preemption_the_answer_so_far_still_counts(driver: Driver) -> None:
    driver.admit(0, [1, 2, 9, 9, 2], 2, PENALIZED)
    assert seen(driver.sampling_rows, 0) == {1: 0, 2: 1, 9: 2}


def test_a_row_of_many_tokens_keeps_all_of_them(driver: Driver) -> None:
    known = list(range(60))
    driver.admit(0, known, 30, PENALIZED)
    assert seen(driver.sampling_rows, 0) == {token: int(token >= 30) for token in known}


def test_rows_of_a_batch_have_their_own_lists(driver: Driver) -> None:
    driver.admit(0, [1, 2, 9], 2, PENALIZED)
    driver.admit(1, [5], 1, Sampling(logit_bias={4: 2.0, 3: -1.0}))
    driver.admit(2, [6, 6], 1, Sampling(frequency_penalty=1.0, logit_bias={8: 1.0}))
    driver.admit(3, [3, 4, 3, 4, 3], 5, DRY)
    driver.step(1, 3, 0, 2)
    sampling_rows = driver.sampling_rows
    assert sampling_rows.bias is not None and sampling_rows.bias.starts.tolist() == [0, 2, 2, 2, 3]
    assert sampling_rows.bias.tokens.tolist() == [4, 3, 8]
    assert sampling_rows.bias.values.tolist() == [2.0, -1.0, 1.0]
    assert sampling_rows.seen is not None and sampling_rows.seen.starts[:3].tolist() == [0, 0, 0]
    assert sampling_rows.seen.presence.tolist() == [0.0, 0.0, 0.5, 0.0]
    assert sampling_rows.seen.repetition.tolist() == [1.0, 1.0, 1.5, 1.0]
    assert seen(sampling_rows, 2)[9] == 1 and seen(sampling_rows, 3)[6] == 1


def test_dry_penalizes_tokens_that_prolong_a_repetition(driver: Driver) -> None:
    driver.admit(0, [3, 4, 5, 9, 3, 4, 6, 3, 4], 9, DRY)
    assert penalties(driver.sampling_rows, 0) == {5: 2.0, 6: 2.0}
    driver.admit(1, [3, 4, 5, 9, 3, 4, 5, 8, 9, 3, 4], 11, DRY)
    assert penalties(driver.sampling_rows, 0) == {5: 4.0}


def test_release_and_admission_clear_a_rows_state(driver: Driver) -> None:
    driver.admit(0, [1, 2], 2, PENALIZED)
    driver.admit(1, [1, 2], 2, Sampling(logit_bias={3: 1.0}))
    driver.step(0, releases=(1,))
    assert driver.sampling_rows.bias is None and driver.sampling_rows.seen is not None
    driver.admit(0, [4], 1, Sampling())
    assert not driver.sampling_rows.adjusts


def test_has_state_if_sampling_depends_on_the_last_token() -> None:
    table = RowTable(4, 64, BLOCK)
    wishes = [Sampling(), Sampling(logit_bias={1: 1.0}), PENALIZED, DRY]
    admissions = tuple(Admit(row, (1,), 1, wish, 0, None) for row, wish in enumerate(wishes))
    table.apply(StepPlan(0, (), admissions, (), (Chunk(0, 0, 1, True),)))
    assert [table.has_state(row) for row in range(4)] == [False, False, True, True]


@pytest.mark.parametrize("repetition", [1e-300, 1e300])
def test_a_repetition_penalty_stays_a_usable_float32(driver: Driver, repetition: float) -> None:
    driver.admit(0, [1], 1, Sampling(repetition_penalty=repetition))
    assert driver.sampling_rows.seen is not None
    kept = float(driver.sampling_rows.seen.repetition[0])
    assert 0 < kept < math.inf


class Fixed:
    """Masks that are ready."""

    def __init__(self, allowed: list[list[int]], mask_of: list[int]) -> None:
        self.words = np.zeros((len(allowed), VOCAB // 32), np.uint32)
        for mask, tokens in enumerate(allowed):
            for token in tokens:
                self.words[mask, token // 32] |= np.uint32(1 << token % 32)
        self.mask_of = np.array(mask_of, np.int32)

    def wait(self) -> tuple[np.ndarray, np.ndarray]:
        return self.words, self.mask_of


def test_masks_go_to_the_sampler_after_the_forward_pass(driver: Driver) -> None:
    driver.admit(0, [1, 2], 2, Sampling())
    masks = Fixed([[5]], [0])
    driver.runtime.execute(StepPlan(1, (), (), (), (Chunk(0, 2, 1, True),)), masks)
    assert (
        driver.sampling_rows.masks is masks.words and driver.sampling_rows.mask_of is masks.mask_of
    )


def dry_penalties(tokens: list[int], **changes: object) -> dict[int, float]:
    fields: dict[str, object] = {
        "dry_multiplier": 1.0,
        "dry_base": 2.0,
        "dry_allowed_length": 2,
        "dry_breakers": (),
    }
    state = DryState(np.array(tokens, np.int32), Sampling(**(fields | changes)))  # type: ignore[arg-type]
    found = DryRows([state]).penalties()
    assert np.isfinite(found.values).all()
    return dict(zip(found.tokens.tolist(), found.values.tolist(), strict=True))


@pytest.mark.parametrize(
    ("changes", "penalty"),
    [
        ({}, 4.0),
        ({"dry_multiplier": 0.5}, 2.0),
        ({"dry_base": 3.0}, 9.0),
        ({"dry_allowed_length": 4}, 1.0),
        ({"dry_allowed_length": 0}, 16.0),
        ({"dry_base": 1.0, "dry_multiplier": 0.75}, 0.75),
        ({"dry_breakers": breakers_of([(2,)])}, 1.0),
        ({"dry_breakers": breakers_of([(2, 3)])}, None),
        ({"dry_breakers": breakers_of([(9,)])}, 4.0),
        ({"dry_breakers": breakers_of([(5,)])}, None),
        ({"dry_allowed_length": 5}, None),
        ({"dry_multiplier": 1e300}, pytest.approx(3.4028235e38)),
    ],
)
def test_the_dry_penalty_follows_its_definition(
    changes: dict[str, object], penalty: float | None
) -> None:
    """5 followed 1 2 3 4, which are again the last four tokens."""
    found = dry_penalties([1, 2, 3, 4, 5, 9, 1, 2, 3, 4], **changes)
    assert found.get(5) == penalty


def test_the_dry_penalty_saturates_over_a_long_repetition() -> None:
    assert dry_penalties([7] * 3000) == {7: pytest.approx(3.4028235e38)}
    slowly = dry_penalties([7] * 3000, dry_base=1.001)[7]
    assert slowly == pytest.approx(1.001**2997, rel=1e-5)
