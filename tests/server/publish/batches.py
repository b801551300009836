"""Builders: what a client would send, with a default for everything."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from sparklog.format.codec import Codec
from sparklog.format.encode import EncodeOptions, encode_batches
from sparklog.format.record_batch import HEADER, BatchHeader, encode_header, parse_header
from sparklog.format.schema import RecordColumns
from sparklog.log.config import TopicConfig
from sparklog_server.publish.parts import AppendPart, InTransaction
from sparklog_server.publish.produced_batches import (
    SMALL_BYTES,
    BatchRules,
    CheckTerms,
    Scratch,
    UncheckedPart,
    check_produced,
)

NOW_MS = 1_700_000_000_000
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"


def batch(
    values: Sequence[bytes | None] = (b"one", b"two"),
    *,
    keys: Sequence[bytes | None] | None = None,
    timestamps: Sequence[int] | None = None,
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
) -> bytes:
    """One record batch, as a producer makes it."""
    columns = RecordColumns(
        key=None if keys is None else pa.array(keys, pa.binary()),
        value=pa.array(values, pa.binary()),
        timestamp_ms=np.array([NOW_MS] * len(values) if timestamps is None else timestamps, np.int64),
    )
    options = EncodeOptions(
        codec=codec,
        max_batch_bytes=1 << 30,
        max_message_bytes=1 << 30,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        is_transactional=is_transactional,
    )
    return encode_batches(columns, options).to_bytes()


def with_header(data: bytes, **fields: int) -> bytes:
    """The batch with some header fields changed and a CRC that fits."""
    body = data[HEADER.size :]
    return encode_header(dataclasses.replace(parse_header(data, 0, "here"), **fields), body) + body


def raw_header(data: bytes) -> BatchHeader:
    return BatchHeader(*HEADER.unpack_from(data))


def rules(limit_bytes: int = 1 << 20, /, **configs: str) -> BatchRules:
    """Of a topic with these settings; '_' for '.' and '-'."""
    named = {key.replace("_", "."): value for key, value in configs.items()}
    return BatchRules.of(TopicConfig.parse(named, {}), limit_bytes)


def part(
    data: bytes | None = None,
    *,
    topic_id: str = TOPIC_ID,
    topic: str = "orders",
    partition: int = 0,
    count: int = 2,
    producer: tuple[int, int, int] | None = None,
    transaction: InTransaction | None = None,
    leader_epoch: int = 1,
    **configs: str,
) -> AppendPart:
    """A validated part; `producer` is (id, epoch, base sequence), `leader_epoch` that of the first leader."""
    if data is None:
        producer_id, producer_epoch, base_sequence = producer or (-1, -1, -1)
        data = batch(
            [b"%s-%d-%d" % (topic.encode(), partition, n) for n in range(count)],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            is_transactional=transaction is not None,
        )
    encoded, header, appended_ms = check_produced(
        data,
        rules(**configs),
        where=f"{topic}-{partition}",
        now_ms=NOW_MS,
        api_version=9,
        in_transaction=transaction is not None,
    )
    return AppendPart(
        topic_id=topic_id,
        topic=topic,
        partition=partition,
        encoded=encoded,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        log_append_time_ms=appended_ms,
        transaction=transaction,
        leader_epoch=leader_epoch,
    )


class FakePart(UncheckedPart, kw_only=True):
    """A part whose validation is what a test says."""

    make: Callable[[], AppendPart]

    @classmethod
    def like(
        cls, ready: AppendPart, make: Callable[[], AppendPart] | None = None, size: int = 0
    ) -> "FakePart":
        """Return one that becomes `ready`, if it is not made otherwise."""
        size = size or ready.size_bytes
        terms = CheckTerms(
            rules=rules(), topic_id=ready.topic_id, topic=ready.topic, now_ms=lambda: NOW_MS, api_version=9
        )
        return cls(
            data=b"",
            terms=terms,
            partition=ready.partition,
            leader_epoch=ready.leader_epoch,
            size_bytes=size,
            is_small=size <= SMALL_BYTES,
            may_grow=False,
            make=make or (lambda: ready),
        )

    def accept(self, scratch: Scratch | None) -> AppendPart | None:
        return self.make()

    def check(self, scratch: Scratch | None = None) -> AppendPart:
        return self.make()
