"""The stores and observers that the agent loop uses. The server passes the objects of the `store`
room; embedded use passes objects that keep everything in memory."""

from __future__ import annotations

from typing import Literal, Protocol

from penstock.dialog import ServerTool
from penstock.store.records import NewFile, SkillBundle, StoredFile, Verdict

CallStatus = Literal["success", "error", "timeout", "denied", "cancelled"]
ApprovalOutcome = Literal["approved", "denied", "remembered"]


class FileStore(Protocol):
    """Stores the files of sessions: the methods of `store.Files` that the agent uses."""

    async def create(self, new: NewFile) -> StoredFile: ...

    async def get(self, id: str) -> StoredFile | None: ...

    async def read(self, id: str) -> bytes: ...

    async def list(
        self, container: str | None = None, *, session: str | None = None
    ) -> list[StoredFile]: ...


class ApprovalStore(Protocol):
    """Records approvals: the methods of `store.Approvals` that the agent uses."""

    async def create(self, session: str | None = None) -> str: ...

    async def wait(self, id: str) -> Verdict: ...

    async def remembered(self, session: str) -> bool: ...


class SkillStore(Protocol):
    """Reads uploaded skills: the method of `store.Skills` that the agent uses."""

    async def read(self, skill_id: str, version: int | None = None) -> SkillBundle: ...


class AgentObserver(Protocol):
    """Receives figures about rounds and calls, for metrics and the access log."""

    def round_ended(self) -> None: ...

    def call_ended(self, tool: ServerTool, status: CallStatus, seconds: float) -> None: ...

    def approval_ended(self, outcome: ApprovalOutcome) -> None: ...


class NoObserver:
    """An AgentObserver that ignores everything."""

    def round_ended(self) -> None:
        pass

    def call_ended(self, tool: ServerTool, status: CallStatus, seconds: float) -> None:
        pass

    def approval_ended(self, outcome: ApprovalOutcome) -> None:
        pass
