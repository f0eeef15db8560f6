"""LoRA options: how they enable the runtime, units, and errors that name the option."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config import LoraSettings, LoraSource, SettingsError, read_environment
from penstock.config.load_settings import load_engine

GIB = 1024**3


def lora(options=None, toml="", tmp_path=None):
    file = None
    if toml:
        file = tmp_path / "penstock.toml"
        file.write_text(toml)
    return load_engine(options or {}, file=file).lora


def test_lora_runtime_is_off_by_default():
    assert lora() is None
    assert lora({"enable_lora": False, "lora_max_rank": 8}) is None
    assert lora({"lora_max_adapters": 4}) is None


@pytest.mark.parametrize(
    ("key", "value"), [("lora_max_bytes", "12XB"), ("lora_max_rank", 0), ("lora_max_adapters", "x")]
)
def test_an_invalid_limit_is_refused_even_without_a_runtime(key, value):
    with pytest.raises(SettingsError, match="lora_max"):
        lora({key: value})


def test_runtime_has_the_limits_of_the_specification():
    assert lora({"enable_lora": True}) == LoraSettings(16, 256, 8 * GIB)


def test_adapter_to_load_turns_the_runtime_on():
    found = lora({"lora": [" sql =/a", '{"alias": "b", "source": "/b", "pinned": true}']})
    assert found.preload == (LoraSource("sql", "/a"), LoraSource("b", "/b", pinned=True))


@pytest.mark.parametrize(
    ("given", "size"),
    [
        (1024, 1024),
        ("1024", 1024),
        ("1KB", 1000),
        ("1k", 1000),
        ("1KiB", 1024),
        ("3 MiB", 3 * 2**20),
        ("2mb", 2_000_000),
        ("2Gi", 2 * GIB),
        ("7b", 7),
        ("1TB", 10**12),
    ],
)
def test_bytes_may_have_a_unit(given, size):
    assert lora({"enable_lora": True, "lora_max_bytes": given}).max_bytes == size


def test_model_of_a_file_has_a_table_of_adapters_and_options_win(tmp_path):
    text = """
[engine.adapter]
lora_max_rank = 32
[[models]]
model = "a"
[models.adapter]
enable_lora = true
lora_max_adapters = 9
lora_max_bytes = "1GiB"
lora = [{alias = "x", source = "/x"}]
"""
    found = lora({"lora_max_adapters": 3}, text, tmp_path)
    assert found == LoraSettings(3, 32, GIB, (LoraSource("x", "/x"),))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[engine.adapter]\nxlora = 'a'", "'xlora'"),
        ("[engine]\nadapter = 3", "adapter"),
        ("[engine.adapter]\nenable_lora = 'x'\n", "enable_lora"),
        ("[engine.adapter]\nlora = 'a=b'", "lora must be a list"),
        ("[engine.adapter]\nlora = [3]", "lora must be ALIAS=SOURCE"),
        ("[engine.adapter]\nlora = ['{']", "lora must be ALIAS=SOURCE"),
        ("[engine.adapter]\nlora = ['a']", "lora must be ALIAS=SOURCE: an alias of"),
        ("[engine.adapter]\nlora = ['=b']", "lora must be ALIAS=SOURCE: an alias of"),
        ("[engine.adapter]\nlora = [{alias='a', source='b', revision='c'}]", "revision"),
        ("[engine.adapter]\nlora = ['a=b', 'a=c']", "two adapters with the alias 'a'"),
        ("[engine.adapter]\nlora = ['a=b']\nenable_lora = false", "enable_lora is false"),
        ("[engine.adapter]\nlora = ['a=b', 'c=d']\nlora_max_adapters = 1", "lora_max_adapters"),
        ("[engine.adapter]\nenable_lora=true\nlora_max_bytes = 'much'", "lora_max_bytes"),
        ("[engine.adapter]\nenable_lora=true\nlora_max_bytes = 0", "lora_max_bytes"),
        ("[engine.adapter]\nenable_lora=true\nlora_max_rank = 0", "lora_max_rank"),
        ("[engine.adapter]\nenable_lora=true\nlora_max_rank = 'x'", "lora_max"),
        ("[engine]\nlora = {max_rank = 3}", "lora must be a list"),
    ],
)
def test_wrong_options_are_refused_by_name(tmp_path, text, named):
    with pytest.raises(SettingsError, match=named):
        lora(toml=text, tmp_path=tmp_path)


@pytest.mark.parametrize(
    ("value", "allowed"),
    [("1", 1), ("true", 1), ("YES", 1), (" on ", 1), ("0", 0), ("", 0), ("enable", 0)],
)
def test_clients_may_load_adapters_only_if_the_environment_allows_it(value, allowed):
    found = read_environment({"HOME": "/h", "SERVICE_ALLOW_RUNTIME_LORA_UPDATING": value})
    assert found.lora_updates == bool(allowed) and found.lora_root is None


def test_root_of_adapters_comes_from_the_environment():
    found = read_environment({"HOME": "/h", "SERVICE_LORA_ADAPTER_ROOT": "/adapters"})
    assert found.lora_root == Path("/adapters") and not found.lora_updates
