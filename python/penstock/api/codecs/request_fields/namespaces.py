"""Functions in namespaces: the client knows `list_orders` of `crm`, the model `crm.list_orders`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Namespaces:
    """Those of a request, filled while its tools are decoded."""

    _of: dict[str, str] = field(default_factory=dict)

    def add(self, namespace: str, name: str) -> str:
        """The model's name of a function in a namespace."""
        qualified = qualify(namespace, name)
        self._of[qualified] = namespace
        return qualified

    def split(self, qualified: str) -> tuple[str | None, str]:
        """(namespace, name) for the model's name of a function; None where it stands in none."""
        namespace = self._of.get(qualified)
        if namespace is None:
            return None, qualified
        return namespace, qualified[len(qualify(namespace, "")) :]


def qualify(namespace: str | None, name: str) -> str:
    """The name under which the model knows a function."""
    return f"{namespace}.{name}" if namespace else name
