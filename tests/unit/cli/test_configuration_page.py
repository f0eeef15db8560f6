"""docs/configuration.md lists every key of the settings file, in accord with the options."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.cli.settings_page import TABLES, with_tables
from penstock.config import read_environment
from penstock.config.agent_options import AGENT_KEYS, SANDBOX_KEYS, SEARCH_KEYS
from penstock.config.load_settings import MODEL_KEYS, SettingsFile, load_serving, read_toml
from penstock.config.settings import EngineSettings, MediaSettings, ServerSettings, StoreSettings

PATH = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"
PAGE = PATH.read_text()


def test_the_tables_match_the_options():
    assert with_tables(PAGE) == PAGE, (
        "run `python -m penstock.cli.settings_page docs/configuration.md`, which writes them anew"
    )


def test_every_setting_has_a_row():
    documented = {option.toml_key for _, options in TABLES for option in options}
    settings = (EngineSettings, ServerSettings, StoreSettings, MediaSettings)
    fields = {name for kind in settings for name in kind.__struct_fields__}
    fields |= {*AGENT_KEYS, *SEARCH_KEYS, *SANDBOX_KEYS}
    assert fields - {"model", "store", "media", "agent"} <= documented
    assert all(f"| `{field}` |" in PAGE for field in documented)


def test_keys_outside_the_tables_are_documented():
    models = PAGE.partition("## Models")[2].partition("## Tables")[0]
    keys = {"model", "served_model_name", "default_model_id"}
    assert all(f"`{key}`" in models for key in (*MODEL_KEYS, *keys))
    tables = {"models", "engine", "server", "store", "media", "agent", "sandbox"}
    assert set(SettingsFile.__struct_fields__) == tables | keys
    assert all(f"[{table}]" in PAGE for table in tables)


def test_the_example_is_a_settings_file(tmp_path):
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "penstock.toml"
    file.write_text(example)
    assert read_toml(file).model == "owner/name"
    settings = load_serving({}, {}, {}, file=file, environment=read_environment({}))
    assert settings.models[0].engine.lora is not None
    assert settings.server.agent.enable_code_execution
