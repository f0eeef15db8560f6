"""Maps the field names that errors use to the paths of these fields in the client's body."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from penstock.base.errors import InvalidRequest
from penstock.dialog import RunFailed


@dataclass(slots=True)
class FieldPaths:
    """Maps field names in errors to paths in one body; filled while the body is decoded. A name
    that was not noted is itself the path."""

    _paths: dict[str, str] = field(default_factory=dict)

    def note(self, name: str, path: str) -> None:
        """Note that the field that errors call `name` is at `path` in the body."""
        self._paths[name] = path

    def note_schema(self, index: int, path: str) -> None:
        """Note the path of the parameter schema of function number `index`; hosted tools are not
        counted.

        Also note the list of functions as the source of the grammar. A field that constrains the
        answer overrides this.
        """
        self.note(f"tools[{index}].function.parameters", path)
        self.note("grammar", path.partition("[")[0])

    def note_hosted(self, path: str) -> None:
        """Note the path of a field that requests server-side tools. Only the first path is kept."""
        self._paths.setdefault("hosted", path)

    def rewrite_failure(self, event: RunFailed) -> RunFailed:
        """Return the failure with the path of its field in the client's body.

        The path also replaces the field's name at the start of the message and in backquotes. If
        the message of an invalid request lacks the path, the path is prepended, because Anthropic's
        error body has no `param`.
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
        # The client numbers messages differently: `GenerateRequest.part_paths` has these paths.
        if owner not in self._paths or owner == "messages":
            return self._paths.get(owner, name)
        return f"{self._paths[owner]}[{index}"
