"""A root with transactions, an action at a time."""

from collections.abc import Sequence

from sparklog.metadata import (
    NEVER_OPENS,
    NO_NUMBER,
    Action,
    DraftExtent,
    Image,
    Staging,
    Transaction,
    plan_abort_transactions,
    plan_add_to_transaction,
    plan_append,
    plan_begin_producer,
    plan_create_topic,
    plan_end_transaction,
    plan_stage,
)
from sparklog.metadata.model.actions import apply_actions
from sparklog.metadata.model.image import empty_image

TOPIC = "A" * 22
OTHER = "B" * 22
Producer = tuple[int, int]


class Root:
    """An image, and what producers do to it; plans raise what they raise."""

    def __init__(self, *, partitions: int = 3) -> None:
        self.image: Image = empty_image("C" * 22)
        self.now_ms = 1_000
        self.apply(
            plan_create_topic(self.image, "orders", partitions, topic_id=TOPIC),
        )
        self.apply(plan_create_topic(self.image, "other", 1, topic_id=OTHER))

    def apply(self, *actions: Action) -> None:
        self.image = apply_actions(
            self.image, actions, commit=self.image.commit + 1, commit_uuid=uuid_of(self.image.commit + 1)
        )

    def begin(self, name: str = "app", known: Producer = (-1, -1), *, timeout_ms: int = 60_000) -> Producer:
        begun = plan_begin_producer(
            self.image,
            name,
            timeout_ms=timeout_ms,
            now_ms=self.now_ms,
            producer_id=known[0],
            producer_epoch=known[1],
        )
        if begun.actions:
            self.apply(*begun.actions)
        return begun.producer_id, begun.producer_epoch

    def add(
        self,
        producer: Producer,
        *partitions: int,
        name: str = "app",
        groups: Sequence[str] = (),
        topic_id: str = TOPIC,
    ) -> None:
        places = [(topic_id, number) for number in partitions]
        self.apply(
            *plan_add_to_transaction(
                self.image, name, *producer, partitions=places, groups=groups, now_ms=self.now_ms
            )
        )

    def stage(
        self, producer: Producer, sequence: int, count: int = 1, *, opens: bool = False, **fields: object
    ) -> None:
        self.apply(plan_stage(self.image, [self.staging(producer, sequence, count, opens=opens, **fields)]))

    def staging(
        self, producer: Producer, sequence: int, count: int = 1, *, opens: bool = False, **fields: object
    ) -> Staging:
        opens_ms = self.now_ms if opens else NEVER_OPENS
        return Staging(draft=draft(producer, sequence, count, **fields), opens_ms=opens_ms)

    def end(
        self,
        producer: Producer,
        *,
        committed: bool = True,
        second: bool = False,
        number: int = NO_NUMBER,
        name: str = "app",
    ) -> Producer:
        ended = plan_end_transaction(
            self.image,
            name,
            *producer,
            committed=committed,
            second=second,
            number=number,
            now_ms=self.now_ms,
        )
        if ended.actions:
            self.apply(*ended.actions)
        return ended.producer_id, ended.producer_epoch

    def append(self, producer_id: int, sequence: int, count: int = 1) -> None:
        """By a producer that is in no transaction."""
        self.apply(plan_append(self.image, [draft((producer_id, 0), sequence, count)]))

    def abort(self, *names: str) -> None:
        self.apply(*plan_abort_transactions(self.image, names, now_ms=self.now_ms))

    def open(self, name: str = "app", *partitions: int) -> Producer:
        """A producer of the first protocol, with a transaction."""
        producer = self.begin(name)
        self.add(producer, *(partitions or (0,)), name=name)
        return producer

    def transaction(self, name: str = "app") -> Transaction:
        return self.image.transactions[name]

    def visible(self, partition: int = 0, topic: str = "orders") -> list[tuple[int, int, int]]:
        """(base offset, records, first sequence) of what is appended."""
        return [
            (one.base_offset, one.record_count, one.base_sequence)
            for one in self.image.partition(topic, partition).extents
        ]


def uuid_of(commit: int) -> str:
    """Of a commit of any of these roots."""
    return f"{commit:022d}"


def draft(producer: Producer, sequence: int, count: int = 1, **fields: object) -> DraftExtent:
    values: dict[str, object] = {
        "topic_id": TOPIC,
        "partition": 0,
        "segment": "segments/w/00000000.0.log",
        "position": 0,
        "size": 100,
        "max_timestamp_ms": 1_000,
        **fields,
    }
    return DraftExtent(
        record_count=count,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=sequence,
        **values,  # type: ignore[arg-type]
    )
