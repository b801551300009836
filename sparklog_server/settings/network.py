"""Settings of the network: listeners, and limits of connections and requests.

Sources: Kafka SocketServerConfigs.
"""

import dataclasses
import enum
import ipaddress
import re
import socket
from collections.abc import Sequence

from sparklog.errors import InvalidRequestError, shown
from sparklog.log.setting import LONG_MAX, setting
from sparklog_server.settings.updating import INT_MAX, MIB

# --- addresses ---------------------------------------------------------------------------------------
#
# The text form of listeners: name://host:port, several separated by commas.
#
# Invariants: names of listeners are unique; a host is a valid DNS name or address, so that advertised
#     listeners are valid for clients.
# Sources: Kafka EndPoint, SocketServerConfigs (listeners, advertised.listeners).


_ADDRESS = re.compile(
    r"([A-Za-z0-9_]+)://(\[[0-9A-Fa-f:.%a-z]{0,80}\]|\*|[0-9A-Za-z_.%-]{0,255}):([0-9]{1,5})"
)
_HOST_NAME = re.compile(r"[0-9A-Za-z_.-]{1,255}")
_SHOWN = 100  # characters of a refused value
_EVERYWHERE_IPV4, _EVERYWHERE = "0.0.0.0", "::"  # noqa: S104 - what an empty host means in Kafka


class SecurityProtocol(enum.Enum):
    """What a listener speaks: with or without TLS, with or without SASL."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        return self in {SecurityProtocol.SSL, SecurityProtocol.SASL_SSL}

    @property
    def has_sasl(self) -> bool:
        return self in {SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL}


_PROTOCOLS = {one.value: one for one in SecurityProtocol}


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
        """Return the address with the actual port."""
        return dataclasses.replace(self, port=port)


@dataclasses.dataclass(frozen=True, slots=True)
class AdvertisedListener:
    """The address under which clients of one listener reach this broker."""

    host: str
    port: int


def parse_addresses(key: str, text: str) -> list[ListenerAddress]:
    """Parse the listeners of a setting."""
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
            key, f"found the listener names {', '.join(names)}", "give every listener a unique name"
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


def protocols_of(
    key: str, addresses: Sequence[ListenerAddress], protocols: dict[str, str]
) -> dict[str, SecurityProtocol]:
    """Return the protocol of each listener; a name that is a protocol's need not be in the map."""
    found = {}
    for one in addresses:
        text = protocols.get(one.name, one.name if one.name in _PROTOCOLS else None)
        if text is None:
            raise _invalid(
                key,
                f"found listener {one.name}, without a protocol",
                f"add {one.name}:SASL_SSL, or another protocol, to listener.security.protocol.map",
            )
        if text not in _PROTOCOLS:
            raise _invalid(
                key,
                f"found listener {one} of protocol {text[:_SHOWN]}, expected one of {', '.join(_PROTOCOLS)}",
                "correct listener.security.protocol.map",
            )
        found[one.name] = _PROTOCOLS[text]
    return found


def bind_host(host: str) -> str:
    """Return the host to bind: an empty one is every address, of both families if the machine has both."""
    if host not in {"", "*"}:
        return host
    return _EVERYWHERE if socket.has_dualstack_ipv6() else _EVERYWHERE_IPV4


def new_socket(host: str) -> socket.socket:
    """Return a TCP socket for this host; an IPv6 socket also accepts IPv4 clients."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    if sock.family is socket.AF_INET6 and socket.has_dualstack_ipv6():
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return sock


def is_ip_address(host: str) -> bool:
    """True if the host is an address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def plain_host(host: str) -> str:
    """Return an address in its shortest form, IPv4-mapped ones as IPv4; a name unchanged."""
    if not is_ip_address(host):
        return host
    address = ipaddress.ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def is_loopback(host: str) -> bool:
    """True if the host is a loopback address."""
    return is_ip_address(host) and ipaddress.ip_address(host).is_loopback


def _is_everywhere(host: str) -> bool:
    return plain_host(bind_host(host)) in {_EVERYWHERE, _EVERYWHERE_IPV4}


def advertised_address(address: ListenerAddress, advertised: Sequence[ListenerAddress]) -> ListenerAddress:
    """Return the address to which clients of a bound listener connect; by default its own."""
    for one in advertised:
        if one.name == address.name:
            return one if one.port else one.with_port(address.port)
    if _is_everywhere(address.host):
        return dataclasses.replace(address, host=socket.gethostname())
    return address


