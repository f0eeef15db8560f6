"""Which addresses may be connected to for a client."""

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

# Behind it a gateway reaches IPv4: the address stands in the last 32 bits (RFC 6052).
NAT64: Final = IPv6Network("64:ff9b::/96")

# Not reached from everywhere, whatever this version of Python says of them.
LOCAL: Final = (
    IPv4Network("168.63.129.16/32"),  # Azure: the host of a virtual machine, for that machine only
    IPv4Network("192.0.0.0/24"),  # protocol assignments (RFC 6890): gateways, also of metadata
    IPv4Network("192.88.99.0/24"),  # the nearest 6to4 relay (RFC 7526)
    IPv6Network("3fff::/20"),  # documentation (RFC 9637)
    IPv6Network("5f00::/16"),  # segment routing (RFC 9602)
)


# Discard: any port will do.
PROBE_PORT: Final = 9


class AllowList:
    """Networks that an operator lets clients reach, whatever they are; everything else must be a
    public unicast address, and not of this machine: what listens there may be behind a firewall."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        """Raises ValueError for what is neither an address nor a network."""
        self._networks: tuple[Network, ...] = tuple(ip_network(text) for text in networks)

    def allows(self, text: str) -> bool:
        """Whether an address, as a resolver gives it, may be connected to."""
        try:
            address = _plain(ip_address(text))
        except ValueError:
            return False
        if any(address in network for network in self._networks):
            return True
        return _is_public(address) and not is_own_address(address)


def is_own_address(address: Address) -> bool:
    """Whether an address is of one of this machine's interfaces: only to those is the way from
    themselves. Nothing is sent."""
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), PROBE_PORT))
            return ip_address(probe.getsockname()[0]) == address
    except OSError:  # there is no way to it
        return False


def _plain(address: Address) -> Address:
    """IPv4 where it is written as IPv6; without the name of an interface."""
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
    """6to4 or Teredo, whose relays reach IPv4 again. Both are retired, and whether Python calls
    6to4 public differs by its version."""
    return address.sixtofour is not None or address.teredo is not None
