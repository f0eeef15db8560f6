"""The pool survives dying, killed and cancelled work, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from penstock.base.errors import InvalidRequest, Unavailable
from penstock.media import decoders as decoders_module
from penstock.media.decoders import MediaDecoders, MediaUnavailable
from penstock.media.limits import MediaLimits
from penstock.models.hub.model_files import ModelFiles
from tests.support.hostile_decoder import PROGRAM as HOSTILE
from tests.support.hostile_decoder import pixels_of
from tests.support.media_files import image_file, picture

PNG = image_file(picture(), "PNG")
HANG = image_file(pixels_of("hang"), "PNG")
ONE = MediaLimits(processes=1)
TWO = MediaLimits(processes=2)


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


async def new_child(before: set[int]) -> int:
    """The decoding process that starts next, once it has its program."""
    while not (started := children() - before):
        await asyncio.sleep(0)
    return started.pop()


async def ended(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    await asyncio.to_thread(select.select, [descriptor], [], [])
    os.close(descriptor)


async def test_no_process_runs_before_the_first_item_and_after_the_last():
    before, open_before = children(), descriptors()
    pool = MediaDecoders(None, TWO)
    assert children() == before
    await asyncio.gather(*(pool.prepare("image", PNG, "a") for _ in range(6)))
    assert len(children() - before) == 2
    await pool.close()
    assert children() == before
    assert descriptors() == open_before


async def test_idle_processes_end():
    pool = MediaDecoders(None, ONE, idle_s=0)
    before = children()
    await pool.prepare("image", PNG, "a")
    while pool.pids:
        await asyncio.sleep(0)
    for pid in children() - before:
        await ended(pid)
    assert (await pool.prepare("image", PNG, "a")).shape == (24, 32, 3)
    await pool.close()
    assert children() == before


async def test_an_idle_process_that_died_is_replaced():
    pool = MediaDecoders(None, ONE)
    await pool.prepare("image", PNG, "a")
    (pid,) = pool.pids
    os.kill(pid, signal.SIGKILL)
    assert (await pool.prepare("image", PNG, "a")).shape == (24, 32, 3)
    assert pool.pids != [pid]
    await pool.close()


async def test_an_item_is_tried_again_if_its_process_is_killed():
    pool = MediaDecoders(None, ONE)
    await pool.prepare("image", PNG, "a")
    (pid,) = pool.pids
    os.kill(pid, signal.SIGSTOP)
    task = asyncio.create_task(pool.prepare("image", PNG, "a"))
    while pool.pids:
        await asyncio.sleep(0)
    os.kill(pid, signal.SIGKILL)
    assert (await task).shape == (24, 32, 3)
    await pool.close()


async def test_an_item_whose_processes_are_killed_twice_is_refused():
    pool = MediaDecoders(None, ONE, program=HOSTILE)
    before = children()
    task = asyncio.create_task(pool.prepare("image", HANG, "content[2]"))
    killed: set[int] = set()
    for _ in range(2):
        pid = await new_child(before | killed)
        killed.add(pid)
        await sealed(pid)
        os.kill(pid, signal.SIGKILL)
        await ended(pid)
    with pytest.raises(InvalidRequest) as caught:
        await task
    assert (caught.value.field, caught.value.code) == ("content[2]", "invalid_image")
    await pool.close()
    assert children() == before


async def sealed(pid: int) -> None:
    """Wait until a decoding process has given up its rights, after which it reads items."""
    while "Seccomp:\t2" not in Path(f"/proc/{pid}/status").read_text():
        await asyncio.sleep(0)
    while psutil.Process(pid).status() != psutil.STATUS_SLEEPING:
        await asyncio.sleep(0)


def test_a_process_ends_with_its_server():
    """The server of this test ends without closing its pool."""
    server = """
import asyncio, os
from penstock.media.decoders import MediaDecoders
from penstock.media.limits import MediaLimits
async def serve():
    pool = MediaDecoders(None, MediaLimits(processes=1))
    await pool.prepare("image", bytes.fromhex("%s"), "a")
    print(pool.pids[0], flush=True)
    os._exit(1)