def validate_advertised(
    key: str, listeners: Sequence[ListenerAddress], advertised: Sequence[ListenerAddress]
) -> None:
    """Refuse addresses that no client can connect to: 'everywhere', or of a listener that does not exist."""
    names = {one.name for one in listeners}
    for one in advertised:
        if _is_everywhere(one.host):
            raise _invalid(
                key, f"found {one}, which no client can connect to", "name a host that clients can reach"
            )
        if one.name not in names:
            raise _invalid(key, f"found {one}, but no listener of this name", "use the names of listeners")


def _invalid(key: str, found: str, fix: str) -> InvalidRequestError:
    return InvalidRequestError("INVALID_CONFIG_VALUE", f"{key}: {found}", fix=fix)


# --- http --------------------------------------------------------------------------------------------
#
# Settings of the HTTP server: metrics, health and the console.


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """The fields' names are the keys with underscores."""

    http_listener: str = setting(
        "sparklog.http.listener",
        default="",
        doc="""Where /metrics (Prometheus), /health, /ready and the web console (/console) are served, as
        host:port; an empty host means all addresses, port 0 any free port. Empty: nowhere.""",
    )
    http_security_protocol: str = setting(
        "sparklog.http.security.protocol",
        default="PLAINTEXT",
        choices=("PLAINTEXT", "SSL", "SASL_SSL"),
        doc="""SSL: https, with the ssl.* settings, or those with the prefix listener.name.http. SASL_SSL: and
        only for users who log in: those of SCRAM, or with a token of OAUTHBEARER. With an authorizer they
        need Describe on the cluster, and what docs/console.md lists. PLAINTEXT: there is no login, keep it
        to a network you trust.""",
    )
    http_open: tuple[str, ...] = setting(
        "sparklog.http.open",
        default=("health",),
        choices=("health", "metrics"),
        doc="""What is served without a login: health (/health and /ready), metrics.""",
    )
    console_hosts: str = setting(
        "sparklog.console.hosts",
        default="",
        doc="""Further host names by which browsers may open the web console, separated by commas, such as
        that of a proxy. Addresses, localhost, this machine's name, the host of sparklog.http.listener and
        those of advertised.listeners always may; by any other name it answers 400, so that no other site
        can read it through a name of its own (DNS rebinding).""",
    )
    console_messages: bool = setting(
        "sparklog.console.messages",
        default=False,
        doc="""Show records in the web console. Everybody who reaches sparklog.http.listener may then read
        them, and searches take CPU from clients: up to four threads.""",
    )
    console_write: bool = setting(
        "sparklog.console.write",
        default=False,
        doc="""Let the forms of the web console change settings, offsets of groups, topics and records, each
        after a preview. Without sparklog.http.security.protocol=SASL_SSL there is no login:
        sparklog.http.listener must be on a loopback address, and every user of this machine may then change
        them.""",
    )
    console_masks: str = setting(
        "sparklog.console.masks",
        default="",
        doc="""A JSON file of what to hide in records that the web console shows; empty: nothing.""",
    )
    console_history: str = setting(
        "sparklog.console.history",
        default="",
        doc="""A SQLite file in which the web console keeps the lag of groups for a day, so that a restart
        goes on where it was; it is made if it is not there. Empty: an hour, in memory.""",
    )
    console_schemas: str = setting(
        "sparklog.console.schemas",
        default="",
        doc="""A folder of Avro and Protobuf schemas, by which the web console shows keys and values.""",
    )
    console_command_config: str = setting(
        "sparklog.console.command.config",
        default="",
        doc="""A file with the settings of a Kafka client (security.protocol, sasl.*, ssl.*), by which the web
        console logs in to the brokers that coordinate groups. It asks them for members, and they make its
        changes of groups; what a user may change is decided before. Needed where the first listener of a
        broker has TLS or SASL; the user needs Read, Describe and Delete on all groups, Read on all topics
        and Describe on the cluster. Empty: without TLS and without a login.""",
    )

    def __post_init__(self) -> None:
        """Check the texts of the listener and of hosts, and that only a loopback one may change something."""
        address = self.parsed_http_listener()
        self.parsed_console_hosts()
        is_local = address and (address.host == "localhost" or is_loopback(address.host))
        if self.console_write and not (is_local or (address and self.http_protocol.has_sasl)):
            raise _invalid(
                "sparklog.console.write",
                f"found true with sparklog.http.listener={self.http_listener[:_SHOWN]!r}, expected a "
                "loopback address there, since the console has no login",
                "set sparklog.http.security.protocol=SASL_SSL; or write sparklog.http.listener="
                "127.0.0.1:9404, and reach it through a tunnel (ssh -L)",
            )

    @property
    def http_protocol(self) -> SecurityProtocol:
        """The protocol of sparklog.http.listener."""
        return SecurityProtocol(self.http_security_protocol)

    def parsed_http_listener(self) -> ListenerAddress | None:
        """Return the address of the metrics listener, if there is one."""
        text = self.http_listener.strip()
        if not text:
            return None
        try:
            (address,) = parse_addresses("sparklog.http.listener", f"HTTP://{text.removeprefix('http://')}")
        except (InvalidRequestError, ValueError):  # ValueError: several
            raise InvalidRequestError(
                "INVALID_CONFIG_VALUE",
                f"sparklog.http.listener: found {text[:100]!r}, expected one host:port",
                fix="write localhost:9404",
            ) from None
        return address

    def open_paths(self) -> set[str]:
        """Return the paths that are served without a login."""
        paths = {"health": ("/health", "/ready"), "metrics": ("/metrics",)}
        return {path for name in self.http_open for path in paths[name]}

    def parsed_console_hosts(self) -> list[str]:
        """Return the further names of the console."""
        names = [name.strip() for name in self.console_hosts.split(",") if name.strip()]
        for name in names:
            if not _HOST_NAME.fullmatch(name):
                raise _invalid(
                    "sparklog.console.hosts",
                    f"found {name[:_SHOWN]!r}, expected host names without port",
                    "write logs.example.com,console.example.com",
                )
        return names


