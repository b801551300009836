"""The text of /metrics: every family, from one observation.

Invariants: scrapes run one at a time, in a storage thread; the event loop only takes the observation.
Concurrency: `scrape` on the event loop.
Sources: prometheus_client's custom collectors.
"""

import asyncio
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from sparklog_server.observe.broker_families import (
    internal_families,
    request_families,
    saturation_families,
    traffic_families,
)
from sparklog_server.observe.cluster_families import cluster_families, replica_families, standing_of
from sparklog_server.observe.log_families import group_families, partition_families
from sparklog_server.observe.maintenance_families import maintenance_families
from sparklog_server.observe.observation import Observation, Parts, observe
from sparklog_server.observe.transaction_families import transaction_families
from sparklog_server.observe.utilization import Utilization


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

    async def scrape(self, accept: str) -> tuple[bytes, str]:
        """The body and its content type, in the format that the client accepts."""
        encode, content_type = choose_encoder(accept)
        async with self._turn:
            seen = await observe(self._parts, self._utilization)
            seen.metrics.forget_topics(seen.image.topics.__contains__)
            self._collector.seen = seen
            try:
                return await self._parts.root.run(encode, self._registry), content_type
            finally:
                self._collector.seen = None
