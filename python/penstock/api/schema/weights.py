"""Requests and answers of the routes that quantize the weights of a loaded model again."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

ModelName = Annotated[
    str,
    Meta(description="`default`, or an id or alias of `/v1/models`; the default model if null."),
]
TypeName = Annotated[
    str,
    Meta(
        description="The type to make, such as `int4`; `none` for the weights as they are in the"
        " model's files."
    ),
]
FileName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.(cimatrix|gguf)$",
        description="A file name, without a folder, that ends in `.cimatrix` or `.gguf`.",
    ),
]


class ReIsqRequest(Struct):
    """The type to make of the weights."""

    ggml_type: TypeName
    model_id: ModelName | None = None


class WeightsRequest(Struct):
    """The model whose job or calibration is meant."""

    model_id: ModelName | None = None


class CalibrationStartRequest(Struct):
    """The model to study. `text`: computed by the model at once, in pieces, beside the requests of
    clients."""

    model_id: ModelName | None = None
    text: str | None = None


class CalibrationApplyRequest(Struct):
    """How to apply the importance matrix. `save_cimatrix`: also save it, in the folder `importance`
    of PENSTOCK_HOME. `ggml_type`: the type in use if null."""

    save_cimatrix: FileName | None = None
    ggml_type: TypeName | None = None
    model_id: ModelName | None = None


class WeightJobObject(Struct):
    """A job that quantizes the weights. The weights are in use when `status` is "done", and are
    unchanged before. `ggml_type`: null for the weights as they are in the files. `error`: why it
    failed."""

    kind: Literal["re_isq", "calibration"]
    ggml_type: str | None
    status: Literal["running", "done", "failed", "cancelled"]
    layers_done: int
    layers_total: int
    error: str | None


class ReIsqStatus(Struct):
    """The weights of a model. `ggml_type`: the type in use, null for that of the files. `job`: the
    last job, null if there was none."""

    model_id: str
    ggml_type: str | None
    job: WeightJobObject | None


class CalibrationStatus(Struct):
    """The progress of a calibration. `layers`: the number of matrices with statistics.
    `layers_tracking`: those that have seen input. `total_rows`, `min_rows`, `max_rows`: the input
    rows of all of these, and of the one with the fewest and the most. `job`: the last job."""

    collecting: bool
    layers: int
    layers_tracking: int
    total_rows: int
    min_rows: int
    max_rows: int
    job: WeightJobObject | None
