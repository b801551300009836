"""A pure consumer group (KIP-848) and clients of it, for tests."""

from collections.abc import Iterator, Mapping
from typing import Any

from sparklog.format.consumer_group_records import (
    AssignedPartitions,
    ConsumerGroupKey,
    ConsumerGroupValue,
    Partitions,
    ResolvedRegex,
    decode_consumer_group_key,
    decode_consumer_group_value,
    encode_consumer_group_key,
    encode_consumer_group_value,
)
from sparklog_server.groups.assignors import TopicShape
from sparklog_server.groups.consumer_group import ConsumerGroup
from sparklog_server.groups.consumer_members import (
    JOIN,
    Catalog,
    ConsumerGroupLimits,
    ConsumerRecord,
    HeartbeatAnswer,
    HeartbeatRequest,
)
from sparklog_server.groups.messages import Instant
from sparklog_server.protocol.apis import ErrorCode

WALL_MS = 1_700_000_000_000
SESSION_MS, REBALANCE_MS = 1_000, 300
Places = frozenset[tuple[str, int]]


def topic_id(name: str) -> str:
    return (name + "A" * 22)[:22]


def places(assigned: AssignedPartitions | Partitions) -> Places:
    return frozenset((topic, partition) for topic, some in assigned.items() for partition in some)


class Client:
    """A member as its consumer sees it."""

    def __init__(self, name: str, instance_id: str | None = None, **fields: Any) -> None:
        self.name = name
        self.instance_id = instance_id
        self.fields: dict[str, Any] = fields  # of its full requests
        self.epoch = JOIN
        self.owned: Places = frozenset()
        self.keeps: Places = frozenset()  # as the coordinator has said
        self.said: Places = frozenset()  # to the coordinator
        self.must_be_full = False  # an answer is lost

    def request(self, *, is_full: bool = False) -> HeartbeatRequest:
        """As Java's consumer: partitions only if they have changed; a full request when it has caught up."""
        if self.epoch == JOIN or self.must_be_full or is_full:
            self.follow()
            fields = {"topics": ("t",), "rebalance_timeout_ms": REBALANCE_MS, **self.fields}
            owned: Places | None = self.owned
        else:
            fields, owned = {}, None if self.owned == self.said else self.owned
        self.said = self.owned
        by_topic: dict[str, frozenset[int]] = {}
        for topic, partition in owned or ():
            by_topic[topic] = by_topic.get(topic, frozenset()) | {partition}
        return HeartbeatRequest(
            member_id=self.name,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            client_id="client",
            client_host="/127.0.0.1",
            owned=None if owned is None else by_topic,
            **fields,
        )

    def take(self, answer: HeartbeatAnswer) -> None:
        if answer.error:
            self.epoch, self.owned, self.keeps = JOIN, frozenset(), frozenset()
            return
        self.epoch = answer.member_epoch
        if answer.assigned is not None:
            self.keeps = places(answer.assigned)

    def follow(self) -> None:
        """Give up and take what the coordinator has said."""
        self.owned = self.keeps


class World:
    """A group over a log that is durable when it is told so."""

    def __init__(
        self, topics: Mapping[str, int] | None = None, *, max_size: int = 100, interval_ms: int = 0
    ) -> None:
        self.now_ms = 0
        self.topics = dict({"t": 4} if topics is None else topics)
        self.version = 0
        self.resolved: dict[str, ResolvedRegex] = {}
        self.limits = ConsumerGroupLimits(
            max_size=max_size, session_timeout_ms=SESSION_MS, assignment_interval_ms=interval_ms
        )
        self.durable: dict[bytes, bytes] = {}
        self.group = ConsumerGroup("g", self.limits)

    @property
    def now(self) -> Instant:
        return Instant(self.now_ms, WALL_MS + self.now_ms)

    @property
    def catalog(self) -> Catalog:
        shapes = {
            name: TopicShape(topic_id=topic_id(name), partitions=count) for name, count in self.topics.items()
        }
        names = {topic_id(name): name for name in self.topics}
        return Catalog(version=self.version, find=shapes.get, name_of=names.get)

    def change_topics(self, **topics: int) -> None:
        self.topics = {name: count for name, count in {**self.topics, **topics}.items() if count}
        self.version += 1

    def beat(self, client: Client, *, is_full: bool = False, is_lost: bool = False) -> HeartbeatAnswer:
        request = client.request(is_full=is_full)
        answer = self.group.heartbeat(request, self.catalog, self.now, self.resolved)
        self.store(self.group.take_records())
        if not is_lost:
            client.take(answer)
        client.must_be_full = is_lost
        return answer

    def join(self, *clients: Client) -> None:
        """Let them join, and beat until nothing changes."""
        for client in clients:
            assert not self.beat(client).error
        self.settle(*clients)

    def settle(self, *clients: Client) -> None:
        for _ in range(6):
            for client in clients:
                client.follow()
                answer = self.beat(client)
                assert not answer.error, answer

    def leave(self, client: Client, epoch: int = -1) -> ErrorCode:
        request = HeartbeatRequest(member_id=client.name, member_epoch=epoch, instance_id=client.instance_id)
        answer = self.group.heartbeat(request, self.catalog, self.now)
        self.store(self.group.take_records())
        client.epoch, client.owned, client.keeps = JOIN, frozenset(), frozenset()
        return answer.error

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        self.group.tick(self.catalog, self.now)
        self.store(self.group.take_records())

    def store(self, records: list[ConsumerRecord]) -> None:
        for key, value in records:
            if value is None:
                self.durable.pop(encode_consumer_group_key(key), None)
            else:
                self.durable[encode_consumer_group_key(key)] = encode_consumer_group_value(value)

    def restart(self) -> None:
        """The next coordinator: it has the log, and nothing else."""
        self.group = ConsumerGroup("g", self.limits)
        self.group.restore(dict(self.stored()), self.now)

    def stored(self) -> Iterator[tuple[ConsumerGroupKey, ConsumerGroupValue]]:
        for data, value in self.durable.items():
            key = decode_consumer_group_key(data)
            yield key, decode_consumer_group_value(key.kind, value)
