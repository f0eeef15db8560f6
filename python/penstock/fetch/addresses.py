"""Which addresses may be connected to for a client."""

from __future__ import annotations

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


class AllowList:
    """Networks that an operator lets clients reach, whatever they are; everything else must be a
    public unicast address."""

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
        return _is_public(address)


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
    if isinstance(address, IPv6Address) and (address.is_site_local or _is_tunnel(address)):
        return False
    return address.is_global


def _is_tunnel(address: IPv6Address) -> bool:
    """6to4 or Teredo, whose relays reach IPv4 again. Both are retired, and whether Python calls
    6to4 public differs by its version."""
    return address.sixtofour is not None or address.teredo is not None
