"""How fast a partition is compacted: MB/s of one core, over what is stored, and how much smaller it gets.

Records of 100 bytes with keys of 16, over so many keys that each is written `--rewrites` times: every batch
loses records. Dirty: the whole log is new. Clean: a tenth as many records are new, as where a topic is
compacted often. Figures are of one process, warm, with the files in the page cache.

    python -m benchmarks.bench_compaction [--records 1000000] [--rewrites 4] [--codec none] [--parent DIR]
"""

import argparse
import cProfile
import json
import pstats
import tempfile
import time

import numpy as np
import pyarrow as pa

import sparklog
from sparklog.client import AppendOptions, SparkLog
from sparklog.maintenance import compact

KEY_BYTES, VALUE_BYTES = 16, 84
STEP = 100_000


def rows(first: int, count: int, keys: int) -> pa.Table:
    """Random keys; values that do not compress to nothing; a tombstone in a hundred."""
    chance = np.random.default_rng(first)
    numbers = chance.integers(0, keys, count)
    key = np.zeros((count, 2), np.uint64)
    key[:, 0], key[:, 1] = numbers, numbers * 0x9E3779B97F4A7
    values = chance.integers(0, 64, count * VALUE_BYTES, np.uint8)
    is_null = chance.integers(0, 100, count) == 0
    value = binary(values.tobytes(), count, VALUE_BYTES)
    return pa.table(
        {
            "key": binary(key.tobytes(), count, KEY_BYTES),
            "value": pa.array(value.to_pylist(), pa.binary(), mask=is_null),
            "timestamp": pa.array(np.arange(first, first + count)),
        }
    )


def binary(data: bytes, count: int, size: int) -> pa.Array:
    offsets = pa.py_buffer(np.arange(0, count * size + 1, size, dtype=np.int32))
    return pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(data)])


def append(log: SparkLog, first: int, count: int, keys: int, codec: str) -> None:
    for start in range(first, first + count, STEP):
        with log.appender(AppendOptions(compression=codec)) as appender:
            appender.add(rows(start, min(STEP, first + count - start), keys), "t")
            log.publish([appender.finish()])


def measure(log: SparkLog, name: str, *, profile: bool) -> None:
    size = sum(extent.size for extent in log.refresh().partition("t", 0).extents)
    profiler = cProfile.Profile()
    wall, cpu = time.perf_counter(), time.process_time()
    if profile:
        profiler.enable()
    report = compact(log.metadata, log.clock).topics["t"]
    profiler.disable()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(
        json.dumps(
            {
                "part": name,
                "MB": round(size / 1e6, 1),
                "records": report.records_read,
                "superseded": report.superseded,
                "now MB": round(report.bytes_after / 1e6, 1),
                "rounds": report.rounds,
                "MB/s": round(size / 1e6 / wall),
                "MB/s of CPU": round(size / 1e6 / cpu),
            }
        ),
        flush=True,
    )
    if profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rewrites", type=int, default=4)
    parser.add_argument("--codec", default="none")
    parser.add_argument("--parent", help="where the root is made; default: the temporary directory")
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    keys = max(1, given.records // given.rewrites)
    with (
        tempfile.TemporaryDirectory(dir=given.parent) as directory,
        sparklog.open(f"{directory}/root") as log,
    ):
        log.create_topic("t", 1, {"cleanup.policy": "compact"})
        append(log, 0, given.records, keys, given.codec)
        measure(log, "dirty", profile=given.profile)
        append(log, given.records, given.records // 10, keys, given.codec)
        measure(log, "clean, a tenth new", profile=given.profile)


if __name__ == "__main__":
    main()
