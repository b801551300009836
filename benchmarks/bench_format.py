"""How fast the format layer is, on one core.

    python benchmarks/bench_format.py [--rounds 7] [--rows 100000] [--only
    encode|decode|batches|shares|oracle]

Every round runs every case once, so that a slow moment of the machine hits all of them; printed are the
median and the range over the rounds. `copy` is how many times longer a case takes than copying the batches'
bytes once, measured in
the same round: it moves less between machines than MB/s. MB are 10^6 uncompressed bytes of batches.
"""

import argparse
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from sparklog.format.byte_views import cut_rows
from sparklog.format.codec import Codec
from sparklog.format.decode import (
    ParsedBodies,
    _bodies,
    decode_records,
    record_times,
    scan_batches,
    stored_timestamps,
)
from sparklog.format.encode import EncodeOptions, encode_batches
from sparklog.format.key_hashes import murmur2
from sparklog.format.record_batch import HEADER, BatchHeader
from sparklog.format.records import parse_records
from sparklog.format.schema import RecordColumns

START_MS = 1_700_000_000_000
STEP_BYTES = 4 << 20  # what log/reader.py hands over at once
WORDS = [b"alpha", b"beta", b"gamma", b"delta", b"user", b"order", b"price", b"true", b"null", b"2024-11-21"]


@dataclass
class Case:
    name: str
    run: Callable[[], object]
    rows: int
    size: int
    seconds: list[float] = field(default_factory=list)


def records(
    rows: int, mean_bytes: int, *, spread: float = 0.2, spaced_ms: int = 0, keyed: bool = True
) -> RecordColumns:
    """JSON-like values around this size, keys of 12 bytes."""
    random = np.random.default_rng(7)
    low, high = int(mean_bytes * (1 - spread)), int(mean_bytes * (1 + spread)) + 1
    sizes = random.integers(low, high, rows)
    ends = np.zeros(rows + 1, np.int32)
    np.cumsum(sizes, out=ends[1:])
    words = [
        b'{"' + WORDS[at] + b'": %d, ' % number
        for at, number in random.integers(0, 10, (int(ends[-1]) // 8, 2))
    ]
    text = b"".join(words)[: int(ends[-1])].ljust(int(ends[-1]), b"x")
    return RecordColumns(
        key=pa.array([b"key-%08d" % number for number in random.integers(0, 10**8, rows)]) if keyed else None,
        value=pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(text)]),
        timestamp_ms=START_MS + np.arange(rows, dtype=np.int64) * spaced_ms,
    )


def encode_case(name: str, columns: RecordColumns, options: EncodeOptions) -> Case:
    size = encode_batches(columns, EncodeOptions(max_batch_bytes=options.max_batch_bytes)).size_bytes
    return Case(f"encode {name}", lambda: encode_batches(columns, options), columns.num_rows, size)


def decode_case(name: str, columns: RecordColumns, options: EncodeOptions) -> Case:
    """Scan with CRC and decode, in steps of 4 MiB as the reader does."""
    size = encode_batches(columns, EncodeOptions(max_batch_bytes=options.max_batch_bytes)).size_bytes
    encoded = encode_batches(columns, options)
    data = encoded.to_bytes()
    ratio = size / len(data)
    ends = np.append(encoded.position[1:], len(data))
    steps, start = [], 0
    while start < len(data):
        end = int(ends[max(0, np.searchsorted(ends, start + STEP_BYTES / ratio, side="right") - 1)])
        end = end if end > start else int(ends[np.searchsorted(ends, start, side="right")])
        steps.append(memoryview(data)[start:end])
        start = end

    def run() -> None:
        for step in steps:
            decode_records(step, scan_batches(step, where="bench"), where="bench")

    return Case(f"decode {name}", run, columns.num_rows, size)


