"""Parts of transactions as a broker accepts them, and a writer of group commits that may take them."""

import msgspec

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.errors import StorageError
from sparklog.log.config import TopicConfig
from sparklog.metadata import NEVER_OPENS, Image
from sparklog.storage import MemoryStore
from sparklog_server.publish.group_commit import GroupCommitter
from sparklog_server.publish.parts import AppendPart, InTransaction, PartOutcome
from tests.server.publish.test_group_commit import orders as unled_orders
from tests.support.several_brokers import SeveralBrokers
from tests.support.transactional_producer import TransactionalProducer


def leading(log: SparkLog, store: MemoryStore, clock: ManualClock) -> GroupCommitter:
    """Of a broker that leads all partitions of `orders`."""
    brokers = SeveralBrokers(store, clock)
    registration = brokers.join(1, log)
    for partition in range(3):
        brokers.lead(1, partition=partition)
    log.refresh()
    return GroupCommitter(
        log, lambda: registration, lambda topic: TopicConfig.parse(topic.configs, log.image.configs)
    )


def orders(log: SparkLog, partition: int = 0, **fields: object) -> AppendPart:
    """As it is accepted."""
    epoch = log.image.partition("orders", partition).leadership.leader_epoch
    return msgspec.structs.replace(unled_orders(log, partition, **fields), leader_epoch=epoch)


def said_by(
    producer: TransactionalProducer,
    *,
    name: str | None = None,
    opens_ms: int = NEVER_OPENS,
    group: str | None = None,
    image: Image | None = None,
) -> InTransaction:
    """What a request says that is read now: of the first protocol, unless `opens_ms` is given.

    `image`: of the broker that reads it, if that is not the producer's.
    """
    name = producer.transactional_id if name is None else name
    if opens_ms != NEVER_OPENS:
        return InTransaction(transactional_id=name, opens_ms=opens_ms)
    image = producer.log.image if image is None else image
    return InTransaction.of_first_protocol(image, name, producer.producer_id, producer.epoch, group=group)


def of(
    producer: TransactionalProducer, sequence: int = 0, partition: int = 0, **fields: object
) -> AppendPart:
    """A batch of its first protocol, read now, unless `opens_ms` is given."""
    name = str(fields.pop("transactional_id", producer.transactional_id))
    opens_ms, image = int(str(fields.pop("opens_ms", NEVER_OPENS))), fields.pop("image", None)
    assert image is None or isinstance(image, Image)
    said = said_by(producer, name=name, opens_ms=opens_ms, image=image)
    sequenced = (producer.producer_id, producer.epoch, sequence)
    return orders(producer.log, partition, producer=sequenced, transaction=said, **fields)


def refused(outcomes: list[PartOutcome]) -> list[str]:
    return [getattr(one.error, "code", "") for one in outcomes]


def unreachable(operation: str, name: str) -> None:
    """What the store does while nobody can look at the metadata log."""
    if operation != "write" and "__cluster_metadata" in name:
        raise StorageError("STORAGE_FAILED", "gone", fix="wait")
