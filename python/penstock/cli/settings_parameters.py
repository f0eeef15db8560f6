"""Adds the settings options to a command as parameters, and converts the given values to settings.

An option that is not given is None. The TOML file's value is then used, or else the default.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Optional

import typer

from penstock.cli.help_text import PlainCommand
from penstock.cli.model_names import model_names
from penstock.cli.setting_option import SettingOption, negative_flags
from penstock.cli.settings_options import (
    FORMER_OPTIONS,
    MODEL_OPTIONS,
    MODEL_PANEL,
    SERVE_OPTIONS,
    default_text,
)
from penstock.cli.store_setting_options import STORE_OPTIONS
from penstock.config import (
    AgentSettings,
    EngineSettings,
    MediaSettings,
    ServingSettings,
    SettingsError,
    read_environment,
)
from penstock.config.load_settings import load_agent, load_engine, load_media, load_serving

# Placeholders for values in the help. Shorter than typer's, which leave little room for the help
# text in a narrow terminal.
METAVARS: Final[dict[Any, str]] = {int: "N", float: "SECONDS", str: "TEXT", list[str]: "TEXT"}
FLAGS: Final = {
    option.field: next(flag for flag in option.flags if flag.startswith("--"))
    for option in (*MODEL_OPTIONS, *SERVE_OPTIONS)
    if option.flags
}
SERVED_NAMES: Final = "--served-model-name"
MODEL_HELP: Final = (
    "A name that `penstock models` lists, a .gguf file, a folder or a Hugging Face id."
)
DEFAULT_MODEL_HELP: Final = f"{MODEL_HELP} [default: {EngineSettings().model}]"


@dataclass(frozen=True)
class CommandSettings:
    """The settings options that were given on the command line.

    `engine`, `server`, `store`: field -> value; None: not given. `server` also has the options of
    server tools.
    `file`: the TOML file.
    `names`: the values of `--served-model-name`.
    """

    engine: dict[str, Any] = field(default_factory=dict)
    server: dict[str, Any] = field(default_factory=dict)
    store: dict[str, Any] = field(default_factory=dict)
    file: Path | None = None
    names: tuple[str, ...] = ()

    def serving(self) -> ServingSettings:
        """Merge defaults, environment, file and options; later sources win. Raises
        SettingsError."""
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
        """Return the merged settings for a command that runs one model. Raises SettingsError."""
        with _named_as_given(self.engine):
            return load_engine(self.engine, file=self.file)

    def tools(self) -> AgentSettings:
        """Return the merged settings of the tools for a command that runs one model. Raises
        SettingsError."""
        with _named_as_given(self.server):
            return load_agent(self.server, file=self.file)

    def media(self) -> MediaSettings:
        """Return the merged settings of media for a command that runs one model. Raises
        SettingsError."""
        with _named_as_given(self.server):
            return load_media(self.server, file=self.file)


@contextmanager
def _named_as_given(values: Mapping[str, Any]) -> Iterator[None]:
    """Context manager that rewrites a SettingsError about a field in `values`: the message then
    names the option that set the field."""
    try:
        yield
    except SettingsError as error:
        field, _, rest = str(error).partition(" ")
        if field not in FLAGS or values.get(field) is None:
            raise
        raise SettingsError(f"{FLAGS[field]} {rest}") from None


def with_settings(
    further: Sequence[SettingOption] = (),
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds MODEL, `--config` and the settings options to a command.

    The command gets them as its first argument, a CommandSettings, in addition to its own options,
    which the help shows first.

    `further`: options beside those of the model.
    """
    options = (*MODEL_OPTIONS, *(option for option in further if option.flags))
    of_server = further is SERVE_OPTIONS

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def wrapper(**given: Any) -> None:
            values = {o.field: _value(o, given) for o in (*options, *FORMER_OPTIONS)}
            engine = {o.field: values.pop(o.field) for o in (*MODEL_OPTIONS, *FORMER_OPTIONS)}
            engine["model"] = _the_one_given(given.pop("model"), given.pop("model_id"), "MODEL")
            names = tuple(given.pop("served_model_name", None) or ())
            store = {o.field: values.pop(o.field) for o in STORE_OPTIONS if o in options}
            command(CommandSettings(engine, values, store, given.pop("config"), names), **given)

        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        shown = [parameter for option in options for parameter in _parameters(option)]
        parameters = [
            *_model_parameters(),
            *own,
            *([_names_parameter()] if of_server else []),
            *shown,
            _config_parameter(),
            *(parameter for option in FORMER_OPTIONS for parameter in _hidden_parameters(option)),
        ]
        wrapper.__name__, wrapper.__doc__ = command.__name__, command.__doc__
        wrapper.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
        )
        wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapper

    return decorate


