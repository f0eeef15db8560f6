"""Endpoints of `/v1/system/info` and `/v1/system/doctor`."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.types import Receive, Scope, Send

from penstock.api.routes.answers import send_json
from penstock.api.schema.system import Diagnosis
from penstock.config import read_environment
from penstock.system.checks import machine_checks
from penstock.system.facts import system_info


class GetSystemInfo:
    """GET: returns a description of the machine and the build."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(msgspec.json.encode(system_info(read_environment())), send)


class Diagnose:
    """POST: runs those checks of `penstock doctor` that apply while a server runs, and returns
    their results."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        diagnosis = await asyncio.to_thread(_diagnose)  # the checks read the disk
        await send_json(msgspec.json.encode(diagnosis), send)


def _diagnose() -> Diagnosis:
    environment = read_environment()
    return Diagnosis(system_info(environment), machine_checks(environment))
