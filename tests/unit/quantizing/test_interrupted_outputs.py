"""Runs that are interrupted, killed or out of disk space leave nothing under the final name, and
are resumed."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
from test_quantize_gguf import tensors, write_source

from penstock.base.errors import ModelError
from penstock.models.hub.sources import files_at
from penstock.quantizing import folder_output
from penstock.quantizing.quantize_model import Job, quantize_model
from tests.support.checkpoints.small_llama import write_small_llama

KILLED = """
import os, signal, sys
from pathlib import Path
from penstock.models.hub.sources import files_at
from penstock.quantizing import folder_output, gguf_output
from penstock.quantizing.quantize_model import Job, quantize_model

module = gguf_output if sys.argv[2].endswith(".gguf") else folder_output
encode, calls = module.encode, []

def killed(*arguments, **more):
    calls.append(arguments)
    if len(calls) == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return encode(*arguments, **more)

module.encode = killed
source = files_at(Path(sys.argv[1]), "tiny")
quantize_model(Job(source, Path(sys.argv[2]), sys.argv[3]), lambda done, total: None)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = write_small_llama(tmp_path / "in")
    (path / "tokenizer.json").write_text("{}")
    return path


def run(source: Path, output: Path, type_name: str = "int4") -> Path:
    job = Job(files_at(source, "tiny"), output, type_name)
    quantize_model(job, lambda done, total: None)
    return output


def content(path: Path) -> dict[str, bytes]:
    """Return the bytes of a file, or of the files of a folder."""
    files = path.iterdir() if path.is_dir() else [path]
    return {file.name if path.is_dir() else "file": file.read_bytes() for file in files}


def test_an_interrupted_folder_continues_after_the_finished_tensors(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = content(run(folder, tmp_path / "whole"))
    encode, encoded = folder_output.encode, []

    def interrupted(*arguments, **more):
        encoded.append(arguments)
        if len(encoded) == 5:
            raise KeyboardInterrupt
        return encode(*arguments, **more)

    monkeypatch.setattr(folder_output, "encode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert content(run(folder, tmp_path / "out")) == whole
    assert len(encoded) == 5 + 14 - 4  # 14 matrices, of which 4 were finished
    assert sorted(os.listdir(tmp_path)) == ["in", "out", "whole"]


@pytest.mark.slow
@pytest.mark.parametrize(("output", "type_name"), [("out", "int4"), ("out.gguf", "Q4_0")])
def test_a_killed_run_leaves_no_output_and_is_resumed(
    folder: Path, tmp_path: Path, output: str, type_name: str
) -> None:
    source = folder
    if output.endswith(".gguf"):
        source = write_source(tmp_path / "in.gguf", tensors()).path
    whole = content(run(source, tmp_path / f"whole-{output}", type_name))
    command = [sys.executable, "-c", KILLED, str(source), str(tmp_path / output), type_name]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    assert not (tmp_path / output).exists()
    journals = [*tmp_path.rglob("*.progress")]
    assert [json.loads(one.read_text())["finished"] for one in journals] != [0]
    assert content(run(source, tmp_path / output, type_name)) == whole
    assert not [*tmp_path.rglob("*.progress"), *tmp_path.rglob("*.partial")]


def test_a_disk_that_fills_leaves_nothing_of_a_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, pwrite = [], os.pwrite

    def full(*arguments):
        written.append(arguments)
        if len(written) > 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(*arguments)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(ModelError, match=r"model.safetensors: No space left"):
        run(folder, tmp_path / "out")
    assert os.listdir(tmp_path) == ["in"]


def test_a_disk_without_enough_space_for_a_folder_is_refused_before_the_work(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1, 1, 2**20))
    with pytest.raises(ModelError, match="more bytes are needed, the disk has 1,048,576 free"):
        run(folder, tmp_path / "out")
    assert os.listdir(tmp_path) == ["in"]


def test_a_disk_that_fills_while_other_files_are_copied_leaves_no_output(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = content(run(folder, tmp_path / "whole"))

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", full)
        with pytest.raises(ModelError, match="out: No space left"):
            run(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(folder_output, "encode", lambda *_, **__: pytest.fail("encoded again"))
    assert content(run(folder, tmp_path / "out")) == whole
