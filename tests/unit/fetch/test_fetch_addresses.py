"""The addresses that may be connected to for a client."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from penstock.fetch import AllowList, addresses
from penstock.fetch.addresses import is_own_address

PUBLIC = [
    "8.8.8.8",
    "93.184.216.34",
    "2606:4700::1111",
    "::ffff:8.8.8.8",
    "64:ff9b::808:808",
]
FORBIDDEN = [
    "127.0.0.1",
    "127.8.9.10",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "169.254.169.254",
    "168.63.129.16",
    "192.0.0.1",
    "192.0.0.9",
    "192.0.0.192",
    "192.88.99.1",
    "192.0.2.1",
    "198.18.0.1",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::7f00:1",
    "64:ff9b::a00:1",
    "64:ff9b::a83f:8110",
    "::ffff:168.63.129.16",
    "64:ff9b:1::1",
    "2001:db8::1",
    "3fff::1",
    "5f00::1",
    "2002:7f00:1::",
    "2002:808:808::",
    "2002:a00:1::",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "fc00::1",
    "fd12:3456::1",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
    "not an address",
    "",
]


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_allowed(address: str) -> None:
    assert AllowList().allows(address)


@pytest.mark.parametrize("address", FORBIDDEN)
def test_local_addresses_are_not_allowed(address: str) -> None:
    assert not AllowList().allows(address)


def test_own_addresses_are_recognized() -> None:
    assert is_own_address(ip_address("127.0.0.1"))
    assert not is_own_address(ip_address("8.8.8.8"))
    assert not is_own_address(ip_address("2606:4700::1111"))


def test_own_public_address_is_allowed_only_by_the_operator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(addresses, "is_own_address", lambda own: str(own) == "8.8.8.8")
    assert not AllowList().allows("8.8.8.8")
    assert not AllowList().allows("::ffff:8.8.8.8")
    assert AllowList().allows("8.8.4.4")
    assert AllowList(["8.8.8.8"]).allows("8.8.8.8")


def test_an_operator_allows_networks_and_single_addresses() -> None:
    allow = AllowList(["10.1.0.0/16", "127.0.0.1", "fd00::/8"])
    for address in ("10.1.2.3", "::ffff:10.1.2.3", "127.0.0.1", "fd00::5", "8.8.8.8"):
        assert allow.allows(address)
    for address in ("10.2.0.1", "127.0.0.2", "fc00::5", "::1"):
        assert not allow.allows(address)


@pytest.mark.parametrize("network", ["localhost", "10.0.0.1/8", "300.0.0.1", ""])
def test_invalid_network_is_rejected(network: str) -> None:
    with pytest.raises(ValueError):
        AllowList([network])
