"""`penstock cache` with real folders: it lists, removes and verifies downloaded models."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli import main as cli
from penstock.models.hub.catalogue import CATALOGUE, CatalogueEntry
from penstock.models.hub.hub_access import HubAccess
from penstock.models.hub.sources import resolve_model
from tests.support.servers.file_server import Files, publish, serving

FOLDER = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"weights" * 1000}
SIZE = sum(map(len, FOLDER.values()))


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home with the model who/what, downloaded from a hub on this machine."""
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    with serving(Files()) as hub:
        publish(hub, "who/what", FOLDER)
        resolve_model("who/what", tmp_path / "home", HubAccess(hub.url))
    return tmp_path / "home"


def invoke(*arguments, input=None):
    return CliRunner().invoke(cli.app, ["cache", *arguments], input=input)


def refused(monkeypatch, *arguments) -> str:
    monkeypatch.setattr(sys, "argv", ["penstock", "cache", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return str(ended.value.code)


def in_hub_cache(tmp_path: Path) -> Path:
    """Save the model who/else as the hub's clients do; return the blob of its weights."""
    root = tmp_path / "hf" / "hub" / "models--who--else"
    snapshot = root / "snapshots" / ("ab" * 20)
    for folder in (snapshot, root / "blobs", root / "refs"):
        folder.mkdir(parents=True)
    (root / "refs" / "main").write_text("ab" * 20)
    for name, content in FOLDER.items():
        large = name == "model.safetensors"
        header = b"" if large else b"blob %d\0" % len(content)
        blob = (
            root
            / "blobs"
            / hashlib.new("sha256" if large else "sha1", header + content).hexdigest()
        )
        blob.write_bytes(content)
        (snapshot / name).symlink_to(os.path.relpath(blob, snapshot))
    return (snapshot / "model.safetensors").resolve()


def test_models_of_both_folders_are_listed(home, tmp_path):
    in_hub_cache(tmp_path)
    (home / "models" / "who--half.partial").mkdir()
    listed = json.loads(invoke("list", "--json").stdout)["models"]
    assert [(m["name"], m["kind"], m["place"]) for m in listed] == [
        ("who/else", "folder", "hub cache"),
        ("who/half", "unfinished", "penstock"),
        ("who/what", "folder", "penstock"),
    ]
    # The hub's cache has equal contents once, and 40 characters that name the commit.
    assert [m["size_bytes"] for m in listed] == [SIZE - len(b"{}") + 40, 0, SIZE]
    shown = invoke("list").stdout
    assert "who/else" in shown and "3 models" in shown and f"penstock: {home}/models" in shown


def test_an_empty_cache_says_how_to_fill_it(home, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "other"))
    assert "penstock pull" in invoke("list").stdout
    assert json.loads(invoke("list", "--json").stdout) == {"models": []}


def test_a_model_is_removed_after_a_yes(home):
    kept = invoke("remove", "who/what", input="n\n")
    assert kept.exit_code == 130 and (home / "models" / "who--what").exists()
    assert "removed" not in kept.stdout and "Delete 1 model?" in kept.stderr
    gone = invoke("remove", "who/what", input="y\n")
    assert gone.exit_code == 0
    assert [path.name for path in (home / "models").iterdir()] == ["who--what.lock"]


def test_removing_a_model_of_the_hub_cache_leaves_the_others(home, tmp_path):
    in_hub_cache(tmp_path)
    gone = invoke("remove", "who/else", "--yes", "--json")
    assert [m["name"] for m in json.loads(gone.stdout)["removed"]] == ["who/else"]
    assert not (tmp_path / "hf" / "hub" / "models--who--else").exists()
    assert (home / "models" / "who--what").exists()


def test_an_unknown_model_is_refused_with_the_nearest_name(home, monkeypatch):
    message = refused(monkeypatch, "remove", "who/waht", "--yes")
    assert message == "penstock: who/waht is not downloaded; did you mean who/what?"
    assert "`penstock cache list`" in refused(monkeypatch, "verify", "zzz")


def test_a_model_that_another_process_reads_is_not_removed(home, monkeypatch):
    weights = home / "models" / "who--what" / "model.safetensors"
    program = "import sys; held = open(sys.argv[1]); print(flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program, str(weights)], **pipes) as reader:
        reader.stdout.readline()
        message = refused(monkeypatch, "remove", "who/what", "--yes")
        reader.communicate(b"\n")
    assert f"in use by process {reader.pid} (" in message and f"kill {reader.pid}" in message
    assert weights.exists()
    assert invoke("remove", "who/what", "--yes").exit_code == 0


def verified(*arguments) -> tuple[int, dict[str, str], str | None]:
    """Return the exit status, the state of each file of the only model, and the remedy."""
    done = invoke("verify", *arguments, "--json")
    (model,) = json.loads(done.stdout)["models"]
    files = {Path(file["file"]).name: file["state"] for file in model["files"]}
    return done.exit_code, files, model["remedy"]


def test_an_intact_download_is_ok(home):
    assert verified() == (0, dict.fromkeys(FOLDER, "ok"), None)
    assert "3 files match" in invoke("verify").stdout


def test_a_changed_and_a_missing_file_are_named_with_the_remedy(home):
    folder = home / "models" / "who--what"
    (folder / "model.safetensors").write_bytes(b"weighty" * 1000)
    (folder / "tokenizer.json").unlink()
    status, files, remedy = verified()
    assert status == 1 and remedy == (
        "penstock cache remove who/what --yes && penstock pull who/what"
    )
    assert files == {
        "config.json": "ok",
        "tokenizer.json": "missing",
        "model.safetensors": "broken",
    }
    shown = invoke("verify", "who/what").stdout
    assert "model.safetensors is broken" in shown and str(remedy) in shown


def test_a_download_without_recorded_hashes_is_unknown(home):
    (home / "models" / "who--what.hashes").unlink()
    status, files, remedy = verified()
    assert (status, set(files.values())) == (0, {"unknown"}) and "pull who/what" in str(remedy)


def test_an_unfinished_download_is_broken_and_pull_mends_it(home, monkeypatch):
    (home / "models" / "who--what").rename(home / "models" / "who--what.partial")
    status, _, remedy = verified()
    assert (status, remedy) == (1, "penstock pull who/what")


def test_blobs_of_the_hub_cache_are_compared_with_their_names(home, tmp_path):
    blob = in_hub_cache(tmp_path)
    assert verified("who/else")[:2] == (0, dict.fromkeys(FOLDER, "ok"))
    blob.write_bytes(b"x")
    assert verified("who/else")[1]["model.safetensors"] == "broken"
    blob.unlink()
    status, files, _ = verified("who/else")
    assert status == 1 and files["model.safetensors"] == "missing"


def test_the_catalogues_hash_is_compared(home, monkeypatch):
    entry = CatalogueEntry(
        "small", "-", "-", "who/gguf", file="x.gguf", sha256=hashlib.sha256(b"good").hexdigest()
    )
    monkeypatch.setitem(CATALOGUE, "small", entry)
    folder = home / "models" / "small"
    folder.mkdir()
    (folder / "x.gguf").write_bytes(b"good")
    assert verified("small")[:2] == (0, {"x.gguf": "ok"})
    (folder / "x.gguf").write_bytes(b"evil")
    assert verified("small")[0] == 1


def test_verifying_does_not_count_as_use(home):
    used = json.loads(invoke("list", "--json").stdout)["models"][0]["last_used"] - 10**6
    for path in (home / "models" / "who--what").iterdir():
        os.utime(path, (used, used))
    verified()
    assert json.loads(invoke("list", "--json").stdout)["models"][0]["last_used"] == used
