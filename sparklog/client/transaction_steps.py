"""Steps of a transaction: missing topics, plans whose outcome is not known at once, drafts that expire.

Not here: what is planned (transaction_plans.py), when (transaction.py).
Concurrency: any thread; nothing is kept here.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from sparklog.client.offsets_topic import OFFSETS_TOPIC
from sparklog.client.publish import AppendedRange, AppendResult
from sparklog.client.topic_plan import TopicPlanner
from sparklog.client.transaction_plans import Ending
from sparklog.client.unstaged_rows import UnstagedRows
from sparklog.errors import RetriableError, StorageError
from sparklog.log.past_retention import past_retention
from sparklog.metadata import Action, DraftExtent, Image, MetadataLog, plan_create_topic

_ATTEMPTS = 3


class _Planned(Protocol):
    @property
    def actions(self) -> Sequence[Action]: ...


PlannedT = TypeVar("PlannedT", bound=_Planned)
ResultT = TypeVar("ResultT")


def create_topic(metadata: MetadataLog, topic: str) -> None:
    """Create a topic that is missing, if it may be; that is in no transaction, as in Kafka.

    Raises:
        UnknownTopicError: auto.create.topics.enable is false.
    """
    target = TopicPlanner(metadata.image).target(topic, state=topic == OFFSETS_TOPIC)
    configs = {} if target.planned is None else dict(target.planned.configs)

    def plan(image: Image) -> list[Action]:
        if topic in image.topics:
            return []
        return [plan_create_topic(image, topic, target.partitions, topic_id=target.topic_id, configs=configs)]

    metadata.publish(plan)


def publish_planned(metadata: MetadataLog, plan: Callable[[Image, bool], PlannedT]) -> PlannedT:
    """Publish what is planned, and return it.

    Args:
        plan: pure; told whether an attempt before may have been published. If it was, no actions.
    """
    for attempt in range(_ATTEMPTS):
        planned: list[PlannedT] = []

        def actions(
            image: Image, *, again: bool = attempt > 0, to: list[PlannedT] = planned
        ) -> Sequence[Action]:
            to[:] = [plan(image, again)]
            return to[0].actions

        try:
            metadata.publish(actions)
        except StorageError as error:
            if not is_unresolved(error):
                raise
            unresolved = error
        else:
            return planned[0]
    raise unresolved


def publish_drafts(
    metadata: MetadataLog, rows: UnstagedRows, publish: Callable[[Sequence[DraftExtent]], ResultT]
) -> ResultT:
    """Write rows, and publish where they are; once more if what was written is gone by then."""
    for attempt in range(_ATTEMPTS):
        try:
            if attempt:
                metadata.refresh(force=True)
                rows.write_again()
            return publish(rows.finish())
        except RetriableError as error:
            if error.code != "STAGING_EXPIRED":
                raise
            expired = error
    raise expired


def is_unresolved(error: BaseException) -> bool:
    """Is it unknown whether a publish has happened?"""
    return isinstance(error, StorageError) and error.code == "PUBLISH_UNRESOLVED"


def result_of(ending: Ending, image: Image, now_ms: int) -> AppendResult:
    """Where everything is, by name."""
    topics = image.topic_by_id
    ranges = {
        (topics[topic_id].name, partition): AppendedRange(base_offset=base, record_count=count)
        for (topic_id, partition), (base, count) in ending.ranges.items()
        if topic_id in topics
    }
    expired: dict[str, int] = {}
    if ending.transaction is not None:
        staged = (one for extents in ending.transaction.staged.values() for one in extents)
        expired = past_retention(image, staged, now_ms)
    return AppendResult(
        commit=ending.commit, duplicate=ending.is_duplicate, ranges=ranges, past_retention=expired
    )
