"""What a publisher needs of a broker, without the broker."""

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

from sparklog.client import SparkLog
from sparklog.format.encoded_batches import EncodedBatches
from sparklog.log.config import TopicConfig
from sparklog.metadata import Topic
from sparklog_server.metrics import Metrics
from sparklog_server.publish.publisher import Publisher
from sparklog_server.settings.addresses import AdvertisedListener
from sparklog_server.settings.config import ServerConfig


class Surroundings:
    """Looks like a Broker to the publisher and to ProducerIds."""

    def __init__(self, log: SparkLog, **configs: str) -> None:
        named = {key.replace("_", "."): value for key, value in configs.items()}
        self.config = ServerConfig.parse(named)
        self.log = log
        self.clock = log.clock
        self.node_id = 7
        self.metrics = Metrics()
        self.network = self
        self.fetches = self
        self.failures: list[BaseException] = []
        self.shown = 0
        self.appended: list[tuple[str, int, int, int]] = []
        self.publisher = Publisher(self)  # type: ignore[arg-type]

    @property
    def image(self) -> Any:
        return self.log.image

    def advertised(self) -> list[AdvertisedListener]:
        return [AdvertisedListener("localhost", 9092)]

    def on_appended(self, topic_id: str, partition: int, base_offset: int, encoded: EncodedBatches) -> None:
        self.appended.append((topic_id, partition, base_offset, encoded.record_count))

    def topic_config(self, topic: Topic) -> TopicConfig:
        return TopicConfig.parse(topic.configs, self.log.image.configs)

    async def run_storage(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, function, *args)

    def show_image(self) -> None:
        self.shown += 1

    def fail(self, error: BaseException) -> None:
        self.failures.append(error)

    @asynccontextmanager
    async def running(self) -> Any:
        """The publisher started, and stopped in the end."""
        await self.publisher.start()
        try:
            yield self.publisher
        finally:
            await self.publisher.stop()
