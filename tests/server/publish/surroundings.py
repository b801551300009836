"""A publisher over a root, without the rest of the broker."""

from contextlib import asynccontextmanager
from typing import Any

from sparklog.client import SparkLog
from sparklog.format.encode import EncodedBatches
from sparklog_server.cluster.controller import Controller
from sparklog_server.cluster.elections import Assigning
from sparklog_server.cluster.membership import Membership
from sparklog_server.metrics import Metrics
from sparklog_server.publish.produced_batches import TopicRules
from sparklog_server.publish.publisher import Publisher
from sparklog_server.root.live_root import LiveRoot
from sparklog_server.runtime.lifecycle import Lifecycle
from sparklog_server.settings.config import ServerConfig
from sparklog_server.settings.network import AdvertisedListener


class Surroundings:
    """What a publisher is given, and what it tells."""

    def __init__(self, log: SparkLog, **configs: str) -> None:
        named = {key.replace("_", "."): value for key, value in configs.items()}
        config = ServerConfig.parse({"node.id": "7", **named})
        self.metrics = Metrics()
        self.failures: list[BaseException] = []
        self.shown = 0
        self.appended: list[tuple[str, int, int, int]] = []
        self.root = LiveRoot(log, defaults={}, metrics=self.metrics, storage_threads=1)
        self.root.on_image(self._on_image)
        assigning = Assigning(self.root.root_config)
        self.membership = Membership(
            self.root, Lifecycle(), assigning, config.broker, advertised=self._advertised
        )
        self.controller = Controller(
            self.root,
            self.membership,
            assigning,
            config,
            clock=log.clock,
            metrics=self.metrics,
            on_fatal=self.failures.append,
        )
        self.rules = TopicRules(
            self.root, max_decompressed_bytes=config.publish.max_decompressed_message_bytes
        )
        self.publisher = Publisher(
            self.root,
            self.membership,
            config.publish,
            self.rules,
            self.metrics,
            on_appended=self._on_appended,
            on_fatal=self.failures.append,
        )

    @asynccontextmanager
    async def running(self) -> Any:
        """The publisher started, and stopped in the end."""
        await self.membership.start()
        await self.controller.start()
        await self.publisher.start()
        try:
            yield self.publisher
        finally:
            await self.publisher.stop()
            await self.controller.stop()
            await self.membership.stop()
            self.root.close()

    def _advertised(self) -> list[AdvertisedListener]:
        return [AdvertisedListener("localhost", 9092)]

    def _on_appended(self, topic_id: str, partition: int, base_offset: int, encoded: EncodedBatches) -> None:
        self.appended.append((topic_id, partition, base_offset, encoded.record_count))

    def _on_image(self, _old: Any, _new: Any) -> None:
        self.shown += 1