def main_cases(rows: int, only: str) -> Iterator[Case]:
    shapes = {
        "100 B": records(rows, 100),
        "100 B, no key": records(rows, 100, keyed=False),
        "100 B, 1 s apart": records(rows, 100, spaced_ms=1000),
        "100 B, one size": records(rows, 100, spread=0),
        "1000 B": records(rows // 5, 1000),
    }
    for build, wanted in ((encode_case, "encode"), (decode_case, "decode")):
        if only in ("all", wanted):
            for name, columns in shapes.items():
                yield build(name, columns, EncodeOptions())
            for codec in list(Codec)[1:]:
                for name in ("100 B", "1000 B"):
                    yield build(f"{name}, {codec.label}", shapes[name], EncodeOptions(codec=codec))
    if only in ("all", "batches"):
        for kib in (16, 32, 64, 128, 256, 1023):
            options = EncodeOptions(max_batch_bytes=kib << 10)
            yield encode_case(f"100 B, batches of {kib} KiB", shapes["100 B"], options)
            yield decode_case(f"100 B, batches of {kib} KiB", shapes["100 B"], options)
    if only == "all":
        keys = shapes["100 B"].key
        yield Case("murmur2, keys of 12 B", lambda: murmur2(keys), rows, 12 * rows)


def time_cases() -> Iterator[Case]:
    """A large batch that is looked into for a time: all of its records, and their times alone."""
    columns = records(50_000, 14, keyed=False)
    for codec in Codec:
        options = EncodeOptions(codec=codec, max_batch_bytes=4 << 20, max_message_bytes=8 << 20)
        data = encode_batches(columns, options).to_bytes()
        header = BatchHeader(*HEADER.unpack_from(data))
        ways: dict[str, Callable[[], object]] = {
            "all": lambda data=data: decode_records(data, scan_batches(data, where="bench"), where="bench"),
            "times": lambda data=data, header=header: record_times(data, header, where="bench"),
        }
        for name, run in ways.items():
            yield Case(f"a batch of 50,000, {codec.label}: {name}", run, columns.num_rows, len(data))


def share_cases(rows: int) -> Iterator[Case]:
    """Where the time of decoding goes, for one step of the reader."""
    columns = records(min(rows, 35_000), 100)
    for kib in (64, 1023):
        data = encode_batches(columns, EncodeOptions(max_batch_bytes=kib << 10)).to_bytes()
        table = scan_batches(data, where="bench")
        bodies = _bodies(data, table, "bench", 0, 1 << 30)
        last = table.last_offset - table.base_offset
        fields = parse_records(bodies, last)
        batch_of = np.repeat(np.arange(len(table)), bodies.record_count)
        parsed = ParsedBodies(bodies, fields, batch_of, None)
        parts: dict[str, Callable[[], object]] = {
            "scan and CRC": lambda data=data: scan_batches(data, where="bench"),
            "fields": lambda bodies=bodies, last=last: parse_records(bodies, last),
            "timestamps": lambda p=parsed, t=table: stored_timestamps(p, t),
            "keys": lambda b=bodies, f=fields: cut_rows(b.data, f.key_position, f.key_length),
            "values": lambda b=bodies, f=fields: cut_rows(b.data, f.value_position, f.value_length),
        }
        for name, run in parts.items():
            yield Case(f"share, batches of {kib} KiB: {name}", run, columns.num_rows, len(data))


def oracle_cases(rows: int) -> Iterator[Case]:
    """kafka-python's own encoder and decoder, on a tenth of the rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
    columns = records(rows // 10, 100)
    keys, values, times = columns.key.to_pylist(), columns.value.to_pylist(), columns.timestamp_ms.tolist()

    def build() -> bytes:
        builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 30)
        for offset in range(len(keys)):
            builder.append(offset, times[offset], keys[offset], values[offset], [])
        return builder.build()

    data = build()
    yield Case("kafka-python encode 100 B", build, len(keys), len(data))
    yield Case("kafka-python decode 100 B", lambda: list(DefaultRecordBatch(data)), len(keys), len(data))


def measure(cases: list[Case], rounds: int) -> dict[str, list[float]]:
    """Run all cases in every round; returns each case's ratios to a plain copy."""
    blocks = {case.size: np.ones(case.size, np.uint8) for case in cases}
    ratios: dict[str, list[float]] = {case.name: [] for case in cases}
    for case in cases:
        case.run()
    for _ in range(rounds):
        copies = {size: min(_timed(block.copy) for _ in range(3)) for size, block in blocks.items()}
        for case in cases:
            seconds = _timed(case.run)
            case.seconds.append(seconds)
            ratios[case.name].append(seconds / copies[case.size])
    return ratios


def _timed(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def report(cases: list[Case], ratios: dict[str, list[float]]) -> None:
    print(f"{'case':44} {'M records/s':>20} {'MB/s':>22} {'ns/record':>10} {'copy':>16}")
    for case in cases:
        middle, best, worst = statistics.median(case.seconds), min(case.seconds), max(case.seconds)
        rate = [case.rows / seconds / 1e6 for seconds in (middle, worst, best)]
        megabytes = [case.size / seconds / 1e6 for seconds in (middle, worst, best)]
        copy = ratios[case.name]
        print(
            f"{case.name:44} {rate[0]:6.2f} ({rate[1]:5.2f}-{rate[2]:5.2f}) "
            f"{megabytes[0]:7.0f} ({megabytes[1]:5.0f}-{megabytes[2]:5.0f}) {middle / case.rows * 1e9:10.0f} "
            f"{statistics.median(copy):5.1f} ({min(copy):4.1f}-{max(copy):4.1f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument(
        "--only", choices=["all", "encode", "decode", "batches", "times", "shares", "oracle"], default="all"
    )
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    cases = list(main_cases(options.rows, options.only))
    if options.only in ("all", "times"):
        cases += time_cases()
    if options.only in ("all", "shares"):
        cases += share_cases(options.rows)
    if options.only in ("all", "oracle"):
        cases += oracle_cases(options.rows)
    print(
        f"Python {sys.version.split()[0]}, pyarrow {pa.__version__}, numpy {np.__version__}; "
        f"{options.rounds} rounds"
    )
    report(cases, measure(cases, options.rounds))


if __name__ == "__main__":
    main()
