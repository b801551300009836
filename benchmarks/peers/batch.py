"""a and b: Spark writes records in a batch, and reads them, into nothing and into an aggregation."""

import itertools
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sparklog
from benchmarks.peers.page_cache import PageCache
from benchmarks.peers.results import Results
from benchmarks.peers.sides import Side, SideError
from benchmarks.peers.usage import Usage
from benchmarks.peers.warming import MOST_TURNS, warm_up

KEY_BYTES = 12
TUNED = {"kafka.linger.ms": "20", "kafka.batch.size": "262144"}
# Spark looks at the size of what it sends to a Python worker after each row, unless there is no limit.
OURS_TUNED = {
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "40000",
}
MB = 1_000_000
WARM_UP_BYTES = 200 * MB
AWAKE_RECORDS = 500_000  # some 60 MB, and compiled code as warm as the others'
_naps = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A side with settings of its own."""

    name: str
    side: Side
    options: dict[str, str] = field(default_factory=dict)
    configs: dict[str, str] = field(default_factory=dict)  # the topic's
    session: dict[str, str] = field(default_factory=dict)  # Spark's

    def ask(self, do: str, **words: object) -> dict[str, Any]:
        """The side's driver, with the contender's settings for this once."""
        self.side.ask("settings", values=self.session)
        try:
            return self.side.ask(do, **words)
        finally:
            self.side.ask("settings", values={})


def contenders(sides: list[Side]) -> list[Contender]:
    """Each side as it comes; ours and Kafka also tuned for small records, and Kafka as durable as we are."""
    found = []
    for side in sides:
        found.append(Contender(name=side.name, side=side))
        if side.name == "sparklog":
            found.append(Contender(name="sparklog tuned", side=side, session=OURS_TUNED))
        if side.name == "kafka":
            found.append(Contender(name="kafka tuned", side=side, options=TUNED))
            found.append(Contender(name="kafka flush.messages=1", side=side, configs={"flush.messages": "1"}))
    return found


def run(
    sides: list[Side],
    results: Results,
    cache: PageCache,
    *,
    sizes: dict[int, int],
    codecs: list[str],
    repetitions: int,
    warm_turns: int = MOST_TURNS,
) -> None:
    """Interleaved: every contender writes, then every side reads; whoever went first goes last next time.

    Args:
        sizes: value bytes -> records.
    """
    everyone = contenders(sides)
    number = 0
    for value_bytes, records in sizes.items():
        _warm_up(
            everyone, results, min(records, WARM_UP_BYTES // value_bytes), value_bytes, codecs[0], warm_turns
        )
        for codec in codecs:
            for turn in range(repetitions):
                number += 1
                order = everyone if turn % 2 == 0 else everyone[::-1]
                for position, one in enumerate(order):
                    cache.top_up()
                    _turn(one, f"batch-{number}-{position}", records, value_bytes, codec, results)


def _warm_up(
    everyone: list[Contender], results: Results, records: int, value_bytes: int, codec: str, most: int
) -> None:
    """Workers and compiled code for this shape, and a JVM that has come to rest: not counted."""

    def warm(turn: int, position: int) -> float | None:
        topic, one = f"warm-up-{value_bytes}-{turn}-{position}", everyone[position]
        with Usage(one.side.groups) as usage:
            done = _turn(one, topic, records, value_bytes, codec, Results(quiet=True))
        return usage.row()["cpu_s"] if done else None

    warm_up(f"batches of {value_bytes} B", [one.name for one in everyone], warm, results, most=most)


def _turn(one: Contender, topic: str, records: int, value_bytes: int, codec: str, kept: Results) -> bool:
    """Write a topic, read it where it is the side's plain one, and forget it; did it go well?"""
    try:
        forget(one.side, wake(one.side, AWAKE_RECORDS))
        _write(one, topic, records, value_bytes, codec, kept)
        if one.side.name == one.name:
            _read(one.side, topic, records, value_bytes, codec, kept)
        forget(one.side, topic)
    except SideError as error:
        kept.note(str(error)[:300])
        return False
    return True


def wake(side: Side, records: int = 20_000) -> str:
    """Use Spark's Python workers, which end when nobody did for a minute, and memory, which the machine takes
    away from who is idle; the small topic that it took.
    """
    topic = f"awake-{next(_naps)}"
    side.create_topic(topic)
    side.ask("write", topic=topic, records=records, value_bytes=100, codec="none", options={})
    side.ask("read", topic=topic, into="noop")
    return topic


def _write(one: Contender, topic: str, records: int, value_bytes: int, codec: str, results: Results) -> None:
    one.side.create_topic(topic, configs=one.configs)
    before = one.side.disk_bytes()
    with Usage(one.side.groups) as usage:
        answer = one.ask(
            "write", topic=topic, records=records, value_bytes=value_bytes, codec=codec, options=one.options
        )
    size = records * (value_bytes + KEY_BYTES) / MB
    row = usage.row()
    values = {
        "mb_per_s": round(size / answer["seconds"], 1),
        "records_per_s": round(records / answer["seconds"]),
        **row,
        "disk_per_input_byte": round((one.side.disk_bytes() - before) / MB / size, 3),
        "written_per_input_byte": round(row["written_mb"] / size, 3),
    }
    results.add("write", f"{records} x {value_bytes} B, {codec}", one.name, **values)


def _read(side: Side, topic: str, records: int, value_bytes: int, codec: str, results: Results) -> None:
    size = records * (value_bytes + KEY_BYTES) / MB
    for into in ("noop", "aggregation"):
        with Usage(side.groups) as usage:
            answer = side.ask("read", topic=topic, into=into)
        values = {
            "mb_per_s": round(size / answer["seconds"], 1),
            "records_per_s": round(records / answer["seconds"]),
            **usage.row(),
        }
        results.add("read", f"{records} x {value_bytes} B, {codec}, {into}", side.name, **values)
    found = side.ask("count", topic=topic)["records"]
    if found != records:
        results.note(f"{side.name}: {topic} has {found} records, not {records}")


def forget(side: Side, topic: str) -> None:
    """Delete a topic, and free the disk at once."""
    if side.name in {"parquet", "delta"}:
        shutil.rmtree(side.storage / topic, ignore_errors=True)
    elif side.name == "kafka":
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": side.place, "log_level": 0})
        try:
            admin.delete_topics([topic])[topic].result(30)
        except KafkaException as error:
            # What is sent again, as the first answer took long, finds the topic gone.
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise SideError(f"deleting {topic}: {error}") from error
    elif side.name == "sparklog":
        with sparklog.open(side.place) as log:
            for state in log.image.topic(topic).partitions:
                for extent in state.extents:
                    _punch_hole(side.storage / extent.segment, extent.position, extent.size)
            log.delete_topic(topic)


def _punch_hole(path: Path, position: int, size: int) -> None:
    """Free a part of a segment; the rest may be other topics', and a worker may still append to it."""
    words = ["fallocate", "--punch-hole", "--offset", str(position), "--length", str(size), str(path)]
    subprocess.run(words, check=False, capture_output=True)  # where it cannot be done, the disk fills faster
