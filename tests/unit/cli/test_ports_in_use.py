"""A port in use: the process that has it, and another port."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from penstock.api.serving.sockets import bind_socket
from penstock.cli import main as cli
from penstock.cli.running_server import check_port, served_models, url_of
from penstock.config import SettingsError
from penstock.system.checks import check_port as check_port_of_doctor
from penstock.system.processes import free_port_after, port_owner


@pytest.fixture(params=["127.0.0.1", "::1"])
def taken(request):
    """(host, port) on which this process listens."""
    with bind_socket(request.param, 0) as bound:
        bound.listen()
        yield request.param, bound.getsockname()[1]


def test_the_owner_of_a_port_is_found(taken):
    owner = port_owner(taken[1])
    assert owner is not None and owner.process is not None
    assert owner.process.pid == os.getpid() and str(os.getpid()) in str(owner)


def test_a_free_port_has_no_owner_and_passes(taken):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    assert port_owner(port) is None
    check_port("127.0.0.1", port)


def test_a_proposed_port_can_be_used(taken):
    host, port = taken
    proposed = free_port_after(port, host)
    assert proposed > port
    bind_socket(host, proposed).close()


def test_a_port_in_use_is_refused_before_a_model_is_looked_for(monkeypatch, taken):
    host, port = taken
    monkeypatch.setattr("penstock.cli.running_server.TIMEOUT_S", 0.05)
    monkeypatch.setattr(
        sys, "argv", ["penstock", "serve", "no-such-model", "--host", host, "--port", str(port)]
    )
    with pytest.raises(SystemExit) as ended:
        cli.main()
    message = str(ended.value.code)
    assert f"port {port} is in use by process {os.getpid()} (" in message
    assert "serve on another port: --port " in message and "no-such-model" not in message


def test_a_process_of_another_user_is_named_by_its_user(tmp_path):
    """The files of /proc as another user's process shows them."""
    (tmp_path / "net").mkdir()
    line = "0: 0100007F:04D2 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 99 1"
    (tmp_path / "net" / "tcp").write_text(f"head\n {line}\n")
    (tmp_path / "7" / "fd").mkdir(parents=True)
    assert str(port_owner(1234, tmp_path)) == "a process of the user root"
    assert port_owner(1235, tmp_path) is None


def test_an_address_of_another_machine_is_no_port_in_use():
    with pytest.raises(OSError, match="must be an address of this machine") as raised:
        check_port("192.0.2.1", 0)
    assert not isinstance(raised.value, SettingsError)


def test_a_server_that_is_no_penstock_has_no_models(taken, monkeypatch):
    monkeypatch.setattr("penstock.cli.running_server.TIMEOUT_S", 0.05)
    assert served_models(*taken) is None
    assert url_of("0.0.0.0", 1) == "http://127.0.0.1:1" and url_of("::", 1) == "http://[::1]:1"


def test_doctor_names_the_process_that_uses_the_port():
    with bind_socket("0.0.0.0", 0) as bound:
        bound.listen()
        check = check_port_of_doctor(bound.getsockname()[1])
    assert check.status == "warn" and f"in use by process {os.getpid()} (" in check.message
