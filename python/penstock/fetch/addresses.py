"""Decides which addresses the server may connect to for a client."""

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

# Gateways translate these addresses to IPv4: the last 32 bits are the IPv4 address (RFC 6052).
NAT64: Final = IPv6Network("64:ff9b::/96")

# Networks that are not public. Some versions of Python report them as public.
LOCAL: Final = (
    IPv4Network("168.63.129.16/32"),  # Azure: the hypervisor of a virtual machine
    IPv4Network("192.0.0.0/24"),  # protocol assignments (RFC 6890): gateways, metadata services
    IPv4Network("192.88.99.0/24"),  # 6to4 relay anycast (RFC 7526)
    IPv6Network("3fff::/20"),  # documentation (RFC 9637)
    IPv6Network("5f00::/16"),  # segment routing (RFC 9602)
)

# The discard port. Any port would do, because nothing is sent.
PROBE_PORT: Final = 9


class AllowList:
    """Decides whether the server may connect to an address for a client.

    Networks that the operator lists are allowed. Other addresses are allowed if they are public
    unicast addresses and not this machine's own, because services on this machine may be protected
    only by a firewall.
    """

    def __init__(self, networks: Iterable[str] = ()) -> None:
        """`networks`: the addresses and networks that the operator allows. Raises ValueError for
        any other text."""
        self._networks: tuple[Network, ...] = tuple(ip_network(text) for text in networks)

    def allows(self, text: str) -> bool:
        """Tell whether the server may connect to the address `text`, as returned by a resolver."""
        try:
            address = _unwrapped(ip_address(text))
        except ValueError:
            return False
        if any(address in network for network in self._networks):
            return True
        return _is_public(address) and not is_own_address(address)


def is_own_address(address: Address) -> bool:
    """Tell whether `address` belongs to an interface of this machine: the kernel then chooses the
    same address as the source of a connection to it. Sends nothing."""
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), PROBE_PORT))
            return ip_address(probe.getsockname()[0]) == address
    except OSError:  # no route to the address
        return False


def _unwrapped(address: Address) -> Address:
    """Return the IPv4 address that is embedded in an IPv6 address, if any; otherwise the address
    without its scope id."""
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
    """Tell whether the address is a 6to4 or Teredo address; relays forward these to IPv4 addresses.
    Both are obsolete, and Python versions differ on whether 6to4 is public."""
    return address.sixtofour is not None or address.teredo is not None
