"""Settings of fetching: what answers, sessions, waiting fetches and the cache may take.

Sources: Kafka ServerConfigs (fetch.max.bytes), KIP-227, KIP-392.
"""

import dataclasses

from sparklog.log.setting import LONG_MAX, setting
from sparklog_server.settings.units import INT_MAX, MIB

_SELECTORS = "org.apache.kafka.common.replica."
LEADER_SELECTOR, RACK_AWARE_SELECTOR = f"{_SELECTORS}LeaderSelector", f"{_SELECTORS}RackAwareReplicaSelector"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """The fields' names are the keys with underscores."""

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
    replica_selector_class: str = setting(
        "replica.selector.class",
        default=LEADER_SELECTOR,
        choices=(LEADER_SELECTOR, RACK_AWARE_SELECTOR),
        doc="""Who serves a consumer that says its rack (client.rack): the leader of the partition, or, with
        RackAwareReplicaSelector, a broker in that rack (broker.rack) that has a replica. The names are
        Kafka's; no class is loaded. RackAwareReplicaSelector: nobody pays for records that leave a zone;
        LeaderSelector: they come sooner, by up to sparklog.metadata.poll.ms.""",
    )

    @property
    def is_rack_aware(self) -> bool:
        """Are consumers sent to replicas in their racks?"""
        return self.replica_selector_class == RACK_AWARE_SELECTOR
