"""Markdown tables of the documentation are valid: each row follows its header."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_row_belongs_to_a_table(page: Path) -> None:
    lines = page.read_text().splitlines()
    for is_row, block in groupby(lines, key=lambda line: line.startswith("|")):
        rows = list(block)
        if is_row:
            assert len(rows) >= 2 and set(rows[1]) <= set("|-: "), rows[0]
