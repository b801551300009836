"""Encoded batches of many partitions on the local disk, until they are written by partition.

Each time that the buffer of an appender is full, each partition that has rows gets an extent. A task of
256 MB with keys of 1,000 partitions would have 8,000, of 32 KB each; and 200 such tasks more than a commit
has room for. So where extents are many, batches wait here, and are written to the segment one partition
after the other: one extent for each, however often the buffer was full.

Invariants: what comes out are the bytes that went in, but for base offsets: of a partition in the order in
    which they were added, counting from where the caller says. Nothing is durable here.
    The file has no name: it belongs to this process alone, and goes with it.
Memory: 40 bytes a batch, and 48 for each partition of each `add`; GROUP_BYTES while batches are taken out.
Disk: SPOOL_BYTES at most, and a sixteenth of what is free where temporary files lie (TMPDIR), asked for with
    each `add`: other tasks fill the same disk, and what waits has to be written once more, maybe there.
Not here: when it is worth while (appender.py).
Concurrency: one thread.
"""

import contextlib
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from sparklog.closing import Closing
from sparklog.errors import StorageError
from sparklog.format.encode_partitions import EncodedPartitions
from sparklog.format.encoded_batches import EncodedBatches
from sparklog.format.record_batch import set_base_offsets
from sparklog.storage.local_files import write_all

SPOOL_BYTES = 1 << 30
GROUP_BYTES = 4 << 20
_GROUP_PIECES = 1024
_FREE_SHARE = 16
_Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Added:
    """What one call has added, and where it lies."""

    place: int
    partition: _Int64Array
    encoded: EncodedPartitions  # without data


@dataclass(frozen=True, slots=True)
class SpooledBatches:
    """Batches of one partition, to be written one after the other."""

    batches: EncodedBatches

    def counting_from(self, base_offset: int) -> EncodedBatches:
        """With base offsets from there on; may be asked again."""
        counts = self.batches.batch_record_count
        offsets = np.cumsum(counts) - counts + base_offset
        (data,) = self.batches.data
        set_base_offsets(memoryview(data), self.batches.position, offsets, leader_epoch=None)
        return replace(self.batches, base_offset=offsets)


class PartitionSpool(Closing):
    """See the module's docstring."""

    def __init__(self, *, limit_bytes: int | None = None) -> None:
        """`limit_bytes`: by default SPOOL_BYTES."""
        self._limit_bytes = SPOOL_BYTES if limit_bytes is None else limit_bytes
        self._file: IO[bytes] | None = None
        self._end = 0
        self._added: dict[str, list[_Added]] = {}  # by topic id

    def add(self, topic_id: str, partitions: Sequence[int], encoded: EncodedPartitions) -> bool:
        """Keep batches, after what these partitions have; False: there is no room, and nothing was kept."""
        size = encoded.batches.size_bytes
        if self._end + size > min(self._limit_bytes, _share(self._end)):
            return False
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="sparklog-", buffering=0)  # noqa: SIM115 - `close`
            write_all(self._file.fileno(), [memoryview(chunk) for chunk in encoded.batches.data], self._end)
        except OSError:  # the disk is full, or there is none: as if there had never been room
            self._limit_bytes = 0
            return False
        kept = dataclasses.replace(encoded, batches=replace(encoded.batches, data=[]))
        one = _Added(self._end, np.array(partitions, np.int64), kept)
        self._added.setdefault(topic_id, []).append(one)
        self._end += size
        return True

    def take_all(self) -> Iterator[tuple[str, int, SpooledBatches]]:
        """(topic id, partition, its batches): a partition's in groups, one after the other. It is empty then.

        Raises: StorageError, the disk did not give what it was given.
        """
        for topic_id, added in self._added.items():
            for partition, group in _by_partition(added):
                yield topic_id, partition, SpooledBatches(self._read(group))
        self._added, self._end = {}, 0
        if self._file is not None:
            with contextlib.suppress(OSError):  # others have use for the space; all of it was read
                os.ftruncate(self._file.fileno(), 0)

    def close(self) -> None:
        """Forget everything."""
        self._added, self._end = {}, 0
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read(self, group: Sequence[tuple[_Added, int]]) -> EncodedBatches:
        """The batches of these partitions of what was added, one after the other."""
        assert self._file is not None, "something was added"
        own = [(one, _rows_of(one.encoded, index)) for one, index in group]
        size = np.concatenate([one.encoded.batches.size[rows] for one, rows in own])
        counts = np.concatenate([one.encoded.batches.batch_record_count[rows] for one, rows in own])
        newest = np.concatenate([one.encoded.batches.batch_max_timestamp_ms[rows] for one, rows in own])
        data, at = memoryview(bytearray(int(size.sum()))), 0
        for one, rows in own:
            batches = one.encoded.batches
            end = at + int(batches.size[rows].sum())
            self._read_into(data[at:end], one.place + int(batches.position[rows.start]))
            at = end
        return EncodedBatches(
            data=[data],
            size_bytes=len(data),
            record_count=int(counts.sum()),
            max_timestamp_ms=int(newest.max()),
            position=np.cumsum(size) - size,
            size=size,
            base_offset=np.cumsum(counts) - counts,
            batch_record_count=counts,
            batch_max_timestamp_ms=newest,
        )

    def _read_into(self, buffer: memoryview, place: int) -> None:
        assert self._file is not None, "something was added"
        try:
            count = os.preadv(self._file.fileno(), [buffer], place)
        except OSError as error:
            raise _unreadable(str(error.strerror)) from error
        if count != len(buffer):
            raise _unreadable(f"found {count} bytes at {place}, expected {len(buffer)}")


def _by_partition(added: Sequence[_Added]) -> Iterator[tuple[int, list[tuple[_Added, int]]]]:
    """(partition, some of what was added for it, in order), ascending."""
    partition = np.concatenate([one.partition for one in added])
    number = np.repeat(np.arange(len(added)), [len(one.partition) for one in added])
    index = np.concatenate([np.arange(len(one.partition)) for one in added])
    size = np.concatenate([one.encoded.size_bytes for one in added])
    order = np.argsort(partition, kind="stable")
    columns = (partition[order].tolist(), number[order].tolist(), index[order].tolist(), size[order].tolist())
    before, group, group_bytes = -1, list[tuple[_Added, int]](), 0
    for own, at, row, own_bytes in zip(*columns, strict=True):
        full = group_bytes + own_bytes > GROUP_BYTES or len(group) == _GROUP_PIECES
        if group and (own != before or full):
            yield before, group
            group, group_bytes = [], 0
        before = own
        group.append((added[at], row))
        group_bytes += own_bytes
    if group:
        yield before, group


def _rows_of(encoded: EncodedPartitions, index: int) -> slice:
    """Its batches."""
    return slice(int(encoded.first_batch[index]), int(encoded.first_batch[index + 1]))


def _unreadable(problem: str) -> StorageError:
    return StorageError(
        "STORAGE_FAILED",
        f"{tempfile.gettempdir()}: cannot read a temporary file of this process: {problem}",
        fix="Check that disk, or set TMPDIR to another one, and write again; nothing was published",
    )


def _share(own_bytes: int) -> int:
    """Of what the disk has left beside the files of others."""
    try:
        return (shutil.disk_usage(tempfile.gettempdir()).free + own_bytes) // _FREE_SHARE
    except OSError:
        return 0
