"""sparklog beside Apache Kafka and its Spark connector, Parquet and Delta: one machine, one run.

    python -m benchmarks.peers [--quick] [--records N] [--only batch,copy,latency,...]

What a peer needs is fetched by Maven (fetching.py); a peer that cannot be had is named in the report, and the
rest runs. The report is printed, and kept as bench-output/peers.md, .json and .png.
"""

import argparse
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from benchmarks.peers import batch, fetching, growth, lookups, perf_tools, queues, streaming, transactions
from benchmarks.peers.fetching import Jars, NotFetchedError
from benchmarks.peers.kafka_process import HEAP
from benchmarks.peers.page_cache import PageCache
from benchmarks.peers.results import Results
from benchmarks.peers.sides import (
    PARTITIONS,
    REPOSITORY,
    Side,
    SideError,
    file_side,
    kafka_side,
    sparklog_side,
)
from benchmarks.peers.spark_driver import SESSION, TASKS
from benchmarks.peers.warming import MOST_TURNS

PARTS = ("batch", "copy", "latency", "lookup", "growth", "perf", "transactions", "queue")
BROKERS_ONLY = {"perf", "transactions", "queue"}  # without Spark


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small, and one repetition; under five minutes")
    parser.add_argument(
        "--records", type=int, help="of 100 bytes; of 1,000 bytes a fifth (default 1,000,000)"
    )
    parser.add_argument(
        "--sizes", default="100,1000", choices=("100,1000", "100", "1000"), help="bytes of a batch's values"
    )
    parser.add_argument("--copy-records", type=int, help="of 100 bytes (default: as --records)")
    parser.add_argument("--backfill-records", type=int, help="the topic that backfills look into")
    parser.add_argument("--growth-records", type=int, help="of 100 bytes, whatever they are divided into")
    parser.add_argument("--perf-records", type=int, help="of 100 bytes, for Kafka's perf tests")
    parser.add_argument("--transaction-records", type=int, help="of 100 bytes, in transactions of 1,000")
    parser.add_argument("--queue-records", type=int, help="of 100 bytes, for a share group")
    parser.add_argument("--repetitions", type=int)
    parser.add_argument(
        "--warm-turns", type=int, help=f"at most, before anything counts (default {MOST_TURNS}, 1 if quick)"
    )
    parser.add_argument("--codecs", help="default none,lz4,snappy")
    parser.add_argument("--rate", type=int, default=10_000, help="records/s of the latency test")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--sides", default="sparklog,kafka,parquet,delta")
    parser.add_argument(
        "--dir", type=Path, help="on the file system to measure (default: the temporary directory)"
    )
    chosen = parser.parse_args()
    chosen.records = chosen.records or (500_000 if chosen.quick else 1_000_000)
    chosen.copy_records = chosen.copy_records or chosen.records
    chosen.backfill_records = chosen.backfill_records or (400_000 if chosen.quick else 4_000_000)
    chosen.growth_records = chosen.growth_records or (200_000 if chosen.quick else 1_000_000)
    chosen.perf_records = chosen.perf_records or (500_000 if chosen.quick else 3_000_000)
    chosen.transaction_records = chosen.transaction_records or (40_000 if chosen.quick else 200_000)
    chosen.queue_records = chosen.queue_records or (100_000 if chosen.quick else 1_000_000)
    chosen.repetitions = chosen.repetitions or (1 if chosen.quick else 3)
    chosen.warm_turns = chosen.warm_turns or (1 if chosen.quick else MOST_TURNS)
    chosen.codecs = (chosen.codecs or ("none,lz4" if chosen.quick else "none,lz4,snappy")).split(",")
    chosen.latency_seconds = 10 if chosen.quick else 30
    return chosen


def start_sides(
    names: list[str], parent: Path, kafka: Jars | None, results: Results, stack: contextlib.ExitStack
) -> list[Side]:
    """Those that can be had, each tried with a few rows."""
    sides = []
    for name in names:
        try:
            if name == "sparklog":
                context = sparklog_side(parent)
            elif name == "kafka":
                if kafka is None:
                    continue
                connector = fetching.connector()
                results.note(
                    f"Kafka {kafka.version}; Spark's connector {connector.version}; {connector.note}".rstrip(
                        "; "
                    )
                )
                context = kafka_side(parent, kafka, connector)
            else:
                jars = fetching.delta() if name == "delta" else None
                context = file_side(parent, name, jars)
            side = stack.enter_context(context)
            side.create_topic("probe")
            side.ask("write", topic="probe", records=10, value_bytes=100, codec="none", options={})
            assert side.ask("count", topic="probe")["records"] == 10
        except (NotFetchedError, SideError, OSError) as error:
            results.note(f"without {name}: {' '.join(str(error).split())[:300]}")
            continue
        sides.append(side)
    return sides


