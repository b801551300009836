"""g: how writing, reading and publishing grow with partitions, tasks and extents.

Partitions and tasks: the records stay as many, only their division changes. Extents: metadata alone, ours
alone; a million extents is a topic of some ten terabytes.
"""

from pathlib import Path

from benchmarks.bench_publish import bench_open
from benchmarks.peers.batch import KEY_BYTES, MB, forget, wake
from benchmarks.peers.page_cache import PageCache
from benchmarks.peers.results import Results
from benchmarks.peers.sides import PARTITIONS, Side, SideError
from benchmarks.peers.spark_driver import TASK_A_PARTITION
from benchmarks.peers.usage import Usage

MOST_PARTITIONS = (1, 8, 64, 256)
MOST_TASKS = (1, 8, 64)
MOST_EXTENTS = (1_000, 10_000, 100_000, 1_000_000)
VALUE_BYTES = 100
# With 64 new partitions the idempotent producer of a session that has written before begins a partition anew
# at sequence 0, is refused (OutOfOrderSequenceException), and gives up after two minutes.
KAFKA_OPTIONS = {"kafka.enable.idempotence": "false"}


def run(
    sides: list[Side], results: Results, parent: Path, cache: PageCache, *, records: int, repetitions: int
) -> None:
    """Interleaved within each step; the first step is done once more before, uncounted."""
    logs = [side for side in sides if side.name in {"sparklog", "kafka"}]
    for side in logs:
        _write_and_read(side, "grow-warm-up", records, PARTITIONS, None, Results(quiet=True), "")
    for partitions in MOST_PARTITIONS:
        for turn in range(repetitions):
            for side in logs if turn % 2 == 0 else logs[::-1]:
                topic, work = f"grow-p{partitions}-{turn}", f"{partitions} partitions"
                cache.top_up()
                wake(side)
                _write_and_read(side, topic, records, partitions, None, results, work)
    for tasks in MOST_TASKS:
        for turn in range(repetitions):
            for side in logs if turn % 2 == 0 else logs[::-1]:
                topic, work = f"grow-t{tasks}-{turn}", f"{tasks} writing tasks, {PARTITIONS} partitions"
                cache.top_up()
                wake(side)
                _write_and_read(side, topic, records, PARTITIONS, tasks, results, work)
    for extents in MOST_EXTENTS:
        found = bench_open(str(parent), extents)
        results.add("grow_publish", f"{extents} extents", "sparklog", seconds=found.pop("publish_s"), **found)


def _write_and_read(
    side: Side, topic: str, records: int, partitions: int, tasks: int | None, results: Results, work: str
) -> None:
    size = records * (VALUE_BYTES + KEY_BYTES) / MB
    side.create_topic(topic, partitions)
    try:
        with Usage(side.groups) as usage:
            words = {"topic": topic, "records": records, "value_bytes": VALUE_BYTES, "codec": "none"}
            options = KAFKA_OPTIONS if side.name == "kafka" else {}
            answer = side.ask("write", **words, options=options, tasks=tasks)
        rate = {"mb_per_s": round(size / answer["seconds"], 1)}
        results.add("grow_write", work, side.name, **rate, **usage.row())
        readings: list[tuple[str, dict[str, str]]] = [(side.name, {})]
        if side.name == "sparklog":
            readings.append(("sparklog, a task a partition", TASK_A_PARTITION))
        for name, options in readings:
            with Usage(side.groups) as usage:
                answer = side.ask("read", topic=topic, into="noop", options=options)
            rate = {"mb_per_s": round(size / answer["seconds"], 1)}
            results.add("grow_read", work, name, **rate, **usage.row())
        forget(side, topic)
    except SideError as error:
        results.note(str(error)[:300])
