"""Produce and InitProducerId, with what a producer mostly says."""

import uuid
from typing import Any

from sparklog_server.protocol.responses import make
from tests.support.wire_client import WireClient, request_types

PRODUCE, INIT_PRODUCER_ID = 0, 22
Part = tuple[str | uuid.UUID, int, bytes | None]


class ProducingClient(WireClient):
    """One connection."""

    def send_produce(self, *parts: Part, version: int = 9, acks: int = -1, **fields: Any) -> int:
        """The correlation id. Topics by name, or (since version 13) by id."""
        types = request_types(PRODUCE, version)
        by_topic: dict[str | uuid.UUID, list[Any]] = {}
        for topic, partition, records in parts:
            data = make(types.PartitionProduceData, index=partition, records=records)
            by_topic.setdefault(topic, []).append(data)
        topics = [
            make(
                types.TopicProduceData,
                partition_data=data,
                **({"name": topic} if isinstance(topic, str) else {"topic_id": topic}),
            )
            for topic, data in by_topic.items()
        ]
        values = {"timeout": 30_000, "transactional_id": None, **fields}
        return self.send(PRODUCE, version, acks=acks, topic_data=topics, **values)

    def produce(self, *parts: Part, version: int = 9, **fields: Any) -> list[Any]:
        """The partitions' responses, in the order of the request."""
        number = self.send_produce(*parts, version=version, **fields)
        found, response = self.receive(PRODUCE, version)
        assert found == number
        return [one for topic in response.responses for one in topic.partition_responses]

    def init_producer_id(self, version: int = 4, transactional_id: str | None = None, **fields: Any) -> Any:
        values = {"transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1, **fields}
        return self.ask(INIT_PRODUCER_ID, version, transactional_id=transactional_id, **values)
