"""Entries of the route table: the weights of a loaded model."""

from __future__ import annotations

from typing import Final

from penstock.api.route_table.operation import BODY_ERRORS, TEXT_VALUE, Operation, Query
from penstock.api.routes.weights import (
    ApplyCalibrating,
    ReIsq,
    StartCalibrating,
    cancel_calibration,
    cancel_re_isq,
    get_calibration,
    get_re_isq,
)
from penstock.api.schema.weights import (
    CalibrationApplyRequest,
    CalibrationStartRequest,
    CalibrationStatus,
    ReIsqRequest,
    ReIsqStatus,
    WeightsRequest,
)

TAG: Final = "Models"
MODEL: Final = (Query("model_id", "Defaults to the default model.", TEXT_VALUE),)
ERRORS: Final = (*BODY_ERRORS, 404, 409, 500, 503)

OPERATIONS: Final = (
    Operation(
        "POST /re_isq",
        ReIsq,
        id="reIsq",
        tag=TAG,
        summary=(
            "Quantize the weights of a loaded model again; 202 when the job runs. Requests go on,"
            " and the new weights are used from one step to the next"
        ),
        request=ReIsqRequest,
        example={"ggml_type": "int4"},
        response=ReIsqStatus,
        status=202,
        errors=ERRORS,
    ),
    Operation(
        "GET /re_isq",
        get_re_isq,
        id="reIsqStatus",
        tag=TAG,
        summary="Get the type of a model's weights and the progress of the last job",
        response=ReIsqStatus,
        errors=(404, 409, 500, 503),
        query=MODEL,
    ),
    Operation(
        "POST /re_isq/cancel",
        cancel_re_isq,
        id="cancelReIsq",
        tag=TAG,
        summary="Cancel the running job; the weights stay as they are",
        request=WeightsRequest,
        example={},
        response=ReIsqStatus,
        errors=ERRORS,
    ),
    Operation(
        "POST /calibration/start",
        StartCalibrating,
        id="startCalibration",
        tag=TAG,
        summary="Start to collect an importance matrix from requests, or from a text",
        request=CalibrationStartRequest,
        example={},
        response=CalibrationStatus,
        errors=ERRORS,
    ),
    Operation(
        "GET /calibration/status",
        get_calibration,
        id="calibrationStatus",
        tag=TAG,
        summary="Get the progress of a calibration and of the job that applies it",
        response=CalibrationStatus,
        errors=(404, 409, 500, 503),
        query=MODEL,
    ),
    Operation(
        "POST /calibration/apply",
        ApplyCalibrating,
        id="applyCalibration",
        tag=TAG,
        summary=(
            "Quantize the weights again with the importance matrix; 202 when the job runs, with the"
            " calibration as it was before"
        ),
        request=CalibrationApplyRequest,
        example={},
        response=CalibrationStatus,
        status=202,
        errors=ERRORS,
    ),
    Operation(
        "POST /calibration/cancel",
        cancel_calibration,
        id="cancelCalibration",
        tag=TAG,
        summary="Stop to collect, drop the importance matrix, and cancel the job that applies it",
        request=WeightsRequest,
        example={},
        response=CalibrationStatus,
        errors=ERRORS,
    ),
)
