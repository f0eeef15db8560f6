"""The token for the hub comes from the place that a token source names."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config import Environment
from penstock.config.token_source import TokenSourceError, read_token


def test_each_source_gives_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_TOKEN", "of-variable")
    (tmp_path / "file").write_text("of-file\n")
    environment = Environment(tmp_path, tmp_path, hf_token="of-environment")
    assert read_token("none", environment) is None
    assert read_token("cache", environment) == "of-environment"
    assert read_token("literal:a:b", environment) == "a:b"
    assert read_token("env:OTHER_TOKEN", environment) == "of-variable"
    assert read_token(f"path:{tmp_path / 'file'}", environment) == "of-file"


def test_cache_is_the_login_of_the_hub_client_or_empty(tmp_path: Path) -> None:
    environment = Environment(tmp_path, tmp_path)
    assert read_token("cache", environment) is None
    (tmp_path / "token").write_text("of-login")
    assert read_token("cache", environment) == "of-login"


@pytest.mark.parametrize("source", ["env:NO_SUCH_VARIABLE", "path:/no/such/file"])
def test_a_source_without_a_token_is_an_error(tmp_path: Path, source: str) -> None:
    with pytest.raises(TokenSourceError, match="has no token"):
        read_token(source, Environment(tmp_path, tmp_path))


@pytest.mark.parametrize("source", ["", "other", "literal:", "env", "none:x"])
def test_an_unknown_source_names_the_known_ones(tmp_path: Path, source: str) -> None:
    with pytest.raises(TokenSourceError, match="cache, none, literal"):
        read_token(source, Environment(tmp_path, tmp_path))
