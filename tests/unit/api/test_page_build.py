"""The build of the web page on machines without Node."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
WEB = "python/penstock/api/ui/web"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy of the page's sources, beside a copy of the script that builds them."""
    (tmp_path / "packaging").mkdir()
    shutil.copy(ROOT / "packaging/build_page.py", tmp_path / "packaging")
    unneeded = shutil.ignore_patterns("node_modules")
    shutil.copytree(ROOT / WEB, tmp_path / WEB, ignore=unneeded)
    return tmp_path


def build(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the build without Node on PATH and without any package index."""
    no_index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
    return subprocess.run(
        [sys.executable, "packaging/build_page.py", *options],
        cwd=folder,
        env={**os.environ, **no_index, "PATH": str(folder / "no-programs")},
        capture_output=True,
        text=True,
    )


def digest_of(folder: Path) -> str:
    code = "import build_page; print(build_page.digest_of_sources())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder / "packaging",
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_without_node_the_build_succeeds_and_says_that_there_is_no_page(sources: Path) -> None:
    done = build(sources)
    assert done.returncode == 0
    assert "no web page" in done.stderr and "make ui" in done.stderr
    assert not (sources / WEB).with_name("dist").exists()


@pytest.mark.parametrize("arguments", [("--required",), ("npm", "test")])
def test_without_node_a_build_that_must_succeed_fails(
    sources: Path, arguments: tuple[str, ...]
) -> None:
    done = build(sources, *arguments)
    assert done.returncode == 1
    assert "Node 20.19" in done.stderr


def test_a_current_page_needs_no_node(sources: Path) -> None:
    dist = (sources / WEB).with_name("dist")
    dist.mkdir()
    (dist / "sources.sha256").write_text(digest_of(sources))
    done = build(sources, "--required")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("changed", "matters"),
    [
        ("src/App.svelte", True),
        ("src/new/Added.svelte", True),
        ("package-lock.json", True),
        ("plugins/budget.ts", True),
        ("src/routes.test.ts", False),
        ("README.md", False),
    ],
)
def test_only_sources_of_the_page_make_it_out_of_date(
    sources: Path, changed: str, matters: bool
) -> None:
    before = digest_of(sources)
    path = sources / WEB / changed
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write("\n")
    assert (digest_of(sources) != before) == matters


def test_an_old_page_stays_if_a_new_one_cannot_be_built(sources: Path) -> None:
    dist = (sources / WEB).with_name("dist")
    dist.mkdir()
    (dist / "sources.sha256").write_text("of older sources")
    (dist / "index.html").write_text("old")
    assert build(sources).returncode == 0
    assert (dist / "index.html").read_text() == "old"
