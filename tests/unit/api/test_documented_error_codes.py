"""docs/api and docs/operating.md list every code that an error may carry."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = [*(ROOT / "docs/api").glob("*.md"), ROOT / "docs/operating.md"]
PAGES = "".join(path.read_text() for path in DOCUMENTS)


def test_every_error_code_is_documented():
    sources = (path.read_text() for path in (ROOT / "python" / "penstock").rglob("*.py"))
    codes = {code for source in sources for code in re.findall(r'\bcode="([a-z_]+)"', source)}
    assert len(codes) > 20 and not {code for code in codes if f"`{code}`" not in PAGES}
