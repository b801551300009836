"""Listeners as they are written: name://host:port, several separated by commas.

Invariants: each listener has a name of its own; only PLAINTEXT is spoken; a host is what DNS, or an address,
    may be written as, so that what is advertised can be passed on.
Sources: Kafka EndPoint, SocketServerConfigs (listeners, advertised.listeners).
"""

import dataclasses
import ipaddress
import re
import socket
from collections.abc import Sequence

from sparklog.errors import InvalidRequestError
from sparklog.redaction import shown

_ADDRESS = re.compile(
    r"([A-Za-z0-9_]+)://(\[[0-9A-Fa-f:.%a-z]{0,80}\]|\*|[0-9A-Za-z_.%-]{0,255}):([0-9]{1,5})"
)
_SHOWN = 100  # characters of what is refused
_EVERYWHERE_IPV4, _EVERYWHERE = "0.0.0.0", "::"  # noqa: S104 - what an empty host means in Kafka
_SECURE = {"SSL", "SASL_PLAINTEXT", "SASL_SSL"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListenerAddress:
    """One listener; host without brackets."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"

    def with_port(self, port: int) -> "ListenerAddress":
        """The same, once the port is known."""
        return dataclasses.replace(self, port=port)


@dataclasses.dataclass(frozen=True, slots=True)
class AdvertisedListener:
    """Where clients of one listener reach this broker."""

    host: str
    port: int


def parse_addresses(key: str, text: str) -> list[ListenerAddress]:
    """The listeners of a setting."""
    addresses = []
    for part in (part.strip() for part in text.split(",")):
        match = _ADDRESS.fullmatch(part)
        if match is None or int(match[3]) >= 1 << 16:
            raise _invalid(
                key,
                f"found {shown(key, part[:_SHOWN])}, expected name://host:port",
                "write PLAINTEXT://localhost:9092",
            )
        addresses.append(
            ListenerAddress(name=match[1].upper(), host=match[2].strip("[]"), port=int(match[3]))
        )
    names = [one.name for one in addresses]
    if len(set(names)) != len(names):
        raise _invalid(
            key, f"found the listener names {', '.join(names)}", "give every listener a name of its own"
        )
    return addresses


def parse_protocol_map(key: str, text: str) -> dict[str, str]:
    """Listener name -> security protocol."""
    protocols = {}
    for part in (part.strip() for part in text.split(",") if part.strip()):
        name, found, protocol = part.partition(":")
        if not found:
            raise _invalid(key, f"found {part!r}, expected NAME:PROTOCOL", "write PLAINTEXT:PLAINTEXT")
        protocols[name.strip().upper()] = protocol.strip().upper()
    return protocols


def validate_protocols(key: str, addresses: Sequence[ListenerAddress], protocols: dict[str, str]) -> None:
    """Only PLAINTEXT is there."""
    for one in addresses:
        protocol = protocols.get(one.name, one.name if one.name in _SECURE else None)
        if protocol is None:
            raise _invalid(
                key,
                f"found listener {one.name}, whose protocol is not said",
                f"add {one.name}:PLAINTEXT to listener.security.protocol.map",
            )
        if protocol != "PLAINTEXT":
            raise _invalid(
                key,
                f"found listener {one} of protocol {protocol}, this version speaks PLAINTEXT only",
                "use PLAINTEXT on a network you trust, or put a TLS proxy in front",
            )


def bind_host(host: str) -> str:
    """What to bind to: an empty host is every address, of both families where the machine has both."""
    if host not in {"", "*"}:
        return host
    return _EVERYWHERE if socket.has_dualstack_ipv6() else _EVERYWHERE_IPV4


def new_socket(host: str) -> socket.socket:
    """A TCP socket to be bound to this; one of IPv6 takes IPv4's clients, too."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    if sock.family is socket.AF_INET6 and socket.has_dualstack_ipv6():
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return sock


def is_ip_address(host: str) -> bool:
    """Is it an address, and no name?"""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def plain_host(host: str) -> str:
    """An address in its shortest form, that of an IPv4 client at an IPv6 socket as IPv4; a name as it is."""
    if not is_ip_address(host):
        return host
    address = ipaddress.ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def is_loopback(host: str) -> bool:
    """Is it an address of this machine that nobody else has?"""
    return is_ip_address(host) and ipaddress.ip_address(host).is_loopback


def _is_everywhere(host: str) -> bool:
    return plain_host(bind_host(host)) in {_EVERYWHERE, _EVERYWHERE_IPV4}


def advertised_address(address: ListenerAddress, advertised: Sequence[ListenerAddress]) -> ListenerAddress:
    """What clients of a bound listener are told; without a word on it, itself."""
    for one in advertised:
        if one.name == address.name:
            return one if one.port else one.with_port(address.port)
    if _is_everywhere(address.host):
        return dataclasses.replace(address, host=socket.gethostname())
    return address


def validate_advertised(
    key: str, listeners: Sequence[ListenerAddress], advertised: Sequence[ListenerAddress]
) -> None:
    """Nobody can connect to 'everywhere', nor to a listener that does not exist."""
    names = {one.name for one in listeners}
    for one in advertised:
        if _is_everywhere(one.host):
            raise _invalid(
                key, f"found {one}, where nobody can connect to", "name a host that clients can reach"
            )
        if one.name not in names:
            raise _invalid(key, f"found {one}, but no listener of this name", "use the names of listeners")


def _invalid(key: str, found: str, fix: str) -> InvalidRequestError:
    return InvalidRequestError("INVALID_CONFIG_VALUE", f"{key}: {found}", fix=fix)
