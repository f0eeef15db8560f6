"""Log-probabilities on a GPU have the bits of the reference, without sorting the vocabulary."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.ops.sampling import TOP_LOGPROBS
from penstock.kernels.ops.sampling_reference import top_logprobs as reference
from penstock.kernels.registry import Case
from penstock.kernels.triton.sampler.logprobs import _best, top_logprobs

COUNTS = (0, 1, 5, 20)


def random_logits(vocabulary: int, num_distinct: int) -> torch.Tensor:
    """Return [6, V] with `num_distinct` distinct values, a third of them -inf."""
    source = RandomInputs(num_distinct)
    logits = source.integers(0, num_distinct, 6, vocabulary) / 2 - 1
    return logits.masked_fill(source.integers(0, 3, 6, vocabulary) == 0, float("-inf"))


def assert_same_bits(logits: torch.Tensor, count: int) -> None:
    rows = torch.arange(len(logits), dtype=torch.int32).flip(0)
    tokens = torch.arange(len(logits), dtype=torch.int32) % logits.shape[1]
    given = logits.clone()
    found = top_logprobs(logits, rows, tokens, count)
    for ours, expected in zip(found, reference(given, rows, tokens, count), strict=True):
        assert ours.dtype == expected.dtype and ours.shape == expected.shape
        assert torch.equal(ours.contiguous().view(torch.int32), expected.view(torch.int32))
    assert torch.equal(logits.view(torch.int32), given.view(torch.int32))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("num_distinct", [1, 2, 3, 1000])
@pytest.mark.parametrize("vocabulary", [20, 257, 5000])
def test_equal_logits_are_taken_by_their_ids(
    vocabulary: int, num_distinct: int, count: int
) -> None:
    assert_same_bits(random_logits(vocabulary, num_distinct), count)


@pytest.mark.parametrize("count", COUNTS)
def test_logits_that_round_to_one_logprob_are_equal(count: int) -> None:
    """Steps smaller than the rounding of a sum of exponentials."""
    logits = torch.arange(400, dtype=torch.float32).expand(3, -1) * 1e-7
    logits = torch.cat((logits, torch.full((3, 1), 40.0)), dim=1)
    assert len(logits[0].unique()) > len(logits.log_softmax(dim=1)[0].unique())
    assert_same_bits(logits, count)


@pytest.mark.parametrize("count", COUNTS)
def test_fewer_tokens_allowed_than_requested(count: int) -> None:
    logits = torch.full((2, 50), float("-inf"))
    logits[0, [7, 30]], logits[1, 49] = 0.0, -0.0
    assert_same_bits(logits, count)


def test_zeros_of_both_signs_are_equal() -> None:
    values = torch.tensor([[-1.0, -0.0, 0.0, -0.0, 0.0, -1e-45], [0.0, -0.0, 1.0, -2.0, 3.0, 0.0]])
    expected = torch.sort(values, dim=1, descending=True, stable=True).indices
    assert _best(values, 6).tolist() == expected.tolist()


@pytest.mark.parametrize("count", COUNTS)
def test_rows_that_cannot_be_sampled(count: int) -> None:
    logits = RandomInputs(3).normal(5, 40)
    logits[0, 7], logits[1, 39], logits[2] = float("nan"), float("inf"), float("-inf")
    logits[3, 2], logits[3, 5] = float("inf"), float("-inf")
    assert_same_bits(logits, count)


def test_matches_are_limited_to_those_that_exist() -> None:
    assert_same_bits(RandomInputs(4).normal(2, 7), 20)


@pytest.mark.parametrize("case", TOP_LOGPROBS.cases, ids=lambda case: case.name)
def test_cases_of_the_op(case: Case) -> None:
    inputs = case.make_inputs(0)
    assert_same_bits(inputs["logits"], inputs["count"])


class Called(TorchDispatchMode):
    """The names of torch's ops that were called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func).split(".")[1])
        return func(*args, **kwargs or {})


@pytest.mark.parametrize(("count", "selected"), [(0, set()), (5, {"topk"})])
def test_best_tokens_are_selected_only_on_request(count: int, selected: set[str]) -> None:
    with Called() as called:
        top_logprobs(
            RandomInputs(5).normal(2, 64), torch.tensor([1, 0]), torch.tensor([3, 4]), count
        )
    assert called.names & {"sort", "argsort", "topk"} == selected
