"""What APIs of transactions are asked, with what a producer mostly says; and a batch of one to produce."""

from collections.abc import Sequence
from typing import Any

from tests.server.publish.asking import ProducingClient

ADD_PARTITIONS, ADD_OFFSETS, END, MARKERS = 24, 25, 26, 27
DESCRIBE_PRODUCERS, DESCRIBE, LIST = 61, 65, 66
TRANSACTION = 1
Given = tuple[str, int, int]  # error, producer id, producer epoch


class TransactionClient(ProducingClient):
    """One connection of a producer, which names errors."""

    def initialise(self, name: str = "app", version: int = 5, timeout_ms: int = 60_000, **has: int) -> Given:
        found = self.init_producer_id(version, name, transaction_timeout=timeout_ms, **has)
        return found.error_code.name, found.producer_id, found.producer_epoch

    def add(
        self, producer: tuple[int, int], *partitions: tuple[str, int], name: str = "app", version: int = 3
    ) -> list[str]:
        """An error for each partition."""
        topics: dict[str, list[int]] = {}
        for topic, number in partitions:
            topics.setdefault(topic, []).append(number)
        answer = self.ask(
            ADD_PARTITIONS,
            version,
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=[
                {"_": "AddPartitionsToTxnTopic", "name": topic, "partitions": numbers}
                for topic, numbers in topics.items()
            ],
        )
        return [
            one.partition_error_code.name
            for topic in answer.results_by_topic_v3_and_below
            for one in topic.results_by_partition
        ]

    def add_offsets(
        self, producer: tuple[int, int], group: str = "g", *, name: str = "app", version: int = 4
    ) -> str:
        answer = self.ask(ADD_OFFSETS, version, **_producer(producer, name), group_id=group)
        return str(answer.error_code.name)

    def end(
        self, producer: tuple[int, int], *, commits: bool = True, name: str = "app", version: int = 5
    ) -> Given:
        answer = self.ask(END, version, **_producer(producer, name), committed=commits)
        if version < 5:
            return answer.error_code.name, -1, -1
        return answer.error_code.name, answer.producer_id, answer.producer_epoch

    def mark(
        self, producer: tuple[int, int], *partitions: tuple[str, int], commits: bool = False, version: int = 1
    ) -> list[str]:
        """WriteTxnMarkers, as Kafka's admin client sends it: an error for each partition."""
        (errors,) = self.mark_all([(producer, partitions)], commits=commits, version=version)
        return errors

    def mark_all(
        self,
        marked: Sequence[tuple[tuple[int, int], Sequence[tuple[str, int]]]],
        *,
        commits: bool = False,
        version: int = 1,
    ) -> list[list[str]]:
        """WriteTxnMarkers with a marker for each producer and its partitions."""
        markers = [_marker(producer, partitions, commits=commits) for producer, partitions in marked]
        answers = self.ask(MARKERS, version, markers=markers).markers
        assert [one.producer_id for one in answers] == [producer[0] for producer, _ in marked]
        return [
            [one.error_code.name for topic in answer.topics for one in topic.partitions] for answer in answers
        ]

    def listed(self, version: int = 2, **filters: Any) -> dict[str, tuple[int, str]]:
        """Producer id and state by transactional id."""
        answer = self.ask(LIST, version, **filters)
        assert answer.error_code.name == "none"
        return {
            one.transactional_id: (one.producer_id, one.transaction_state)
            for one in answer.transaction_states
        }


def _marker(
    producer: tuple[int, int], partitions: Sequence[tuple[str, int]], *, commits: bool
) -> dict[str, Any]:
    return {
        "_": "WritableTxnMarker",
        "producer_id": producer[0],
        "producer_epoch": producer[1],
        "transaction_result": commits,
        "coordinator_epoch": 0,
        "topics": [
            {"_": "WritableTxnMarkerTopic", "name": topic, "partition_indexes": [number]}
            for topic, number in partitions
        ],
    }


def _producer(producer: tuple[int, int], name: str) -> dict[str, Any]:
    return {"transactional_id": name, "producer_id": producer[0], "producer_epoch": producer[1]}


def producer_of(given: Given) -> tuple[int, int]:
    """Who it is, if it was given that."""
    error, producer_id, producer_epoch = given
    assert error == "none"
    return producer_id, producer_epoch
