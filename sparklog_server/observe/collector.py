"""The text of /metrics: every family, from one observation.

Invariants: scrapes run one at a time, in a storage thread; the event loop only takes the observation. Texts
    take at most a quarter of a core: after one that took long nothing is made for three times as long, and
    who asks meanwhile is told the same, in the format in which it is. (100,000 partitions take seconds, and
    whoever reaches the port may ask as often as it likes. Who had to wait for another format would keep a
    connection meanwhile, and both formats are read by all that read one: Content-Type says which it is.)
Concurrency: `scrape` on the event loop.
Sources: prometheus_client's custom collectors.
"""

import asyncio
from collections.abc import Callable, Iterator
from time import thread_time
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from sparklog.metadata import empty_image
from sparklog_server.metrics.metrics import Gauge, Metrics
from sparklog_server.observe.families import (
    cluster_families,
    group_families,
    internal_families,
    maintenance_families,
    partition_families,
    replica_families,
    request_families,
    saturation_families,
    standing_of,
    traffic_families,
    transaction_families,
)
from sparklog_server.observe.observation import Observation, Parts, Utilization, observe

# --- documentation -----------------------------------------------------------------------------------
#
# docs/metrics.md: every metric that a broker serves, from the code that serves it.
#
# The page is made by a scrape of a broker that has nothing, so that it cannot drift from the code.


_LABELS = {
    "kafka_server_brokertopicmetrics_": "topic (none: all topics)",
    "kafka_network_requestmetrics_requests": "request, version",
    "kafka_network_requestmetrics_errors": "request, error",
    "kafka_network_requestmetrics_": "request, quantile",
    "kafka_server_delayedoperationpurgatory_": "delayedOperation",
    "kafka_controller_controllerstats_": "quantile",
    "kafka_log_log_size": "topic, partition",
    "kafka_topic_partitions": "topic",
    "kafka_topic_partition_": "topic, partition",
    "kafka_consumergroup_lag_sum": "consumergroup",
    "kafka_consumergroup_members": "consumergroup",
    "kafka_consumergroup_": "consumergroup, topic, partition",
    "sparklog_consumergroup_": "consumergroup, topic, partition",
    "sparklog_groups": "state",
    "sparklog_transactions_ended": "by",
    "sparklog_transactions_": "",
    "sparklog_transactions": "state",
    "sparklog_broker_state": "state",
    "sparklog_connections_refused": "reason",
}


def describe_metrics() -> str:
    """A Markdown table of all metrics."""
    metrics = Metrics()
    seen = Observation(
        node_id=0,
        state="RUNNING",
        is_serving=True,
        is_registered=True,
        is_controller=True,
        root_visible=True,
        image=empty_image("A" * 22),
        metrics=metrics,
        gauges=dict.fromkeys(Gauge, 0.0),
        groups=(),
        loop_idle=1.0,
        storage_idle=1.0,
        now_ms=0,
    )
    standing = standing_of(seen)
    families: list[Metric] = [
        *traffic_families(seen),
        *request_families(seen),
        *saturation_families(seen),
        *cluster_families(seen, standing),
        *partition_families(seen, standing),
        *replica_families(seen, standing),
        *group_families(seen),
        *transaction_families(seen),
        *maintenance_families(seen),
        *internal_families(seen),
    ]
    rows = [
        f"|`{_name(one)}`|{_labels(one)}|{one.documentation}|"
        for one in families
        if not one.name.endswith("_count") or one.type != "unknown"
    ]
    return "\n".join(["|name|labels|meaning|", "|-|-|-|", *rows]) + "\n"


def _name(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def _labels(family: Metric) -> str:
    for prefix, labels in _LABELS.items():
        if family.name.startswith(prefix):
            return labels
    return "quantile" if any("quantile" in sample.labels for sample in family.samples) else ""


# --- collector ---------------------------------------------------------------------------------------


QUICK_SECONDS: Final = 0.1  # of CPU: what took no longer is made anew each time
RESTS: Final = 3.0  # times as long as it took


class BrokerCollector(Collector):
    """What prometheus_client asks for families; `seen` is set before each scrape."""

    def __init__(self) -> None:
        self.seen: Observation | None = None

    def describe(self) -> list[Metric]:
        """Nothing: prometheus_client would otherwise collect when the collector is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        seen = self.seen
        if seen is None:
            return
        yield from traffic_families(seen)
        yield from request_families(seen)
        yield from saturation_families(seen)
        standing = standing_of(seen)
        yield from cluster_families(seen, standing)
        yield from partition_families(seen, standing)
        yield from replica_families(seen, standing)
        yield from group_families(seen)
        yield from transaction_families(seen)
        yield from maintenance_families(seen)
        yield from internal_families(seen)


class Scraper:
    """Answers scrapes of one broker."""

    def __init__(self, parts: Parts, utilization: Utilization) -> None:
        self._parts = parts
        self._utilization = utilization
        self._collector = BrokerCollector()
        self._registry = CollectorRegistry()
        self._registry.register(self._collector)
        ProcessCollector(registry=self._registry)
        self._turn = asyncio.Lock()
        self._kept: tuple[bytes, str] | None = None  # until it has rested

    async def scrape(self, accept: str) -> tuple[bytes, str]:
        """The body and its content type: what the client prefers, or what is kept."""
        if self._kept is None:
            async with self._turn:
                return self._kept or await self._make(*choose_encoder(accept))
        return self._kept

    async def _make(
        self, encode: Callable[[CollectorRegistry], bytes], content_type: str
    ) -> tuple[bytes, str]:
        seen = await observe(self._parts, self._utilization)
        seen.metrics.forget_topics(seen.image.topics.__contains__)
        self._collector.seen = seen
        try:
            text, seconds = await self._parts.root.run(_timed, encode, self._registry)
        finally:
            self._collector.seen = None
        if seconds > QUICK_SECONDS:
            self._kept = text, content_type
            asyncio.get_running_loop().call_later(RESTS * seconds, self._rest_is_over)
        return text, content_type

    def _rest_is_over(self) -> None:
        self._kept = None


def _timed(encode: Callable[[CollectorRegistry], bytes], registry: CollectorRegistry) -> tuple[bytes, float]:
    """The text, and the seconds of CPU that it took."""
    began = thread_time()
    return encode(registry), thread_time() - began
