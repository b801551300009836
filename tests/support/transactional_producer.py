"""A transactional producer, whose coordinator is whoever has the log: the actions of its transactions."""

import dataclasses

from sparklog.client import SparkLog
from sparklog.metadata import (
    Transaction,
    plan_add_to_transaction,
    plan_begin_producer,
    plan_end_transaction,
)

TIMEOUT_MS = 60_000


@dataclasses.dataclass(slots=True)
class TransactionalProducer:
    """Of one transactional id, through one root that is open; `epoch` as it was told."""

    log: SparkLog
    transactional_id: str = "app"
    producer_id: int = -1
    epoch: int = -1

    def begin(self) -> "TransactionalProducer":
        """Have it initialised anew, as any process with this id."""
        self.log.metadata.publish(
            lambda image: (
                plan_begin_producer(image, self.transactional_id, timeout_ms=TIMEOUT_MS, now_ms=1_000).actions
            )
        )
        self.producer_id, self.epoch = self.known.producer_id, self.known.producer_epoch
        return self

    def add(self, *partitions: int, topic: str = "orders", groups: tuple[str, ...] = ()) -> None:
        """As AddPartitionsToTxn and AddOffsetsToTxn do."""
        topic_id = self.log.image.topic(topic).topic_id
        self.log.metadata.publish(
            lambda image: plan_add_to_transaction(
                image,
                self.transactional_id,
                self.producer_id,
                self.epoch,
                partitions=[(topic_id, one) for one in partitions],
                groups=groups,
                now_ms=1_000,
            )
        )

    def end(self, *, commits: bool = True, second: bool = False) -> None:
        """As EndTxn does."""
        self.log.metadata.publish(
            lambda image: (
                plan_end_transaction(
                    image,
                    self.transactional_id,
                    self.producer_id,
                    self.epoch,
                    committed=commits,
                    second=second,
                    now_ms=1_000,
                ).actions
            )
        )
        self.producer_id, self.epoch = self.known.producer_id, self.known.producer_epoch

    @property
    def known(self) -> Transaction:
        """As of the newest image of its root."""
        return self.log.refresh().transactions[self.transactional_id]
