"""The rules of aliases and revisions, one by one and against a plain dictionary."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.adapters.errors import AdapterRefused
from penstock.adapters.registry import AdapterRegistry, Load


def load(registry: AdapterRegistry, alias: str, revision: str, **policy):
    began = registry.begin(alias, **policy)
    registry.hold(began, revision)
    return registry.finish(began, 8, 1000, "/from")


def code(action, *arguments, **keywords) -> str:
    with pytest.raises(AdapterRefused) as refused:
        action(*arguments, **keywords)
    return refused.value.code


def test_alias_names_a_revision_until_it_is_removed():
    registry = AdapterRegistry(4)
    adapter = load(registry, " sql ", "g1")
    assert (adapter.alias, adapter.revision, adapter.rank) == ("sql", "g1", 8)
    assert registry.adapters == (adapter,) and registry.live == {"g1"}
    assert registry.remove("sql") == adapter
    assert registry.adapters == () and registry.retired == {"g1"}
    registry.freed(["g1"])
    assert registry.retired == frozenset()


@pytest.mark.parametrize("name", ["", "  ", "x" * 257, "ä" * 129, "a\nb", "a\0"])
def test_invalid_alias_is_refused(name):
    registry = AdapterRegistry(4)
    assert code(registry.begin, name) == "invalid_lora_name"
    assert code(registry.remove, name) == "invalid_lora_name"


def test_alias_is_replaced_only_on_request():
    registry = AdapterRegistry(4)
    load(registry, "a", "g1")
    assert code(registry.begin, "a") == "lora_adapter_already_loaded"
    assert code(registry.begin, "a", expected="g1") == "invalid_lora_load_policy"
    assert load(registry, "a", "g2", replace=True).revision == "g2"
    assert registry.retired == {"g1"} and registry.live == {"g2"}
    assert load(registry, "b", "g3", replace=True).alias == "b"  # a new alias


def test_expected_revision_must_match():
    registry = AdapterRegistry(4)
    load(registry, "a", "g1")
    assert code(registry.begin, "a", replace=True, expected="g2") == "lora_generation_mismatch"
    assert code(registry.begin, "b", replace=True, expected="g1") == "lora_generation_mismatch"
    load(registry, "a", "g2", replace=True, expected="g1")
    assert code(registry.remove, "a", expected="g1") == "lora_generation_mismatch"
    assert registry.remove("a", expected="g2").revision == "g2"
    assert code(registry.remove, "a", expected="g2") == "lora_adapter_not_found"


def test_alias_removed_during_its_load_no_longer_matches_the_expected_revision():
    registry = AdapterRegistry(4)
    load(registry, "a", "g1")
    began = registry.begin("a", replace=True, expected="g1")
    registry.hold(began, "g2")
    registry.remove("a")
    assert code(registry.finish, began, 8, 1, "/") == "lora_generation_mismatch"
    registry.abandon(began)
    assert registry.adapters == () and registry.retired == {"g1", "g2"}


def test_same_content_is_the_same_revision():
    registry = AdapterRegistry(4)
    load(registry, "a", "g1")
    load(registry, "b", "g1")
    load(registry, "a", "g1", replace=True)
    registry.remove("a")
    assert registry.live == {"g1"} and registry.retired == frozenset()
    registry.remove("b")
    assert registry.retired == {"g1"}
    load(registry, "c", "g1")
    assert registry.live == {"g1"} and registry.retired == frozenset()


def test_revision_of_a_running_load_is_not_retired_by_an_unload():
    registry = AdapterRegistry(4)
    load(registry, "a", "g1")
    began = registry.begin("b")
    registry.hold(began, "g1")
    registry.remove("a")
    assert registry.live == {"g1"} and registry.retired == frozenset()
    registry.abandon(began)
    assert registry.retired == {"g1"}


def test_one_load_at_a_time():
    registry = AdapterRegistry(4)
    began = registry.begin("a")
    with pytest.raises(AdapterRefused) as refused:
        registry.begin("b")
    assert (refused.value.status, refused.value.retry_after_s) == (429, 1)
    registry.abandon(began)
    registry.abandon(began)
    load(registry, "b", "g1")


def test_aliases_have_a_limit_and_replacing_does_not_need_room():
    registry = AdapterRegistry(2)
    load(registry, "a", "g1")
    load(registry, "b", "g2")
    assert code(registry.begin, "c") == "lora_alias_limit_exceeded"
    assert code(registry.begin, "c", replace=True) == "lora_alias_limit_exceeded"
    load(registry, "a", "g3", replace=True)


def test_retired_revisions_in_use_have_a_limit():
    registry = AdapterRegistry(2)
    for revision in ("g1", "g2", "g3", "g4"):
        load(registry, "a", revision, replace=True)
    began = registry.begin("a", replace=True)
    assert code(registry.hold, began, "g5") == "lora_adapter_limit_exceeded"
    registry.hold(began, "g1")  # a revision that is in use already needs no room
    registry.abandon(began)
    registry.freed(["g1", "g2"])
    load(registry, "a", "g5", replace=True)


class AgainstADictionary(RuleBasedStateMachine):
    """Compares the registry with a dictionary: loads in steps, with unloads between them."""

    aliases = st.sampled_from(["a", "b", "c", "d"])
    revisions = st.sampled_from(["g1", "g2", "g3", "g4", "g5", "g6", "g7"])

    def __init__(self) -> None:
        super().__init__()
        self.registry = AdapterRegistry(3)
        self.model: dict[str, str] = {}
        self.engine: set[str] = set()
        self.load: Load | None = None

    @rule(alias=aliases, replace=st.booleans(), expected=st.none() | revisions)
    def begin(self, alias, replace, expected):
        allowed = (
            self.load is None
            and (expected is None or (replace and self.model.get(alias) == expected))
            and (replace or alias not in self.model)
            and (alias in self.model or len(self.model) < 3)
        )
        try:
            self.load = self.registry.begin(alias, replace=replace, expected=expected)
            assert allowed
        except AdapterRefused:
            assert not allowed

    @precondition(lambda self: self.load is not None and self.load.revision is None)
    @rule(revision=revisions)
    def hold(self, revision):
        try:
            self.registry.hold(self.load, revision)
            self.engine.add(revision)
        except AdapterRefused:
            assert revision not in self.engine and len(self.engine) >= 6

    @precondition(lambda self: self.load is not None)
    @rule()
    def abandon(self):
        self.registry.abandon(self.load)
        self.load = None

    @precondition(lambda self: self.load is not None and self.load.revision is not None)
    @rule()
    def finish(self):
        load = self.load
        matches = load.expected is None or self.model.get(load.alias) == load.expected
        try:
            self.registry.finish(load, 1, 1, "/")
            assert matches
            self.model[load.alias] = load.revision
            self.load = None
        except AdapterRefused:
            assert not matches
            self.abandon()

    @rule(alias=aliases, expected=st.none() | revisions)
    def remove(self, alias, expected):
        there = alias in self.model and expected in (None, self.model[alias])
        try:
            assert self.registry.remove(alias, expected=expected).revision == self.model[alias]
            assert there
            del self.model[alias]
        except AdapterRefused:
            assert not there

    @rule(data=st.data())
    def free(self, data):
        freed = {g for g in sorted(self.registry.retired) if data.draw(st.booleans())}
        self.registry.freed(freed)
        self.engine -= freed

    @invariant()
    def aliases_are_those_of_the_model(self):
        found = {adapter.alias: adapter.revision for adapter in self.registry.adapters}
        assert found == self.model

    @invariant()
    def every_generation_of_the_engine_is_live_or_retired(self):
        held = self.load.revision if self.load is not None else None
        live = {*self.model.values(), *([held] if held else [])}
        assert self.registry.live == live
        assert self.registry.retired == self.engine - live


AgainstADictionary.TestCase.settings = settings(max_examples=80, stateful_step_count=40)
TestAgainstADictionary = AgainstADictionary.TestCase
