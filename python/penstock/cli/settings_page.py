"""Generates the tables of docs/configuration.md from the options.

`python -m penstock.cli.settings_page docs/configuration.md` replaces the tables between the markers
of the page; a test checks that the page is current.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, get_args

from penstock.cli.agent_setting_options import AGENT_OPTIONS, SANDBOX_OPTIONS, SEARCH_OPTIONS
from penstock.cli.media_setting_options import MEDIA_OPTIONS
from penstock.cli.setting_option import SettingOption, negative_flags
from penstock.cli.settings_options import (
    ENGINE_OPTIONS,
    LORA_OPTIONS,
    SERVER_OPTIONS,
    default_text,
)
from penstock.cli.store_setting_options import STORE_OPTIONS
from penstock.config.agent_validation import AGENT_RANGES, SANDBOX_RANGES
from penstock.config.validation import (
    ENGINE_RANGES,
    LORA_RANGES,
    MEDIA_RANGES,
    SERVER_RANGES,
    STORE_RANGES,
)

BEGIN: Final = (
    "<!-- The tables from here on are written by `python -m penstock.cli.settings_page`. -->"
)
END: Final = "<!-- The tables end here. -->"

KINDS: Final[Mapping[Any, str]] = {
    int: "integer",
    float: "number",
    str: "string",
    bool: "`true` or `false`",
    list[str]: "list of strings",
}
TABLES: Final[tuple[tuple[str, tuple[SettingOption, ...]], ...]] = (
    ("[engine]", ENGINE_OPTIONS),
    ("[engine.adapter]", LORA_OPTIONS),
    ("[server]", SERVER_OPTIONS),
    ("[store]", STORE_OPTIONS),
    ("[media]", MEDIA_OPTIONS),
    ("[agent]", AGENT_OPTIONS),
    ("[agent.search]", SEARCH_OPTIONS),
    ("[sandbox]", SANDBOX_OPTIONS),
)
RANGES: Final[Mapping[str, tuple[float, float]]] = {
    **ENGINE_RANGES,
    **{f"lora_{name}": bounds for name, bounds in LORA_RANGES.items()},
    **SERVER_RANGES,
    **STORE_RANGES,
    **MEDIA_RANGES,
    **AGENT_RANGES,
    **{f"sb_{name}": bounds for name, bounds in SANDBOX_RANGES.items()},
}


def tables() -> str:
    """Return a Markdown section for each TOML table, with a row for each key."""
    sections = [_section(title, options) for title, options in TABLES]
    return "\n\n".join(sections)


def with_tables(page: str) -> str:
    """Return `page` with the text between its markers replaced by the current tables."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


def _section(title: str, options: Iterable[SettingOption]) -> str:
    lines = [f"### `{title}`", "", "| Key | Value | Default | Option | Meaning |"]
    lines.append("|---|---|---|---|---|")
    lines += [_row(option) for option in options]
    return "\n".join(lines)


def _row(option: SettingOption) -> str:
    flags = [flag for flag in option.flags if flag.startswith("--")][:1]
    flags += negative_flags(option)[:1]
    default = (
        default_text(option)
        if option.kind is not bool
        else "`true`"
        if "Default: on" in option.help
        else "`false`"
    )
    cells = (f"`{option.toml_key}`", _value(option), default, _code(flags), option.help)
    return f"| {' | '.join(cells)} |"


def _value(option: SettingOption) -> str:
    """Return a Markdown description of a key's values: its type and range, or its allowed words."""
    if option.kind not in KINDS:
        return _code(f'"{word}"' for word in get_args(option.kind))
    bounds = RANGES.get(option.field)
    if bounds is None or option.kind is str:
        return KINDS[option.kind]
    return f"{KINDS[option.kind]}, {_shown(bounds[0])} to {_shown(bounds[1])}"


def _shown(bound: float) -> str:
    return f"{int(bound):,}" if bound == int(bound) else f"{bound:g}"


def _code(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(with_tables(target.read_text()))
