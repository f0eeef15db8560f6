"""Decides whether a call of a server tool may run: by configuration, or by asking a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.agent.protocols import AgentObserver, ApprovalStore
from penstock.base.errors import InvalidRequest
from penstock.dialog import GenerateRequest, Permission, ServerTool

STRICTNESS: Final[Mapping[Permission, int]] = {"auto": 0, "ask": 1, "deny": 2}
# Kinds of tools to which the request's `code_execution_permission` applies.
EXECUTING: Final = ("code_execution", "shell")
NOT_ALLOWED: Final = "Tool calls are not allowed by this server."
NOT_ALLOWED_BY_CLIENT: Final = "Tool calls are not allowed by this request."
DENIED: Final = "The user denied this call."


def strictest(*permissions: Permission | None) -> Permission:
    """Return the strictest permission. None counts as "auto"."""
    return max((p or "auto" for p in permissions), key=STRICTNESS.__getitem__)


class CallPermissions:
    """The permissions of one run.

    - `server`: the server's permission. The request can only make it stricter.
    - `approvals`: records the decisions.
    - `session`: id of the session in which an approval may be remembered.
    """

    def __init__(
        self,
        server: Permission,
        request: GenerateRequest,
        approvals: ApprovalStore,
        session: str,
        observer: AgentObserver,
    ) -> None:
        self._server = server
        self._asked = request.permissions
        self._approvals = approvals
        self._session = session
        self._observer = observer

    def of(self, tool: ServerTool) -> Permission:
        """Return the permission for the calls of a tool."""
        executing = self._asked.code_execution if tool.kind in EXECUTING else None
        return strictest(self._server, self._asked.agent, executing)

    def refusal(self) -> str:
        """Return the message to the model for a call that the permission "deny" refuses."""
        return NOT_ALLOWED if self._server == "deny" else NOT_ALLOWED_BY_CLIENT

    async def needs_approval(self, tool: ServerTool) -> bool:
        """Whether a person must decide on a call: not if an earlier approval of the session is
        remembered."""
        if self.of(tool) != "ask":
            return False
        if await self._approvals.remembered(self._session):
            self._observer.approval_ended("remembered")
            return False
        return True

    async def request_approval(self) -> str:
        """Create an approval and return its id."""
        return await self._approvals.create(self._session)

    async def denial(self, approval_id: str) -> str | None:
        """Wait for the decision. Returns None if the call may run, else the message to the
        model."""
        verdict = await self._approvals.wait(approval_id)
        if verdict.decision == "approve":
            self._observer.approval_ended("approved")
            return None
        self._observer.approval_ended("denied")
        return verdict.message or DENIED


def check_can_ask(server: Permission, request: GenerateRequest) -> None:
    """Raise InvalidRequest if calls need approvals that the client cannot be asked for, because it
    does not read a stream."""
    if request.streamed or server != "ask":
        return
    raise InvalidRequest(
        "this server asks before it runs tools, so requests with its tools need `stream: true`",
        field="stream",
        code="stream_required",
    )
