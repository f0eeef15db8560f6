"""Functions in namespaces. For the model, the function `list_orders` of the namespace `crm` is
named `crm.list_orders`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Namespaces:
    """Records the namespace of each function of a request; filled while the tools are decoded."""

    _of: dict[str, str] = field(default_factory=dict)

    def add(self, namespace: str, name: str) -> str:
        """Add a function to a namespace and return the name by which the model calls it."""
        qualified = qualify(namespace, name)
        self._of[qualified] = namespace
        return qualified

    def split(self, qualified: str) -> tuple[str | None, str]:
        """Return (namespace, name) of a function from the model's name for it. The namespace is
        None for a function outside namespaces."""
        namespace = self._of.get(qualified)
        if namespace is None:
            return None, qualified
        return namespace, qualified[len(qualify(namespace, "")) :]


def qualify(namespace: str | None, name: str) -> str:
    """Return the name by which the model calls a function: `namespace.name`, or `name`."""
    return f"{namespace}.{name}" if namespace else name
