"""`python ranked_engine.py SOCKET`: the engine process. Its model is divided among processes on CPU
tensors, as it would be among GPUs."""

from __future__ import annotations

import sys

from penstock.config import EngineSettings
from penstock.engine import load, process
from penstock.models.decoder import Progress
from penstock.models.files import ModelFiles
from penstock.runtime.rank_load import start_ranked_runtime
from penstock.runtime.ranks import LeadingRuntime


def start(
    files: ModelFiles, settings: EngineSettings, available: int | None, progress: Progress | None
) -> LeadingRuntime:
    return start_ranked_runtime(files, settings, ("cpu",) * settings.tensor_parallel, progress)


if __name__ == "__main__":
    load.start_runtime = start
    sys.exit(process.main(sys.argv[1]))
