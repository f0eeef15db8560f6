"""An engine process that is killed while it quantizes its weights comes back with those it had."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.base.errors import EngineFault, Unavailable
from penstock.config import EngineSettings
from penstock.dialog import Sampling
from penstock.engine.ipc.client import EngineClient
from penstock.engine.processes.supervisor import EngineSupervisor
from penstock.engine.types import TokenRequest
from penstock.engine.weight_orders import (
    ApplyCalibration,
    AskWeights,
    Requantize,
    StartCalibration,
    WeightsState,
)
from penstock.kernels.native.isa_trials import candidate_isas
from tests.support.checkpoints.small_llama import CONTEXT, write_small_llama

DEADLINE_S = 60.0


@pytest.fixture
async def engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[EngineSupervisor, EngineClient]]:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    folder = write_small_llama(tmp_path / "m", width=512, head_dim=64, ff=2048)
    supervisor = EngineSupervisor(
        EngineSettings(
            model=str(folder),
            max_model_len=CONTEXT,
            kv_cache_memory_mb=4,
            cpu_isa=candidate_isas()[-1],  # not the one that is fastest beside other work
        )
    )
    await supervisor.start()
    await supervisor.wait_ready()
    client = EngineClient(supervisor.socket_path)
    await client.wait_ready()
    yield supervisor, client
    await client.close()
    await supervisor.stop()
    assert not Path(supervisor.socket_path).parent.exists()


async def ended(client: EngineClient) -> WeightsState:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            state = await client.change_weights(AskWeights())
            assert state.job is not None
            if state.job.status != "running":
                return state
            await asyncio.sleep(0.005)


async def answer(client: EngineClient) -> list[Any]:
    request = TokenRequest("a", (5, 9, 40, 7), Sampling(temperature=0.0), 0, 16, top_logprobs=1)
    return [
        token for output in [o async for o in client.generate(request)] for token in output.tokens
    ]


async def after_restart(client: EngineClient, supervisor: EngineSupervisor) -> WeightsState:
    """Kill the engine, and return the state of the next one."""
    assert supervisor.pid is not None
    restarts = supervisor.restarts
    os.kill(supervisor.pid, signal.SIGKILL)
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                if supervisor.restarts > restarts:
                    return await client.change_weights(AskWeights())
            except (Unavailable, EngineFault):
                pass
            await asyncio.sleep(0.01)


async def test_a_killed_engine_has_the_weights_it_had(
    engine: tuple[EngineSupervisor, EngineClient],
) -> None:
    supervisor, client = engine
    started = await client.change_weights(Requantize("int8"))
    assert started.job is not None and started.job.status == "running"
    assert (await after_restart(client, supervisor)).quantization is None, "those of the settings"
    await client.change_weights(StartCalibration())
    await answer(client)
    await client.change_weights(ApplyCalibration("int4"))
    state = await ended(client)
    assert state.quantization == "int4"
    assert client.info.fingerprint.count("int4") == 1, "clients are told"
    expected = await answer(client)
    started = await client.change_weights(Requantize("int8"))
    assert started.job is not None and started.job.status == "running"
    state = await after_restart(client, supervisor)
    assert state.quantization == "int4"
    assert await answer(client) == expected, "with the same importance matrix"
