"""What loaded adapters are called where a model is named."""

from __future__ import annotations

import pytest

from penstock.adapters.registry import LoadedAdapter
from penstock.api.models.adapter_cards import AdapterCards
from penstock.base.errors import NotFound


def adapter(alias: str) -> LoadedAdapter:
    return LoadedAdapter(alias, "0" * 64, 8, 1, "/")


def cards(*models: tuple[str, list[str]], taken: tuple[str, ...] = ()) -> AdapterCards:
    return AdapterCards([(name, tuple(map(adapter, aliases))) for name, aliases in models], taken)


def test_reserved_signs_are_escaped_so_that_ids_do_not_meet():
    found = cards(("a:b", ["c%3A"]), ("a%3Ab", ["c:"]))
    assert list(found.by_id) == ["a%3Ab::c%253A", "a%253Ab::c%3A"]


def test_ids_that_models_have_already_get_a_suffix():
    found = cards(("a", ["b", "c"]), taken=("a", "a::b", "a::b#2"))
    assert list(found.by_id) == ["a::b#3", "a::c"]


def test_alias_is_enough_where_it_is_unique():
    found = cards(("m", ["x", "y"]), ("n", ["y"]))
    card = found.find("x")
    assert card is not None and (card.model, card.id) == ("m", "m::x")
    assert found.find("n::y") is found.by_id["n::y"] and found.find("z") is None
    with pytest.raises(NotFound, match="m::y, n::y") as refused:
        found.find("y")
    assert refused.value.code == "ambiguous_adapter"