# --- network -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings:
    """The fields' names are the keys with underscores."""

    listeners: str = setting(
        "listeners",
        default="PLAINTEXT://localhost:9092",
        doc="""Addresses of the listeners: name://host:port, several separated by commas. An empty host means
        all addresses, port 0 any free port. PLAINTEXT listeners let everybody in: keep them to a network you
        trust.""",
    )
    advertised_listeners: str = setting(
        "advertised.listeners",
        default="",
        doc="""Addresses to which clients connect, by the names of listeners; empty: as listeners. Needed
        where clients reach this machine by another name or port.""",
    )
    listener_security_protocol_map: str = setting(
        "listener.security.protocol.map",
        default="PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        doc="""The protocol of each listener's name, such as INTERNAL:PLAINTEXT,EXTERNAL:SASL_SSL: PLAINTEXT,
        SSL, SASL_PLAINTEXT or SASL_SSL.""",
    )
    socket_request_max_bytes: int = setting(
        "socket.request.max.bytes",
        default=100 * MIB,
        minimum=1024,
        maximum=INT_MAX,
        doc="""Largest request. Larger: larger produce requests fit; smaller: one client can make the broker
        hold less.""",
    )
    queued_max_requests: int = setting(
        "queued.max.requests",
        default=500,
        minimum=1,
        maximum=1_000_000,
        unit="requests",
        doc="""Requests in progress together, over all connections; those that only wait for records or
        for members of a group do not count. Beyond it the broker stops reading: clients are pushed back.""",
    )
    queued_max_request_bytes: int = setting(
        "queued.max.request.bytes",
        default=256 * MIB,
        minimum=MIB,
        maximum=LONG_MAX,
        doc="""Bytes of requests held together, over all connections; beyond it the broker stops reading.
        At most one more request of socket.request.max.bytes is added. One address may hold a third of
        the free bytes, so alone a quarter of all, and less where several hold much; larger requests wait for
        each other. Larger: more memory, smoother under many large requests; smaller: clients are pushed back
        sooner.""",
    )
    queued_max_response_bytes: int = setting(
        "sparklog.queued.max.response.bytes",
        default=48 * MIB,
        minimum=MIB,
        maximum=LONG_MAX,
        doc="""Bytes of large answers (about groups, offsets, topics, settings; records have
        sparklog.fetch.buffer.bytes) that are made or being sent, over all connections (one more may overdraw
        it). One address has a share of it as of queued.max.request.bytes. Further ones wait, and do not count
        in queued.max.requests from then on. Those whose size is known before (lists and descriptions of
        groups and transactions, descriptions of producers and settings, committed offsets, Metadata,
        CreateTopics) wait before they are made; where one turns out to be larger, that counts beyond the
        limit. All others wait after they are made, and take memory while they wait, at most one for each
        connection. Larger: more concurrent answers; smaller: less memory when clients are slow.""",
    )
    max_connections: int = setting(
        "max.connections",
        default=10_000,
        minimum=1,
        maximum=INT_MAX,
        unit="connections",
        doc="""Most open connections; further ones are closed. One more is kept for this machine itself
        (loopback), so that a limit that is too low can be raised there; without a broker it can be deleted:
        `sparklog root alter --delete-config brokers/1/max.connections`. Beyond that none is accepted
        until one ends. Each costs about 20 KiB and one open file.""",
    )
    max_connections_per_ip: int = setting(
        "max.connections.per.ip",
        default=2_000,
        minimum=0,
        maximum=INT_MAX,
        unit="connections",
        doc="""Connections from one address; a further one is closed immediately. Lower keeps one client from
        using up all of max.connections. 0, as in Kafka, only with max.connections.per.ip.overrides: no other
        client can connect.""",
    )
    max_connections_per_ip_overrides: str = setting(
        "max.connections.per.ip.overrides",
        default="",
        doc="""Other limits for single addresses, such as 10.0.0.7:5000,127.0.0.1:100. Names are not
        resolved, unlike in Kafka.""",
    )
    connections_max_idle_ms: int = setting(
        "connections.max.idle.ms",
        default=600_000,
        minimum=1,
        maximum=LONG_MAX,
        doc="""A connection without traffic for this time is closed; clients connect again.""",
    )
    socket_request_timeout_ms: int = setting(
        "sparklog.socket.timeout.ms",
        default=60_000,
        minimum=1,
        maximum=LONG_MAX,
        doc="""A request that has begun must be complete, and a response must be read, within this time;
        else the connection is closed. Shorter: slow clients are disconnected sooner; longer: large requests
        over slow lines get through.""",
    )
    socket_send_buffer_bytes: int = setting(
        "socket.send.buffer.bytes",
        default=-1,
        minimum=-1,
        maximum=INT_MAX,
        doc="""SO_SNDBUF of connections; -1: the system sizes it as needed (Kafka: 102400).""",
    )
    socket_receive_buffer_bytes: int = setting(
        "socket.receive.buffer.bytes",
        default=-1,
        minimum=-1,
        maximum=INT_MAX,
        doc="""SO_RCVBUF of connections; -1: the system sizes it as needed (Kafka: 102400).""",
    )

    def __post_init__(self) -> None:
        """Check settings that depend on each other."""
        listeners = self.parsed_listeners()
        self.protocols()
        validate_advertised("advertised.listeners", listeners, self._parsed_advertised())
        overrides = self.per_ip_overrides()
        if not self.max_connections_per_ip and not any(overrides.values()):
            raise InvalidRequestError(
                "INVALID_CONFIG_VALUE",
                "max.connections.per.ip: found 0, and max.connections.per.ip.overrides let no client in, "
                "expected that at least one client can connect, to be able to change this",
                fix="set max.connections.per.ip.overrides to addresses that may connect, or a limit above 0",
            )

    def parsed_listeners(self) -> list[ListenerAddress]:
        """Return the addresses of the listeners."""
        return parse_addresses("listeners", self.listeners)

    def protocols(self) -> dict[str, SecurityProtocol]:
        """Return each listener's protocol, by its name."""
        protocols = parse_protocol_map("listener.security.protocol.map", self.listener_security_protocol_map)
        return protocols_of("listeners", self.parsed_listeners(), protocols)

    def advertised(self, bound: ListenerAddress) -> AdvertisedListener:
        """Return the address to which clients of a listener connect; `bound`: with the actual port."""
        address = advertised_address(bound, self._parsed_advertised())
        return AdvertisedListener(address.host, address.port)

    def per_ip_overrides(self) -> dict[str, int]:
        """Parse max.connections.per.ip.overrides."""
        limits = {}
        for part in (
            part.strip() for part in self.max_connections_per_ip_overrides.split(",") if part.strip()
        ):
            host, _, limit = part.rpartition(":")
            host = host.removeprefix("[").removesuffix("]")
            is_number = limit.isascii() and limit.isdigit() and len(limit) <= len(str(INT_MAX))
            if not is_ip_address(host) or not is_number:
                raise InvalidRequestError(
                    "INVALID_CONFIG_VALUE",
                    f"max.connections.per.ip.overrides: found {part[:100]!r}, expected address:number",
                    fix="write 127.0.0.1:100 or [::1]:100; names are not looked up",
                )
            limits[plain_host(host)] = int(limit)
        return limits

    def advertised_hosts(self) -> list[str]:
        """Return the hosts to which clients connect."""
        return [self.advertised(one).host for one in self.parsed_listeners()]

    def _parsed_advertised(self) -> list[ListenerAddress]:
        text = self.advertised_listeners.strip()
        return parse_addresses("advertised.listeners", text) if text else []