asyncio.run(serve())
"""
    command = [sys.executable, "-c", server % PNG.hex()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    asyncio.run(ended(int(done.stdout)))


async def test_a_cancelled_item_ends_its_process():
    pool = MediaDecoders(None, ONE, program=HOSTILE)
    before = children()
    task = asyncio.create_task(pool.prepare("image", HANG, "a"))
    pid = await new_child(before)
    await sealed(pid)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await ended(pid)
    bright = image_file(picture() | 128, "PNG")
    assert (await pool.prepare("image", bright, "a")).shape == (24, 32, 3)
    await pool.close()
    assert children() == before


async def test_a_bad_item_does_not_fail_its_neighbours():
    pool = MediaDecoders(None, TWO, program=HOSTILE)
    good = image_file(picture() | 128, "PNG")
    crash = image_file(pixels_of("crash"), "PNG")
    answers = await asyncio.gather(
        *(pool.prepare("image", data, "a") for data in [good, crash] * 4), return_exceptions=True
    )
    assert [isinstance(answer, InvalidRequest) for answer in answers] == [False, True] * 4
    await pool.close()


async def test_closing_ends_work_in_progress():
    pool = MediaDecoders(None, ONE, program=HOSTILE)
    before = children()
    task = asyncio.create_task(pool.prepare("image", HANG, "a"))
    await sealed(await new_child(before))
    await asyncio.gather(pool.close(), pool.close())
    with pytest.raises(Unavailable):
        await task
    assert children() == before
    with pytest.raises(Unavailable, match="closed"):
        await pool.prepare("image", PNG, "a")


@pytest.mark.parametrize("program", [("-c", "pass"), ("-c", "import time; print('x' * 100)")])
async def test_a_process_that_does_not_start_is_reported(program, caplog):
    pool = MediaDecoders(None, ONE, program=program)
    with pytest.raises(Unavailable, match="cannot decode media"):
        await pool.prepare("image", PNG, "a")
    assert "a decoding process cannot start" in caplog.text
    await pool.close()


def killed_at_start(folder: Path, times: int) -> tuple[str, ...]:
    """Return a program that kills itself at its first starts, and decodes at later ones."""
    text = (
        "import os, runpy, signal, sys; from pathlib import Path\n"
        "folder, times = Path(sys.argv[1]), int(sys.argv[2])\n"
        "started = len(list(folder.iterdir())); (folder / str(started)).touch()\n"
        "if started < times: os.kill(os.getpid(), signal.SIGKILL)\n"
        "sys.argv = sys.argv[:1]\n"
        "runpy.run_module('penstock.media.worker', run_name='__main__')\n"
    )
    return ("-c", text, str(folder), str(times))


async def test_a_start_is_tried_again_if_its_process_is_killed(tmp_path):
    pool = MediaDecoders(None, ONE, program=killed_at_start(tmp_path, 1))
    assert (await pool.prepare("image", PNG, "a")).kind == "image"
    assert len(list(tmp_path.iterdir())) == 2
    await pool.close()


async def test_processes_killed_at_their_start_are_unavailable_until_one_starts(tmp_path, caplog):
    before = children()
    pool = MediaDecoders(None, ONE, program=killed_at_start(tmp_path, 4))
    with pytest.raises(Unavailable, match="were killed while they started; try again") as caught:
        await pool.prepare("image", PNG, "a")
    assert caught.value.retry_after_s == 5
    assert caplog.text.count("a decoding process was killed while it started") == 2
    with pytest.raises(MediaUnavailable, match="killed while they start"):
        await pool.try_start()
    assert children() == before
    assert (await pool.prepare("image", PNG, "a")).kind == "image"
    await pool.close()


async def test_a_trial_start_leaves_no_process():
    before = children()
    await MediaDecoders(None, ONE).try_start()
    assert children() == before


async def test_missing_python_is_reported(monkeypatch, caplog):
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    pool = MediaDecoders(None, ONE)
    with pytest.raises(Unavailable) as caught:
        await pool.prepare("image", PNG, "a")
    assert "/" not in caught.value.message
    await pool.close()


async def test_a_model_that_takes_text_only_is_reported(tmp_path, caplog):
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    pool = MediaDecoders(ModelFiles("tiny", "folder", tmp_path), ONE)
    with pytest.raises(Unavailable):
        await pool.prepare("image", PNG, "a")
    assert "tiny takes text only" in caplog.text
    await pool.close()


async def test_missing_packages_are_named_with_their_extra(monkeypatch):
    monkeypatch.setattr(decoders_module, "PACKAGES", {"no_such_module": "pillow", "av": "av"})
    pool = MediaDecoders(None, ONE)
    with pytest.raises(Unavailable, match=r"pip install 'penstock\[media\]'"):
        await pool.prepare("image", PNG, "a")
    with pytest.raises(MediaUnavailable, match="pillow not installed"):
        await pool.try_start()
    await pool.close()
