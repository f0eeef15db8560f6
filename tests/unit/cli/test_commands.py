"""The command line: its options, one-line errors, and light imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.api.serving.sockets import bind_socket
from penstock.base.errors import ModelError
from penstock.cli import main as cli
from penstock.cli import serve as serve_module
from penstock.cli.agent_setting_options import AGENT_OPTIONS, SANDBOX_OPTIONS, SEARCH_OPTIONS
from penstock.cli.media_setting_options import MEDIA_OPTIONS
from penstock.cli.setting_option import negative_flags
from penstock.cli.settings_options import (
    ENGINE_OPTIONS,
    FORMER_OPTIONS,
    LORA_OPTIONS,
    MODEL_OPTIONS,
    SERVE_OPTIONS,
    SERVER_OPTIONS,
)
from penstock.cli.store_setting_options import STORE_OPTIONS
from penstock.config import (
    AgentSettings,
    EngineSettings,
    LoraSettings,
    LoraSource,
    MediaSettings,
    SandboxSettings,
    ServerSettings,
    StoreSettings,
)
from penstock.config.agent_options import AGENT_KEYS, SANDBOX_KEYS, SEARCH_KEYS
from penstock.config.lora_options import LORA_KEYS
from penstock.system.checks import check_cpu, check_default_model, check_home, check_memory
from tests.support.checkpoints.embedding_checkpoints import save_sentence_folder, small_body


@pytest.fixture
def served(monkeypatch):
    """Capture the settings that `penstock serve` would serve."""
    calls = []
    monkeypatch.setattr(serve_module, "serve_settings", calls.append)
    return calls


def only(settings):
    """Return the engine's and the server's settings of a server with one model."""
    (model,) = settings.models
    return model.engine, settings.server


def invoke(*arguments):
    return CliRunner().invoke(cli.app, list(arguments), catch_exceptions=False)


def test_command_line_imports_nothing_heavy():
    heavy = (
        "numpy",
        "starlette",
        "uvicorn",
        "torch",
        "transformers",
        "tokenizers",
        "rich",
        "email",
    )
    code = f"import sys, penstock.cli.main; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_every_setting_has_an_option():
    fields = {o.field for o in ENGINE_OPTIONS} | {"model", "lora"}
    assert fields == set(EngineSettings.__struct_fields__)
    assert {o.field for o in LORA_OPTIONS} == set(LORA_KEYS)
    fields = {o.field for o in SERVER_OPTIONS} | {"store", "media", "agent"}
    assert fields == set(ServerSettings.__struct_fields__)
    assert {o.field for o in MEDIA_OPTIONS} == set(MediaSettings.__struct_fields__)
    assert {o.field for o in STORE_OPTIONS} == set(StoreSettings.__struct_fields__)
    for options, keys in (
        (AGENT_OPTIONS, AGENT_KEYS),
        (SEARCH_OPTIONS, SEARCH_KEYS),
        (SANDBOX_OPTIONS, SANDBOX_KEYS),
    ):
        assert {o.toml_key: o.field for o in options} == dict(keys)


def test_no_flag_is_used_twice():
    options = (*MODEL_OPTIONS, *SERVE_OPTIONS)
    flags = [flag for option in options for flag in option.flags]
    flags += [off for option in options for off in negative_flags(option)]
    assert len(set(flags)) == len(flags)


FLAGS = [option for option in (*MODEL_OPTIONS, *SERVE_OPTIONS) if option.kind is bool]


@pytest.mark.parametrize("option", FLAGS, ids=lambda option: option.field)
def test_an_option_overrides_a_flag_of_the_file(served, tmp_path, option):
    table = "engine.adapter" if option in LORA_OPTIONS else "engine"
    table = "server" if option in SERVER_OPTIONS else table
    table = "agent" if option in AGENT_OPTIONS else table
    file = tmp_path / "penstock.toml"
    file.write_text(f"[{table}]\n{option.toml_key} = true\n")
    assert invoke("serve", "--config", str(file)).exit_code == 0
    assert invoke("serve", "--config", str(file), negative_flags(option)[0]).exit_code == 0
    assert invoke("serve").exit_code == 0
    on, off, default = map(only, served)
    assert on != off and default in (on, off)


def test_the_help_names_the_opposite_of_a_flag():
    shown = " ".join(invoke("serve", "--help").stdout.split())
    assert all(f"Opposite: {negative_flags(option)[0]}." in shown for option in FLAGS)


def test_serve_takes_the_options_of_the_specification(served):
    arguments = (
        "serve some/model --max-seqs 4 --no-kv-cache --prefix-cache-n 0 --pa-context-len 512 "
        "--pa-memory-mb 64 --host 127.0.0.1 -p 8080 --workers 2 --disable-access-log "
        "--access-log-format json --access-log-health --disable-metrics "
        "--disable-request-id-header --threads 1 --dtype f32 "
        "--store postgresql://db/x --blobs s3://b --skills-dir /skills --response-expiry 0"
    )
    assert invoke(*arguments.split()).exit_code == 0
    engine, server = only(served[0])
    assert engine == EngineSettings(
        model="some/model",
        max_num_seqs=4,
        no_kv_cache=True,
        enable_prefix_caching=False,
        max_model_len=512,
        kv_cache_memory_mb=64,
        threads=1,
        dtype="f32",
    )
    assert server == ServerSettings(
        host="127.0.0.1",
        port=8080,
        workers=2,
        disable_access_log=True,
        access_log_format="json",
        access_log_health=True,
        disable_metrics=True,
        disable_request_id_header=True,
        store=StoreSettings(
            url="postgresql://db/x", blobs="s3://b", skills_dir="/skills", response_expiry_s=0
        ),
    )


OF_THE_SPECIFICATION = [
    "host",
    "port",
    "no_ui",
    "max_seqs",
    "no_kv_cache",
    "prefix_cache_n",
    "enable_search",
    "enable_code_execution",
    "code_exec_timeout",
    "code_exec_python",
    "enable_shell",
    "shell_timeout",
    "shell_path",
    "agent",
    "agent_permission",
    "max_tool_rounds",
    "disable_metrics",
    "disable_access_log",
    "access_log_format",
    "access_log_health",
    "sandbox",
    "sb_max_memory_mb",
    "sb_max_cpu_secs",
    "sb_max_procs",
    "sandbox_network",
    "disable_request_id_header",
    "lora_max_adapters",
    "lora_max_rank",
    "lora_max_bytes",
]


@pytest.mark.parametrize("name", OF_THE_SPECIFICATION)
def test_every_option_of_the_specification_is_known(name):
    options = (*MODEL_OPTIONS, *FORMER_OPTIONS, *SERVE_OPTIONS)
    known = {flag for option in options for flag in option.flags}
    assert "--" + name.replace("_", "-") in known


def test_no_ui_reaches_the_settings_of_the_server(served):
    assert invoke("serve", "--no-ui").exit_code == invoke("serve").exit_code == 0
    assert [settings.server.no_ui for settings in served] == [True, False]


def test_options_of_tools_reach_the_agent_settings(served, tmp_path):
    arguments = (
        "serve --agentic --disable-search --code-exec-permission ask --max-tool-rounds 7 "
        "--code-exec-timeout 9 --shell-path /bin/sh --tool-dispatch-url http://127.0.0.1/x "
        "--mcp-port 99 --sandbox off --sandbox-network none --sb-max-memory-mb 128"
    )
    assert invoke(*arguments.split(), "--shell-workdir", str(tmp_path)).exit_code == 0
    assert only(served[0])[1].agent == AgentSettings(
        enable_code_execution=True,
        enable_shell=True,
        agent_permission="ask",
        max_tool_rounds=7,
        code_exec_timeout=9,
        shell_workdir=str(tmp_path),
        tool_dispatch_url="http://127.0.0.1/x",
        mcp_port=99,
        sandbox=SandboxSettings(mode="off", network="none", max_memory_mb=128),
    )


def test_secrets_are_no_options():
    flags = {flag for option in SERVE_OPTIONS for flag in option.flags}
    assert not {"--tool-dispatch-secret", "--search-api-key"} & flags


def test_adapter_options_reach_the_engine_settings(served):
    arguments = (
        "serve --enable-lora --lora sql=/adapters/sql --lora svg=/adapters/s=v "
        "--lora-max-adapters 4 --max-lora-rank 64 --lora-max-bytes 512MiB"
    )
    assert invoke(*arguments.split()).exit_code == 0
    preload = (LoraSource("sql", "/adapters/sql"), LoraSource("svg", "/adapters/s=v"))
    assert only(served[0])[0].lora == LoraSettings(4, 64, 512 * 2**20, preload)


def test_serve_without_options_serves_the_defaults(served):
    assert invoke("serve").exit_code == 0
    engine, server = only(served[0])
    assert engine == EngineSettings() and (server.host, server.port) == ("0.0.0.0", 1234)


def test_model_may_be_given_as_an_option(served):
    invoke("serve", "-m", "some/model")
    assert only(served[0])[0].model == "some/model"


def test_config_file_is_read(served, tmp_path):
    file = tmp_path / "penstock.toml"
    file.write_text('model = "from-file"\n[server]\nport = 99\n')
    invoke("serve", "--config", str(file), "--port", "98")
    engine, server = only(served[0])
    assert (engine.model, server.port) == ("from-file", 98)


def test_allowed_fetch_networks_may_be_repeated(served, tmp_path):
    invoke("serve", "--fetch-allow", "10.1.0.0/16", "--fetch-allow", "127.0.0.1")
    file = tmp_path / "penstock.toml"
    file.write_text('[server]\nfetch_allow = ["fd00::/8"]\n')
    invoke("serve", "--config", str(file))
    allowed = [settings.server.fetch_allow for settings in served]
    assert allowed == [("10.1.0.0/16", "127.0.0.1"), ("fd00::/8",)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "--max-seqs", "0"], "penstock: --max-num-seqs must be from 1"),
        (["run", "--context", "-5"], "penstock: --max-model-len must be from 16"),
        (["serve", "--fetch-allow", "localhost"], "penstock: --fetch-allow must have"),
        (["serve", "--max-sessions", "0"], "penstock: --max-sessions must be from"),
        (["serve", "--sb-max-procs", "0"], "penstock: --sb-max-procs must be from 4"),
        (["serve", "--shell-timeout", "3"], "--shell-timeout needs enable_shell (--enable-shell"),
        (["run", "--mcp-config", "/nowhere"], "penstock: --mcp-config '/nowhere' is no file"),
        (["serve", "no-such-model"], "no-such-model"),
        (["serve", "--config", "/nowhere.toml"], "/nowhere.toml"),
        (["serve", "--context", "64", "--pa-context-len", "65"], "--max-model-len is given twice"),
        (["serve", "a", "-m", "b"], "MODEL is given twice"),
        (["serve", "--speculation", "--no-speculation"], "--speculation is given twice"),
        (["serve", "no-such-model", "--store", "mysql://x/y"], "[store] url must be sqlite"),
        (["serve", "no-such-model", "--store", "sqlite:////proc/no/x"], "[store] cannot be opened"),
        (["serve", "no-such-model", "--blobs", "/proc/nothing"], "[store] cannot be opened"),
        (["serve", "no-such-model", "--blobs", "none://x"], "[store] blobs must be a folder"),
        (["serve", "no-such-model", "--skills-dir", "/proc/x"], "[store] cannot be opened"),
        (["serve", "smolm2-135m-instruct"], "did you mean smollm2-135m-instruct?"),
        (["serve", "no-such-model"], "`penstock models` lists the known names"),
        (["pull", "no-such-model"], "no-such-model"),
        (["run", "no-such-model", "-i", "hi"], "no-such-model"),
        (["bench", "no-such-model"], "no-such-model"),
    ],
)
def test_an_operator_error_is_one_line_and_status_1(monkeypatch, tmp_path, arguments, said):
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))
    port = ["--port", "0"] if arguments[0] == "serve" else []  # another server may have 1234
    monkeypatch.setattr(sys, "argv", ["penstock", *arguments, *port])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    message = str(ended.value.code)
    assert message.startswith("penstock: ") and said in message and "\n" not in message


def test_an_error_in_the_file_names_the_key(monkeypatch, tmp_path):
    file = tmp_path / "penstock.toml"
    file.write_text("[engine]\nmax_seqs = 0\n")
    monkeypatch.setattr(
        sys, "argv", ["penstock", "serve", "--context", "64", "--config", str(file)]
    )
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert str(ended.value.code).startswith("penstock: max_num_seqs must be from 1")


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "--port", "0"],
        ["run", "--local", "-i", "hi"],
        ["bench"],
        ["pull", "smollm2-135m-instruct"],
    ],
)
def test_an_interrupted_command_ends_with_status_130(monkeypatch, arguments):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock.models.hub.sources.resolve_model", interrupted)
    monkeypatch.setattr(sys, "argv", ["penstock", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130


def test_an_explicit_store_is_opened_before_the_model_is_loaded(tmp_path):
    store = StoreSettings(url=f"sqlite:///{tmp_path / 'a' / 'x.db'}", blobs=str(tmp_path / "b"))
    serve_module.check_store(store)
    assert (tmp_path / "a" / "x.db").exists() and (tmp_path / "b").is_dir()


def test_port_in_use_is_one_line(monkeypatch):
    def refuse(*_):
        raise OSError(98, "Address already in use: 0.0.0.0:1234")

    monkeypatch.setattr(serve_module, "serve_settings", refuse)
    monkeypatch.setattr(sys, "argv", ["penstock", "serve"])
    with pytest.raises(SystemExit, match=r"already in use: 0\.0\.0\.0:1234"):
        cli.main()


def test_a_bind_error_says_what_to_do():
    with bind_socket("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(OSError, match=r"in use: 127\.0\.0\.1:.*choose another --port"):
            bind_socket("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(OSError, match=r"192\.0\.2\.1:0; --host must be an address of this machine"):
        bind_socket("192.0.2.1", 0)


def test_module_is_the_command():
    command = [sys.executable, "-m", "penstock", "--version"]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    assert out.stdout == "penstock 0.9.1\n"


@pytest.mark.parametrize("command", ["run", "bench"])
def test_a_model_that_only_embeds_is_refused_at_the_start(command, tmp_path):
    folder = str(save_sentence_folder(tmp_path / "bert", small_body("Bert")))
    with pytest.raises(ModelError, match="writes no text"):
        invoke(command, folder)


@pytest.mark.parametrize("command", ["serve", "run", "bench"])
def test_help_text_fits_a_terminal_of_80_columns(command):
    shown = CliRunner().invoke(cli.app, [command, "--help"], env={"TERMINAL_WIDTH": "80"}).stdout
    lines = shown.splitlines()
    begins = [len(line) - len(line.lstrip()) for line in lines]
    assert len(lines) > 60
    assert max(begins) <= 40 and all(len(line) <= 80 for line in lines)


def test_wrong_usage_is_status_2():
    assert CliRunner().invoke(cli.app, ["serve", "--no-such-option"]).exit_code == 2


def test_version_and_help_answer():
    assert invoke("--version").stdout == "penstock 0.9.1\n"
    assert "serve" in invoke("--help").stdout
    shown = invoke("serve", "--help").stdout
    assert "--max-model-len" in shown and "--pa-context-len" not in shown


def test_no_command_lists_the_commands_with_status_2():
    result = CliRunner().invoke(cli.app, [])
    assert result.exit_code == 2
    assert "serve" in result.stdout


def test_models_lists_the_catalogue(monkeypatch):
    out = invoke("models").stdout
    assert "smollm2-135m-instruct" in out and "Apache-2.0" in out


def test_doctor_reports_as_json():
    out = CliRunner().invoke(cli.app, ["doctor", "--json"])
    checks = json.loads(out.stdout)["checks"]
    assert {check["status"] for check in checks} <= {"ok", "warn", "error"}
    assert (out.exit_code == 1) == any(check["status"] == "error" for check in checks)


def test_doctor_tries_to_decode_media(monkeypatch):
    def media_check():
        out = CliRunner().invoke(cli.app, ["doctor", "--json"])
        (check,) = [c for c in json.loads(out.stdout)["checks"] if c["name"] == "media"]
        return check

    assert media_check()["status"] == "ok" and "seccomp" in media_check()["message"]
    monkeypatch.setattr("penstock.media.decoders.PACKAGES", {"no_such_module": "pillow"})
    missing = media_check()
    assert missing["message"] == "cannot be decoded: pillow not installed"
    assert missing["suggestion"] == "pip install 'penstock[media]'"


def test_doctor_refuses_an_invalid_port():
    done = CliRunner().invoke(cli.app, ["doctor", "--port", "99999"])
    assert done.exit_code == 2 and "65535" in done.output


def test_doctor_reports_an_unreadable_home(monkeypatch):
    """root may look anywhere, so the system's error is simulated."""

    def refused(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("penstock.models.hub.sources.is_fetched", refused)
    check = check_default_model(Path("/closed/home"))
    assert (check.status, check.message) == ("error", "/closed/home: Permission denied")


def test_system_errors_name_the_file(monkeypatch):
    def refused():
        raise PermissionError(13, "Permission denied", "/closed/home")

    monkeypatch.setattr(cli, "app", refused)
    with pytest.raises(SystemExit, match=r"^penstock: /closed/home: Permission denied$"):
        cli.main()


def test_doctor_warns_of_a_cpu_without_vectors(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nflags : fpu sse2\n")
    assert check_cpu(cpuinfo).status == "warn"
    cpuinfo.write_text("processor : 0\nflags : fpu avx2 amx_int8\n")
    assert check_cpu(cpuinfo).status == "ok" and "amx_int8" in check_cpu(cpuinfo).message
    cpuinfo.write_text("processor : 0\nFeatures : fp asimd\n")
    assert check_cpu(cpuinfo).status == "warn"
    cpuinfo.write_text("processor : 0\nFeatures : fp asimd asimddp\n")
    assert check_cpu(cpuinfo).status == "ok"


def test_doctor_warns_of_little_memory(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable: 1024 kB\n")
    assert check_memory(meminfo).status == "warn"
    assert check_memory(tmp_path / "missing").status == "warn"


def test_doctor_names_a_home_that_cannot_be_written(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert check_home(blocked / "home").status == "error"
    assert check_home(tmp_path / "home").status == "ok"
    assert not list(Path(tmp_path / "home").iterdir())
