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
