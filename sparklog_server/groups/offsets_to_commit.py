"""Offsets that are asked to be committed, and the records that they make.

Concurrency: immutable; a pure function.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sparklog.format.consumer_offsets import NO_EXPIRY, OffsetKey, OffsetValue
from sparklog_server.groups.offsets_log import OffsetRecord

LAST_MS: Final = (1 << 63) - 1  # that a record can say


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetToCommit:
    """One partition of an OffsetCommit, or TxnOffsetCommit."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


def records_of(
    group_id: str, offsets: Sequence[OffsetToCommit], now_ms: int, retention_ms: int = -1
) -> list[OffsetRecord]:
    """What the log is to say of them. `retention_ms`: the client's own; -1: as the broker's."""
    expire_ms = min(now_ms + retention_ms, LAST_MS) if retention_ms >= 0 else NO_EXPIRY
    return [
        OffsetRecord(
            OffsetKey(group=group_id, topic=one.topic, partition=one.partition),
            OffsetValue(
                offset=one.offset,
                leader_epoch=one.leader_epoch,
                metadata=one.metadata,
                commit_timestamp_ms=now_ms,
                expire_timestamp_ms=expire_ms,
            ),
        )
        for one in offsets
    ]
