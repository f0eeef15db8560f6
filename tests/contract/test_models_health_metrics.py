"""Model cards, health and metrics."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tests.support.scripted_engine import INFO
from tests.support.servers.http_server import CREATED, MODEL, ScriptedLoop, serving, spoken

CARD = {
    "id": MODEL,
    "object": "model",
    "created": CREATED,
    "owned_by": "local",
    "status": "loaded",
    "tools_available": None,
    "mcp_tools_count": None,
    "mcp_servers_connected": None,
    "parent": None,
    "root": MODEL,
    "adapter_generation": None,
    "max_model_len": INFO.max_model_len,
    "sampling_defaults": None,
    "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
}
TARGET = {"method", "path", "model"}
METRICS = {
    "http_requests_total": ("counter", TARGET | {"status"}),
    "http_request_duration_seconds": ("histogram", TARGET | {"status"}),
    "http_requests_in_flight": ("gauge", TARGET),
    "http_request_body_bytes": ("histogram", TARGET),
    "service_time_to_first_token_seconds": ("histogram", TARGET | {"status"}),
    "service_inter_token_latency_seconds": ("histogram", TARGET | {"status"}),
}


async def test_a_card_has_the_fields_of_the_specification() -> None:
    async with serving() as server:
        listed = (await server.http.get("/v1/models")).json()
    assert listed == {"object": "list", "data": [CARD | {"id": "default", "root": "default"}, CARD]}


async def test_health_needs_no_model() -> None:
    models = {MODEL: ScriptedLoop(spoken("a"))}
    async with serving(models=models, on_demand=[MODEL]) as server:
        for path in ("/health", "/"):
            assert (await server.http.get(path)).status_code == 200
        assert server.services.models[MODEL].status == "unloaded"


async def test_metrics_have_the_types_and_labels_of_the_specification() -> None:
    async with serving() as server:
        body = {"messages": [{"role": "user", "content": "hi"}]}
        await server.http.post("/v1/chat/completions", json=body)
        text = (await server.http.get("/metrics")).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for name, (kind, labels) in METRICS.items():
        assert f"# TYPE {name} {kind}\n" in text
        for sample in families[name.removesuffix("_total")].samples:
            assert set(sample.labels) - {"le"} == labels
