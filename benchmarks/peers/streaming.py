"""c: Spark copies one topic to another: all there is, and a steady stream, timed record by record."""

import json
import subprocess
import sys

from benchmarks.peers.batch import KEY_BYTES, MB, Contender, contenders, forget, wake
from benchmarks.peers.page_cache import PageCache
from benchmarks.peers.results import Results
from benchmarks.peers.sides import REPOSITORY, Side, SideError
from benchmarks.peers.spark_driver import TASK_A_PARTITION
from benchmarks.peers.usage import Usage
from benchmarks.peers.warming import MOST_TURNS, warm_up

MICRO_BATCHES = 8
VALUE_BYTES = 100
# What sparklog.spark.configure does for checkpoints on a local disk, for Kafka's side too.
RAW_CHECKPOINTS = {"fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs"}


def copies(
    sides: list[Side],
    results: Results,
    cache: PageCache,
    *,
    records: int,
    repetitions: int,
    warm_turns: int = MOST_TURNS,
) -> None:
    """Throughput with Trigger.AvailableNow, in eight micro-batches where the source can be told so."""
    for side in sides:
        side.create_topic("copy-in")
        side.ask("write", topic="copy-in", records=records, value_bytes=VALUE_BYTES, codec="none", options={})
    everyone = contenders(sides)

    def warm(turn: int, position: int) -> float | None:
        return _copy(everyone[position], f"warm-up-{turn}-{position}", records, Results(quiet=True))

    warm_up("copies", [one.name for one in everyone], warm, results, most=warm_turns)
    for turn in range(repetitions):
        for number, one in enumerate(everyone if turn % 2 == 0 else everyone[::-1]):
            cache.top_up()
            _copy(one, f"copy-out-{turn}-{number}", records, results)


def _copy(one: Contender, topic: str, records: int, results: Results) -> float | None:
    """One copy to a new topic, which is forgotten; its CPU seconds, None if it failed, and that was noted."""
    side, size = one.side, records * (VALUE_BYTES + KEY_BYTES) / MB
    side.create_topic(topic, configs=one.configs)
    limited = side.name in {"sparklog", "kafka"}
    options = {"maxOffsetsPerTrigger": str(records // MICRO_BATCHES)} if limited else {}
    try:
        small = wake(side)
        side.create_topic(f"{small}-copy")
        side.ask("copy", source=small, sink=f"{small}-copy", options={}, sink_options={})
        before = side.disk_bytes()
        with Usage(side.groups) as usage:
            answer = one.ask("copy", source="copy-in", sink=topic, options=options, sink_options=one.options)
    except SideError as error:
        results.note(str(error)[:300])
        return None
    row = usage.row()
    work = f"{records} x {VALUE_BYTES} B"
    results.add(
        "copy",
        work,
        one.name,
        mb_per_s=round(size / answer["seconds"], 1),
        records_per_s=round(records / answer["seconds"]),
        micro_batches=answer["micro_batches"],
        **row,
        disk_per_input_byte=round((side.disk_bytes() - before) / MB / size, 3),
    )
    if answer["running_records"]:
        running = answer["running_records"] * (VALUE_BYTES + KEY_BYTES) / MB / answer["running_seconds"]
        results.add("copy_running", work, one.name, mb_per_s=round(running, 1))
    forget(side, topic)
    return row["cpu_s"]


def latencies(sides: list[Side], results: Results, *, rate: int, seconds: int, repetitions: int) -> None:
    """From the moment a record is due to the moment a consumer of the copy has it in its hands."""
    everyone: list[tuple[Contender, dict[str, str]]] = []
    for side in sides:
        if side.name in {"sparklog", "kafka"}:
            everyone.append((Contender(name=side.name, side=side), {}))
        if side.name == "sparklog":
            everyone.append((Contender(name="sparklog, a task a partition", side=side), TASK_A_PARTITION))
        if side.name == "kafka":
            everyone.append((Contender(name="kafka RawLocalFs", side=side, session=RAW_CHECKPOINTS), {}))
    for turn in range(repetitions):
        for number, (one, options) in enumerate(everyone if turn % 2 == 0 else everyone[::-1]):
            side = one.side
            source, sink = f"steady-in-{turn}-{number}", f"steady-out-{turn}-{number}"
            side.create_topic(source)
            side.create_topic(sink)
            one.ask("start_copy", source=source, sink=sink, options=options)
            words = [side.name, side.place, source, sink, str(rate), str(seconds)]
            with Usage(side.groups) as usage:
                done = subprocess.run(
                    [sys.executable, "-m", "benchmarks.peers.steady_load", *words],
                    cwd=REPOSITORY, capture_output=True, text=True, timeout=seconds * 10 + 120, check=False,
                )  # fmt: skip
            stopped = side.ask("stop_copy")
            if done.returncode != 0:
                results.note(f"{one.name}: latency: {done.stderr.strip()[-300:]}")
                continue
            found = json.loads(done.stdout.splitlines()[-1])
            results.add("latency", f"{rate} records/s", one.name, **found, **stopped, **usage.row())
