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

MICRO_BATCHES = 8
VALUE_BYTES = 100
# What sparklog.spark.configure does for checkpoints on a local disk, for Kafka's side too.
RAW_CHECKPOINTS = {"fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs"}


def copies(sides: list[Side], results: Results, cache: PageCache, *, records: int, repetitions: int) -> None:
    """Throughput with Trigger.AvailableNow, in eight micro-batches where the source can be told so."""
    size = records * (VALUE_BYTES + KEY_BYTES) / MB
    for side in sides:
        side.create_topic("copy-in")
        side.ask("write", topic="copy-in", records=records, value_bytes=VALUE_BYTES, codec="none", options={})
    everyone = contenders(sides)
    for turn in range(repetitions + 1):
        for number, one in enumerate(everyone if turn % 2 == 0 else everyone[::-1]):
            side, topic = one.side, f"copy-out-{turn}-{number}"
            side.create_topic(topic, configs=one.configs)
            limited = side.name in {"sparklog", "kafka"}
            options = {"maxOffsetsPerTrigger": str(records // MICRO_BATCHES)} if limited else {}
            cache.top_up()
            try:
                small = wake(side)
                side.create_topic(f"{small}-copy")
                side.ask("copy", source=small, sink=f"{small}-copy", options={}, sink_options={})
                before = side.disk_bytes()
                with Usage(side.groups) as usage:
                    answer = one.ask(
                        "copy", source="copy-in", sink=topic, options=options, sink_options=one.options
                    )
            except SideError as error:
                results.note(str(error)[:300])
                continue
            if turn == 0:
                forget(side, topic)
                continue  # it warmed up
            values = {
                "mb_per_s": round(size / answer["seconds"], 1),
                "records_per_s": round(records / answer["seconds"]),
                "micro_batches": answer["micro_batches"],
                **usage.row(),
                "disk_per_input_byte": round((side.disk_bytes() - before) / MB / size, 3),
            }
            work = f"{records} x {VALUE_BYTES} B"
            results.add("copy", work, one.name, **values)
            if answer["running_records"]:
                running = (
                    answer["running_records"] * (VALUE_BYTES + KEY_BYTES) / MB / answer["running_seconds"]
                )
                results.add("copy_running", work, one.name, mb_per_s=round(running, 1))
            forget(side, topic)


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
