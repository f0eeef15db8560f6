"""`python tp_engine.py SOCKET`: an engine process whose model is divided among processes on CPU
tensors, as it would be among GPUs."""

from __future__ import annotations

import sys

from penstock.config import EngineSettings
from penstock.engine import load
from penstock.engine.processes import process
from penstock.models.decoder.decoder import Progress
from penstock.models.hub.model_files import ModelFiles
from penstock.runtime.ranks.load import start_tensor_parallel_runtime
from penstock.runtime.ranks.runtime import TensorParallelRuntime


def start(
    files: ModelFiles, settings: EngineSettings, available: int | None, progress: Progress | None
) -> TensorParallelRuntime:
    return start_tensor_parallel_runtime(
        files, settings, ("cpu",) * settings.tensor_parallel_size, progress
    )


if __name__ == "__main__":
    load.start_runtime = start
    sys.exit(process.main(sys.argv[1]))
