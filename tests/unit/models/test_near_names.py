"""A mistyped name of a model gets the nearest known one."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.base.errors import ModelError
from penstock.models.hub.catalogue import CATALOGUE
from penstock.models.hub.hub_access import HubAccess
from penstock.models.hub.near_names import known_names, near
from penstock.models.hub.sources import resolve_model
from tests.support.servers.file_server import Files, serving

NAMES = ["smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct", "Qwen/Qwen3-0.6B"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("smolm2-135m-instruct", NAMES[0]),
        ("SmolLM2", NAMES[0]),
        ("smolm2", NAMES[0]),
        ("qwen2.5-coder", NAMES[1]),
        ("qwen/qwen3-0.6", NAMES[2]),
        ("Qwn/Qwen3-0.6B", NAMES[2]),
        ("Qwen3-0.6B", NAMES[2]),
        ("zephyr", None),
        ("x", None),
        ("", None),
    ],
)
def test_the_nearest_name_is_found(name: str, expected: str | None) -> None:
    assert near(name, NAMES) == expected


def test_names_on_disk_and_of_the_catalogue_are_known(tmp_path: Path) -> None:
    (tmp_path / "models" / "who--what").mkdir(parents=True)
    (tmp_path / "models" / "who--half.partial").mkdir()
    (tmp_path / "hub" / "models--who--else").mkdir(parents=True)
    names = known_names(tmp_path, HubAccess(cache=tmp_path / "hub"))
    assert {"who/what", "who/else", "google/gemma-3-270m", *CATALOGUE} <= set(names)
    assert "who/half" not in names


def test_an_id_that_the_hub_does_not_have_gets_a_near_one(tmp_path: Path) -> None:
    with serving(Files()) as hub, pytest.raises(ModelError) as raised:
        resolve_model("gogle/gemma-3-270", tmp_path, HubAccess(hub.url))
    assert "HTTP 404" in str(raised.value)
    assert str(raised.value).endswith("did you mean google/gemma-3-270m?")
