"""Which alias names which revision of one model's adapters: pure rules, no files, no engine.

A revision is *live* while an alias names it or a load is about to; *retired* from then on until
whoever holds it says that it is freed. Identical content is one revision, whatever it is called.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from penstock.adapters.errors import AdapterRefused

MAX_ALIAS_BYTES: Final = 256


class LoadedAdapter(msgspec.Struct, frozen=True):
    """An alias and the revision that it names. `size_bytes` and `rank` as of Adapter; `source`:
    the folder as whoever loaded it wrote it."""

    alias: str
    revision: str
    rank: int
    size_bytes: int
    source: str
    pinned: bool = False


class Load:
    """A load that was admitted and is under way. `revision` None: its content is not known."""

    def __init__(self, alias: str, expected: str | None) -> None:
        self.alias = alias
        self.expected = expected
        self.revision: str | None = None


class AdapterRegistry:
    """The aliases of one model, at most `max_adapters`; one load at a time."""

    def __init__(self, max_adapters: int) -> None:
        self._max_adapters = max_adapters
        self._aliases: dict[str, LoadedAdapter] = {}
        self._retired: set[str] = set()
        self._load: Load | None = None

    @property
    def adapters(self) -> tuple[LoadedAdapter, ...]:
        """In the order in which their aliases were loaded first."""
        return tuple(self._aliases.values())

    @property
    def live(self) -> frozenset[str]:
        """Generations that must stay."""
        named = {adapter.revision for adapter in self._aliases.values()}
        if self._load is not None and self._load.revision is not None:
            named.add(self._load.revision)
        return frozenset(named)

    @property
    def retired(self) -> frozenset[str]:
        """Generations that nothing names, and that are not known to be freed."""
        return frozenset(self._retired)

    def begin(self, name: str, *, replace: bool = False, expected: str | None = None) -> Load:
        """Admit a load, which `finish` or `abandon` ends. `replace`: an alias may be there;
        `expected`: and names this revision. Raises AdapterRefused: `invalid_lora_name`,
        `invalid_lora_load_policy`, `lora_load_busy`, `lora_adapter_already_loaded`,
        `lora_generation_mismatch`, `lora_alias_limit_exceeded`."""
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
                "an adapter of this name is loaded; load_inplace true replaces it",
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
        """The content of a load is known: its revision is live from here on. Raises
        AdapterRefused `lora_adapter_limit_exceeded` where too many retired ones are still in use,
        as each may be replaced while answers with it run."""
        assert self._load is load
        held = self.live | self._retired
        if revision not in held and len(held) >= 2 * self._max_adapters:
            raise AdapterRefused(
                "lora_adapter_limit_exceeded",
                f"{len(held)} generations are in use, retired ones included; come back when"
                " answers have finished",
            )
        load.revision = revision
        self._retired.discard(revision)

    def finish(
        self, load: Load, rank: int, size_bytes: int, source: str, *, pinned: bool = False
    ) -> LoadedAdapter:
        """Switch the alias to the revision that is held; the load is over. Raises AdapterRefused
        `lora_generation_mismatch` where the alias has changed meanwhile: then it is not over."""
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
        """The load came to nothing; aliases are as before. Harmless after `finish`."""
        if self._load is load:
            self._load = None
            if load.revision is not None:
                self._retire(load.revision)

    def remove(self, name: str, *, expected: str | None = None) -> LoadedAdapter:
        """Forget an alias. Raises AdapterRefused: `invalid_lora_name`, `lora_adapter_not_found`,
        `lora_generation_mismatch`."""
        alias = clean_alias(name)
        adapter = self._aliases.get(alias)
        if adapter is None:
            raise AdapterRefused(
                "lora_adapter_not_found", "no adapter of this name is loaded", field="lora_name"
            )
        if expected is not None and adapter.revision != expected:
            raise _mismatch()
        del self._aliases[alias]
        self._retire(adapter.revision)
        return adapter

    def freed(self, revisions: Iterable[str]) -> None:
        """Nobody holds these any more."""
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
    """An alias without blanks around it. Raises AdapterRefused `invalid_lora_name`."""
    alias = name.strip()
    if not 1 <= len(alias.encode("utf-8", "replace")) <= MAX_ALIAS_BYTES or not alias.isprintable():
        raise AdapterRefused(
            "invalid_lora_name",
            f"lora_name must have from 1 to {MAX_ALIAS_BYTES} bytes, all printable",
            field="lora_name",
        )
    return alias


def _mismatch() -> AdapterRefused:
    return AdapterRefused(
        "lora_generation_mismatch",
        "the alias does not name expected_generation",
        field="expected_generation",
    )
