"""Settings of the network: listeners, and what connections and requests may take.

Sources: Kafka SocketServerConfigs.
"""

import dataclasses

from sparklog.errors import InvalidRequestError
from sparklog.log.setting import LONG_MAX, setting
from sparklog_server.settings.addresses import (
    AdvertisedListener,
    ListenerAddress,
    advertised_address,
    is_ip_address,
    parse_addresses,
    parse_protocol_map,
    plain_host,
    validate_advertised,
    validate_protocols,
)
from sparklog_server.settings.units import INT_MAX, MIB


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings:
    """The fields' names are the keys with underscores."""

    listeners: str = setting(
        "listeners",
        default="PLAINTEXT://localhost:9092",
        doc="""Where the broker listens: name://host:port, several separated by commas. An empty host means
        all addresses, port 0 any free port. Only PLAINTEXT so far: keep it to a network you trust.""",
    )
    advertised_listeners: str = setting(
        "advertised.listeners",
        default="",
        doc="""What clients are told to connect to, by the names of listeners; empty: as listeners. Needed
        where clients reach this machine by another name or port.""",
    )
    listener_security_protocol_map: str = setting(
        "listener.security.protocol.map",
        default="PLAINTEXT:PLAINTEXT",
        doc="""Which protocol each listener's name stands for, such as INTERNAL:PLAINTEXT. Only PLAINTEXT so
        far.""",
    )
    socket_request_max_bytes: int = setting(
        "socket.request.max.bytes",
        default=100 * MIB,
        minimum=1024,
        maximum=INT_MAX,
        unit="bytes",
        doc="""Largest request. Larger: larger produce requests fit; smaller: one client can make the broker
        hold less.""",
    )
    queued_max_requests: int = setting(
        "queued.max.requests",
        default=500,
        minimum=1,
        maximum=1_000_000,
        unit="requests",
        doc="""Requests being worked on at once, over all connections; those that only wait for records or
        for members of a group do not count. Beyond it the broker stops reading: clients are pushed back.""",
    )
    queued_max_request_bytes: int = setting(
        "queued.max.request.bytes",
        default=256 * MIB,
        minimum=MIB,
        maximum=LONG_MAX,
        unit="bytes",
        doc="""Bytes of requests held at once, over all connections; beyond it the broker stops reading.
        At most one more request of socket.request.max.bytes comes on top. One address may hold a third of
        what is free, so alone a quarter of it, and less where several hold much; larger requests wait for
        each other. Larger: more memory, smoother under many large requests; smaller: clients are pushed back
        sooner.""",
    )
    queued_max_response_bytes: int = setting(
        "sparklog.queued.max.response.bytes",
        default=48 * MIB,
        minimum=MIB,
        maximum=LONG_MAX,
        unit="bytes",
        doc="""Bytes of large answers (about groups, offsets, topics, settings; records have
        sparklog.fetch.buffer.bytes) that are made or being sent, over all connections (one more may overdraw
        it). One address has a share of it as of queued.max.request.bytes. Further ones wait, and do not count
        in queued.max.requests from then on. Those whose size is known before (lists and descriptions of
        groups and transactions, descriptions of producers and settings, committed offsets, Metadata,
        CreateTopics) wait before they are made; where one turns out to be larger, that counts beyond the
        limit. All others wait when they are made, and take memory meanwhile, at most one for each
        connection. Larger: more at once; smaller: less memory when clients are slow.""",
    )
    max_connections: int = setting(
        "max.connections",
        default=10_000,
        minimum=1,
        maximum=INT_MAX,
        unit="connections",
        doc="""Connections at once; further ones are closed. One more is kept for this machine itself
        (loopback), so that a limit that is too low can be raised there; without a broker it can be deleted:
        `sparklog root alter --delete-config brokers/1/max.connections`. Beyond that nobody is accepted
        until one ends. Each costs about 20 KiB and one open file.""",
    )
    max_connections_per_ip: int = setting(
        "max.connections.per.ip",
        default=2_000,
        minimum=0,
        maximum=INT_MAX,
        unit="connections",
        doc="""Connections from one address; a further one is closed at once. Lower keeps one client from
        using up all of max.connections. 0, as in Kafka, only with max.connections.per.ip.overrides: nobody
        else can connect.""",
    )
    max_connections_per_ip_overrides: str = setting(
        "max.connections.per.ip.overrides",
        default="",
        doc="""Other limits for single addresses, such as 10.0.0.7:5000,127.0.0.1:100. Names are not looked
        up, other than in Kafka.""",
    )
    connections_max_idle_ms: int = setting(
        "connections.max.idle.ms",
        default=600_000,
        minimum=1,
        maximum=LONG_MAX,
        unit="ms",
        doc="""A connection on which nothing happens for so long is closed; clients connect again.""",
    )
    socket_request_timeout_ms: int = setting(
        "sparklog.socket.timeout.ms",
        default=60_000,
        minimum=1,
        maximum=LONG_MAX,
        unit="ms",
        doc="""A request that has begun must be complete, and a response must be taken on, within so long;
        else the connection is closed. Shorter: clients that trickle are gone sooner; longer: large requests
        over slow lines get through.""",
    )
    socket_send_buffer_bytes: int = setting(
        "socket.send.buffer.bytes",
        default=-1,
        minimum=-1,
        maximum=INT_MAX,
        unit="bytes",
        doc="""SO_SNDBUF of connections; -1: the system sizes it as needed (Kafka: 102400).""",
    )
    socket_receive_buffer_bytes: int = setting(
        "socket.receive.buffer.bytes",
        default=-1,
        minimum=-1,
        maximum=INT_MAX,
        unit="bytes",
        doc="""SO_RCVBUF of connections; -1: the system sizes it as needed (Kafka: 102400).""",
    )

    def __post_init__(self) -> None:
        """What one declaration cannot say: settings that must fit together."""
        protocols = parse_protocol_map("listener.security.protocol.map", self.listener_security_protocol_map)
        listeners = self.parsed_listeners()
        validate_protocols("listeners", listeners, protocols)
        validate_advertised("advertised.listeners", listeners, self._parsed_advertised())
        overrides = self.per_ip_overrides()
        if not self.max_connections_per_ip and not any(overrides.values()):
            raise InvalidRequestError(
                "INVALID_CONFIG_VALUE",
                "max.connections.per.ip: found 0, and max.connections.per.ip.overrides let nobody in either, "
                "expected that somebody can connect, if only to change this again",
                fix="set max.connections.per.ip.overrides to addresses that may connect, or a limit above 0",
            )

    def parsed_listeners(self) -> list[ListenerAddress]:
        """Where to listen."""
        return parse_addresses("listeners", self.listeners)

    def advertised(self, bound: ListenerAddress) -> AdvertisedListener:
        """What clients of a listener are told to connect to; `bound`: with the port that was chosen."""
        address = advertised_address(bound, self._parsed_advertised())
        return AdvertisedListener(address.host, address.port)

    def per_ip_overrides(self) -> dict[str, int]:
        """max.connections.per.ip.overrides."""
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

    def _parsed_advertised(self) -> list[ListenerAddress]:
        text = self.advertised_listeners.strip()
        return parse_addresses("advertised.listeners", text) if text else []
