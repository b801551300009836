"""A segment that the storage does not give, as of a bad disk or an archive, keeps nothing else from its turn;
one that cannot be written does.
"""

import copy
import errno
import os
from collections.abc import Callable

import pyarrow as pa
import pytest

from sparklog.client import SparkLog
from sparklog.errors import StorageError
from sparklog.log.read_plan import extent_span
from sparklog.log.segment_file import Span, UnreadableSegmentError, unreadable_segment
from sparklog.maintenance import MergeLimits, Terms, compact, maintain, optimize
from sparklog.maintenance.rewrite import Spool
from sparklog.storage import MemoryStore, StoreTraits
from tests.maintenance.conftest import Append, Put, extents, records

ALL = MergeLimits(fan_in=None)
APART = MergeLimits(fan_in=None, shared_bytes=0)
BOTH = pytest.mark.parametrize("limits", [ALL, APART], ids=["shared", "apart"])


class Faults:
    """`refused`: segments that are not read, with what the storage says; `asked` for how often."""

    def __init__(self, log: SparkLog) -> None:
        assert isinstance(log.store, MemoryStore)
        self.refused: dict[str, str] = {}
        self.asked: list[str] = []
        self.is_full = False
        log.store.hook = self._hook

    def _hook(self, operation: str, name: str) -> None:
        if operation == "open_read" and name in self.refused:
            self.asked.append(name)
            raise StorageError(self.refused[name], f"{name}: cannot read", fix="look at the disk")
        if operation == "write" and self.is_full:
            raise StorageError("STORAGE_FULL", f"{name}: cannot write", fix="free space")


@pytest.fixture
def faults(log: SparkLog) -> Faults:
    return Faults(log)


def spans_of(log: SparkLog) -> list[Span]:
    return [extent_span("t", extent) for extent in extents(log)]


def counts(log: SparkLog) -> list[int]:
    return [len(extents(log, topic, partition)) for topic in ("a", "t") for partition in range(2)]


@BOTH
def test_what_cannot_be_read_is_told_of_and_the_rest_is_merged(
    four: SparkLog, faults: Faults, limits: MergeLimits
) -> None:
    segment = extents(four, "a", 1)[0].segment
    faults.refused[segment] = "STORAGE_FAILED"
    report = maintain(four.metadata, four.clock, Terms(limits=limits), steps=["optimize"])
    (found,) = report.skipped
    assert (found.topic, found.partition, found.code) == ("a", 1, "STORAGE_FAILED")
    assert segment in found.message
    assert "look at the disk" in found.message
    assert (report.steps[0].outcome, counts(four)) == ("done", [1, 3, 1, 1])
    assert len(faults.asked) == 1  # once it was answered, there is nothing to find out by asking again


def test_of_one_that_many_share_it_is_asked_once(log: SparkLog, append: Append) -> None:
    log.create_topic("many", 8)
    for _ in range(3):
        for partition in range(8):
            append([b"x"], topic="many", partition=partition)
    log.close()
    for partition in range(2):
        for _ in range(3):
            append([b"x"], partition=partition)
    log.close()
    faults = Faults(log)
    faults.refused[extents(log, "many")[0].segment] = "STORAGE_REFUSED"
    report = maintain(log.metadata, log.clock, Terms(limits=ALL), steps=["optimize"])
    assert {(one.topic, one.partition) for one in report.skipped} == {("many", n) for n in range(8)}
    assert [len(extents(log, "t", partition)) for partition in range(2)] == [1, 1]
    assert len(faults.asked) == 1


@BOTH
def test_an_order_ends_with_it(four: SparkLog, faults: Faults, limits: MergeLimits) -> None:
    faults.refused[extents(four, "t", 0)[0].segment] = "STORAGE_REFUSED"
    with pytest.raises(StorageError, match="STORAGE_REFUSED"):
        optimize(four.metadata, four.clock, limits=limits)
    assert counts(four) == [1, 1, 3, 1]


@BOTH
def test_what_cannot_be_written_ends_the_step(four: SparkLog, faults: Faults, limits: MergeLimits) -> None:
    faults.is_full = True
    report = maintain(four.metadata, four.clock, Terms(limits=limits), steps=["optimize"])
    assert (report.steps[0].outcome, report.skipped) == ("failed", ())
    assert "STORAGE_FULL" in report.steps[0].message


@BOTH
def test_too_many_open_files_are_nothing_that_a_segment_is_to_blame_for(
    four: SparkLog, faults: Faults, limits: MergeLimits
) -> None:
    faults.refused[extents(four, "a", 1)[0].segment] = "TOO_MANY_OPEN_FILES"
    report = maintain(four.metadata, four.clock, Terms(limits=limits), steps=["optimize"])
    assert (report.steps[0].outcome, report.skipped) == ("failed", ())


