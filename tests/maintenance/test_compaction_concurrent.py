"""Two compactors, a merger, writers and a reader at once, where nothing holds names: nothing is revived."""

import itertools
import threading
from collections.abc import Callable

import pyarrow as pa

import sparklog
from sparklog.client import SparkLog
from sparklog.clock import SystemClock
from sparklog.maintenance import CompactionLimits, MergeLimits, compact, optimize

KEYS = 5
ROUNDS = 10


def write_keys(root: str, writer: int, is_enough: Callable[[], bool]) -> int:
    """ROUNDS times, and on until it is enough. At the end the first key has a tombstone, the others the
    number that is returned.
    """
    with sparklog.open(root, create=False) as own:
        for number in itertools.count():
            is_last = number >= ROUNDS - 1 and is_enough()
            keys = [b"%d-%d" % (writer, key) for key in range(KEYS)]
            values = [None if is_last and not key else b"%d" % number for key in range(KEYS)]
            own.append("t", pa.table({"key": keys, "value": pa.array(values, pa.binary())}))
            if is_last:
                return number
    raise AssertionError("there is no last number")


def compacted_to_the_end(log: SparkLog) -> pa.Table:
    """Without tombstones. The store's dates, by which they go, are of whole seconds."""
    for _ in range(1_000):
        compact(log.metadata, SystemClock())
        log.refresh()
        found = log.read("t", 0, 0)
        if None not in found["value"].to_pylist():
            break
    return found


def test_all_at_once_on_s3(s3_root: str) -> None:
    with sparklog.open(s3_root) as log:
        log.create_topic("t", 1, {"cleanup.policy": "compact", "delete.retention.ms": "0"})
        failed: list[Exception] = []
        removed: list[int] = []
        last: dict[int, int] = {}

        def write(writer: int) -> None:
            last[writer] = write_keys(s3_root, writer, lambda: bool(sum(removed) or failed))

        def maintain(buffer_bytes: int) -> None:
            limits = CompactionLimits(dedupe_buffer_bytes=buffer_bytes)
            try:
                with sparklog.open(s3_root, create=False) as own:
                    while any(one.is_alive() for one in writers):
                        report = compact(own.metadata, SystemClock(), limits=limits)
                        removed.append(report.topics["t"].records_removed)
                        if buffer_bytes > 400:
                            optimize(own.metadata, own.clock, limits=MergeLimits(fan_in=None))
            except Exception as error:
                failed.append(error)

        def read() -> None:
            """The last value of each key only ever grows."""
            seen: dict[bytes, int] = {}
            try:
                with sparklog.open(s3_root, create=False) as own:
                    while any(one.is_alive() for one in writers):
                        own.refresh()
                        found = own.read("t", 0, 0)
                        now = dict(zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True))
                        for key, value in now.items():
                            number = 1 << 30 if value is None else int(value)
                            assert number >= seen.get(key, -1), (key, number, seen[key])
                            seen[key] = number
            except Exception as error:
                failed.append(error)

        writers = [threading.Thread(target=write, args=(writer,)) for writer in range(3)]
        others = [threading.Thread(target=maintain, args=(size,)) for size in (400, 1 << 20)]
        others.append(threading.Thread(target=read))
        for one in [*writers, *others]:
            one.start()
        for one in [*writers, *others]:
            one.join()
        assert failed == []
        found = compacted_to_the_end(log)
        left = dict(zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True))
        assert len(left) == found.num_rows
        assert left == {
            b"%d-%d" % (writer, key): b"%d" % last[writer] for writer in range(3) for key in range(1, KEYS)
        }
        assert log.log_end_offset("t", 0) == sum(number + 1 for number in last.values()) * KEYS
