"""The names by which requests select a loaded adapter as a model: qualified ids and short
aliases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from penstock.adapters.registry import LoadedAdapter
from penstock.base.errors import NotFound

# Percent must come first, because the other escapes contain percent signs.
ESCAPES: Final = (("%", "%25"), (":", "%3A"), ("#", "%23"))


@dataclass(frozen=True, slots=True)
class AdapterCard:
    """One loaded adapter as an entry of the list of models.

    `id`: its qualified id in the list.
    `model`: the id of the model that it adapts.
    `adapter`: the loaded adapter.
    """

    id: str
    model: str
    adapter: LoadedAdapter


@dataclass(frozen=True)
class AdapterCards:
    """The cards of all loaded adapters.

    `adapters`: (model id, its loaded adapters) for each model, in the order of the list.
    `taken`: ids and aliases of the models themselves; no card may use them.
    `by_id`: card id -> card.
    """

    adapters: Iterable[tuple[str, tuple[LoadedAdapter, ...]]]
    taken: Collection[str]
    by_id: dict[str, AdapterCard] = field(init=False, default_factory=dict)
    _by_alias: defaultdict[str, list[AdapterCard]] = field(
        init=False, default_factory=lambda: defaultdict(list)
    )

    def __post_init__(self) -> None:
        for model, adapters in self.adapters:
            for adapter in adapters:
                card = AdapterCard(self._free_id(model, adapter.alias), model, adapter)
                self.by_id[card.id] = card
                self._by_alias[adapter.alias].append(card)

    def find(self, name: str) -> AdapterCard | None:
        """Return the card whose id is `name`, or whose alias is `name` if only one model has that
        alias, else None. Raises NotFound (`ambiguous_adapter`) if several models have the alias."""
        card = self.by_id.get(name)
        if card is not None:
            return card
        named = self._by_alias.get(name, [])
        if len(named) > 1:
            ids = ", ".join(card.id for card in named)
            raise NotFound(
                f"several models have an adapter of this name; use one of {ids}",
                field="model",
                code="ambiguous_adapter",
            )
        return named[0] if named else None

    def _free_id(self, model: str, alias: str) -> str:
        plain = f"{_escaped(model)}::{_escaped(alias)}"
        name, number = plain, 2
        while name in self.taken or name in self.by_id:
            name, number = f"{plain}#{number}", number + 1
        return name


def _escaped(name: str) -> str:
    for sign, escape in ESCAPES:
        name = name.replace(sign, escape)
    return name
