"""docs/api.md and docs/operating.md have every code that an error may carry."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGES = "".join((ROOT / "docs" / name).read_text() for name in ("api.md", "operating.md"))


def test_every_code_is_told():
    sources = (path.read_text() for path in (ROOT / "python" / "penstock").rglob("*.py"))
    codes = {code for source in sources for code in re.findall(r'\bcode="([a-z_]+)"', source)}
    assert len(codes) > 20 and not {code for code in codes if f"`{code}`" not in PAGES}
