"""The models of this server. Resolves the names by which requests select them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.api.models.adapter_cards import AdapterCard, AdapterCards
from penstock.api.models.served_model import ServedModel
from penstock.base.errors import NotFound, Unavailable
from penstock.engine.processes.fleet import States
from penstock.engine.types import EngineGauges
from penstock.models.loader.sampling_defaults import SamplingDefaults

DEFAULT_MODEL: Final = "default"
MAX_SHOWN_CHARS: Final = 80
GAUGES_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Selection:
    """The model or adapter that a request names.

    `model`: the id of the model.
    `echoed`: the name to put in the response: the model's id, or the alias that the request used.
    `adapter`: the alias of the adapter, if the request names an adapter as its model.
    """

    model: str
    echoed: str
    adapter: str | None = None


class ModelCatalog(Mapping[str, ServedModel]):
    """Mapping of model id -> served model, in the order of the settings.

    `aliases`: alias -> model id.
    `default`: the id of the model that requests call "default"; None: the loaded model if exactly
    one is loaded, else the first model.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        *,
        aliases: Mapping[str, str] | None = None,
        default: str | None = None,
    ) -> None:
        self._models = {model.id: model for model in models}
        self._aliases = dict(aliases or {})
        self._default = default
        self._cards = self._make_cards()

    def __getitem__(self, model: str) -> ServedModel:
        return self._models[self._aliases.get(model, model)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    @property
    def default(self) -> str:
        """The id of the default model."""
        if self._default is not None:
            return self._default
        loaded = [model.id for model in self._models.values() if model.status == "loaded"]
        return loaded[0] if len(loaded) == 1 else next(iter(self._models))

    def resolve(self, name: str | None, *, field: str = "model") -> str:
        """Return the id of the model called `name`. `field`: the request field with the name, for
        the error. Raises NotFound (`model_not_found`), whose message lists the models."""
        if name is None or name == DEFAULT_MODEL:
            return self.default
        if name in self._models:
            return name
        if name in self._aliases:
            return self._aliases[name]
        shown = name if len(name) <= MAX_SHOWN_CHARS else name[:MAX_SHOWN_CHARS] + "..."
        available = ", ".join(self.names)
        raise NotFound(
            f"Requested model '{shown}' is not available. Available models: {available}. "
            "Use 'default' to use the default model.",
            field=field,
            code="model_not_found",
        )

    def select(self, name: str | None) -> Selection:
        """Return the model called `name`. `name` may also be an adapter's card id or unique alias:
        the result then has the model and the adapter. Raises NotFound."""
        if name is not None and name != DEFAULT_MODEL and name not in self:
            card = self._cards.find(name)
            if card is not None:
                return Selection(card.model, name, card.adapter.alias)
        model = self.resolve(name)
        return Selection(model, name if name is not None and name in self._aliases else model)

    @property
    def names(self) -> list[str]:
        """All names of models: each id, followed by the aliases of that model."""
        return [name for model in self._models for name in (model, *self._names_of(model))]

    def _names_of(self, model: str) -> list[str]:
        return [alias for alias, id in self._aliases.items() if id == model]

    @property
    def cards(self) -> Mapping[str, AdapterCard]:
        """Card id -> card, for each loaded adapter."""
        return self._cards.by_id

    @property
    def sampling(self) -> dict[str, SamplingDefaults]:
        """Model id -> sampling defaults, for each loaded model that generates text."""
        known = {model.id: model.sampling for model in self._models.values()}
        return {name: defaults for name, defaults in known.items() if defaults is not None}

    def apply(self, states: States) -> None:
        """Apply the new states of all engines to their models."""
        for name, state in states.items():
            self._models[name].apply(state)
        self._cards = self._make_cards()

    def _make_cards(self) -> AdapterCards:
        adapters = [(model.id, model.adapters.all) for model in self._models.values()]
        return AdapterCards(adapters, {*self._models, *self._aliases, DEFAULT_MODEL})

    async def gauges(self) -> EngineGauges | None:
        """Return the sum of the gauges of all connected engines, or None if an engine does not
        answer."""
        engines = [model.engine for model in self._models.values() if model.engine is not None]
        answers = asyncio.gather(*(engine.gauges() for engine in engines))
        try:
            return _sum(await asyncio.wait_for(answers, GAUGES_TIMEOUT_S))
        except (Unavailable, asyncio.TimeoutError):
            return None

    async def close(self) -> None:
        """Close the connections to all engines."""
        await asyncio.gather(*(model.close() for model in self._models.values()))


def _sum(parts: Sequence[EngineGauges]) -> EngineGauges:
    names = EngineGauges.__struct_fields__
    return EngineGauges(**{name: sum(getattr(part, name) for part in parts) for name in names})
