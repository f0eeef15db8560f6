"""Every row of the specification for legacy completions: decoded fields and ignored ones."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.codecs.completions import decode
from penstock.base.errors import InvalidRequest, NotFound
from penstock.dialog import Constraint, GenerateRequest, RunStarted
from tests.support.request_decoder import RequestDecoder
from tests.support.servers.http_server import MODEL, serving

HELLO: dict[str, Any] = {"prompt": "hi"}
request = RequestDecoder(decode, HELLO).request


@pytest.mark.parametrize(
    ("fields", "path", "expected"),
    [
        ({"model": "m"}, "model", "m"),
        ({"prompt": [1, 2]}, "prompt", (1, 2)),
        ({"prompt": ["a", [1]]}, "prompts", ("a", (1,))),
        ({"best_of": 3, "n": 2}, "best_of", 3),
        ({"n": 2}, "n", 2),
        ({"echo": True}, "echo", True),
        ({"suffix": "end"}, "suffix", "end"),
        ({"logprobs": 2}, "top_logprobs", 2),
        ({"stop": "x"}, "stop", ("x",)),
        ({"ignore_eos": True}, "ignore_eos", True),
        ({"adapter": "style"}, "adapter", "style"),
        ({"max_tokens": 5}, "limits.max_tokens", 5),
        ({"truncate_sequence": True}, "limits.truncate", True),
        ({"temperature": 0.5}, "sampling.temperature", 0.5),
        ({"top_p": 0.5}, "sampling.top_p", 0.5),
        ({"top_k": 5}, "sampling.top_k", 5),
        ({"min_p": 0.5}, "sampling.min_p", 0.5),
        ({"frequency_penalty": 1}, "sampling.frequency_penalty", 1.0),
        ({"presence_penalty": 1}, "sampling.presence_penalty", 1.0),
        ({"repetition_penalty": 1.5}, "sampling.repetition_penalty", 1.5),
        ({"logit_bias": {"5": 1}}, "sampling.logit_bias", {5: 1.0}),
        ({"dry_multiplier": 1}, "sampling.dry_multiplier", 1.0),
        ({"dry_base": 2}, "sampling.dry_base", 2.0),
        ({"dry_allowed_length": 3}, "sampling.dry_allowed_length", 3),
        ({"dry_sequence_breakers": ["x"]}, "sampling.dry_sequence_breakers", ("x",)),
        # as SillyTavern has it in a text box
        (
            {"dry_sequence_breakers": r'["\n", ":", "\"", "*"]'},
            "sampling.dry_sequence_breakers",
            ("\n", ":", '"', "*"),
        ),
        ({"seed": 7}, "sampling.seed", 7),
        ({"grammar": {"type": "regex", "value": "a"}}, "constraint", Constraint("regex", "a")),
    ],
)
def test_fields_reach_the_request(fields: Any, path: str, expected: Any) -> None:
    value: Any = request(**fields)
    for name in path.split("."):
        value = getattr(value, name)
    assert value == expected


@pytest.mark.parametrize(
    "field",
    [
        "tools",
        "tool_choice",
        "session_id",
        "files",
        "agent_permission",
        "code_execution_permission",
        "max_tool_rounds",
        "web_search_options",
        "enable_thinking",
        "reasoning_effort",
        "chat_template_kwargs",
        "user",
        "stream_options",
        "metadata",
        "service_tier",
        "parallel_tool_calls",
        "store",
    ],
)
@pytest.mark.parametrize("value", ["ask", 3, {"a": 1}, [{}], True])
def test_fields_outside_the_schema_have_no_effect(field: str, value: Any) -> None:
    assert request(**{field: value}) == request()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(JSON, JSON)
def test_any_json_is_decoded_or_refused(prompt: Any, other: Any) -> None:
    try:
        got = request(prompt=prompt, suffix=other, best_of=other, logit_bias=other)
    except InvalidRequest as error:
        assert error.message
    else:
        assert got.prompt is not None or got.prompts


async def test_official_client_raises_the_class_of_the_status() -> None:
    def script(request: GenerateRequest) -> Any:
        yield RunStarted("m", 0, 1)
        yield NotFound("gone")

    async with serving(script) as server:
        with pytest.raises(openai.NotFoundError):
            await server.openai.completions.create(model=MODEL, prompt="hi")
        with pytest.raises(openai.BadRequestError) as caught:
            await server.openai.completions.create(model=MODEL, prompt="hi", n=0)
    assert caught.value.param == "n"
