"""From the table of settings options to the parameters of a command, and from what is given to
settings.

An option that is not given is None: then the TOML file's value counts, else the default, which the
help shows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Optional

import typer
from typer.core import TyperCommand

from penstock.cli.settings_options import (
    MODEL_OPTIONS,
    MODEL_PANEL,
    SERVE_OPTIONS,
    SERVER_OPTIONS,
    STORE_OPTIONS,
    SettingOption,
    default_text,
    negative_flag,
)
from penstock.config import EngineSettings, ServingSettings, SettingsError, read_environment
from penstock.config.load_settings import load_engine, load_serving
from penstock.config.unsupported_options import UNSUPPORTED_OPTIONS, UnsupportedOption

# Shorter than the kinds' own names, which leave the help too little of a narrow terminal.
METAVARS: Final[dict[Any, str]] = {int: "N", float: "SECONDS", str: "TEXT", list[str]: "TEXT"}
FLAGS: Final = {
    option.field: next(flag for flag in option.flags if flag.startswith("--"))
    for option in (*MODEL_OPTIONS, *SERVE_OPTIONS)
}
SERVED_NAMES: Final = "--served-model-name"
MODEL_HELP: Final = "A name of `penstock models`, a .gguf file, a model folder or a hub id."


@dataclass(frozen=True)
class CommandSettings:
    """The settings options that were given."""

    engine: dict[str, Any] = field(default_factory=dict)
    server: dict[str, Any] = field(default_factory=dict)
    store: dict[str, Any] = field(default_factory=dict)
    file: Path | None = None
    names: tuple[str, ...] = ()

    def serving(self) -> ServingSettings:
        """Defaults, then environment and file, then options. Raises SettingsError."""
        environment = read_environment()
        with _named_as_given(self.engine | self.server | self.store):
            return load_serving(
                self.engine,
                self.server,
                self.store,
                file=self.file,
                environment=environment,
                names=self.names,
            )

    def one_engine(self) -> EngineSettings:
        """The same for a command that needs one model and no server."""
        with _named_as_given(self.engine):
            return load_engine(self.engine, file=self.file)


@contextmanager
def _named_as_given(values: Mapping[str, Any]) -> Iterator[None]:
    """Errors begin with the field of the settings at fault: for a value that an option gave, with
    the option."""
    try:
        yield
    except SettingsError as error:
        field, _, rest = str(error).partition(" ")
        if field not in FLAGS or values.get(field) is None:
            raise
        raise SettingsError(f"{FLAGS[field]} {rest}") from None


def with_settings(*, server: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command MODEL, `--config` and the settings options; it gets them as `parsed`, its
    first argument, beside its own options."""
    options = MODEL_OPTIONS + (SERVE_OPTIONS if server else ())

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def wrapper(**given: Any) -> None:
            values = {o.field: _value(o, given) for o in options}
            engine = {o.field: values[o.field] for o in MODEL_OPTIONS}
            engine["model"] = _the_one_given(given.pop("model"), given.pop("model_id"), "MODEL")
            names = tuple(given.pop("served_model_name", None) or ())
            parsed = CommandSettings(engine, file=given.pop("config"), names=names)
            if server:
                parsed.server.update({o.field: values[o.field] for o in SERVER_OPTIONS})
                parsed.server.update({o.name: given.pop(o.name) for o in UNSUPPORTED_OPTIONS})
                parsed.store.update({o.field: values[o.field] for o in STORE_OPTIONS})
            command(parsed, **given)

        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        shared = [parameter for option in options for parameter in _parameters(option)]
        unsupported = [_unsupported_parameter(option) for option in UNSUPPORTED_OPTIONS if server]
        named = [_names_parameter()] if server else []
        parameters = [
            *_model_parameters(),
            *named,
            *shared,
            _config_parameter(),
            *unsupported,
            *own,
        ]
        wrapper.__name__, wrapper.__doc__ = command.__name__, command.__doc__
        wrapper.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
        )
        wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapper

    return decorate


def _model_parameters() -> list[inspect.Parameter]:
    default = EngineSettings().model
    argument = typer.Argument(None, help=MODEL_HELP, show_default=default)
    option = typer.Option(
        None, "-m", "--model-id", help="The same as MODEL.", rich_help_panel=MODEL_PANEL
    )
    return [_make("model", Optional[str], argument), _make("model_id", Optional[str], option)]  # noqa: UP045


