"""Steps with grammars that are planned ahead: their masks follow the forward pass."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from grammar_engine import (
    compile_all,
    core_of,
    regex,
    request,
    run,
    schema,
    start_gpu_model_on_cpu,
    tokenizer_and_vocabulary,
)

from penstock.engine.core import EngineCore
from penstock.engine.types import TokenRequest
from penstock.runtime.gpu.runtime import GpuRuntime
from penstock.runtime.protocol import Masks
from penstock.scheduler import StepPlan
from tests.support.triton_interpreter import INTERPRETED

pytestmark = pytest.mark.skipif(INTERPRETED, reason="shown for the reference bodies")

KEYS = {
    "type": "object",
    "properties": {"temperature": {"enum": [1, 22, 333]}, "unit": {"enum": ["C", "F"]}},
    "required": ["temperature", "unit"],
    "additionalProperties": False,
}


class ObservedRuntime(GpuRuntime):
    """Counts the steps submitted while another is in flight: all of them, and those with masks."""

    ahead = masked_ahead = 0
    _open = 0

    def submit(self, plan: StepPlan, masks: Masks | None = None) -> None:
        self.ahead += self._open > 0
        self.masked_ahead += self._open > 0 and masks is not None
        self._open += 1
        super().submit(plan, masks)

    def collect(self) -> object:  # type: ignore[override]
        self._open -= 1
        return super().collect()


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservedRuntime]:
    runtime = start_gpu_model_on_cpu(tmp_path_factory.mktemp("model") / "small")
    runtime.__class__ = ObservedRuntime
    assert isinstance(runtime, ObservedRuntime)
    yield runtime
    runtime.close()


@pytest.fixture
def core(runtime: ObservedRuntime) -> EngineCore:
    runtime.ahead = runtime.masked_ahead = 0
    core = core_of(runtime)
    core.set_tokenizer(tokenizer_and_vocabulary()[1])
    return core


def asked() -> list[TokenRequest]:
    """Four free requests beside three with grammars, which end at different times."""
    free = [request(f"free {n}", None, seed=n, max_tokens=40, prompt=(72, n)) for n in range(4)]
    bound = [
        request("schema", schema(KEYS), seed=5),
        request("regex", regex("(ab|cd){2,9}"), seed=6, top_logprobs=1),
        request("endless", regex("[a-z]*"), seed=7, max_tokens=25),
    ]
    return [*free[:2], *bound, *free[2:]]


def test_answers_equal_those_of_requests_alone(core: EngineCore, runtime: ObservedRuntime) -> None:
    requests = asked()
    compile_all(core, requests)
    alone = {one.id: run(core, [one])[one.id] for one in requests}
    assert runtime.masked_ahead == 0, "a grammar alone gains more by the tokens that it forces"
    together = run(core, requests)
    assert runtime.masked_ahead > 10
    for id, answer in together.items():
        assert (answer.tokens, answer.finish) == (alone[id].tokens, alone[id].finish), id
    assert core.gauges().kv_cache_blocks_used == 0


def test_masks_of_answers_that_have_all_ended_allow_everything(
    core: EngineCore, runtime: ObservedRuntime
) -> None:
    """The step planned ahead of the last token of the only grammar has no mask left."""
    requests = [request(f"free {n}", None, seed=n, max_tokens=30) for n in range(3)]
    requests.append(request("one token", regex("a|b"), seed=3))
    compile_all(core, requests)
    answers = run(core, requests)
    assert runtime.masked_ahead
    assert answers["one token"].finish == "stop"
    assert all(len(answers[f"free {n}"].tokens) for n in range(3))
