"""Runs a job: finds the files of its model, and tunes it."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from penstock.base.errors import (
    InvalidRequest,
    ModelError,
    NotFound,
    ServiceError,
    Unavailable,
)
from penstock.config import Environment, read_environment
from penstock.config.token_source import OWN_FORMS, TokenSourceError, kind_of, read_token
from penstock.models.hub.download import DownloadRefused
from penstock.models.hub.hub import RepositoryUnknown
from penstock.models.hub.hub_access import HubAccess, hub_access_of
from penstock.models.hub.mmproj_files import with_mmproj
from penstock.models.hub.model_files import ModelFiles, path_at
from penstock.models.hub.sources import files_at, resolve_headers
from penstock.quant.gguf.split_names import model_name
from penstock.runtime.device_choice import choose_device
from penstock.tune.cpu_machine import CpuMachine
from penstock.tune.machine import Machine
from penstock.tune.outcome import TuneJob
from penstock.tune.tune import tune
from penstock.tune.types import TuneModelRequest, TuneModelResponse

REVISION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")
FOLDERS: Final = re.compile(r"(?<![\w:/])/(?:[^\s/:]+/)+")
"""The folders of an absolute path, but not those of a URL."""


class Forbidden(ServiceError):
    """The hub shows the model only to holders of a token whose owner has accepted its terms."""

    status = 403
    kind = "invalid_request_error"
    code = "model_forbidden"


def run_job(job: TuneJob, environment: Environment | None = None) -> TuneModelResponse:
    """Find the files of a job's model, and tune it. Raises ServiceError."""
    environment = environment or read_environment()
    request = job.request
    hub = replace(hub_access_of(environment), token=_token(job, environment))
    try:
        with _files(job, environment.home, hub) as files:
            machine = machine_for(job, environment)
            return tune(request, machine, replace(files, model_id=job.model_id), job.engine)
    except ServiceError:
        raise
    except (RepositoryUnknown, DownloadRefused) as error:
        raise _refused(error) from None
    except ModelError as error:
        raise InvalidRequest(
            _shown(str(error), job), field="model_id", code="model_unusable"
        ) from None


def machine_for(job: TuneJob, environment: Environment) -> Machine:
    """Return the device for which a job tunes: the one of the engine's settings, or the CPU. Raises
    ModelError if it cannot be used."""
    device = "cpu" if job.request.cpu else choose_device(job.engine)
    if device == "cpu":
        return CpuMachine(environment.home, job.held_bytes)
    # Importing torch takes two seconds; a CPU server does not need it.
    import penstock.runtime.gpu.load as gpu_load
    from penstock.tune.gpu_machine import GpuMachine

    if job.engine.device == "auto" and not gpu_load.torch_sees_gpu():
        return CpuMachine(environment.home, job.held_bytes)
    return GpuMachine(device, is_served=job.is_served and job.held_bytes > 0)


@contextmanager
def _files(job: TuneJob, home: Path, hub: HubAccess) -> Iterator[ModelFiles]:
    """Find the files of a job's model, or download their headers for the time of the `with` block.
    Raises ModelError."""
    name, revision = job.engine.model, _revision(job.request)
    path = path_at(name) if job.origin == "operator" or job.is_served else None
    if path is not None:
        found = files_at(path, model_name(path) if path.is_file() else path.resolve().name)
        yield with_mmproj(found, job.engine.mmproj)
        return
    with tempfile.TemporaryDirectory(prefix="penstock-tune-") as folder:
        found = resolve_headers(name, home, hub, Path(folder) / "model", revision)
        yield with_mmproj(found, job.engine.mmproj)


def _token(job: TuneJob, environment: Environment) -> str | None:
    source = job.request.token_source or "cache"
    if job.origin == "client" and kind_of(source) in OWN_FORMS:
        raise InvalidRequest(
            f"token_source is {kind_of(source)}:...; a client may send cache, none or"
            " literal:TOKEN, and `penstock tune` also reads variables and files",
            field="token_source",
        )
    try:
        return read_token(source, environment)
    except TokenSourceError as error:
        raise InvalidRequest(f"token_source: {error}", field="token_source") from None


def _revision(request: TuneModelRequest) -> str | None:
    revision = request.hf_revision
    if revision is not None and (".." in revision or not REVISION.fullmatch(revision)):
        raise InvalidRequest(
            "hf_revision must be a branch, a tag or a commit of the hub", field="hf_revision"
        )
    return revision


def _refused(error: RepositoryUnknown | DownloadRefused) -> ServiceError:
    """Return the error for an answer of the hub, or for none."""
    if error.status is None:
        return Unavailable(str(error), code="hub_unavailable", retry_after_s=30)
    is_file = isinstance(error, DownloadRefused)
    if error.status == 403 or (error.status == 401 and is_file):
        text = f"{error}; the model needs a token whose owner has accepted its terms"
        return Forbidden(text if is_file else str(error), field="model_id")
    return NotFound(str(error), field="model_id", code="model_not_found")


def _shown(message: str, job: TuneJob) -> str:
    """Return the message of an error without folders of this machine, if a client sees it."""
    return message if job.origin == "operator" else FOLDERS.sub("", message)
