"""Extents: what can be planned, what a plan does to the image, what is refused by plans and by replay."""

import msgspec
import pytest

from sparklog.clock import ManualClock
from sparklog.errors import (
    FencedError,
    InvalidRequestError,
    RetriableError,
    SparklogError,
    UnknownTopicError,
)
from sparklog.metadata import (
    AdvanceLogStart,
    AppendExtents,
    DeleteTopic,
    DraftExtent,
    Extent,
    Image,
    MetadataLog,
    ProducerState,
    ReplaceExtents,
    SequenceCheck,
    check_sequence,
    new_id,
    plan_advance_log_start,
    plan_append,
)
from sparklog.metadata.model.action import ActionRefusedError
from sparklog.metadata.model.actions import apply_actions
from sparklog.metadata.model.extent_list import checksum_of, columns_of
from sparklog.metadata.model.sequences import MAX_PRODUCERS
from sparklog.storage.memory import MemoryStore
from tests.metadata.applying import Append, Create, Draft, applied, some
from tests.replacing import plan_replacing


def offsets(image: Image, partition: int = 0) -> list[tuple[int, int]]:
    return [
        (extent.base_offset, extent.end_offset) for extent in image.partition("orders", partition).extents
    ]


def test_appends_get_dense_offsets_per_partition(log: MetadataLog, create: Create, draft: Draft) -> None:
    topic = create(log)
    for _ in range(2):
        log.publish(
            lambda image: [
                plan_append(
                    image,
                    [
                        draft(topic, 0, record_count=3),
                        draft(topic, 1, record_count=5),
                        draft(topic, 0, record_count=4, position=100),
                    ],
                )
            ]
        )
    assert offsets(log.image, 0) == [(0, 3), (3, 7), (7, 10), (10, 14)]
    assert offsets(log.image, 1) == [(0, 5), (5, 10)]
    assert [extent.offset_delta for extent in log.image.partition("orders", 0).extents] == [0, 3, 7, 10]


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"segment": "../x"}, "leave the root"),
        ({"segment": ""}, "empty"),
        ({"position": -1}, "position -1"),
        ({"position": (1 << 63) - 100}, "position"),
        ({"size": 60}, "smallest record batch"),
        ({"record_count": 0}, "record_count 0"),
        ({"record_count": 1 << 63}, "record_count"),
        ({"max_timestamp_ms": -2}, "max_timestamp_ms"),
        ({"producer_epoch": 1}, "without a producer id"),
        ({"producer_id": 1, "producer_epoch": 1 << 15, "base_sequence": 0}, "producer_epoch"),
        ({"producer_id": 1, "producer_epoch": 0, "base_sequence": -1}, "base_sequence"),
        ({"producer_id": -2, "producer_epoch": 0, "base_sequence": 0}, "producer_id"),
    ],
)
def test_malformed_extents(
    log: MetadataLog, create: Create, draft: Draft, fields: dict[str, object], found: str
) -> None:
    topic = create(log)
    with pytest.raises(InvalidRequestError, match=found):
        plan_append(log.image, [draft(topic, **fields)])
    good = plan_append(log.image, [draft(topic)]).extents[0]
    bad = msgspec.structs.replace(good, **fields)
    with pytest.raises(ActionRefusedError, match=found):
        applied(log.image, AppendExtents(extents=(bad,)))


def test_appends_to_what_does_not_exist(log: MetadataLog, create: Create, draft: Draft) -> None:
    topic = create(log)
    for bad in (draft(new_id()), draft(topic, 2), draft(topic, -1)):
        with pytest.raises(UnknownTopicError):
            plan_append(log.image, [bad])
        extent = Extent(
            base_offset=0, offset_delta=0, **{name: getattr(bad, name) for name in bad.__struct_fields__}
        )
        with pytest.raises(ActionRefusedError, match=r"no topic|no partition"):
            applied(log.image, AppendExtents(extents=(extent,)))


@pytest.mark.parametrize("base_offset", [0, 9, 11, 1 << 40])
def test_replay_refuses_offsets_that_do_not_continue(
    log: MetadataLog, create: Create, append: Append, draft: Draft, base_offset: int
) -> None:
    topic = create(log)
    append(log, topic)
    good = plan_append(log.image, [draft(topic)]).extents[0]
    assert good.base_offset == 10
    bad = msgspec.structs.replace(good, base_offset=base_offset, offset_delta=0)
    with pytest.raises(ActionRefusedError, match=f"base offset {base_offset}, expected the log end 10"):
        applied(log.image, AppendExtents(extents=(bad,)))


def test_offset_delta_must_fit(log: MetadataLog, create: Create, draft: Draft) -> None:
    topic = create(log)
    good = plan_append(log.image, [draft(topic)]).extents[0]
    with pytest.raises(ActionRefusedError, match="offset_delta 5 does not fit"):
        applied(log.image, AppendExtents(extents=(msgspec.structs.replace(good, offset_delta=5),)))


