"""Lists and masks that do not fit the logits are refused by name; no kernel sees them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from native_isas import native

from penstock.kernels.native import NativeOps
from penstock.kernels.sampler_inputs import SamplingRows, SeenTokens, TokenValues

ZEROS, ONES = np.zeros(2, np.float32), np.ones(2, np.float32)
NOBODY = np.zeros(2, np.uint64)
PLAIN = SamplingRows(ONES, np.zeros(2, np.int32), ONES, ZEROS, NOBODY, NOBODY)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def listed(starts: np.ndarray, tokens: np.ndarray, values: int | None = None) -> TokenValues:
    return TokenValues(starts, tokens, np.zeros(len(tokens) if values is None else values, "f4"))


def adjust(rows: SamplingRows, vocabulary: int = 40) -> np.ndarray:
    logits = np.zeros((2, vocabulary), np.float32)
    NativeOps.eager(native.ThreadPool(1)).adjust_logits(logits, rows)
    return logits


@pytest.mark.parametrize(
    ("starts", "tokens", "message"),
    [
        (ints(0, 1), ints(3), r"bias_starts: dimension 0 is 2, expected S\+1 = 3"),
        (ints(1, 1, 2), ints(3, 4), "bias_starts: must ascend from 0 to 2"),
        (ints(0, 2, 1), ints(3, 4), "bias_starts: must ascend from 0 to 2"),
        (ints(0, 3, 2), ints(3, 4), "bias_starts: must ascend from 0 to 2"),
        (ints(0, 1, 1), ints(3, 4), "bias_starts: must ascend from 0 to 2"),
        (ints(0, 1, 2), ints(3, 40), "bias_tokens: 40 is not in 0..39"),
        (ints(0, 1, 2), ints(3, -1), "bias_tokens: -1 is not in 0..39"),
    ],
)
def test_a_list_that_does_not_fit_is_refused(
    starts: np.ndarray, tokens: np.ndarray, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        adjust(replace(PLAIN, bias=listed(starts, tokens)))


def test_lists_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="dry_values: dimension 0 is 1, expected dried = 2"):
        adjust(replace(PLAIN, dry=listed(ints(0, 1, 2), ints(3, 4), values=1)))
    seen = SeenTokens(ints(0, 1, 1), ints(3), ints(1, 2), ZEROS, ZEROS, ONES)
    with pytest.raises(ValueError, match="seen_counts"):
        adjust(replace(PLAIN, seen=seen))


@pytest.mark.parametrize(
    ("words", "mask_of", "message"),
    [
        (1, ints(0, 0), "masks: needs 2 words of 32 tokens"),
        (3, ints(0, 0), "masks: needs 2 words of 32 tokens"),
        (2, ints(0, 1), "mask: 2 is not in 0..1"),
        (2, ints(-2, 0), "mask: -1 is not in 0..1"),
        (2, ints(0), "mask: dimension 0 is 1, expected S = 2"),
    ],
)
def test_masks_that_do_not_fit_are_refused(words: int, mask_of: np.ndarray, message: str) -> None:
    masks = np.zeros((1, words), np.uint32)
    with pytest.raises(ValueError, match=message):
        adjust(replace(PLAIN, masks=masks, mask_of=mask_of))


def test_rows_without_adjustments_are_unchanged() -> None:
    masks = np.array([[0b10, 0]], np.uint32)
    rows = replace(PLAIN, masks=masks, mask_of=ints(-1, 0), bias=listed(ints(0, 0, 1), ints(1)))
    logits = adjust(rows)
    assert (logits[0] == 0).all()
    assert np.isneginf(logits[1]).sum() == 39
