"""Holds the English of docstrings, comments and documents to CONTRIBUTING.md's rules."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOOK = ROOT / "tools/hooks/commit-msg"
SOURCES = ["python", "kernels", "csrc", "bench", "tests", "tools", "examples"]
PYTHON = {".py", ".pyi"}
CPP = {".h", ".cc", ".cu", ".cuh", ".c"}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

# A docstring, a comment and each of their sentences begin with a subject or a verb.
OPENING_WORDS = re.compile(
    r"\b(What|Of|Who|Whose|Whoever|Where|Which|That which|Those|So many|As many|Nobody|Nothing"
    r"|Not so)\b"
)
OPENERS = re.compile(rf"(?:^|(?<=[.!?] )){OPENING_WORDS.pattern}")
# Words of this project's own that the field has other words for (docs/glossary.md).
BANNED = re.compile(
    r"\b(second vendor|reference chat API|(?:is|are|was|were) told of|com(?:es|ing|e) of"
    r"|of no account|but for|begun answers?|outlets?|so many|nobody|whoever|guess(?:es|ed|ing)?"
    r"|is drawn|are drawn|stands? for|(?:is|are) to be had)\b",
    re.IGNORECASE,
)
# Folders of caches, recorded results, packages of npm and the built web page.
UNREAD = {"__pycache__", "dist", "node_modules", "results"}
# This file and the glossary name the words that they forbid.
EXEMPT = {"tests/arch/test_prose.py", "docs/glossary.md"}


def python_texts(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of every docstring and of every block of comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
            yield (1 if isinstance(node, ast.Module) else node.lineno), text
    last, block = -1, (0, "")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        words = token.string.lstrip("#!: ")
        if token.start[0] == last + 1 and block[1]:
            block = (block[0], f"{block[1]} {words}")
        else:
            yield block
            block = (token.start[0], words)
        last = token.start[0]
    yield block


def cpp_texts(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of every block of `//` comments."""
    last, block = -1, (0, "")
    for number, line in enumerate(source.splitlines(), 1):
        found = re.search(r"(?:^|[\s;{}(),])//+ ?(.*)$", line)
        if found is None:
            continue
        if number == last + 1:
            block = (block[0], f"{block[1]} {found[1]}")
        else:
            yield block
            block = (number, found[1])
        last = number
    yield block


def files_in(*folders: str) -> list[Path]:
    """Files of the folders that exist, except those in UNREAD."""
    return [
        path
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*"))
        if path.is_file() and not UNREAD & set(path.parts)
    ]


def texts(path: Path) -> Iterator[tuple[int, str]]:
    if path.suffix in PYTHON:
        yield from python_texts(path.read_text(encoding="utf-8"))
    elif path.suffix in CPP:
        yield from cpp_texts(path.read_text(encoding="utf-8"))


def documents() -> list[Path]:
    return [*sorted(ROOT.glob("*.md")), *(p for p in files_in("docs") if p.suffix == ".md")]


def one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def found_by(rule: re.Pattern[str], words: re.Pattern[str]) -> list[str]:
    """Every text in which `rule` finds something. `words` finds something in the text of each such
    file as it stands, which spares the parsing of most files."""
    wrong = []
    for path in files_in(*SOURCES):
        if str(path.relative_to(ROOT)) in EXEMPT or path.suffix not in {*PYTHON, *CPP}:
            continue
        if not words.search(re.sub(r"[\s#!:/\\]+", " ", path.read_text(encoding="utf-8"))):
            continue
        for line, text in texts(path):
            if hit := rule.search(one_line(text)):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {hit.group()!r}")
    return wrong


def test_docstrings_and_comments_open_with_a_subject_or_a_verb() -> None:
    wrong = found_by(OPENERS, OPENING_WORDS)
    assert not wrong, f"{len(wrong)} texts\n" + "\n".join(wrong)


def test_docstrings_and_comments_use_the_words_of_the_field() -> None:
    wrong = found_by(BANNED, BANNED)
    assert not wrong, f"{len(wrong)} texts\n" + "\n".join(wrong)


def test_documents_use_the_words_of_the_field() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {hit.group()!r} in {one_line(text)[:80]!r}"
        for path in documents()
        if str(path.relative_to(ROOT)) not in EXEMPT
        for text in re.split(r"\n\s*\n", path.read_text(encoding="utf-8"))
        if (hit := BANNED.search(one_line(text)))
    ]
    assert not wrong, f"{len(wrong)} texts\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "hit"),
    [
        ("What a step needs.", "What"),
        ("A step. Of its rows the first.", "Of"),
        ("Returns the rows of a step.", None),
        ("Says what a step needs.", None),
    ],
)
def test_an_opener_is_seen_at_the_start_of_a_sentence_only(text: str, hit: str | None) -> None:
    found = OPENERS.search(text)
    assert (found and found.group()) == hit


def test_comments_of_both_languages_are_read() -> None:
    assert [t for _, t in python_texts("x = 1  # one\n# two\n# three\n") if t] == ["one two three"]
    assert [t for _, t in cpp_texts("int x;  // one\n\n// two\n// three\n") if t] == [
        "one",
        "two three",
    ]


@pytest.mark.parametrize(
    ("subject", "accepted"),
    [
        ("scheduler: admit short prompts beside long ones", True),
        ("api, docs: embed the explorer", True),
        ("scheduler: admits short prompts", False),
        ("scheduler: added a budget", False),
        ("scheduler: the budget of a step", False),
        ("Admit short prompts", False),
        ("scheduler: " + "x" * 62, False),
    ],
)
def test_the_commit_hook_wants_a_room_and_an_imperative(
    tmp_path: Path, subject: str, accepted: bool
) -> None:
    message = tmp_path / "message"
    message.write_text(f"{subject}\n\nA body.\n")
    done = subprocess.run([sys.executable, HOOK, message], capture_output=True, text=True)
    assert (done.returncode == 0) == accepted, done.stderr
