"""A commit that would be read otherwise than it was planned, or not at all, is not made."""

from typing import Any

import msgspec
import numpy as np
import pytest

from sparklog.errors import InvalidRequestError
from sparklog.metadata import (
    Action,
    AllocateProducerIds,
    AppendExtents,
    BeginProducer,
    CreateTopic,
    ExpireProducers,
    Extent,
    MetadataLog,
    SetConfigs,
    WriterTxn,
)
from sparklog.metadata.documents.extent_columns import MIN_COLUMN_EXTENTS
from sparklog.storage import MemoryStore
from tests.metadata.opened_logs import opened, set_config

TOPIC = "T" * 22


def created(partitions: Any = 1) -> CreateTopic:
    return CreateTopic(topic_id=TOPIC, name="orders", partitions=partitions)


def written(application: Any = "query", version: Any = 3) -> list[Action]:
    return [created(), WriterTxn(application=application, version=version, topics=(TOPIC,))]


def begun(transactional_id: Any = "app", timeout_ms: Any = 60_000) -> list[Action]:
    begin = BeginProducer(
        transactional_id=transactional_id,
        producer_id=0,
        producer_epoch=0,
        timeout_ms=timeout_ms,
        time_ms=0,
    )
    return [AllocateProducerIds(first=0, count=1), begin]


def appended(field: str, *values: Any) -> list[Action]:
    """So many extents that they are written in columns."""
    extents = [
        Extent(
            topic_id=TOPIC,
            partition=0,
            segment="segments/w/0.log",
            position=100 * offset,
            size=100,
            base_offset=offset,
            record_count=1,
            max_timestamp_ms=offset,
            offset_delta=offset,
        )
        for offset in range(MIN_COLUMN_EXTENTS)
    ]
    extents = [
        msgspec.structs.replace(one, **{field: values[number % len(values)]})
        for number, one in enumerate(extents)
    ]
    return [created(), AppendExtents(extents=tuple(extents))]


MISTYPED: dict[str, list[Action]] = {
    "a float": written(version=3.0),
    "a fraction": written(version=1.5),
    "a truth value": written(version=True),
    "a truth value as a count": [created(partitions=True)],
    "a number of NumPy": written(version=np.int64(3)),
    "bytes": written(application=b"query"),
    "half of a surrogate pair": written(application="\ud800"),
    "a time-out in fractions": begun(timeout_ms=1000.5),
    "a transactional id that is no text of UTF-8": begun(transactional_id="\udcff"),
    "a time in fractions": [ExpireProducers(time_ms=1.5)],  # type: ignore[arg-type]
    "a column with a float": appended("max_timestamp_ms", 1, 2.0),
    "a column with a truth value": appended("max_timestamp_ms", 2, True),
    "a column of one float": appended("size", 100.0),
    "a column of one truth value": appended("record_count", True),
    "a column with a number of NumPy": appended("max_timestamp_ms", 2, np.int64(3)),
    "a setting that is a number": [SetConfigs(configs={"retention.ms": 5})],  # type: ignore[dict-item]
}


@pytest.mark.parametrize("actions", MISTYPED.values(), ids=MISTYPED.keys())
def test_what_nobody_could_read_is_not_published(memory: MemoryStore, actions: list[Action]) -> None:
    log = opened(memory)
    set_config(log, "before")
    with pytest.raises(InvalidRequestError) as refused:
        log.publish(lambda _: actions)
    assert refused.value.code == "INVALID_ACTIONS"
    assert "nothing was published" in refused.value.fix
    assert set_config(log, "after") == 1
    assert opened(memory).image == log.image


def test_the_same_with_the_right_types_is_published(log: MetadataLog, memory: MemoryStore) -> None:
    log.publish(lambda _: [*written(), *begun()])
    assert opened(memory).image == log.image
