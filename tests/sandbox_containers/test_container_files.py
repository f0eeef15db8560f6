"""Files of a container: inputs, skills, surfaced outputs."""

from __future__ import annotations

import pytest

from penstock.base.errors import Unavailable
from penstock.sandbox.container import Container
from penstock.sandbox.launcher import FileListing, ListedFile
from penstock.sandbox.output_files import MAX_FILES, changed, input_name
from penstock.sandbox.types import DeclaredFile, InputFile, SkillFolder
from tests.sandbox_containers.conftest import RunPython, RunShell

MIB = 1024 * 1024


async def test_new_and_changed_files_are_surfaced_once(python: RunPython) -> None:
    first = await python("open('a', 'w').write('1'); open('b', 'w').write('2')")
    assert [(file.name, file.data) for file in first.files] == [("a", b"1"), ("b", b"2")]
    second = await python("open('b', 'w').write('3')")
    assert [(file.name, file.data) for file in second.files] == [("b", b"3")]
    assert (await python("1")).files == ()


async def test_files_of_failing_code_are_surfaced(python: RunPython) -> None:
    done = await python("open('a', 'w').write('1'); 1 / 0")
    assert (done.status, [file.name for file in done.files]) == ("error", ["a"])


async def test_hidden_files_caches_and_object_files_are_not_surfaced(shell: RunShell) -> None:
    done = await shell(
        "mkdir -p x/y .git node_modules __pycache__ tmp; touch x/y/shown .hidden .git/a"
        " node_modules/a __pycache__/a tmp/a a.pyc a.o"
    )
    assert [file.name for file in done.files] == ["x/y/shown"]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("missing", "not_produced"),
        ("link", "not_a_regular_file"),
        ("folder_link/passwd", "not_a_regular_file"),
        ("fifo", "not_a_regular_file"),
        ("folder", "not_a_regular_file"),
        ("../../etc/passwd", "not_a_regular_file"),
        ("/etc/passwd", "not_a_regular_file"),
        ("/proc/self/environ", "not_a_regular_file"),
        ("", "not_a_regular_file"),
        ("a\0b", "not_produced"),
    ],
)
async def test_declared_outputs_that_are_no_files_are_error_entries(
    shell: RunShell, name: str, code: str
) -> None:
    done = await shell(
        "ln -s /etc/passwd link; ln -s /etc folder_link; mkfifo fifo; mkdir folder",
        outputs=(DeclaredFile(name),),
    )
    assert [(file.name, file.data, file.code) for file in done.files] == [(name, None, code)]
    assert done.files[0].message


async def test_an_absolute_name_below_the_working_directory_is_a_relative_one(
    shell: RunShell,
) -> None:
    done = await shell("echo a > a", outputs=(DeclaredFile("/mnt/data/a"), DeclaredFile("./a")))
    assert [(file.name, file.data) for file in done.files] == [("a", b"a\n")]


async def test_files_are_kept_up_to_the_limits(python: RunPython) -> None:
    done = await python(
        "open('a_large', 'wb').truncate(33 << 20)\n"
        "for i in range(4): open(f'b{i}', 'wb').truncate(20 << 20)"
    )
    kept = [(file.name, file.data is not None, file.size_bytes, file.code) for file in done.files]
    assert kept == [
        ("a_large", False, 33 * MIB, None),
        ("b0", True, 20 * MIB, None),
        ("b1", True, 20 * MIB, None),
        ("b2", True, 20 * MIB, None),
        ("b3", False, 20 * MIB, None),
    ]


async def test_a_hundred_thousand_files_do_not_stop_the_container(python: RunPython) -> None:
    done = await python(
        "for i in range(100_000): open(f'f{i}', 'w').close()",
        timeout_s=120,
        outputs=(DeclaredFile("f99999"),),
    )
    assert done.files[0].name == "f99999"
    assert len(done.files) == MAX_FILES
    after = await python("open('new', 'w').close()", outputs=(DeclaredFile("new"),))
    assert [file.name for file in after.files] == ["new"]


async def test_input_files_get_safe_and_unique_names(
    container: Container, python: RunPython
) -> None:
    await python("open('taken.txt', 'w').write('t')")
    names = await container.put_files(
        [
            InputFile("../data file.csv", b"1"),
            InputFile("data file.csv", b"2"),
            InputFile("taken.txt", b"3"),
            InputFile("../data file.csv", b"1"),
        ]
    )
    assert names == ("data file.csv", "data file-2.csv", "taken-2.txt", "data file.csv")
    done = await python("[open(name).read() for name in ('data file-2.csv', 'taken.txt')]")
    assert (done.result, done.files) == ("['2', 't']", ())


async def test_an_input_file_does_not_follow_a_planted_link(
    container: Container, python: RunPython
) -> None:
    await python("import os; open('/tmp/target', 'w').write('old'); os.symlink('/tmp/target', 'a')")
    await container.put_files([InputFile("a", b"new")])
    assert (await python("open('/tmp/target').read()")).result == "'old'"


async def test_skills_can_be_read_and_not_changed(container: Container, shell: RunShell) -> None:
    skill = SkillFolder("pdf", {"SKILL.md": b"# PDF\n", "scripts/run.py": b"print(1)"})
    for _ in range(2):
        await container.mount_skills([skill])
    done = await shell("cat skills/pdf/SKILL.md; echo x > skills/pdf/SKILL.md; rm -r skills/pdf")
    assert (done.stdout, done.files) == ("# PDF\n", ())
    assert (await shell("cat skills/pdf/scripts/run.py")).stdout == "print(1)"


async def test_surface_returns_files_of_earlier_calls(
    container: Container, python: RunPython
) -> None:
    await python("open('a', 'w').write('1')")
    files = await container.surface([DeclaredFile("a"), DeclaredFile("b")])
    assert [(file.name, file.data, file.code) for file in files] == [
        ("a", b"1", None),
        ("b", None, "not_produced"),
    ]


async def test_a_full_disk_is_the_tools_error(container: Container, python: RunPython) -> None:
    done = await python(
        "block = bytes(1 << 20)\n"
        "for number in range(16):\n"
        "    with open(f'big{number}', 'wb') as file:\n"
        "        for _ in range(64): file.write(block)",
        timeout_s=120,
    )
    assert done.status == "error"
    assert done.exception is not None
    assert "No space left" in done.exception
    with pytest.raises(Unavailable):
        await container.put_files([InputFile("input", bytes(8 * MIB))])
    await python("import os; os.remove('big0')")
    assert await container.put_files([InputFile("input", bytes(8 * MIB))]) == ("input",)


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("a/b/é c.tar.gz", "é c.tar.gz"),
        ("a\nb\\c", "a_b_c"),
        (".bashrc", "bashrc"),
        ("..", "file"),
        ("-rf", "rf"),
        ("x" * 300 + ".csv", "x" * 196 + ".csv"),
    ],
)
def test_names_of_input_files_are_safe(name: str, safe: str) -> None:
    assert input_name(name, ()) == safe


def test_a_file_that_an_incomplete_list_lacked_is_not_new() -> None:
    old, new = ListedFile("a", 1, 1, 1), ListedFile("b", 1, 1, 2)
    after = FileListing((old, new), truncated=True)
    assert changed(FileListing((old,), truncated=True), after) == []
    assert changed(FileListing((old,), truncated=False), after) == ["b"]
