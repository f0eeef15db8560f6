"""Decides which addresses may be connected to for a client."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# A gateway maps these to IPv4: the last 32 bits are the IPv4 address (RFC 6052).
NAT64: Final = IPv6Network("64:ff9b::/96")

# Not public, even if this version of Python says that they are.
LOCAL: Final = (
    IPv4Network("168.63.129.16/32"),  # Azure: the hypervisor of a virtual machine
    IPv4Network("192.0.0.0/24"),  # protocol assignments (RFC 6890): gateways, metadata services
    IPv4Network("192.88.99.0/24"),  # 6to4 relay anycast (RFC 7526)
    IPv6Network("3fff::/20"),  # documentation (RFC 9637)
    IPv6Network("5f00::/16"),  # segment routing (RFC 9602)
)

# The discard port. Any port works, because nothing is sent.
PROBE_PORT: Final = 9


class AllowList:
    """Allows the networks that the operator lists, and public unicast addresses that are not this
    machine's own, because services on this machine may be protected by a firewall."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        """Raises ValueError for a text that is neither an address nor a network."""
        self._networks: tuple[Network, ...] = tuple(ip_network(text) for text in networks)

    def allows(self, text: str) -> bool:
        """Tell whether the address `text`, as returned by a resolver, may be connected to."""
        try:
            address = _unwrapped(ip_address(text))
        except ValueError:
            return False
        if any(address in network for network in self._networks):
            return True
        return _is_public(address) and not is_own_address(address)


def is_own_address(address: Address) -> bool:
    """Tell whether an interface of this machine has this address: the kernel then routes to it from
    the same address. Sends nothing."""
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), PROBE_PORT))
            return ip_address(probe.getsockname()[0]) == address
    except OSError:  # no route to it
        return False


def _unwrapped(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address embeds, else the address without its scope."""
    if isinstance(address, IPv4Address):
        return address
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or IPv6Address(int(address))


def _is_public(address: Address) -> bool:
    if address.is_multicast or address.is_reserved or address.is_unspecified:
        return False
    if any(address in network for network in LOCAL):
        return False
    if isinstance(address, IPv6Address) and (address.is_site_local or _is_tunnel(address)):
        return False
    return address.is_global


def _is_tunnel(address: IPv6Address) -> bool:
    """Tell whether the address is 6to4 or Teredo, whose relays reach IPv4 addresses. Both are
    obsolete, and Python versions differ on whether 6to4 is public."""
    return address.sixtofour is not None or address.teredo is not None
