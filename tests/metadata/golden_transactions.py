"""What a commit may say of transactions: of the golden file metadata_commit_9.bin."""

import msgspec

from sparklog.metadata import (
    Action,
    AddToTransaction,
    BeginProducer,
    DraftExtent,
    EndTransaction,
    ForgetTransactions,
    RestoreRoot,
    RetireSegments,
    StageExtents,
)

TOPIC = "A" * 22
STAGED = DraftExtent(
    topic_id=TOPIC,
    partition=1,
    segment="segments/w/0.log",
    position=61,
    size=1000,
    record_count=10,
    max_timestamp_ms=1_700_000_000_000,
    producer_id=7,
    producer_epoch=1,
    base_sequence=0,
)
MANY = tuple(
    msgspec.structs.replace(STAGED, partition=number % 3, position=1000 * number) for number in range(8)
)
ACTIONS_9: tuple[Action, ...] = (
    BeginProducer(
        transactional_id="app",
        producer_id=7,
        producer_epoch=1,
        timeout_ms=60_000,
        time_ms=1_700_000_000_000,
        follows=True,
    ),
    BeginProducer(
        transactional_id="job", producer_id=8, producer_epoch=0, timeout_ms=1, time_ms=1_700_000_000_001
    ),
    AddToTransaction(
        transactional_id="app",
        producer_id=7,
        producer_epoch=1,
        time_ms=1_700_000_000_002,
        topics=(TOPIC, "B" * 22),
        topic=(0, 0, 1),
        partition=(0, 1, 0),
        groups=("readers",),
    ),
    StageExtents(extents=(STAGED,)),
    StageExtents(extents=MANY, opens_ms=(-1, 5, 5, 5, 5, 5, 5, 5)),
    EndTransaction(
        transactional_id="app",
        producer_id=7,
        producer_epoch=1,
        committed=True,
        time_ms=1_700_000_000_003,
        number=12,
    ),
    EndTransaction(
        transactional_id="app",
        producer_id=7,
        producer_epoch=1,
        committed=False,
        time_ms=1_700_000_000_004,
        next_producer_id=7,
        next_producer_epoch=2,
        fences=True,
    ),
    ForgetTransactions(transactional_ids=("app", "job")),
    RetireSegments(
        time_ms=1_700_000_000_005,
        segments=(f"segments/{'a' * 32}/00000003.4.log",),
        left=(f"segments/{'a' * 32}/00000002.4.log",),
        gone=(f"segments/{'a' * 32}/00000001.4.log",),
    ),
    RestoreRoot(
        incarnation_id="R" * 22,
        producer_id=1 << 50,
        leader_epoch=200_000_000,
        births_ahead=1 << 50,
        time_ms=1_700_000_000_005,
    ),
)
