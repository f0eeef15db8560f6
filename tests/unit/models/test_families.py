"""The registry of model families."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from penstock.models import families
from penstock.models.configuration.family import GgufDecoder, HfDecoder, HfEncoder
from penstock.models.decoder.tensor_names import HF_NAMES
from penstock.models.families import gpt_oss, llama, registry
from penstock.models.families.registry import FAMILIES

HF = [family.hf for family in FAMILIES if family.hf is not None]


def test_every_file_of_the_folder_is_a_family() -> None:
    files = {path.stem for path in Path(families.__path__[0]).glob("*.py")}
    assert len(FAMILIES) == len(files - {"__init__", "registry"})
    assert llama.FAMILY in FAMILIES


def test_no_two_families_have_the_same_names() -> None:
    hf = [name for family in HF for name in (family.name, family.architecture)]
    model_types = [family.model_type or family.name for family in HF]
    gguf = [family.gguf.architecture for family in FAMILIES if family.gguf is not None]
    for names in (hf, model_types, gguf):
        assert [name for name, count in Counter(names).items() if count > 1] == []


@pytest.mark.parametrize("family", HF, ids=lambda family: family.name)
def test_the_architecture_has_the_suffix_that_others_are_derived_from(
    family: HfDecoder | HfEncoder,
) -> None:
    suffix = "ForCausalLM" if isinstance(family, HfDecoder) else "Model"
    assert family.architecture.endswith(suffix)


def test_tensor_names_are_found_for_the_specs_of_both_file_formats() -> None:
    for family in FAMILIES:
        if isinstance(family.hf, HfDecoder) and isinstance(family.gguf, GgufDecoder):
            names = registry._HF_NAMES
            assert names[family.hf.name] == names[family.gguf.architecture] == family.hf.names
    assert registry._HF_NAMES["gpt-oss"] == gpt_oss.NAMES != HF_NAMES
