"""Maps our names of request fields to the paths that the client wrote, for errors that name one."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from penstock.base.errors import InvalidRequest
from penstock.dialog import RunFailed


@dataclass(slots=True)
class FieldPaths:
    """Filled while a body is decoded. A field that is not noted has the same name in the body."""

    _paths: dict[str, str] = field(default_factory=dict)

    def note(self, name: str, path: str) -> None:
        """Note the path in the body of the field that errors call `name`."""
        self._paths[name] = path

    def note_schema(self, index: int, path: str) -> None:
        """Note the path of the schema of function `index`, counted without other tools.

        A grammar that no other field asks for is that of tool calls.
        """
        self.note(f"tools[{index}].function.parameters", path)
        self.note("grammar", path.partition("[")[0])

    def note_hosted(self, path: str) -> None:
        """Note the first field that asks for tools of the server."""
        self._paths.setdefault("hosted", path)

    def rewrite_failure(self, event: RunFailed) -> RunFailed:
        """Return the failure with the client's path of its field.

        A message that begins with our name of the field, or quotes it, gets the path there. The
        message of an invalid request names the field in any case: an envelope without `param` has
        no other place for it.
        """
        name = event.field
        if name is None:
            return event
        path = self._path_of(name)
        message = event.message
        if path != name:
            message = message.replace(f"`{name}`", f"`{path}`")
            if message.startswith((f"{name} ", f"{name}:")):
                message = path + message.removeprefix(name)
        if event.status == InvalidRequest.status and path not in message:
            message = f"{path}: {message}"
        if (path, message) == (name, event.message):
            return event
        return msgspec.structs.replace(event, field=path, message=message)

    def _path_of(self, name: str) -> str:
        owner, bracket, index = name.partition("[")
        if name in self._paths or not bracket:
            return self._paths.get(name, name)
        # Clients count messages differently; `GenerateRequest.part_paths` has their parts.
        if owner not in self._paths or owner == "messages":
            return self._paths.get(owner, name)
        return f"{self._paths[owner]}[{index}"