def compare_brokers(kafka: Jars, parent: Path, results: Results, chosen: argparse.Namespace) -> None:
    """Run the parts that need no Spark."""
    parts = chosen.only.split(",")
    if "perf" in parts:
        codecs = [codec for codec in chosen.codecs if codec != "snappy"]
        sizes = {100: chosen.perf_records, 1000: chosen.perf_records // 5}
        perf_tools.run(
            kafka, parent, results, sizes=sizes, codecs=codecs,
            repetitions=chosen.repetitions, warm_turns=chosen.warm_turns,
        )  # fmt: skip
    if "transactions" in parts:
        count = chosen.transaction_records
        transactions.run(
            kafka, parent, results, records=count, producers=(1, 8), repetitions=chosen.repetitions
        )
    if "queue" in parts:
        count = chosen.queue_records
        queues.run(kafka, parent, results, records=count, members=(1, 4), repetitions=chosen.repetitions)


def main() -> int:
    chosen = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended then, too
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    parts = chosen.only.split(",")
    results = Results()
    all_sizes = {100: chosen.records, 1000: chosen.records // 5}
    sizes = {size: all_sizes[size] for size in map(int, chosen.sizes.split(","))}
    repetitions = chosen.repetitions
    parent = Path(tempfile.mkdtemp(prefix="bench-peers-", dir=chosen.dir))
    try:
        kafka = fetching.kafka()
    except NotFetchedError as error:
        kafka = None
        results.note(f"without kafka: {error}")
    try:
        cache = PageCache(parent)
        if not chosen.quick:
            results.note(cache.fill())
        if set(parts) - BROKERS_ONLY:
            with contextlib.ExitStack() as stack:
                sides = start_sides(chosen.sides.split(","), parent, kafka, results, stack)
                if "batch" in parts:
                    batch.run(
                        sides, results, cache, sizes=sizes, codecs=chosen.codecs,
                        repetitions=repetitions, warm_turns=chosen.warm_turns,
                    )  # fmt: skip
                if "copy" in parts:
                    streaming.copies(
                        sides, results, cache, records=chosen.copy_records,
                        repetitions=repetitions, warm_turns=chosen.warm_turns,
                    )  # fmt: skip
                if "latency" in parts:
                    seconds = chosen.latency_seconds
                    streaming.latencies(
                        sides, results, rate=chosen.rate, seconds=seconds, repetitions=repetitions
                    )
                if "lookup" in parts:
                    lookups.first_rows(sides, results, repetitions=repetitions)
                    count = chosen.backfill_records
                    lookups.backfills(sides, results, records=count, repetitions=repetitions)
                if "growth" in parts:
                    growth.run(
                        sides, results, parent, cache, records=chosen.growth_records, repetitions=repetitions
                    )
        if kafka is not None:
            compare_brokers(kafka, parent, results, chosen)
    finally:
        shutil.rmtree(parent, ignore_errors=True)
        results.write(REPOSITORY / "bench-output", settings(chosen))
    return 0


def settings(chosen: argparse.Namespace) -> dict[str, str]:
    """What everyone was given."""
    return {
        "arguments": " ".join(sys.argv[1:]) or "none",
        "Spark": f"local[{TASKS}], " + ", ".join(f"{key}={value}" for key, value in SESSION.items()),
        "topics": f"{PARTITIONS} partitions, keys of {batch.KEY_BYTES} bytes",
        "sparklog": "no broker in Spark's path; its defaults, its session by sparklog.spark.configure; "
        "every commit is fsynced before it is visible",
        "sparklog tuned": ", ".join(f"{key}={value}" for key, value in batch.OURS_TUNED.items()),
        "kafka": f"one node, KRaft, {HEAP}; the connector's and the broker's defaults (acks=all, no fsync)",
        "kafka tuned": ", ".join(f"{key}={value}" for key, value in batch.TUNED.items()),
        "kafka RawLocalFs": "checkpoints as sparklog.spark.configure has them",
        "kafka flush.messages=1": "the topic fsyncs each batch before it is acknowledged",
        "parquet, delta": "Spark's defaults; no order, no offsets, no fsync",
        "kafka in the growth part": ", ".join(
            f"{key}={value}" for key, value in growth.KAFKA_OPTIONS.items()
        ),
        "repetitions": str(chosen.repetitions),
    }


if __name__ == "__main__":
    sys.exit(main())
