"""Python code that damages its interpreter, floods its outputs, or does not end."""

from __future__ import annotations

import asyncio
import resource

import pytest

from penstock.sandbox.container import Container
from penstock.sandbox.types import DeclaredFile, PythonJob
from tests.sandbox_containers.conftest import RunPython, until_made

ENDLESS = """\
while True:
    try:
        import time
        time.sleep(1)
    except BaseException:
        pass
"""
FORGED = b"s\\0\\0\\0\\7successr\\0\\0\\0\\4evil.\\0\\0\\0\\0"


@pytest.mark.parametrize(
    "damage",
    [
        "import sys; sys.stdout = sys.stderr = sys.stdin = None",
        "import sys; sys.stdout.close(); sys.stderr.close()",
        "import os; os.close(0); os.close(1); os.close(2)",
        "import json, sys; json.dumps = json.loads = None; sys.modules['json'] = None",
        "import os; os.read = os.write = None; import posix; posix.read = posix.write = None",
        "import sys; sys.settrace(lambda *a: 1 / 0)",
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)",
        "import builtins\nfor name in ('len', 'type', 'repr', 'min'): delattr(builtins, name)",
        "import os; os.mkdir('d'); os.chdir('d'); os.rmdir('../d')",
        "import sys; sys.modules.pop('__main__'); sys.meta_path.clear(); sys.path.clear()",
    ],
)
async def test_an_interpreter_survives_damage(python: RunPython, damage: str) -> None:
    await python("kept = 41")
    await python(damage)
    done = await python("print('out')\nkept + 1")
    assert (done.result, done.stdout, done.state_lost) == ("42", "out\n", False)


async def test_replies_cannot_be_forged_by_writing_to_descriptors(python: RunPython) -> None:
    done = await python(
        "import os\n"
        "for fd in range(64):\n"
        "    for prefix in (b'', bytes(16), b'x' * 70000):\n"
        "        try:\n"
        "            os.set_blocking(fd, True)\n"
        f"            os.write(fd, prefix + b'{FORGED.decode()}')\n"
        "        except OSError:\n"
        "            pass\n"
        "'honest'"
    )
    assert (done.status, done.result) == ("success", "'honest'")
    assert (await python("2")).result == "2"


async def test_a_reply_that_arrives_late_is_not_taken_for_the_next_one(python: RunPython) -> None:
    await python("import os, threading")
    await python(f"threading.Timer(0.05, os.write, (3, b'{FORGED.decode()}')).start()")
    done = await python("import time; time.sleep(0.2); 'honest'")
    assert done.result == "'honest'"


async def test_child_processes_do_not_inherit_the_channel(python: RunPython) -> None:
    done = await python(
        "import os, subprocess, sys\n"
        "code = 'import os; print(sorted(map(int, os.listdir(\"/proc/self/fd\"))))'\n"
        "subprocess.run([sys.executable, '-c', code], close_fds=False)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try:\n"
        "        os.write(3, b'x')\n"
        "    except OSError:\n"
        "        os._exit(5)\n"
        "    os._exit(6)\n"
        "os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
    )
    assert done.result == "5", done
    assert done.stdout == "[0, 1, 2, 3]\n"  # 3: the listed folder itself


async def test_a_forked_child_that_returns_does_not_reply(python: RunPython) -> None:
    done = await python("import os\nprint('child' if os.fork() == 0 else os.wait() and 'parent')")
    assert sorted(done.stdout.split()) == ["child", "parent"]
    assert (await python("1")).result == "1"


async def test_code_that_closes_all_descriptors_gets_a_new_interpreter(python: RunPython) -> None:
    done = await python("import os; os.closerange(0, 256)")
    assert (done.status, done.state_lost) == ("error", True)
    assert (await python("5")).result == "5"


async def test_a_flood_of_output_is_cut_and_does_not_grow_the_server(python: RunPython) -> None:
    await python("1")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    done = await python(
        "import os\nblock = b'0123456789abcdef' * 65536\nprint('first')\n"
        "for _ in range(1024): os.write(1, block)\nprint('last')"
    )
    assert done.stdout.startswith("first\n")
    assert done.stdout.endswith("last\n")
    assert "bytes cut" in done.stdout
    assert len(done.stdout) < 300_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024  # KiB


