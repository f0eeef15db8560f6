"""Results of Python jobs: values, output, tracebacks, pictures."""

from __future__ import annotations

import asyncio
import signal

import pytest
import uvloop

from penstock.sandbox.containers import Containers
from penstock.sandbox.python_session import PythonSession
from penstock.sandbox.types import PythonJob, PythonResult
from tests.sandbox_containers.conftest import RunPython, agent_settings

PNG = b"\x89PNG"


@pytest.mark.parametrize(
    ("code", "result", "kind"),
    [
        ("1 + 1", "2", "int"),
        ("x = 1", None, None),
        ("None", None, None),
        ("x = 3\nx * 2", "6", "int"),
        ("'é\\ud800'", "'é\\ud800'", "str"),
        ("__name__", "'__main__'", "str"),
        ("import asyncio\nawait asyncio.sleep(0)\n7", "7", "int"),
        ("", None, None),
    ],
)
async def test_the_last_expression_is_the_result(
    python: RunPython, code: str, result: str | None, kind: str | None
) -> None:
    done = await python(code)
    assert (done.status, done.result, done.result_type) == ("success", result, kind)


async def test_variables_and_the_last_value_persist(python: RunPython) -> None:
    await python("x = 20\nx + 1")
    assert (await python("_ * 2")).result == "42"
    assert (await python("x")).result == "20"


async def test_output_of_all_kinds_is_captured_in_order(python: RunPython) -> None:
    done = await python(
        "import os, sys\n"
        "print('a')\nos.write(1, b'b\\n')\nos.system('echo c; echo d >&2')\n"
        "print('e', file=sys.stderr)\nprint('f', end='')"
    )
    assert (done.stdout, done.stderr) == ("a\nb\nc\nf", "d\ne\n")


async def test_a_traceback_shows_the_users_frames_and_lines_only(python: RunPython) -> None:
    await python("def divide(a):\n    return a / 0")
    done = await python("divide(1)")
    assert done.status == "error"
    assert done.exception is not None
    assert "return a / 0" in done.exception
    assert "divide(1)" in done.exception
    assert "ZeroDivisionError" in done.exception
    assert "penstock" not in done.exception


async def test_a_syntax_error_names_its_line(python: RunPython) -> None:
    done = await python("x = (\n")
    assert done.exception is not None
    assert "SyntaxError" in done.exception
    assert "penstock" not in done.exception


@pytest.mark.parametrize(
    ("code", "status", "exception"),
    [
        ("import sys; sys.exit(3)", "error", "SystemExit: Code called sys.exit(3)."),
        ("import sys; sys.exit()", "success", "SystemExit: Code called sys.exit()."),
        ("raise KeyboardInterrupt", "error", "KeyboardInterrupt: Execution was interrupted."),
    ],
)
async def test_exits_have_messages(
    python: RunPython, code: str, status: str, exception: str
) -> None:
    done = await python(code)
    assert (done.status, done.exception) == (status, exception)


async def test_reading_stdin_raises(python: RunPython) -> None:
    done = await python("input()")
    assert done.exception is not None
    assert "RuntimeError: stdin is not available" in done.exception


async def test_an_exception_whose_text_fails_is_still_reported(python: RunPython) -> None:
    done = await python("raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})()")
    assert done.status == "error"
    assert done.exception is not None
    assert "Odd" in done.exception


async def test_figures_become_images(python: RunPython) -> None:
    pytest.importorskip("matplotlib")
    shown = await python(
        "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nplt.plot([2, 1])",
        timeout_s=120,
    )
    assert [image[:4] for image in shown.images] == [PNG, PNG], shown
    saved = await python("plt.plot([1])\nplt.savefig('a.png')")
    assert (len(saved.images), [file.name for file in saved.files]) == (1, ["a.png"])
    assert (await python("1")).images == ()


async def test_frames_of_a_saved_animation_are_sampled(python: RunPython) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("PIL")
    done = await python(
        "import matplotlib.pyplot as plt\nfrom matplotlib.animation import FuncAnimation\n"
        "figure = plt.figure(figsize=(1, 1))\n"
        "animation = FuncAnimation(figure, lambda i: (), frames=70)\n"
        "animation.save('a.gif', writer='pillow')",
        timeout_s=120,
    )
    assert (done.exception, done.images) == (None, ())
    assert 32 <= len(done.video_frames) < 64
    assert {frame[:4] for frame in done.video_frames} == {PNG}


async def test_a_pillow_image_is_an_image(python: RunPython) -> None:
    pytest.importorskip("PIL")
    done = await python("from PIL import Image\nImage.new('CMYK', (4, 5))")
    assert (done.result, done.result_type) == ("<PIL Image size=(4, 5)>", "PIL.Image")
    assert [image[:4] for image in done.images] == [PNG]


async def test_images_over_the_limit_are_dropped_with_a_note(python: RunPython) -> None:
    pytest.importorskip("matplotlib")
    done = await python(
        "import matplotlib.pyplot as plt\nfor i in range(34): plt.figure(figsize=(1, 1))",
        timeout_s=120,
    )
    assert len(done.images) == 32
    assert "2 images over the limits" in done.stderr


def test_an_interpreter_that_dies_as_it_starts_is_a_result_under_uvloop() -> None:
    """uvloop raises RuntimeError for a write to a connection that is lost already."""

    async def run() -> PythonResult:
        containers = Containers(agent_settings())
        try:
            container = await containers.container("session")
            await container.run_python(PythonJob(code="1"))
            sandbox, facts = container._sandbox, await containers.python_facts()
            assert sandbox is not None
            session = await PythonSession.start(sandbox, facts)
            await session._process.signal(signal.SIGKILL)
            await asyncio.wait({session._exit})
            while not session._requests.is_closing():
                session._requests.write(b"x")
                await asyncio.sleep(0)
            result = await session.run(PythonJob(code="1"))
            await session.close()
            return result
        finally:
            await containers.close()

    result = uvloop.run(run())
    assert "ended unexpectedly (SIGKILL" in (result.exception or "") and result.state_lost
