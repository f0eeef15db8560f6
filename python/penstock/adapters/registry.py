"""The registry of one model's adapters, alias -> revision: pure rules without files or an engine.

A revision is *live* while an alias refers to it or a load is about to make an alias refer to it.
Then it is *retired* until the engine reports that it has been freed. Identical content is one
revision under any number of aliases.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from penstock.adapters.errors import AdapterRefused

MAX_ALIAS_BYTES: Final = 256


class LoadedAdapter(msgspec.Struct, frozen=True):
    """An alias and the revision to which it refers.

    - `rank`, `size_bytes`: see Adapter.
    - `source`: the folder as the client or operator wrote it.
    - `pinned`: the engine keeps the revision in memory.
    """

    alias: str
    revision: str
    rank: int
    size_bytes: int
    source: str
    pinned: bool = False


class Load:
    """An admitted load in progress. `expected`: the revision to be replaced, if the client named
    one. `revision`: the new revision; None until the content has been hashed."""

    def __init__(self, alias: str, expected: str | None) -> None:
        self.alias = alias
        self.expected = expected
        self.revision: str | None = None


class AdapterRegistry:
    """The aliases of one model, at most `max_adapters`. One load runs at a time."""

    def __init__(self, max_adapters: int) -> None:
        self._max_adapters = max_adapters
        self._aliases: dict[str, LoadedAdapter] = {}
        self._retired: set[str] = set()
        self._load: Load | None = None

    @property
    def adapters(self) -> tuple[LoadedAdapter, ...]:
        """All aliases, in the order in which they were first loaded."""
        return tuple(self._aliases.values())

    @property
    def live(self) -> frozenset[str]:
        """The revisions that the engine must keep."""
        named = {adapter.revision for adapter in self._aliases.values()}
        if self._load is not None and self._load.revision is not None:
            named.add(self._load.revision)
        return frozenset(named)

    @property
    def retired(self) -> frozenset[str]:
        """The revisions without an alias that the engine has not freed yet."""
        return frozenset(self._retired)

    def begin(self, name: str, *, replace: bool = False, expected: str | None = None) -> Load:
        """Admit a load, which the caller must end with `finish` or `abandon`.

        - `replace`: an alias that exists may be replaced.
        - `expected`: the revision to which the alias must refer now.

        Raises AdapterRefused: `invalid_lora_name`, `invalid_lora_load_policy`, `lora_load_busy`,
        `lora_adapter_already_loaded`, `lora_generation_mismatch`, `lora_alias_limit_exceeded`.
        """
        alias = clean_alias(name)
        if expected is not None and not replace:
            raise AdapterRefused(
                "invalid_lora_load_policy",
                "expected_generation needs load_inplace true",
                field="expected_generation",
            )
        if self._load is not None:
            raise AdapterRefused("lora_load_busy", "another adapter is being loaded")
        if alias in self._aliases and not replace:
            raise AdapterRefused(
                "lora_adapter_already_loaded",
                "an adapter with this name is loaded; set load_inplace to true to replace it",
                field="lora_name",
            )
        load = Load(alias, expected)
        self._check_expected(load)
        if alias not in self._aliases and len(self._aliases) >= self._max_adapters:
            raise AdapterRefused(
                "lora_alias_limit_exceeded",
                f"{len(self._aliases)} adapters are loaded; lora_max_adapters is"
                f" {self._max_adapters}",
            )
        self._load = load
        return load

    def hold(self, load: Load, revision: str) -> None:
        """Set the revision of a load, which makes the revision live. Raises AdapterRefused
        `lora_adapter_limit_exceeded` if 2 * `max_adapters` other revisions are live or retired:
        each alias can be replaced once while answers with its old revision run."""
        assert self._load is load
        held = self.live | self._retired
        if revision not in held and len(held) >= 2 * self._max_adapters:
            raise AdapterRefused(
                "lora_adapter_limit_exceeded",
                f"{len(held)} generations are in use, including retired ones; try again when"
                " running answers have finished",
            )
        load.revision = revision
        self._retired.discard(revision)

    def finish(
        self, load: Load, rank: int, size_bytes: int, source: str, *, pinned: bool = False
    ) -> LoadedAdapter:
        """Point the alias to the revision that `hold` set, and end the load. Raises AdapterRefused
        `lora_generation_mismatch` if the alias has changed since `begin`; the load is then still in
        progress."""
        assert self._load is load and load.revision is not None
        self._check_expected(load)
        adapter = LoadedAdapter(load.alias, load.revision, rank, size_bytes, source, pinned)
        before = self._aliases.get(load.alias)
        self._aliases[load.alias] = adapter
        self._load = None
        if before is not None:
            self._retire(before.revision)
        return adapter

    def abandon(self, load: Load) -> None:
        """End a failed load without changing an alias. After `finish` this does nothing."""
        if self._load is load:
            self._load = None
            if load.revision is not None:
                self._retire(load.revision)

    def remove(self, name: str, *, expected: str | None = None) -> LoadedAdapter:
        """Remove an alias and return its last entry. Raises AdapterRefused: `invalid_lora_name`,
        `lora_adapter_not_found`, `lora_generation_mismatch`."""
        alias = clean_alias(name)
        adapter = self._aliases.get(alias)
        if adapter is None:
            raise AdapterRefused(
                "lora_adapter_not_found", "no adapter with this name is loaded", field="lora_name"
            )
        if expected is not None and adapter.revision != expected:
            raise _mismatch()
        del self._aliases[alias]
        self._retire(adapter.revision)
        return adapter

    def freed(self, revisions: Iterable[str]) -> None:
        """Stop tracking the retired revisions that the engine has freed."""
        self._retired.difference_update(revisions)

    def _retire(self, revision: str) -> None:
        if revision not in self.live:
            self._retired.add(revision)

    def _check_expected(self, load: Load) -> None:
        if load.expected is None:
            return
        now = self._aliases.get(load.alias)
        if now is None or now.revision != load.expected:
            raise _mismatch()


def clean_alias(name: str) -> str:
    """Strip surrounding whitespace from an alias. Raises AdapterRefused `invalid_lora_name` if the
    result is empty, too long or not printable."""
    alias = name.strip()
    if not 1 <= len(alias.encode("utf-8", "replace")) <= MAX_ALIAS_BYTES or not alias.isprintable():
        raise AdapterRefused(
            "invalid_lora_name",
            f"lora_name must be 1 to {MAX_ALIAS_BYTES} bytes of printable characters",
            field="lora_name",
        )
    return alias


def _mismatch() -> AdapterRefused:
    return AdapterRefused(
        "lora_generation_mismatch",
        "the alias does not name expected_generation",
        field="expected_generation",
    )
