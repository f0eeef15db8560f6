"""Functions in namespaces: the client's `list_orders` of `crm` is the model's `crm.list_orders`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Namespaces:
    """The namespaces of a request, filled while its tools are decoded."""

    _of: dict[str, str] = field(default_factory=dict)

    def add(self, namespace: str, name: str) -> str:
        """Add a function to a namespace and return the model's name for it."""
        qualified = qualify(namespace, name)
        self._of[qualified] = namespace
        return qualified

    def split(self, qualified: str) -> tuple[str | None, str]:
        """Return (namespace, name) for the model's name of a function; (None, name) without one."""
        namespace = self._of.get(qualified)
        if namespace is None:
            return None, qualified
        return namespace, qualified[len(qualify(namespace, "")) :]


def qualify(namespace: str | None, name: str) -> str:
    """Return the model's name for a function."""
    return f"{namespace}.{name}" if namespace else name
