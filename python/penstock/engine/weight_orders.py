"""Orders to study and change the weights of a running engine, and the state that answers them.
These types cross the engine socket."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Final, Literal

from msgspec import Struct

from penstock.base.errors import Conflict

JobStatus = Literal["running", "done", "failed", "cancelled"]
JobKind = Literal["re_isq", "calibration"]


NOT_HERE: Final = (
    "the weights of this model cannot be changed while it serves: that needs a model that generates"
    " text with the native kernels of the CPU"
)


class AskWeights(Struct, frozen=True, tag="ask"):
    """Asks for the state and changes nothing."""


class Requantize(Struct, frozen=True, tag="requantize"):
    """Starts a job that quantizes the weights of the model's files again. `quantization`: a type's
    name, None for the weights as in the files."""

    quantization: str | None


class CancelJob(Struct, frozen=True, tag="cancel"):
    """Ends the running job; the weights stay as they are. `kinds`: those that are ended."""

    kinds: tuple[JobKind, ...]


class StartCalibration(Struct, frozen=True, tag="start_calibration"):
    """Starts to collect the inputs of linear layers from the next step on. Sums that were collected
    before are dropped."""

    dataset: str = "traffic"


class StopCalibration(Struct, frozen=True, tag="stop_calibration"):
    """Stops to collect, and drops the sums."""


class ApplyCalibration(Struct, frozen=True, tag="apply_calibration"):
    """Stops to collect, and starts a job that quantizes the weights again with the sums.

    `quantization`: a type's name, None for the one in use.
    `save_as`: the name of a file in the folder `importance` of PENSTOCK_HOME for the matrix.
    """

    quantization: str | None = None
    save_as: str | None = None


WeightOrder = (
    AskWeights | Requantize | CancelJob | StartCalibration | StopCalibration | ApplyCalibration
)


class WeightJob(Struct, frozen=True):
    """The last job that quantized weights.

    `quantization`: the type that it makes.
    `layers_done`, `layers_total`: its progress; the weights are in use when `status` is "done".
    `error`: why it failed.
    """

    kind: JobKind
    quantization: str | None
    status: JobStatus
    layers_done: int
    layers_total: int
    error: str | None = None


class CalibrationSums(Struct, frozen=True):
    """The progress of a calibration: numbers of layers, of those that have seen a row, and of rows
    in all and per layer."""

    collecting: bool = False
    layers: int = 0
    layers_tracking: int = 0
    total_rows: int = 0
    min_rows: int = 0
    max_rows: int = 0


class WeightsState(Struct, frozen=True):
    """The state of an engine's weights. `quantization`: of the weights in use, None if they are as
    in the files. `job`: None before the first job."""

    quantization: str | None
    calibration: CalibrationSums
    job: WeightJob | None = None


def unchangeable() -> Conflict:
    """Return the error for an order to a model whose weights cannot be changed."""
    return Conflict(NOT_HERE, code="weights_unchangeable")


def refused_order() -> Future[WeightsState]:
    """Return the answer of an engine whose weights cannot be changed."""
    refused: Future[WeightsState] = Future()
    refused.set_exception(unchangeable())
    return refused