def _model_parameters() -> list[inspect.Parameter]:
    argument = typer.Argument(None, help=DEFAULT_MODEL_HELP, autocompletion=model_names)
    option = typer.Option(
        None,
        "-m",
        "--model-id",
        help="Same as MODEL.",
        rich_help_panel=MODEL_PANEL,
        autocompletion=model_names,
    )
    return [_make("model", Optional[str], argument), _make("model_id", Optional[str], option)]  # noqa: UP045


def _names_parameter() -> inspect.Parameter:
    option = typer.Option(
        None,
        SERVED_NAMES,
        help="Additional names for the model in requests, such as gpt-4o.",
        rich_help_panel=MODEL_PANEL,
        metavar="NAME...",
        show_default=False,
    )
    return _make("served_model_name", Optional[list[str]], option)  # noqa: UP045


class MultiValueCommand(PlainCommand):
    """A command whose option `--served-model-name` accepts several values, as vLLM's does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, split_served_names(args))


def split_served_names(args: Sequence[str]) -> list[str]:
    """Return `args` with `--served-model-name A B` split into one option per name. If the last word
    after the option is a file, a folder or a name of the catalogue, it remains the argument
    MODEL."""
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
        help="TOML file with one or more models and their settings. Options override it.",
        rich_help_panel=MODEL_PANEL,
        show_default=False,
    )
    return _make("config", Optional[Path], option)  # noqa: UP045


def _parameters(option: SettingOption) -> list[inspect.Parameter]:
    """Return the parameter for the option shown in the help, followed by a hidden parameter for
    each alias and each negative flag."""
    shown, aliases = _shown_flags(option), _aliases(option)
    off = negative_flags(option)
    text = option.help
    text += f" Opposite: {off[0]}." if off else f" [default: {default_text(option)}]"
    info = typer.Option(
        None,
        *shown,
        help=text,
        rich_help_panel=option.panel,
        metavar=option.metavar or METAVARS.get(option.kind),
        autocompletion=_completer(option),
    )
    hidden = [*aliases.items(), *_negatives(option).items()]
    return [
        _make(option.field, Optional.__getitem__(option.kind), info),
        *(_hidden_parameter(name, flag, option.kind) for name, flag in hidden),
    ]


def _completer(option: SettingOption) -> Callable[[str], list[str]] | None:
    if not option.completions:
        return None
    return lambda incomplete: [one for one in option.completions if one.startswith(incomplete)]


def _hidden_parameters(option: SettingOption) -> list[inspect.Parameter]:
    """Return the parameters for an option that the help does not show."""
    flags = {option.field: option.flags[0], **_negatives(option)}
    return [_hidden_parameter(name, flag, option.kind) for name, flag in flags.items()]


def _hidden_parameter(name: str, flag: str, kind: Any) -> inspect.Parameter:
    return _make(name, Optional.__getitem__(kind), typer.Option(None, flag, hidden=True))


def _shown_flags(option: SettingOption) -> tuple[str, ...]:
    """Return the flag shown in the help, preceded by its short flag if it has one."""
    return option.flags[: 1 if option.flags[0].startswith("--") else 2]


def _aliases(option: SettingOption) -> dict[str, str]:
    """Return parameter name -> flag, for each hidden alias."""
    flags = option.flags[len(_shown_flags(option)) :]
    return {f"{option.field}_{index}": flag for index, flag in enumerate(flags, 1)}


def _negatives(option: SettingOption) -> dict[str, str]:
    """Return parameter name -> flag, for each flag that switches a boolean option off."""
    flags = negative_flags(option)
    return {f"{option.field}_off_{index}": flag for index, flag in enumerate(flags)}


def _value(option: SettingOption, given: dict[str, Any]) -> Any:
    value, flag = None, FLAGS.get(option.field, option.flags[0])
    for name in (option.field, *_aliases(option)):
        value = _the_one_given(value, given.pop(name), flag)
    for name in _negatives(option):
        if given.pop(name):
            value = _the_one_given(value, False, flag)
    return value


def _the_one_given(first: Any, second: Any, name: str) -> Any:
    if first is not None and second is not None and first != second:
        raise SettingsError(f"{name} is given twice, as {first} and as {second}")
    return first if first is not None else second


def _make(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
