"""Print a seeded random sample of the docstrings of the product, for a review of their English.

Usage: python tools/draw_docstrings.py [--seed N] [--count N]
"""

from __future__ import annotations

import argparse
import ast
import random
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ["python/penstock", "kernels"]
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings() -> Iterator[tuple[str, str]]:
    """Yield (place, docstring) of every module, class and function that has one, in order of
    path."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, DOCUMENTED):
                    continue
                text = ast.get_docstring(node)
                if text is not None:
                    name = "" if isinstance(node, ast.Module) else f" {node.name}"
                    line = 1 if isinstance(node, ast.Module) else node.lineno
                    yield f"{path.relative_to(ROOT)}:{line}{name}", text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="seed of the random choice")
    parser.add_argument("--count", type=int, default=60, help="number of docstrings")
    options = parser.parse_args()
    sample = random.Random(options.seed).sample(list(docstrings()), options.count)
    for number, (place, text) in enumerate(sample, 1):
        print(f"{number}. {place}\n    " + "\n    ".join(text.splitlines()) + "\n")


if __name__ == "__main__":
    main()
