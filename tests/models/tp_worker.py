"""One rank of a group of real processes, which writes its results to an .npz for
test_torch_ranks.py. Arguments: rank, count, the rendezvous file, a model's folder, the file of
results."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import psutil
import torch
from decoder_stepper import Stepper

from penstock.kernels.communicator import SINGLE_RANK, Communicator
from penstock.kernels.reference import ReferenceOps
from penstock.kernels.torch_communicator import TorchCommunicator
from penstock.models.decoder.decoder import Decoder
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import LoadedModel, load_model
from penstock.models.loader.tensor_parallel import shard_model

PROMPT = [3, 17, 5, 40, 2, 9, 144, 31, 8]
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def random_tensor(rank: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(rank))


def logits_of(model: LoadedModel, ranks: Communicator[torch.Tensor] = SINGLE_RANK) -> torch.Tensor:
    ops = ReferenceOps()
    stepper = Stepper(Decoder(model.spec, model.weights, ops, ranks=ranks), ops)
    return torch.cat([stepper.step({0: PROMPT}, all_rows=True), stepper.step({0: [7]})])


def listening() -> list[str]:
    connections = psutil.Process().net_connections(kind="inet")
    return [one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN]


def findings(ranks: TorchCommunicator, folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for dtype in DTYPES:
        x = random_tensor(ranks.rank, 5, 64).to(dtype)
        found[f"sum {dtype}"] = ranks.all_reduce(x)
        found[f"in place {dtype}"] = x
    found["sum of nothing"] = ranks.all_reduce(torch.empty(0, 64))
    y = random_tensor(ranks.rank, 3, 8)
    found["gather"] = ranks.all_gather(y, ranks.count * 8)
    found["gather less"] = ranks.all_gather(y, 27)
    found["gather of one"] = ranks.all_gather(y, 5)
    found["gather transposed"] = ranks.all_gather(
        random_tensor(ranks.rank, 8, 3).T, ranks.count * 8
    )
    found["gather of nothing"] = ranks.all_gather(torch.empty(0, 8), 13)
    for source in range(ranks.count):
        found[f"share {source}"] = ranks.broadcast(torch.tensor([ranks.rank, 5]), source)
    model = load_model(ModelFiles("m", "folder", folder), "auto")
    found["logits"] = logits_of(shard_model(model, ranks.rank, ranks.count), ranks)
    return found


def main() -> None:
    rank, count = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    ranks = TorchCommunicator(rank, count, Path(sys.argv[3]), "gloo", timeout_s=100)
    heard_at = listening()
    with torch.inference_mode():
        found = findings(ranks, Path(sys.argv[4]))
    ranks.close()
    ordered = TorchCommunicator(rank, count, Path(f"{sys.argv[3]}-2"), "gloo", sums="ordered")
    for dtype in DTYPES:
        found[f"ordered sum {dtype}"] = ordered.all_reduce(random_tensor(rank, 5, 64).to(dtype))
    ordered.close()
    # float64 holds every type
    arrays = {name: tensor.double().numpy() for name, tensor in found.items()}
    np.savez(sys.argv[5], listening=np.array(heard_at), **arrays)


if __name__ == "__main__":
    main()
