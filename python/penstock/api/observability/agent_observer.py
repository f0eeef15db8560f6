"""Metrics and access log lines of server tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from penstock.agent.protocols import ApprovalOutcome, CallStatus
from penstock.api.observability.access_log import AccessLog
from penstock.api.observability.request_record import current_record
from penstock.dialog import ServerTool

if TYPE_CHECKING:
    from penstock.agent.server_tools import ServerTools

CALL_BUCKETS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class AgentMetrics:
    """The metrics of server tools. The label `tool` is the name of a built-in tool, `mcp` or
    `dispatch`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.rounds = Counter(
            "service_agent_rounds_total", "Rounds of tool calls.", registry=registry
        )
        self.calls = Counter(
            "service_agent_tool_calls_total",
            "Calls of server tools.",
            ("tool", "status"),
            registry=registry,
        )
        self.seconds = Histogram(
            "service_agent_tool_call_seconds",
            "Duration of calls of server tools, without approvals.",
            ("tool",),
            buckets=CALL_BUCKETS,
            registry=registry,
        )
        self.approvals = Counter(
            "service_agent_approvals_total", "Decisions on calls.", ("outcome",), registry=registry
        )
        self.sandboxes = Gauge(
            "service_agent_sandboxes_running",
            "Containers with running processes.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.mcp_servers = Gauge(
            "service_agent_mcp_servers_connected",
            "Connected MCP servers.",
            registry=registry,
            multiprocess_mode="max",
        )

    def show_state(self, tools: ServerTools) -> None:
        """Set the gauges to the state of this process's tools."""
        self.sandboxes.set(tools.running_containers)
        self.mcp_servers.set(sum(server.connected for server in tools.mcp_status()))


class AgentRecorder:
    """Records rounds, calls and approvals in the metrics and the access log. Implements
    `agent.protocols.AgentObserver`.

    `metrics`, `access_log`: None if the operator has turned them off.
    """

    def __init__(self, metrics: AgentMetrics | None, access_log: AccessLog | None) -> None:
        self._metrics = metrics
        self._access_log = access_log

    def round_ended(self) -> None:
        if self._metrics is not None:
            self._metrics.rounds.inc()

    def call_ended(self, tool: ServerTool, status: CallStatus, seconds: float) -> None:
        label = _label(tool)
        if self._metrics is not None:
            self._metrics.calls.labels(label, status).inc()
            self._metrics.seconds.labels(label).observe(seconds)
        if self._access_log is not None:
            record = current_record.get()
            self._access_log.tool_called(
                record.id if record is not None else None, tool.name, status, seconds
            )

    def approval_ended(self, outcome: ApprovalOutcome) -> None:
        if self._metrics is not None:
            self._metrics.approvals.labels(outcome).inc()


def _label(tool: ServerTool) -> str:
    match tool.source:
        case "built_in":
            return tool.name
        case "mcp":
            return "mcp"
        case "external" | "user":
            return "dispatch"
