"""Settings of the broker: Kafka's names, each declared once; those without a counterpart in Kafka begin
with `sparklog.`.

Invariants: an unknown key is refused with the nearest known one, a key that means something only to Kafka
    is refused by saying so (kafka_only.py); nothing is ignored.
Layers for what a root can say too (num.partitions, ...): the root's value, then the broker's, as in Kafka
    a cluster-wide value wins over server.properties. Whoever needs one asks Broker.topic_config or
    Broker.root_config.
Not here: reading files, flags and the environment (settings_sources.py).
Sources: Kafka SocketServerConfigs, KafkaConfig, GroupCoordinatorConfig; style.md rule 23.
"""

import dataclasses
import textwrap
from collections.abc import Mapping
from typing import Self

from sparklog.errors import InvalidRequestError
from sparklog.log.setting import (
    LONG_MAX,
    TYPE_NAMES,
    declared_settings,
    parse_settings,
    setting,
    validate_settings,
)
from sparklog_server.network.addresses import (
    ListenerAddress,
    advertised_address,
    parse_addresses,
    parse_protocol_map,
    validate_advertised,
    validate_protocols,
)
from sparklog_server.protocol.registry import AdvertisedListener

INT_MAX = (1 << 31) - 1
MIB = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The broker's settings, typed; the fields' names are the keys with underscores."""

    # --- the broker ---------------------------------------------------------------------------------

    node_id: int = setting(
        "node.id",
        default=1,
        minimum=0,
        maximum=INT_MAX,
        doc="""This broker's number. Clients see it as leader of every partition, coordinator of every group
        and controller.""",
    )
    log_dirs: str = setting(
        "log.dirs",
        default="",
        doc="""The root: a directory, made if it is not there. Exactly one; --root wins over it.""",
    )

    allow_unsafe_filesystem: bool = setting(
        "sparklog.allow.unsafe.filesystem",
        default=False,
        doc="""Serve a directory also on a file system that caches names (NFS, SMB, FUSE, shared folders of a
        virtual machine), where acknowledged records can be lost if several machines use it; see
        docs/filesystems.md. Also by the environment variable SPARKLOG_ALLOW_UNSAFE_FILESYSTEM, as for every
        process of sparklog.""",
    )

    # --- network ------------------------------------------------------------------------------------

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
        At most one more request of socket.request.max.bytes comes on top. One address has a quarter of it,
        and one request more. Larger: more memory, smoother
        under many large requests; smaller: clients are pushed back sooner.""",
    )
    queued_max_response_bytes: int = setting(
        "sparklog.queued.max.response.bytes",
        default=48 * MIB,
        minimum=MIB,
        maximum=LONG_MAX,
        unit="bytes",
        doc="""Bytes of large answers about groups, offsets and settings that are made or being sent, over all
        connections (one more may overdraw it); further ones wait. Larger: more at once; smaller: less memory
        when clients are slow to take them.""",
    )
    max_connections: int = setting(
        "max.connections",
        default=10_000,
        minimum=1,
        maximum=INT_MAX,
        unit="connections",
        doc="""Connections at once. Beyond it nobody is accepted until one ends. Each costs about 20 KiB and
        one open file.""",
    )
    max_connections_per_ip: int = setting(
        "max.connections.per.ip",
        default=2_000,
        minimum=0,
        maximum=INT_MAX,
        unit="connections",
        doc="""Connections from one address; a further one is closed at once. Lower keeps one client from
        using up all of max.connections.""",
    )
    max_connections_per_ip_overrides: str = setting(
        "max.connections.per.ip.overrides",
        default="",
        doc="""Other limits for single addresses, such as 10.0.0.7:5000,127.0.0.1:100.""",
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
    num_io_threads: int = setting(
        "num.io.threads",
        default=8,
        minimum=1,
        maximum=1000,
        unit="threads",
        doc="""Threads for storage: reading segments, looking up offsets, changing topics. More: more reads
        at once on storage that is slow to answer; fewer: less memory.""",
    )
    shutdown_timeout_ms: int = setting(
        "sparklog.shutdown.timeout.ms",
        default=10_000,
        minimum=0,
        maximum=LONG_MAX,
        unit="ms",
        doc="""How long requests in progress may take when the broker is told to stop.""",
    )

    # --- topics -------------------------------------------------------------------------------------

    auto_create_topics_enable: bool = setting(
        "auto.create.topics.enable",
        default=True,
        doc="""Create a topic when a client first asks for it and allows it. true: nothing to prepare; false:
        a misspelt name is an error. A value on the root wins.""",
    )
    num_partitions: int = setting(
        "num.partitions",
        default=1,
        minimum=1,
        maximum=100_000,
        unit="partitions",
        doc="""Partitions of a topic created without saying how many. A value on the root wins.""",
    )
    delete_topic_enable: bool = setting(
        "delete.topic.enable",
        default=True,
        doc="""Let clients delete topics. false: only the embedded client and the command line can.""",
    )
    message_max_bytes: int = setting(
        "message.max.bytes",
        default=1_048_588,
        minimum=0,
        maximum=INT_MAX,
        unit="bytes",
        doc="""Largest record batch, after compression, of topics that do not say max.message.bytes. A
        value on the root wins.""",
    )
    metadata_poll_ms: int = setting(
        "sparklog.metadata.poll.ms",
        default=20,
        minimum=1,
        maximum=60_000,
        unit="ms",
        doc="""How often to look for commits of others (Spark, the command line). Shorter: consumers see
        their records sooner; longer: fewer lookups in the storage.""",
    )

    broker_session_timeout_ms: int = setting(
        "broker.session.timeout.ms",
        default=9_000,
        minimum=100,
        maximum=INT_MAX,
        unit="ms",
        doc="""A broker that could not look at the metadata log for so long answers for groups and partitions
        no more, until it can: another one may have taken over. Longer: outages of the storage are felt less;
        shorter: two brokers tell members different things for less long. Must be longer than
        sparklog.metadata.poll.ms.""",
    )

    # --- producing ----------------------------------------------------------------------------------

    max_decompressed_message_bytes: int = setting(
        "max.decompressed.message.bytes",
        default=128 * MIB,
        minimum=1024,
        maximum=INT_MAX,
        unit="bytes",
        doc="""Largest record batch after decompression; checked while it is decompressed. Larger: batches
        that compress very well get through; smaller: one request can make the broker hold less. Beside it,
        no batch may decompress to more than 512 times its size, or max.message.bytes where that is more.""",
    )
    produce_check_bytes: int = setting(
        "sparklog.produce.check.bytes",
        default=32 * MIB,
        minimum=MIB,
        maximum=LONG_MAX,
        unit="bytes",
        doc="""Memory in which compressed batches are looked at, over all connections; a batch that needs more
        is looked at alone. Larger: more large batches at once; smaller: less memory.""",
    )
    publish_linger_ms: int = setting(
        "sparklog.publish.linger.ms",
        default=0,
        minimum=0,
        maximum=60_000,
        unit="ms",
        doc="""Under load, wait at most so long for as many requests as the last group had, before the next
        group is published; never when idle. Larger: fewer, larger commits, for slow storage; 0: whatever
        came while the last group was being written.""",
    )
    publish_group_bytes: int = setting(
        "sparklog.publish.group.bytes",
        default=32 * MIB,
        minimum=1024,
        maximum=1024 * MIB,
        unit="bytes",
        doc="""Most bytes in one group (a larger request is a group by itself). Larger: fewer syncs under
        load; smaller: a request waits less for the others in its group.""",
    )
    publish_group_parts: int = setting(
        "sparklog.publish.group.parts",
        default=10_000,
        minimum=1,
        maximum=100_000,
        unit="parts",
        doc="""Most partitions' shares of requests in one group, which is one metadata commit of some 300
        bytes for each.""",
    )
    publish_backlog_bytes: int = setting(
        "sparklog.publish.backlog.bytes",
        default=1024 * MIB,
        minimum=1024,
        maximum=LONG_MAX,
        unit="bytes",
        doc="""Most bytes that wait to be published, or are being published. Beyond it produce requests are
        refused with an error that clients retry; queued.max.request.bytes pushes back long before.""",
    )
    publish_backlog_requests: int = setting(
        "sparklog.publish.backlog.requests",
        default=100_000,
        minimum=1,
        maximum=INT_MAX,
        unit="requests",
        doc="""As sparklog.publish.backlog.bytes, in requests.""",
    )

    # --- fetching -----------------------------------------------------------------------------------

    fetch_max_bytes: int = setting(
        "fetch.max.bytes",
        default=55 * MIB,
        minimum=1024,
        maximum=INT_MAX,
        unit="bytes",
        doc="""Most bytes of records in one answer, whatever the consumer asks for. Larger: fewer round
        trips; smaller: one consumer makes the broker hold less.""",
    )
    fetch_session_slots: int = setting(
        "max.incremental.fetch.session.cache.slots",
        default=1000,
        minimum=0,
        maximum=1_000_000,
        unit="sessions",
        doc="""Consumers whose partitions are remembered between fetches (KIP-227). More: more consumers send
        short requests; fewer: less memory.""",
    )
    fetch_session_bytes: int = setting(
        "sparklog.fetch.session.bytes",
        default=32 * MIB,
        minimum=0,
        maximum=LONG_MAX,
        unit="bytes",
        doc="""Memory for what these sessions remember, some 500 bytes for each partition. Larger: more
        consumers of many partitions send short requests; smaller: less memory.""",
    )
    fetch_waiting_bytes: int = setting(
        "sparklog.fetch.waiting.bytes",
        default=32 * MIB,
        minimum=0,
        maximum=LONG_MAX,
        unit="bytes",
        doc="""Memory for fetches that wait for records, some 1,000 bytes for each partition; further ones are
        answered after 100 ms instead of max.wait.ms. Larger: more consumers wait; smaller: less memory.""",
    )
    fetch_buffer_bytes: int = setting(
        "sparklog.fetch.buffer.bytes",
        default=512 * MIB,
        minimum=MIB,
        maximum=LONG_MAX,
        unit="bytes",
        doc="""Records read for consumers and not yet sent, over all connections; beyond it a fetch is
        answered with one batch at a time. Larger: more consumers at full speed; smaller: less memory when
        many are slow.""",
    )
    fetch_cache_bytes: int = setting(
        "sparklog.fetch.cache.bytes",
        default=64 * MIB,
        minimum=0,
        maximum=LONG_MAX,
        unit="bytes",
        doc="""Memory for the newest batches of the partitions that were read in the last five minutes.
        Larger: consumers may lag further behind without touching the disk; smaller: less memory.""",
    )

    # --- consumer offsets and groups ----------------------------------------------------------------

    offsets_topic_num_partitions: int = setting(
        "offsets.topic.num.partitions",
        default=50,
        minimum=1,
        maximum=100_000,
        unit="partitions",
        doc="""Partitions of __consumer_offsets, read when it is created. A value on the root wins.""",
    )
    offset_metadata_max_bytes: int = setting(
        "offset.metadata.max.bytes",
        default=4096,
        minimum=0,
        maximum=32_767,
        unit="bytes",
        doc="""Longest note that a consumer may commit with an offset. Larger: more memory for offsets.""",
    )
    offsets_retention_minutes: int = setting(
        "offsets.retention.minutes",
        default=10_080,
        minimum=1,
        maximum=INT_MAX,
        unit="minutes",
        doc="""Offsets of a group that is empty, or of a consumer without group that commits nothing, are
        forgotten after so long. Longer: consumers may stay away longer; shorter: less to keep.""",
    )
    offsets_retention_check_interval_ms: int = setting(
        "offsets.retention.check.interval.ms",
        default=600_000,
        minimum=1,
        maximum=LONG_MAX,
        unit="ms",
        doc="""How often to look for offsets to forget. Shorter: gone sooner; longer: less work.""",
    )
    group_min_session_timeout_ms: int = setting(
        "group.min.session.timeout.ms",
        default=6_000,
        minimum=1,
        maximum=INT_MAX,
        unit="ms",
        doc="""Shortest session that a member may ask for. Shorter: failures are found sooner, for more
        heartbeats; longer: a pause is less often taken for a failure.""",
    )
    group_max_session_timeout_ms: int = setting(
        "group.max.session.timeout.ms",
        default=1_800_000,
        minimum=1,
        maximum=INT_MAX,
        unit="ms",
        doc="""Longest session that a member may ask for. Longer: members may be silent for longer; shorter:
        failures are found sooner.""",
    )
    group_initial_rebalance_delay_ms: int = setting(
        "group.initial.rebalance.delay.ms",
        default=3_000,
        minimum=0,
        maximum=INT_MAX,
        unit="ms",
        doc="""How long an empty group waits for more members before its first rebalance. Longer: fewer
        rebalances while many are started; shorter: the first one gets its partitions sooner.""",
    )
    group_max_size: int = setting(
        "group.max.size",
        default=10_000,
        minimum=1,
        maximum=INT_MAX,
        unit="members",
        doc="""Most members of a group (Kafka: no limit). Lower keeps a runaway client from filling the
        broker's memory and from rebalances that never end.""",
    )
    group_max_groups: int = setting(
        "sparklog.group.max.groups",
        default=100_000,
        minimum=1,
        maximum=INT_MAX,
        unit="groups",
        doc="""Most groups that clients can make; further ones are refused. Higher: more memory.""",
    )
    group_max_bytes: int = setting(
        "sparklog.group.max.bytes",
        default=256 * MIB,
        minimum=MIB,
        maximum=LONG_MAX,
        unit="bytes",
        doc="""Most memory that subscriptions and assignments of all members may take; members beyond it are
        refused. Higher: more memory.""",
    )

    # --- metrics ------------------------------------------------------------------------------------

    http_listener: str = setting(
        "sparklog.http.listener",
        default="",
        doc="""Where /metrics (Prometheus), /health and /ready are served, as host:port; an empty host means
        all addresses, port 0 any free port. Empty: nowhere. There is no login: keep it to a network you
        trust.""",
    )

    # --- log files ----------------------------------------------------------------------------------

    logs_dir: str = setting(
        "sparklog.logs.dir",
        default="",
        doc="""Directory of the broker's own log files (server.log, request.log, controller.log,
        state-change.log, log-cleaner.log), rolled every midnight; empty: to stderr.""",
    )
    logs_format: str = setting(
        "sparklog.logs.format",
        default="text",
        choices=("text", "json"),
        doc="""text: a line to read; json: an object per line, for log collectors.""",
    )
    logs_level: str = setting(
        "sparklog.logs.level",
        default="INFO",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        doc="""What is logged at least.""",
    )
    logs_requests: bool = setting(
        "sparklog.logs.requests",
        default=False,
        doc="""Log every request and how long it took. Costs a line per request.""",
    )
    logs_keep_days: int = setting(
        "sparklog.logs.keep.days",
        default=7,
        minimum=1,
        maximum=3650,
        unit="days",
        doc="""How many rolled log files of each kind are kept.""",
    )

    @classmethod
    def parse(cls, configs: Mapping[str, str]) -> Self:
        """Typed settings; what is not given has its default."""
        validate_settings(configs, declared_settings(cls), "broker")
        return parse_settings(cls, configs, {})

    def __post_init__(self) -> None:
        """What one declaration cannot say: settings that must fit together."""
        protocols = parse_protocol_map("listener.security.protocol.map", self.listener_security_protocol_map)
        listeners = self.parsed_listeners()
        validate_protocols("listeners", listeners, protocols)
        validate_advertised("advertised.listeners", listeners, self._parsed_advertised())
        self.per_ip_overrides()
        self.parsed_http_listener()
        if self.metadata_poll_ms >= self.broker_session_timeout_ms:
            raise InvalidRequestError(
                "INVALID_CONFIG_VALUE",
                f"broker.session.timeout.ms: found {self.broker_session_timeout_ms}, expected more than "
                f"sparklog.metadata.poll.ms, {self.metadata_poll_ms}",
                fix="poll more often, or allow for longer",
            )

    def parsed_listeners(self) -> list[ListenerAddress]:
        """Where to listen."""
        return parse_addresses("listeners", self.listeners)

    def advertised(self, bound: ListenerAddress) -> AdvertisedListener:
        """What clients of a listener are told to connect to; `bound`: with the port that was chosen."""
        address = advertised_address(bound, self._parsed_advertised())
        return AdvertisedListener(address.host, address.port)

    def parsed_http_listener(self) -> ListenerAddress | None:
        """Where metrics are served, if anywhere."""
        text = self.http_listener.strip()
        if not text:
            return None
        (address,) = parse_addresses("sparklog.http.listener", f"HTTP://{text.removeprefix('http://')}")
        return address

    def per_ip_overrides(self) -> dict[str, int]:
        """max.connections.per.ip.overrides."""
        limits = {}
        for part in (
            part.strip() for part in self.max_connections_per_ip_overrides.split(",") if part.strip()
        ):
            host, found, limit = part.rpartition(":")
            if not found or not limit.isascii() or not limit.isdigit():
                raise InvalidRequestError(
                    "INVALID_CONFIG_VALUE",
                    f"max.connections.per.ip.overrides: found {part!r}, expected address:number",
                    fix="write 127.0.0.1:100",
                )
            limits[host.strip("[]")] = int(limit)
        return limits

    def root_defaults(self) -> dict[str, str]:
        """The layer below the root's own settings: what the broker says of the same things."""
        return {
            "auto.create.topics.enable": "true" if self.auto_create_topics_enable else "false",
            "num.partitions": str(self.num_partitions),
            "offsets.topic.num.partitions": str(self.offsets_topic_num_partitions),
            "max.message.bytes": str(self.message_max_bytes),
        }

    def _parsed_advertised(self) -> list[ListenerAddress]:
        text = self.advertised_listeners.strip()
        return parse_addresses("advertised.listeners", text) if text else []


def describe_server_configs() -> str:
    """A Markdown table of every setting, for the documentation."""
    lines = ["|key|type|unit|default|allowed|meaning|", "|-|-|-|-|-|-|"]
    for key, (_, one) in declared_settings(ServerConfig).items():
        cells = (key, TYPE_NAMES[one.kind], one.unit, one.format(one.default), one.bounds, one.doc)
        lines.append("|" + "|".join(cells) + "|")
    return "\n".join(lines) + "\n"


# What conf/server.properties sets, and why.
_EXAMPLES = {
    "group.initial.rebalance.delay.ms": (
        "0",
        "As in Kafka's own file: who tries something out does not wait. In production, comment it out.",
    )
}


def render_server_properties() -> str:
    """The text of conf/server.properties: every setting with its default, commented out, but for examples."""
    lines = [
        "# Settings of sparklog-server, with their defaults. Generated from sparklog_server/config.py.",
        "# sparklog-server --config FILE reads it; flags and SPARKLOG_SERVER_NUM_PARTITIONS=3 (for",
        "# num.partitions) win over it. Unknown keys are refused. Kafka's names mean what they mean in",
        "# Kafka; those that begin with sparklog. are our own.",
    ]
    for field in dataclasses.fields(ServerConfig):
        one = field.metadata["setting"]
        unit = f" ({one.unit})" if one.unit else ""
        bounds = one.bounds + unit
        lines += ["", *textwrap.wrap(one.doc, 100, initial_indent="# ", subsequent_indent="# ")]
        lines += [f"# Allowed: {bounds}."] if bounds else []
        lines.append(f"#{one.key}={one.format(one.default)}")
        if one.key in _EXAMPLES:
            value, why = _EXAMPLES[one.key]
            lines += [*textwrap.wrap(why, 100, initial_indent="# ", subsequent_indent="# ")]
            lines.append(f"{one.key}={value}")
    return "\n".join(lines) + "\n"
