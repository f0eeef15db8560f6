"""Real processes exchange tensors through `Communicator` over gloo. They are started once."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from tp_worker import DTYPES, logits_of, random_tensor

from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import load_model
from tests.support.checkpoints.small_moe import write_small_experts

COUNT = 4
SCRIPT = Path(__file__).parent / "tp_worker.py"

Found = list[Mapping[str, np.ndarray]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_experts(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def found(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """The results of each rank."""
    place = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, str(SCRIPT)]
    results = [place / f"{rank}.npz" for rank in range(COUNT)]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(COUNT), str(place / "meeting"), str(folder), str(result)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, result in enumerate(results)
    ]
    told = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * COUNT, "\n".join(told)
    return [np.load(result) for result in results]


def parts_of(dtype: torch.dtype) -> list[torch.Tensor]:
    return [random_tensor(rank, 5, 64).to(dtype) for rank in range(COUNT)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sum_is_that_of_all_ranks_and_the_same_on_each(found: Found, dtype: torch.dtype) -> None:
    """A sum of 16-bit numbers is also rounded only once."""
    expected = torch.stack(parts_of(dtype)).double().sum(dim=0)
    within = 8 * torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    for own in found:
        summed = torch.from_numpy(own[f"sum {dtype}"])
        torch.testing.assert_close(
            summed, expected, atol=within, rtol=within + torch.finfo(dtype).eps / 2
        )
        np.testing.assert_array_equal(summed, found[0][f"sum {dtype}"])
        np.testing.assert_array_equal(own[f"in place {dtype}"], summed)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ordered_sum_adds_rank_after_rank_in_float32(found: Found, dtype: torch.dtype) -> None:
    wide = torch.promote_types(dtype, torch.float32)
    first, *others = (part.to(wide) for part in parts_of(dtype))
    expected = functools.reduce(torch.add, others, first).to(dtype).double().numpy()
    for own in found:
        np.testing.assert_array_equal(own[f"ordered sum {dtype}"], expected)


def test_all_gather_concatenates_ranks_and_drops_padding(found: Found) -> None:
    beside = torch.cat([random_tensor(rank, 3, 8) for rank in range(COUNT)], dim=1).numpy()
    turned = torch.cat([random_tensor(rank, 8, 3).T for rank in range(COUNT)], dim=1).numpy()
    for own in found:
        np.testing.assert_array_equal(own["gather"], beside)
        np.testing.assert_array_equal(own["gather less"], beside[:, :27])
        np.testing.assert_array_equal(own["gather of one"], beside[:, :5])
        np.testing.assert_array_equal(own["gather transposed"], turned)


def test_steps_without_sampled_rows_gather_nothing(found: Found) -> None:
    for own in found:
        assert own["sum of nothing"].shape == (0, 64)
        assert own["gather of nothing"].shape == (0, 13)


@pytest.mark.parametrize("source", range(COUNT))
def test_broadcast_gives_every_rank_the_tensor_of_the_source(found: Found, source: int) -> None:
    for own in found:
        assert own[f"share {source}"].tolist() == [source, 5]


def test_shards_in_processes_give_the_logits_of_the_model(found: Found, folder: Path) -> None:
    expected = logits_of(load_model(ModelFiles("m", "folder", folder), "auto")).numpy()
    for own in found:
        np.testing.assert_allclose(own["logits"], expected, atol=1e-4, rtol=1e-4)
        np.testing.assert_array_equal(own["logits"], found[0]["logits"])


def test_ranks_listen_on_the_loopback_interface_alone(found: Found) -> None:
    for own in found:
        assert len(own["listening"]) > 0
        assert set(own["listening"].tolist()) == {"127.0.0.1"}
