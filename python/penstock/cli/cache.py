"""`penstock cache`: lists, removes and verifies downloaded models."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from penstock.base.errors import ModelError
from penstock.cli.help_text import SETTINGS, PlainCommand, PlainGroup
from penstock.cli.model_names import downloaded_names
from penstock.cli.output import JSON_OPTION, age_text, print_json, print_table, size_text
from penstock.config import read_environment

if TYPE_CHECKING:
    from penstock.models.hub.cached_models import CachedModel
    from penstock.models.hub.verification import FileCheck

app = typer.Typer(
    cls=PlainGroup,
    help="List, remove and verify downloaded models.",
    rich_markup_mode=None,
    context_settings=SETTINGS,
    no_args_is_help=True,
)


@app.command("list", cls=PlainCommand, epilog="penstock cache list\npenstock cache list --json")
def list_models(as_json: Annotated[bool, JSON_OPTION] = False) -> None:
    """List the downloaded models, their sizes and their last use.

    Models are in Penstock's own folder, or in the cache that the Hugging Face hub's clients share.
    """
    models = _cached_models()
    if as_json:
        print_json({"models": [_described(model) for model in models]})
        return
    if not models:
        typer.echo("No model is downloaded; `penstock pull` downloads the default model.")
        return
    now_s = time.time()
    rows = [
        (
            model.name,
            model.kind,
            size_text(model.size_bytes),
            age_text(now_s - model.last_used_s),
            model.place,
        )
        for model in models
    ]
    print_table(("Name", "Kind", "Size", "Last used", "Where"), rows, numbers=("Size",))
    total = sum(model.size_bytes for model in models)
    typer.echo(f"\n{_count(len(models), 'model')}, {size_text(total)}")
    for place, folder in sorted({(model.place, model.folder.parent) for model in models}):
        typer.echo(f"{place}: {folder}")


@app.command(
    "remove",
    cls=PlainCommand,
    epilog="penstock cache remove smollm2-135m-instruct\npenstock cache remove owner/name --yes",
)
def remove(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="Models, as `penstock cache list` names them.",
            autocompletion=downloaded_names,
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Delete downloaded models, after a question. A model in use is refused."""
    from penstock.models.hub.cached_models import remove_model

    models = [model for name in dict.fromkeys(names) for model in _named(name)]
    for model in models:
        _refuse_if_used(model)
    if not yes:
        _ask(models)
    for model in models:
        remove_model(model)
        if not as_json:
            typer.echo(f"removed {model.name}: {size_text(model.size_bytes)}")
    if as_json:
        print_json({"removed": [_described(model) for model in models]})


@app.command(
    "verify",
    cls=PlainCommand,
    epilog="penstock cache verify\npenstock cache verify smollm2-135m-instruct",
)
def verify_models(
    name: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(
            metavar="[NAME]",
            help="A model that `penstock cache list` names.",
            show_default="all",
            autocompletion=downloaded_names,
        ),
    ] = None,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Check the files of downloaded models against their recorded hashes.

    Exits with status 1 if a file is broken or missing.
    """
    from penstock.cli.progress_bars import ProgressBars
    from penstock.models.hub.verification import verify

    models = _cached_models() if name is None else _named(name)
    with ProgressBars() as bars:
        checked = [(model, verify(model, bars.update)) for model in models]
    if as_json:
        print_json({"models": [_verified(model, files) for model, files in checked]})
    else:
        _print_verified(checked)
    if any(_state(model, files) == "broken" for model, files in checked):
        raise typer.Exit(1)


def _cached_models() -> list[CachedModel]:
    from penstock.models.hub.cached_models import cached_models
    from penstock.models.hub.hub_access import hub_access_of

    environment = read_environment()
    return cached_models(environment.home, hub_access_of(environment))


def _named(name: str) -> list[CachedModel]:
    """Return the downloads of the model `name`. Raises ModelError if there is none."""
    from penstock.models.hub.near_names import near

    models = _cached_models()
    found = [model for model in models if model.name.lower() == name.lower()]
    if found:
        return found
    close = near(name, [model.name for model in models])
    hint = (
        f"did you mean {close}?" if close else "`penstock cache list` lists the downloaded models"
    )
    raise ModelError(f"{name} is not downloaded; {hint}")


def _refuse_if_used(model: CachedModel) -> None:
    from penstock.system.processes import file_users, main_process

    users = file_users(model.folder)
    if users:
        user = main_process(users[0], "penstock")
        raise ModelError(
            f"{model.name} is in use by process {user.pid} ({user.command});"
            f" stop it first: kill {user.pid}"
        )


def _ask(models: list[CachedModel]) -> None:
    """Ask whether to delete the models. The question is on standard error, so that standard output
    has only results."""
    for model in models:
        typer.echo(f"{model.name}: {size_text(model.size_bytes)} in {model.folder}", err=True)
    typer.confirm(f"Delete {_count(len(models), 'model')}?", abort=True, err=True)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _described(model: CachedModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "kind": model.kind,
        "place": model.place,
        "folder": str(model.folder),
        "size_bytes": model.size_bytes,
        "last_used": int(model.last_used_s),
    }


def _state(model: CachedModel, files: list[FileCheck]) -> str:
    """Return the state of a model: its worst file's."""
    states = {file.state for file in files}
    if model.kind == "unfinished" or states & {"broken", "missing"}:
        return "broken"
    return "ok" if "ok" in states else "unknown"


def _remedy(model: CachedModel, state: str) -> str:
    """Return the command that mends a model."""
    if state == "ok":
        return ""
    if model.kind == "unfinished" and model.place == "penstock":
        return f"penstock pull {model.name}"
    return f"penstock cache remove {model.name} --yes && penstock pull {model.name}"


def _verified(model: CachedModel, files: list[FileCheck]) -> dict[str, Any]:
    state = _state(model, files)
    return {
        "name": model.name,
        "place": model.place,
        "state": state,
        "files": [{"file": file.file, "state": file.state} for file in files],
        "remedy": _remedy(model, state) or None,
    }


def _print_verified(checked: list[tuple[CachedModel, list[FileCheck]]]) -> None:
    rows = []
    for model, files in checked:
        state = _state(model, files)
        rows.append((model.name, state, _finding(model, files)))
        remedy = _remedy(model, state)
        if remedy:
            rows.append(("", "", f"{'mend' if state == 'broken' else 'record hashes'}: {remedy}"))
    if rows:
        print_table(("Name", "State", "Files"), rows)
    else:
        typer.echo("No model is downloaded.")


def _finding(model: CachedModel, files: list[FileCheck]) -> str:
    wrong = [
        f"{file.file} is {file.state}" for file in files if file.state in ("broken", "missing")
    ]
    if wrong:
        return "; ".join(wrong)
    if model.kind == "unfinished":
        return "the download was interrupted"
    matched = sum(file.state == "ok" for file in files)
    if not matched:
        return "no hashes are recorded: an earlier version downloaded it"
    return "1 file matches" if matched == 1 else f"{matched} files match"
