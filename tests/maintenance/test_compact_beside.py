"""Two compactors, a merger, writers and a reader at once, where nothing holds names: nothing is revived."""

import threading

import pyarrow as pa

import sparklog
from sparklog.clock import SystemClock
from sparklog.maintenance import CompactionLimits, MergeLimits, compact, optimize

KEYS = 5
ROUNDS = 10


def test_all_at_once_on_s3(s3_root: str) -> None:
    with sparklog.open(s3_root) as log:
        log.create_topic("t", 1, {"cleanup.policy": "compact", "delete.retention.ms": "0"})
        failed: list[Exception] = []

        def write(writer: int) -> None:
            with sparklog.open(s3_root, create=False) as own:
                for number in range(ROUNDS):
                    keys = [b"%d-%d" % (writer, key) for key in range(KEYS)]
                    values = [b"%d" % number if key or number < ROUNDS - 1 else None for key in range(KEYS)]
                    own.append("t", pa.table({"key": keys, "value": pa.array(values, pa.binary())}))

        def maintain(buffer_bytes: int) -> None:
            limits = CompactionLimits(dedupe_buffer_bytes=buffer_bytes)
            try:
                with sparklog.open(s3_root, create=False) as own:
                    while any(one.is_alive() for one in writers):
                        compact(own.metadata, SystemClock(), limits=limits)
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
                            number = ROUNDS if value is None else int(value)
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
        compact(log.metadata, SystemClock())
        log.refresh()
        found = log.read("t", 0, 0)
        left = dict(zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True))
        assert len(left) == found.num_rows
        last = b"%d" % (ROUNDS - 1)
        assert left == {b"%d-%d" % (writer, key): last for writer in range(3) for key in range(1, KEYS)}
        assert log.log_end_offset("t", 0) == 3 * ROUNDS * KEYS
