"""The table of language models in docs/models.md agrees with the registry and with the tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.models.configuration.family import HfDecoder
from penstock.models.families.registry import FAMILIES, GGUF_DECODERS
from penstock.text.tool_parsers import TOOL_SYNTAXES
from penstock.text.tool_parsers.tool_syntaxes import REASONING_SYNTAXES

ROOT = Path(__file__).resolve().parents[3]
FOLDER, GGUF, GPU, TOOLS, REASONING, ADAPTERS = range(1, 7)


def table() -> list[list[str]]:
    """Return the cells of each row, without the heading."""
    text = (ROOT / "docs" / "models.md").read_text()
    start = text.index("| Family | Folder")
    lines = text[start : text.index("\n\n", start)].splitlines()[2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def named(column: int) -> list[str]:
    """Return all names between backticks in a column."""
    found = [name for row in table() for name in re.findall(r"`([^`]+)`", row[column])]
    return [name.replace("\\|", "|") for name in found]


def checkpoint_tests() -> str:
    """Return the text of the tests of models and of the makers of their checkpoints."""
    folders = (ROOT / "tests" / "models", ROOT / "tests" / "support" / "checkpoints")
    return "\n".join(path.read_text() for folder in folders for path in folder.glob("*.py"))


def constant(architecture: str) -> str:
    """Return the name that the package `gguf` gives to an architecture."""
    return f"MODEL_ARCH.{architecture.upper().replace('-', '_')}"


def test_every_decoder_has_a_row_and_every_row_is_a_decoder() -> None:
    decoders = [family.hf for family in FAMILIES if isinstance(family.hf, HfDecoder)]
    architectures = {decoder.architecture.removesuffix("ForCausalLM") for decoder in decoders}
    assert sorted(named(FOLDER)) == sorted(architectures)
    assert set(named(GGUF)) == set(GGUF_DECODERS)


@pytest.mark.parametrize("column", [FOLDER, GGUF])
def test_every_architecture_is_named_in_a_test_of_models(column: int) -> None:
    text = checkpoint_tests()
    names = named(column)
    assert [one for one in names if one not in text and constant(one) not in text] == []


def test_families_with_mtp_heads_are_those_of_the_test() -> None:
    text = (ROOT / "docs" / "models.md").read_text()
    section = text.partition("## MTP heads")[2].partition("##")[0]
    families = section.partition("Families:")[2].partition(".\n")[0]
    cases = (ROOT / "tests" / "models" / "mtp_models.py").read_text()
    tested = re.findall(r'^    "[^"]+": \("(\w+)", ', cases, re.MULTILINE)
    assert re.findall(r"`(\w+)`", families) == tested
    assert set(tested) <= set(named(FOLDER))


def test_formats_of_calls_and_tags_of_reasoning_exist() -> None:
    assert set(named(TOOLS)) <= set(TOOL_SYNTAXES)
    assert set(named(REASONING)) <= {tags.open for tags in REASONING_SYNTAXES} | {"harmony"}


def test_cells_have_one_of_the_explained_values() -> None:
    rows = table()
    assert {row[GPU] for row in rows} <= {"yes", "emulated", ""}
    assert {re.split("; | ", row[ADAPTERS])[0] for row in rows} <= {
        "all",
        "most",
        "attention",
        "part",
    }
