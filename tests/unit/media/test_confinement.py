"""Code that has taken over a decoding process can harm neither the machine nor other requests."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from penstock.base.errors import InvalidRequest
from penstock.media.landlock import landlock_abi
from penstock.media.seccomp import SealError, filter_program
from tests.support.hostile_decoder import KILLED, REFUSED, pixels_of
from tests.support.media_files import image_file, picture


def attempt(pool, name):
    return pool.prepare("image", image_file(pixels_of(name), "PNG"))


def is_well(pool):
    pixels = picture() | 128
    return (pool.prepare("image", image_file(pixels, "PNG")).array() == pixels).all()


@pytest.mark.parametrize("name", REFUSED)
def test_an_escape_is_refused(hostile_pool, name):
    (number,) = attempt(hostile_pool, name).layout
    assert number in (-1, errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EMFILE, errno.EINVAL)
    assert is_well(hostile_pool)


@pytest.mark.parametrize("name", KILLED)
def test_a_dangerous_process_is_replaced(hostile_pool, name):
    assert is_well(hostile_pool)
    (before,) = hostile_pool.decoders.pids
    with pytest.raises(InvalidRequest) as caught:
        attempt(hostile_pool, name)
    assert (caught.value.field, caught.value.code) == ("input", "invalid_image")
    assert caught.value.message.startswith("the image ")
    assert is_well(hostile_pool)
    assert hostile_pool.decoders.pids != [before]


def test_output_of_libraries_does_not_disturb_the_connection(hostile_pool, capfd):
    assert attempt(hostile_pool, "print").layout == (0,)
    assert is_well(hostile_pool)
    assert capfd.readouterr() == ("", "")


def test_memory_is_limited(hostile_pool):
    with pytest.raises(InvalidRequest) as caught:
        attempt(hostile_pool, "take all memory")
    assert caught.value.code == "media_too_large"
    assert is_well(hostile_pool)


def test_the_text_of_an_exception_stays_inside(hostile_pool, caplog):
    with caplog.at_level("INFO"), pytest.raises(InvalidRequest) as caught:
        attempt(hostile_pool, "raise an exception with a secret")
    assert "the image cannot be decoded: LookupError in __main__:" in caplog.text
    assert "secret" not in caught.value.message + caplog.text


def test_a_hanging_process_is_ended(hostile_pool, monkeypatch):
    assert is_well(hostile_pool)
    with monkeypatch.context() as patched:
        patched.setattr("penstock.media.child.WALL_TIME_FACTOR", 0.001)
        with pytest.raises(InvalidRequest, match="takes too long"):
            attempt(hostile_pool, "hang")
    assert is_well(hostile_pool)


@pytest.mark.skipif(landlock_abi() == 0, reason="the kernel has no Landlock")
def test_landlock_needs_no_privileges():
    program = """
import os, sys
from penstock.media import landlock, seccomp
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
seccomp.forbid_new_privileges()
assert landlock.deny_all()
try:
    os.listdir("/")
except PermissionError:
    print("refused")
"""
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, capture_output=True, timeout=60).stdout == b"refused\n"


@pytest.mark.skipif(os.getuid() != 0, reason="the tests already run without privileges")
def test_a_user_without_privileges_can_seal_a_process():
    program = """
import os
from penstock.media.plain_processor import PlainProcessor
from penstock.media.rehearsal import rehearse
from penstock.media.seal import seal
rehearse(PlainProcessor())
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
seal(2**30)
os.write(1, b"sealed")
"""
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, capture_output=True, timeout=60).stdout == b"sealed"


def test_the_filter_knows_both_architectures():
    x86, arm = filter_program("x86_64"), filter_program("aarch64")
    assert len(x86) % 8 == len(arm) % 8 == 0
    with pytest.raises(SealError, match="riscv64"):
        filter_program("riscv64")


def test_a_process_does_not_inherit_secrets(monkeypatch):
    from penstock.config import decoder_environment

    monkeypatch.setenv("HF_TOKEN", "secret")
    assert "secret" not in decoder_environment().values()