@BOTH
def test_a_round_waits_for_one_that_is_not_answered_for_and_for_no_other(
    four: SparkLog, faults: Faults, limits: MergeLimits
) -> None:
    """Each time that takes as long as the storage's patience."""
    for partition in range(2):
        faults.refused[extents(four, "a", partition)[0].segment] = "STORE_UNAVAILABLE"
    terms = Terms(limits=limits)
    report = maintain(four.metadata, four.clock, terms, steps=["optimize"])
    assert (len(faults.asked), len(report.skipped), report.steps[0].outcome) == (1, 1, "cut")
    but = frozenset(one.key for one in report.skipped)
    report = maintain(four.metadata, four.clock, Terms(limits=limits, skip=but), steps=["optimize"])
    assert (len(faults.asked), len(report.skipped)) == (2, 1)
    but |= {one.key for one in report.skipped}
    maintain(four.metadata, four.clock, Terms(limits=limits, skip=but), steps=["optimize"])
    assert counts(four) == [3, 3, 1, 1]


def test_a_store_that_is_away_altogether_ends_the_step(four: SparkLog) -> None:
    faults, hooked = Faults(four), four.store
    assert isinstance(hooked, MemoryStore)
    faults.refused[extents(four, "a", 0)[0].segment] = "STORE_UNAVAILABLE"
    first = hooked.hook
    assert first is not None

    def hook(operation: str, name: str) -> None:
        if faults.asked:
            raise StorageError("STORE_UNAVAILABLE", f"{name}: cannot {operation}", fix="wait")
        first(operation, name)

    hooked.hook = hook
    report = maintain(four.metadata, four.clock, Terms(limits=ALL), steps=["optimize"])
    assert (report.steps[0].outcome, report.skipped) == ("failed", ())


@pytest.mark.parametrize("code", ["STORAGE_FAILED", "STORE_UNAVAILABLE"])
def test_so_it_is_with_compaction(table: SparkLog, put: Put, code: str) -> None:
    for partition in range(2):
        for number in range(3):
            put((b"a", b"%d" % number), partition=partition)
        table.close()
    for partition in range(2):
        put((b"b", b"1"), partition=partition)  # the newest extent stays by itself
    faults = Faults(table)
    faults.refused[extents(table, "table", 0)[0].segment] = code
    report = maintain(table.metadata, table.clock, Terms(limits=MergeLimits(fan_in=3)), steps=["compact"])
    (found,) = report.skipped
    assert (found.topic, found.partition, found.code) == ("table", 0, code)
    is_cut = code == "STORE_UNAVAILABLE"
    assert report.steps[0].outcome == ("cut" if is_cut else "done")
    assert len(records(table, "table", 1)) == (4 if is_cut else 2)
    with pytest.raises(StorageError, match=code):
        compact(table.metadata, table.clock)


def test_a_spool_tells_again_what_it_was_told(log: SparkLog, append: Append) -> None:
    log.store.traits = StoreTraits(is_remote=True)  # type: ignore[misc]
    for _ in range(4):
        append([b"x"])
    log.close()
    faults = Faults(log)
    faults.refused[extents(log)[0].segment] = "STORAGE_REFUSED"
    spans = spans_of(log)
    with Spool(log.store) as spool:
        spool.fill(spans, 2, lambda _size: None)
        faults.asked.clear()
        for span in spans:
            assert spool.has(span)
            with pytest.raises(StorageError, match="STORAGE_REFUSED"):
                spool.read_into(span, memoryview(bytearray(span.size)))
    assert faults.asked == []


def test_a_disk_that_cannot_read_a_file(tmp_path_log: SparkLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path_log
    log.create_topic("t", 2)
    for partition in range(2):
        for _ in range(2):
            log.append("t", pa.table({"value": ["x"]}), partition=partition)
        log.close()
    bad = extents(log, "t", 0)[0].segment
    real: Callable[..., int] = os.preadv

    def preadv(descriptor: int, *arguments: object) -> int:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(bad):
            raise OSError(errno.EIO, "Input/output error")
        return real(descriptor, *arguments)

    monkeypatch.setattr(os, "preadv", preadv)
    report = maintain(log.metadata, log.clock, Terms(limits=APART), steps=["optimize"])
    (found,) = report.skipped
    assert (found.partition, found.code) == (0, "STORAGE_FAILED")
    assert [len(extents(log, "t", partition)) for partition in range(2)] == [2, 1]


def test_it_keeps_its_segment_on_the_way_from_an_executor(log: SparkLog, append: Append) -> None:
    append([b"x"])
    (span,) = spans_of(log)
    error = unreadable_segment(span, StorageError("STORAGE_FAILED", "s: cannot read", fix="look"))
    assert isinstance(error, UnreadableSegmentError)
    copied = copy.copy(error)  # by the same way
    assert (copied.segment, str(copied), type(copied)) == (span.segment, str(error), type(error))