def _names_parameter() -> inspect.Parameter:
    option = typer.Option(
        None,
        SERVED_NAMES,
        help="Further names that requests may call the model, such as gpt-4o.",
        rich_help_panel=MODEL_PANEL,
        metavar="NAME...",
        show_default=False,
    )
    return _make("served_model_name", Optional[list[str]], option)  # noqa: UP045


class MultiValueCommand(TyperCommand):
    """A command whose option `--served-model-name` takes several words, as vLLM's does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, split_served_names(args))


def split_served_names(args: Sequence[str]) -> list[str]:
    """`--served-model-name A B` as that option twice. A last word that is a file, a folder or a
    name of the catalogue is MODEL."""
    made: list[str] = []
    given = list(args)
    while given:
        flag, joined, value = given.pop(0).partition("=")
        if flag != SERVED_NAMES:
            made.append(flag + joined + value)
            continue
        words = [value] if joined else given[:1]
        del given[: 0 if joined else 1]
        while given and not given[0].startswith("-"):
            if not (given[1:2] and not given[1].startswith("-")) and _is_model(given[0]):
                break
            words.append(given.pop(0))
        made += [part for word in words for part in (SERVED_NAMES, word)]
    return made


def _is_model(word: str) -> bool:
    from penstock.models.hub.catalogue import CATALOGUE

    return word.endswith(".gguf") or word.lower() in CATALOGUE or Path(word).exists()


def _config_parameter() -> inspect.Parameter:
    option = typer.Option(
        None,
        "--config",
        help="TOML file: one model or several, and their settings. Options win over it.",
        rich_help_panel=MODEL_PANEL,
        show_default=False,
    )
    return _make("config", Optional[Path], option)  # noqa: UP045


def _unsupported_parameter(option: UnsupportedOption) -> inspect.Parameter:
    """Recognised, so that it can be refused by name; not shown."""
    flag = "--" + option.name.replace("_", "-")
    return _make(
        option.name, Optional.__getitem__(option.kind), typer.Option(None, flag, hidden=True)
    )


def _parameters(option: SettingOption) -> list[inspect.Parameter]:
    """The option as shown, and a hidden one for each alias and for the opposite of a flag: long
    lists of flags are cut off in a narrow terminal."""
    names = _names(option)
    text = option.help
    if len(names) > 1:
        text += f" Also {option.flags[-1]}."
    off = negative_flag(option)
    text += rf" \[default: {default_text(option)}]" if off is None else f" Opposite: {off}."
    flags = option.flags[: len(option.flags) - len(names) + 1]
    panel, metavar = option.panel, option.metavar or METAVARS.get(option.kind)
    infos = [typer.Option(None, *flags, help=text, rich_help_panel=panel, metavar=metavar)]
    infos += [typer.Option(None, flag, hidden=True) for flag in option.flags[len(flags) :]]
    if off is not None:
        names = [*names, _negative_parameter(option)]
        infos.append(typer.Option(None, off, hidden=True))
    kind: Any = Optional.__getitem__(option.kind)
    return [_make(name, kind, info) for name, info in zip(names, infos, strict=True)]


def _negative_parameter(option: SettingOption) -> str:
    """The parameter of the opposite of a flag."""
    return f"{option.field}_off"


def _names(option: SettingOption) -> list[str]:
    """The parameter of the option, and of each alias; a short flag is no alias."""
    long = [flag for flag in option.flags if flag.startswith("--")]
    return [option.field, *(f"{option.field}_{index}" for index in range(1, len(long)))]


def _value(option: SettingOption, given: dict[str, Any]) -> Any:
    value, flag = None, FLAGS[option.field]
    for name in _names(option):
        value = _the_one_given(value, given.pop(name), flag)
    if given.pop(_negative_parameter(option), None):
        value = _the_one_given(value, False, flag)
    return value


def _the_one_given(first: Any, second: Any, name: str) -> Any:
    if first is not None and second is not None and first != second:
        raise SettingsError(f"{name} is given twice: {first} and {second}")
    return first if first is not None else second


def _make(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
