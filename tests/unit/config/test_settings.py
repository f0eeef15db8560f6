"""Sources of settings, and one-line errors for wrong ones."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from penstock.config import (
    EngineSettings,
    ServerSettings,
    SettingsError,
    StoreSettings,
    read_environment,
)
from penstock.config.load_settings import load_engine, load_serving
from penstock.config.validation import (
    ENGINE_RANGES,
    MEDIA_RANGES,
    SERVER_RANGES,
    STORE_RANGES,
    check_models,
)

EMPTY = read_environment({"HOME": "/home/u"})


def serving(engine=None, server=None, store=None, *, file=None, environment=EMPTY):
    return load_serving(engine or {}, server or {}, store or {}, file=file, environment=environment)


def load(engine=None, server=None, store=None, **given):
    """Return the settings of a server with one model."""
    settings = serving(engine, server, store, **given)
    (model,) = settings.models
    return model.engine, settings.server


def test_options_win_over_file_and_file_over_defaults(tmp_path):
    file = tmp_path / "penstock.toml"
    file.write_text('model = "a"\n[engine]\nmax_seqs = 4\nthreads = 2\n[server]\nport = 80\n')
    engine, server = load({"max_num_seqs": 8, "threads": None}, {"port": None}, file=file)
    assert (engine.model, engine.max_num_seqs, engine.threads) == ("a", 8, 2)
    assert (server.port, server.host) == (80, ServerSettings().host)


def test_nothing_given_gives_the_defaults():
    assert load() == (EngineSettings(), ServerSettings())


def test_keep_alive_comes_from_the_file_then_the_environment(tmp_path):
    environment = read_environment({"KEEP_ALIVE_INTERVAL": "2500"})
    assert load(environment=environment)[1].keep_alive_interval_ms == 2500
    file = tmp_path / "penstock.toml"
    file.write_text("[server]\nkeep_alive_interval_ms = 70\n")
    assert load(file=file, environment=environment)[1].keep_alive_interval_ms == 70


@pytest.mark.parametrize("text", ["", "0", "-5", "1.5", "ten", "9" * 30, "²"])
def test_invalid_keep_alive_interval_falls_back_to_the_default(text):
    assert read_environment({"KEEP_ALIVE_INTERVAL": text}).keep_alive_interval_ms == 10_000


def test_folders_follow_the_usual_names():
    plain = read_environment({"HOME": "/home/u"})
    assert plain.home == Path("/home/u/.local/share/penstock")
    assert plain.hf_home == Path("/home/u/.cache/huggingface")
    names = {"HOME": "/home/u", "PENSTOCK_HOME": "/data", "HF_HOME": "/hub", "HF_TOKEN": "t"}
    chosen = read_environment(names)
    assert (chosen.home, chosen.hf_home, chosen.hf_token) == (Path("/data"), Path("/hub"), "t")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("x = 1", "'x'"),
        ("[engine]\nmax_seq = 1", "'max_seq'"),
        ("[server]\nmodel = 'a'", "'model'"),
        ("[engine]\nmax_seqs = 'many'", "max_num_seqs"),
        ("[engine]\nmax_seqs = 0", "max_num_seqs"),
        ("[engine]\ndtype = 'f8'", "dtype"),
        ("[server]\nport = 70000", "port"),
        ("engine = 3", "engine"),
        ("[store]\nurl = 3", "url"),
        ("[store]\nmax_sessions = 0", "max_sessions"),
        ("[server.store]\nmax_files = 9", "'store'"),
        ("[store]\nstore = 1", "'store'"),
        ("[engine", "TOML"),
        ("model = ''", "model"),
    ],
)
def test_wrong_file_is_refused_by_name(tmp_path, text, named):
    file = tmp_path / "penstock.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=named):
        load(file=file)


TWO = """
default_model_id = "big"
[engine]
max_num_seqs = 4
[[models]]
model = "a"
aliases = ["small", "tiny"]
[[models]]
model = "b"
id = "big"
on_demand = true
max_num_seqs = 8
"""


@pytest.fixture
def two_models(tmp_path):
    file = tmp_path / "penstock.toml"
    file.write_text(TWO)
    return file


def test_file_may_name_several_models(two_models):
    settings = serving({"threads": 2}, file=two_models)
    first, second = settings.models
    assert (first.id, first.aliases, first.on_demand) == ("", ("small", "tiny"), False)
    assert (second.id, second.on_demand, settings.default_model_id) == ("big", True, "big")
    assert (first.engine.model, second.engine.model) == ("a", "b")
    assert (first.engine.max_num_seqs, second.engine.max_num_seqs) == (4, 8)
    assert first.engine.threads == second.engine.threads == 2


def test_command_for_one_model_takes_the_default_of_the_file(two_models):
    assert load_engine({}, file=two_models).model == "b"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[[models]]\nid = 'x'", "'model'"),
        ("[[models]]\nmodel = 'a'\nseqs = 1", "'seqs'"),
        ("[[models]]\nmodel = 'a'\nmax_seqs = 0", "max_num_seqs"),
        ("[[models]]\nmodel = 'a'\naliases = 'x'", "aliases"),
        ("[[models]]\nmodel = 'a'\nid = 'default'", "'default'"),
        ("[[models]]\nmodel='a'\nid='x'\n[[models]]\nmodel='b'\naliases=['x']", "'x'"),
        ("model = 'c'\n[[models]]\nmodel = 'a'", "model"),
        ("models = 3", "models"),
    ],
)
def test_wrong_models_are_refused_by_name(tmp_path, text, named):
    file = tmp_path / "penstock.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=named):
        serving(file=file)


def test_default_model_must_be_one_of_the_models(two_models):
    with pytest.raises(SettingsError, match="'other'"):
        check_models(serving(file=two_models).models, "other")


def test_alias_of_a_model_is_not_empty(two_models):
    models = [msgspec.structs.replace(m, aliases=("",)) for m in serving(file=two_models).models]
    with pytest.raises(SettingsError, match="alias of a model must not be empty"):
        check_models(models)


def test_model_option_beside_the_models_of_a_file_is_refused(two_models):
    with pytest.raises(SettingsError, match="model"):
        serving({"model": "c"}, file=two_models)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"nowhere\.toml"):
        load(file=tmp_path / "nowhere.toml")


@pytest.mark.parametrize("name", ENGINE_RANGES)
def test_engine_ranges_are_closed(name):
    for value in ENGINE_RANGES[name]:
        load({name: value})
    for value in (ENGINE_RANGES[name][0] - 1, ENGINE_RANGES[name][1] + 1):
        with pytest.raises(SettingsError, match=name):
            load({name: value})


@pytest.mark.parametrize("name", SERVER_RANGES)
def test_server_ranges_are_closed(name):
    with pytest.raises(SettingsError, match=name):
        load(server={name: SERVER_RANGES[name][1] + 1})


@pytest.mark.parametrize("name", STORE_RANGES)
def test_store_ranges_are_closed(name):
    with pytest.raises(SettingsError, match=name):
        load(store={name: STORE_RANGES[name][1] + 1})


@pytest.mark.parametrize("name", sorted(MEDIA_RANGES))
def test_media_ranges_are_closed(name):
    least, most = MEDIA_RANGES[name]
    assert getattr(load(server={name: least})[1].media, name) == least
    assert getattr(load(server={name: most})[1].media, name) == most
    for value in (least - 1, most + 1):
        with pytest.raises(SettingsError, match=name):
            load(server={name: value})


def test_media_has_a_table_of_its_own(tmp_path):
    file = tmp_path / "penstock.toml"
    file.write_text("[media]\nmax_video_frames = 8\nmedia_processes = 3\n")
    _, server = load(server={"media_processes": 1}, file=file)
    assert (server.media.max_video_frames, server.media.media_processes) == (8, 1)
    file.write_text("[media]\nmax_frames = 8\n")
    with pytest.raises(SettingsError, match=r"unknown key 'max_frames' in \[media\]"):
        load(file=file)
    file.write_text("[server.media]\nmax_video_frames = 8\n")
    with pytest.raises(SettingsError, match=r"\[media\] is a table of its own"):
        load(file=file)


def test_the_encoder_cache_has_a_size_with_a_unit():
    assert load({"encoder_cache_mb": "2GiB"})[0].encoder_cache_mb == 2048


def test_store_has_a_table_and_options_of_its_own(tmp_path):
    file = tmp_path / "penstock.toml"
    file.write_text('[store]\nurl = "postgresql://db/penstock"\nmax_files = 9\n')
    store = load(store={"max_files": 8, "blobs": None}, file=file)[1].store
    assert (store.url, store.max_files, store.blobs) == ("postgresql://db/penstock", 8, None)


def test_store_lies_under_home_unless_it_is_named():
    located = StoreSettings().with_defaults(Path("/data"))
    assert located.url == "sqlite:////data/penstock.db"
    assert (located.blobs, located.skills_dir) == ("/data/blobs", "/data/blobs")
    named = StoreSettings(url="sqlite:///x.db", blobs="s3://b").with_defaults(Path("/data"))
    assert (named.url, named.blobs, named.skills_dir) == ("sqlite:///x.db", "s3://b", "s3://b")


def test_draft_tokens_come_from_a_draft_model_or_from_mtp_heads():
    assert load({"draft_model": "small"})[0].speculates
    assert load({"speculative_algorithm": "mtp"})[0].speculates
    assert not load({"draft_model": "small", "no_kv_cache": True})[0].speculates
    with pytest.raises(
        SettingsError, match="draft_model is set and speculative_algorithm is 'mtp'"
    ):
        load({"draft_model": "small", "speculative_algorithm": "mtp"})
