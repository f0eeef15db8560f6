"""One option that sets a field of the settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class SettingOption:
    """One option of the command line.

    `field`: the settings field that it sets; unique among the options.
    `flags`: the flag shown in the help, then hidden aliases; a short flag precedes the flag that it
    abbreviates. (): only the settings file can set the field.
    `kind`: the type of its value: int, float, str, bool, list[str] or a Literal.
    `help`: the text of the help.
    `default`: shown in the help instead of the field's default; None: the field's default.
    `metavar`: shown in the help instead of the type; None: the type.
    `panel`: the section of the help.
    `key`: its key in the TOML file; "": the name of the field.
    `completions`: the values that a shell completes, of an option whose kind does not list them.
    """

    field: str
    flags: tuple[str, ...]
    kind: Any
    help: str
    default: str | None = None
    metavar: str | None = None
    panel: str = ""
    key: str = ""
    completions: tuple[str, ...] = ()

    @property
    def toml_key(self) -> str:
        """The option's key in its table of the TOML file."""
        return self.key or self.field


def in_panel(panel: str, *options: SettingOption) -> tuple[SettingOption, ...]:
    """Return `options` for the section `panel` of the help."""
    return tuple(replace(option, panel=panel) for option in options)


def negative_flags(option: SettingOption) -> tuple[str, ...]:
    """Return the flags that switch a boolean option off, starting with the flag shown in the help;
    () for other options."""
    if option.kind is not bool or not option.flags:
        return ()
    name = option.flags[0].removeprefix("--")
    for prefix, other in (("no-", ""), ("disable-", "enable-"), ("enable-", "disable-")):
        if name.startswith(prefix):
            further = (f"--no-{name}",) if prefix == "enable-" else ()
            return (f"--{other}{name.removeprefix(prefix)}", *further)
    return (f"--no-{name}",)