def test_refused_action_leaves_the_image_as_it_was(log: MetadataLog, create: Create, draft: Draft) -> None:
    topic = create(log)
    before = log.image
    good = plan_append(before, [draft(topic)])
    with pytest.raises(InvalidRequestError, match=r"action 1 \(delete_topic\): no topic has the id"):
        log.publish(lambda image: [good, DeleteTopic(topic_id=new_id())])
    assert log.image == before
    assert log.refresh() == before


@pytest.mark.parametrize(
    ("state", "epoch", "sequence", "expected"),
    [
        (None, 3, 17, SequenceCheck.NEXT),
        (ProducerState(1, 9, 0), 1, 10, SequenceCheck.NEXT),
        (ProducerState(1, 9, 0), 1, 9, SequenceCheck.DUPLICATE),
        (ProducerState(1, 9, 0), 1, 0, SequenceCheck.DUPLICATE),
        (ProducerState(1, 9, 0), 1, 11, SequenceCheck.OUT_OF_ORDER),
        (ProducerState(1, 9, 0), 0, 10, SequenceCheck.FENCED),
        (ProducerState(1, 9, 0), 2, 0, SequenceCheck.NEXT),
        (ProducerState(1, 9, 0), 2, 10, SequenceCheck.OUT_OF_ORDER),
        (ProducerState(1, (1 << 31) - 1, 0), 1, 0, SequenceCheck.NEXT),
        (ProducerState(1, 4, 0), 1, (1 << 31) - 5, SequenceCheck.DUPLICATE),
    ],
)
def test_sequences(state: ProducerState | None, epoch: int, sequence: int, expected: SequenceCheck) -> None:
    assert check_sequence(state, epoch, sequence) is expected


def test_producer_state_follows_its_extents(log: MetadataLog, create: Create, draft: Draft) -> None:
    topic = create(log)

    def produced(epoch: int, sequence: int, partition: int = 0) -> DraftExtent:
        return draft(topic, partition, producer_id=7, producer_epoch=epoch, base_sequence=sequence)

    log.publish(lambda image: [plan_append(image, [produced(0, 0), produced(0, 10), produced(0, 0, 1)])])
    state = log.image.partition("orders", 0)
    assert state.producers == {7: ProducerState(producer_epoch=0, last_sequence=19, last_offset=19)}
    assert log.image.partition("orders", 1).producers[7].last_sequence == 9
    for epoch, sequence, error, code in (
        (0, 10, InvalidRequestError, "DUPLICATE_SEQUENCE"),
        (0, 21, InvalidRequestError, "OUT_OF_ORDER_SEQUENCE"),
    ):
        with pytest.raises(error) as raised:
            plan_append(log.image, [produced(epoch, sequence)])
        assert isinstance(raised.value, SparklogError)
        assert raised.value.code == code
    log.publish(lambda image: [plan_append(image, [produced(1, 0)])])
    with pytest.raises(FencedError):
        plan_append(log.image, [produced(0, 20)])
    extent = plan_append(log.image, [draft(topic)]).extents[0]
    stale = msgspec.structs.replace(extent, producer_id=7, producer_epoch=0, base_sequence=20)
    with pytest.raises(ActionRefusedError, match="older epoch"):
        applied(log.image, AppendExtents(extents=(stale,)))


def test_a_partition_forgets_the_producers_that_wrote_long_ago(
    log: MetadataLog, create: Create, draft: Draft, memory: MemoryStore
) -> None:
    topic = create(log)

    def produce(*producer_ids: int, sequence: int = 0) -> None:
        drafts = [
            draft(topic, producer_id=one, producer_epoch=0, base_sequence=sequence) for one in producer_ids
        ]
        log.publish(lambda image: [plan_append(image, drafts)])

    produce(0, 1)
    produce(*range(2, MAX_PRODUCERS))
    produce(0, sequence=10)
    log.write_snapshot()
    produce(MAX_PRODUCERS)
    known = log.image.partition("orders", 0).producers
    assert (len(known), 0 in known, 1 in known, MAX_PRODUCERS in known) == (MAX_PRODUCERS, True, False, True)
    again = MetadataLog.open(memory, ManualClock())  # from the snapshot: the same are forgotten
    assert again.image == log.image
    assert list(again.image.partition("orders", 0).producers) == list(known)
    # An image that has forgotten it, and an extent that has not.
    with pytest.raises(InvalidRequestError) as repeated:
        produce(1, sequence=0)
    assert repeated.value.code == "DUPLICATE_SEQUENCE"
    with pytest.raises(InvalidRequestError) as gap:
        produce(1, sequence=500)
    assert gap.value.code == "OUT_OF_ORDER_SEQUENCE"
    produce(1, sequence=10)
    produce(MAX_PRODUCERS + 1, sequence=500)  # new to the partition: it may start anywhere


