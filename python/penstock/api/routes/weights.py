"""Endpoints of `/re_isq` and `/calibration`: quantize the weights of a loaded model again, and
collect the importance matrix for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import aclosing
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from penstock.api.codecs.request_fields.decode_body import decode_body
from penstock.api.models.served_model import ServedModel
from penstock.api.observability.request_record import record_of_route
from penstock.api.routes.answers import query_of, send_value
from penstock.api.routes.request_reader import run_decoder
from penstock.api.schema.weights import (
    CalibrationApplyRequest,
    CalibrationStartRequest,
    ReIsqRequest,
    WeightsRequest,
)
from penstock.api.services import Services
from penstock.base.errors import InvalidRequest, ServiceError
from penstock.base.ids import new_id
from penstock.config.weight_types import AS_STORED, KNOWN, parse_weight_type
from penstock.dialog import GenerateRequest, Limits
from penstock.engine.weight_orders import (
    ApplyCalibration,
    AskWeights,
    CancelJob,
    Requantize,
    StartCalibration,
    StopCalibration,
    WeightJob,
    WeightOrder,
    WeightsState,
)

log = logging.getLogger(__name__)

PIECE_CHARS: Final = 1500
"""Characters of calibration text in one request: some 400 tokens."""

Show = Callable[[str, WeightsState], dict[str, Any]]
_B = TypeVar("_B", ReIsqRequest, WeightsRequest, CalibrationStartRequest, CalibrationApplyRequest)


class _WeightsRoute:
    """Carries out orders for the weights of a model and sends its state."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError

    async def _decoded(self, scope: Scope, receive: Receive, kind: type[_B]) -> _B:
        """Return the body. An empty body means that no field is set."""
        body = await self._services.bodies.read(record_of_route(scope), receive)
        return await run_decoder(partial(decode_body, kind=kind), body or b"{}")

    def _model(self, scope: Scope, name: str | None) -> ServedModel:
        """Return the model of a request. Raises NotFound."""
        record = record_of_route(scope)
        record.model = self._services.models.resolve(name, field="model_id")
        self._services.observers.request_started(record)
        return self._services.models[record.model]


class GetWeights(_WeightsRoute):
    """GET: sends the state of the model that the query `model_id` names. `show`: its JSON."""

    def __init__(self, services: Services, show: Show) -> None:
        super().__init__(services)
        self._show = show

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        model = self._model(scope, query_of(scope).get("model_id") or None)
        state = await ordered(model, AskWeights())
        await send_value(self._show(model.id, state), send)


class CancelWeights(_WeightsRoute):
    """POST: carries out orders that end a job or a calibration, and sends the state."""

    def __init__(self, services: Services, show: Show, orders: tuple[WeightOrder, ...]) -> None:
        super().__init__(services)
        self._show = show
        self._orders = orders

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._decoded(scope, receive, WeightsRequest)
        model = self._model(scope, body.model_id)
        for order in self._orders:
            state = await ordered(model, order)
        await send_value(self._show(model.id, state), send)


class ReIsq(_WeightsRoute):
    """POST /re_isq: starts to quantize the weights again, and sends 202 when the job runs."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._decoded(scope, receive, ReIsqRequest)
        wanted = requested_type(body.ggml_type, "ggml_type")
        model = self._model(scope, body.model_id)
        state = await ordered(model, Requantize(wanted))
        await send_value(re_isq_status(model.id, state), send, status=202)


class StartCalibrating(_WeightsRoute):
    """POST /calibration/start: starts to collect, from the requests of clients and from the text of
    the body."""

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._decoded(scope, receive, CalibrationStartRequest)
        if body.text is not None and not body.text.strip():
            raise InvalidRequest("must not be empty", field="text")
        model = self._model(scope, body.model_id)
        dataset = "traffic" if body.text is None else "text"
        state = await ordered(model, StartCalibration(dataset))
        if body.text is not None:
            task = asyncio.create_task(compute_text(model, body.text))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await send_value(calibration_status(model.id, state), send)


class ApplyCalibrating(_WeightsRoute):
    """POST /calibration/apply: starts to quantize the weights with the importance matrix. Sends 202
    with the calibration as it was before."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._decoded(scope, receive, CalibrationApplyRequest)
        wanted = None
        if body.ggml_type is not None:
            wanted = requested_type(body.ggml_type, "ggml_type")
        model = self._model(scope, body.model_id)
        state = await ordered(model, ApplyCalibration(wanted, body.save_cimatrix))
        await send_value(calibration_status(model.id, state), send, status=202)


def get_re_isq(services: Services) -> GetWeights:
    """Return the endpoint that reports the type of the weights and the last job."""
    return GetWeights(services, re_isq_status)


def cancel_re_isq(services: Services) -> CancelWeights:
    """Return the endpoint that cancels the running job."""
    return CancelWeights(services, re_isq_status, (CancelJob(("re_isq", "calibration")),))


def get_calibration(services: Services) -> GetWeights:
    """Return the endpoint that reports the progress of a calibration."""
    return GetWeights(services, calibration_status)


def cancel_calibration(services: Services) -> CancelWeights:
    """Return the endpoint that stops to collect, drops the sums, and cancels the job that applies
    them."""
    orders = (CancelJob(("calibration",)), StopCalibration())
    return CancelWeights(services, calibration_status, orders)


def requested_type(text: str, field: str) -> str | None:
    """Return the type that a request names, None for the weights as they are in the file. `field`:
    the request's field, for the error. Raises InvalidRequest that lists the types."""
    form = parse_weight_type(text)
    if form is None:
        known = ", ".join(KNOWN)
        raise InvalidRequest(f"there is no such type of weights; known are {known}", field=field)
    return None if form == AS_STORED else form


async def ordered(model: ServedModel, order: WeightOrder) -> WeightsState:
    """Carry out an order and return the state. Raises Conflict if the model cannot, Unavailable if
    it is not loaded or has too little memory."""
    async with model.lease() as loaded:
        return await loaded.engine.change_weights(order)


async def compute_text(model: ServedModel, text: str) -> None:
    """Compute a text piece by piece, until it ends or the calibration does. Its prompts are shared
    with no request."""
    salt = new_id("calibration_")
    try:
        for piece in pieces_of(text):
            if not (await ordered(model, AskWeights())).calibration.collecting:
                return
            request = GenerateRequest(
                model=model.id,
                prompt=piece,
                cache_salt=salt,
                limits=Limits(max_tokens=1, truncate=True),
                streamed=False,
            )
            async with aclosing(model.run(request)) as events:
                async for _ in events:
                    pass
    except ServiceError as error:
        log.error("the calibration text was not computed to its end: %s", error.message)


def pieces_of(text: str) -> Iterator[str]:
    """Yield the pieces of a text, which end between words if they can."""
    at = 0
    while at < len(text):
        end = at + PIECE_CHARS
        if end < len(text):
            space = text.rfind(" ", at + 1, end)
            end = space if space > at else end
        yield text[at:end]
        at = end


def re_isq_status(model: str, state: WeightsState) -> dict[str, Any]:
    """Return the JSON of `ReIsqStatus`."""
    return {"model_id": model, "ggml_type": state.quantization, "job": _job(state.job)}


def calibration_status(model: str, state: WeightsState) -> dict[str, Any]:
    """Return the JSON of `CalibrationStatus`."""
    return {**msgspec.structs.asdict(state.calibration), "job": _job(state.job)}


def _job(job: WeightJob | None) -> dict[str, Any] | None:
    if job is None:
        return None
    fields = msgspec.structs.asdict(job)
    return {"kind": job.kind, "ggml_type": fields.pop("quantization"), **fields}