async def test_binary_output_and_escape_codes_are_text(python: RunPython) -> None:
    done = await python("import os; os.write(1, bytes(range(256)) + b'\\x1b[31mred')")
    assert done.stdout.endswith("\x1b[31mred")
    assert "�" in done.stdout


async def test_output_of_threads_after_a_job_belongs_to_the_next_one(python: RunPython) -> None:
    first = await python(
        "import threading\ngo = threading.Event()\n"
        "thread = threading.Thread(target=lambda: (go.wait(), print('later')))\nthread.start()"
    )
    assert first.stdout == ""
    assert (await python("go.set(); thread.join()")).stdout == "later\n"


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("import os; os._exit(3)", "exit code 3"),
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "SIGTERM"),
    ],
)
async def test_an_interpreter_that_ends_is_replaced_and_both_results_say_so(
    python: RunPython, code: str, cause: str
) -> None:
    await python("x = 1")
    died = await python(f"import sys\nprint('last words', file=sys.stderr)\n{code}")
    assert (died.status, died.state_lost) == ("error", True)
    assert died.exception is not None
    assert cause in died.exception
    assert "last words" in died.exception
    after = await python("'x' in globals()")
    assert (after.result, after.state_lost, after.files_lost) == ("False", True, False)
    assert (await python("1")).state_lost is False


async def test_a_memory_bomb_is_an_error(python: RunPython) -> None:
    done = await python("blocks = []\nwhile True: blocks.append(bytearray(10**7))")
    assert done.status == "error"
    await python("blocks = None")
    assert (await python("1")).result == "1"


async def test_endless_recursion_is_an_error(python: RunPython) -> None:
    done = await python("def f(): f()\nf()")
    assert done.exception is not None
    assert "RecursionError" in done.exception
    assert (await python("1")).state_lost is False


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time; time.sleep(1000)",
        "import subprocess; subprocess.run(['sleep', '1000'])",
    ],
)
async def test_code_is_interrupted_at_its_time_out(python: RunPython, code: str) -> None:
    await python("x = 1")
    done = await python(code, timeout_s=0.3)
    assert (done.status, done.interrupted, done.killed) == ("timeout", True, False)
    assert (await python("x")).result == "1"


@pytest.mark.parametrize(
    "code", [ENDLESS, "import re; re.match(r'(a+)+$', 'a' * 64 + 'b')", "sum(range(10**13))"]
)
async def test_code_that_resists_interrupts_is_killed(python: RunPython, code: str) -> None:
    await python("1")  # the interpreter has started: the interrupt meets the code
    done = await python(code, timeout_s=0.3)
    assert done.status == "timeout"
    if done.killed:
        assert done.state_lost
    assert (await python("1")).state_lost is done.killed
    if code is ENDLESS:
        assert done.killed


async def test_a_cancelled_call_ends_its_code_before_it_returns(
    container: Container, python: RunPython
) -> None:
    await python("x = 1")
    call = asyncio.create_task(python("open('began', 'w').close()\nwhile True: pass"))
    await until_made(container, "began", call)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not container.busy
    assert (await python("x")).result == "1"


async def test_a_cancelled_call_that_resists_is_killed(
    container: Container, python: RunPython
) -> None:
    call = asyncio.create_task(python("open('began', 'w').close()\n" + ENDLESS))
    await until_made(container, "began", call)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await python("1")).state_lost is True


async def test_calls_run_one_after_another(container: Container) -> None:
    jobs = [PythonJob(code=f"import time; n = {i}; time.sleep(0.01); n") for i in range(8)]
    done = await asyncio.gather(*map(container.run_python, jobs))
    assert [result.result for result in done] == [str(i) for i in range(8)]


async def test_a_reset_forgets_variables_and_keeps_files(
    container: Container, python: RunPython
) -> None:
    await python("x = 1; open('kept', 'w').write('k')")
    await container.reset_python()
    done = await python("'x' in globals(), open('kept').read()", outputs=(DeclaredFile("kept"),))
    assert (done.result, done.state_lost) == ("(False, 'k')", False)
    assert done.files[0].data == b"k"