def merged(*extents: Extent, **fields: object) -> Extent:
    first, last = extents[0], extents[-1]
    values = {
        "segment": "orders-0/merged.log",
        "position": 0,
        "record_count": last.end_offset - first.base_offset,
        "offset_delta": 0,
        **fields,
    }
    return msgspec.structs.replace(first, **values)


def test_replace_keeps_offsets(log: MetadataLog, create: Create, append: Append) -> None:
    topic = create(log)
    append(log, topic, 5)
    old = log.image.partition("orders", 0).extents[1:4]
    log.publish(lambda image: [plan_replacing(image, old, [merged(*old)])])
    assert offsets(log.image) == [(0, 10), (10, 40), (40, 50)]
    assert log.image.partition("orders", 0).log_end_offset == 50
    with pytest.raises(RetriableError, match="to be replaced have changed") as raised:
        plan_replacing(log.image, old, [merged(*old)])
    assert raised.value.code == "EXTENTS_CHANGED"
    # Compaction may leave gaps, or nothing at all.
    compacted = log.image.partition("orders", 0).extents[0:2]
    parts = [merged(compacted[0], record_count=4), merged(compacted[1], record_count=1)]
    log.publish(lambda image: [plan_replacing(image, compacted, parts)])
    assert offsets(log.image) == [(0, 4), (10, 11), (40, 50)]
    rest = list(log.image.partition("orders", 0).extents)
    log.publish(lambda image: [plan_replacing(image, rest, [])])
    assert offsets(log.image) == []
    assert append(log, topic).partition("orders", 0).log_end_offset == 60


@pytest.mark.parametrize(
    ("start", "end", "count", "found"),
    [
        (0, 20, 1, "hold 2 extents, expected 1"),
        (5, 20, 2, "cut through"),
        (0, 15, 2, "cut through"),
        (50, 60, 0, "expected 0"),
        (20, 10, 1, "expected 1"),
        (-5, 20, 3, "expected 3"),
        (0, 20, 2, "added extent 0 to 30"),
    ],
)
def test_replay_refuses_replacements_that_do_not_fit(
    log: MetadataLog, create: Create, append: Append, start: int, end: int, count: int, found: str
) -> None:
    topic = create(log)
    extents = append(log, topic, 3).partition("orders", 0).extents
    action = ReplaceExtents(
        topic_id=topic.topic_id,
        partition=0,
        start_offset=start,
        end_offset=end,
        removed_count=count,
        removed_crc32c=checksum_of(columns_of(extents[:2])),
        added=(merged(*extents),),
    )
    with pytest.raises(ActionRefusedError, match=found):
        applied(log.image, action)


def test_replacement_of_another_partition_is_refused(
    log: MetadataLog, create: Create, append: Append
) -> None:
    extents = append(log, create(log)).partition("orders", 0).extents
    with pytest.raises(InvalidRequestError, match="another partition"):
        log.publish(lambda image: [plan_replacing(image, extents, [merged(*extents, partition=1)])])
    with pytest.raises(InvalidRequestError, match="nothing to replace"):
        plan_replacing(log.image, [], [])


def test_log_start_only_advances(log: MetadataLog, create: Create, append: Append) -> None:
    topic = create(log)
    append(log, topic, 3)
    log.publish(lambda image: some(plan_advance_log_start(image, topic.topic_id, 0, 15)))
    state = log.image.partition("orders", 0)
    assert (state.log_start_offset, state.log_end_offset, offsets(log.image)) == (
        15,
        30,
        [(10, 20), (20, 30)],
    )
    assert plan_advance_log_start(log.image, topic.topic_id, 0, 15) is None
    assert plan_advance_log_start(log.image, topic.topic_id, 0, 3) is None
    for bad in (31, -1):
        with pytest.raises(InvalidRequestError):
            plan_advance_log_start(log.image, topic.topic_id, 0, bad)
    for bad in (15, 3, 31):
        with pytest.raises(ActionRefusedError, match="log start offset"):
            applied(log.image, AdvanceLogStart(topic_id=topic.topic_id, partition=0, log_start_offset=bad))
    log.publish(lambda image: some(plan_advance_log_start(image, topic.topic_id, 0, 30)))
    assert offsets(log.image) == []
    assert append(log, topic).partition("orders", 0).log_end_offset == 40


def test_commits_must_follow_each_other(log: MetadataLog) -> None:
    with pytest.raises(ActionRefusedError, match="does not follow"):
        apply_actions(log.image, [], commit=log.image.commit + 2, commit_uuid=new_id())
