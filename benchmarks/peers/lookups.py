"""d: how long a new process takes to its first row; and records of a time, found by a scan or by a lookup."""

import json
import subprocess
import sys
import time

from benchmarks.peers.results import Results
from benchmarks.peers.sides import REPOSITORY, Side, SideError
from benchmarks.peers.usage import Usage

CHUNKS = 20
WANTED = CHUNKS // 2
START_SECONDS = 300
MODES = {"sparklog": ("scan", "lookup", "pushdown"), "kafka": ("scan", "lookup")}
FIRST_ROW = """
import json, sys, time
started = time.perf_counter()
from benchmarks.peers import formats, spark_driver
side, place, topic, jars = sys.argv[1:]
spark = spark_driver.session(side, jars)
ready = time.perf_counter()
assert formats.read(spark, side, place, topic).select("key", "value").limit(1).collect()
print(json.dumps({"session_s": ready - started, "after_session_s": time.perf_counter() - ready}), flush=True)
spark.stop()
"""


def first_rows(sides: list[Side], results: Results, *, repetitions: int) -> None:
    """A topic of a thousand records; Python, the session and the read together."""
    for side in sides:
        side.create_topic("small")
        side.ask("write", topic="small", records=1000, value_bytes=100, codec="none", options={})
    for turn in range(repetitions):
        for side in sides if turn % 2 == 0 else sides[::-1]:
            words = [sys.executable, "-c", FIRST_ROW, side.name, side.place, "small", side.jars]
            start = time.perf_counter()
            with subprocess.Popen(
                words, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            ) as process:
                assert process.stdout is not None
                line = process.stdout.readline()
                seconds = time.perf_counter() - start
                process.wait(START_SECONDS)
            if not line:
                results.note(f"{side.name}: no first row")
                continue
            parts = {name: round(value, 2) for name, value in json.loads(line).items()}
            results.add("first_row", "1000 records", side.name, seconds=round(seconds, 2), **parts)


def backfills(sides: list[Side], results: Results, *, records: int, repetitions: int) -> None:
    """A twentieth of a topic: it is written in twenty jobs, and the time of one of them is asked for."""
    logs = [side for side in sides if side.name in {"sparklog", "kafka"}]
    windows = {}
    for side in logs:
        side.create_topic("history")
        for chunk in range(CHUNKS):
            time.sleep(0.05)
            start_ms = int(time.time() * 1000)
            words = {"topic": "history", "records": records // CHUNKS, "value_bytes": 100, "codec": "lz4"}
            side.ask("write", **words, options={})
            time.sleep(0.05)
            if chunk == WANTED:
                windows[side.name] = (start_ms, int(time.time() * 1000))
    for turn in range(repetitions + 1):
        for side in logs if turn % 2 == 0 else logs[::-1]:
            for mode in MODES[side.name]:
                start_ms, end_ms = windows[side.name]
                try:
                    with Usage(side.groups) as usage:
                        answer = side.ask(
                            "between", topic="history", start_ms=start_ms, end_ms=end_ms, mode=mode
                        )
                except SideError as error:
                    results.note(str(error)[:300])
                    continue
                if answer["records"] != records // CHUNKS:
                    results.note(f"{side.name} {mode}: {answer['records']} of {records // CHUNKS} records")
                if turn:
                    work = f"{records // CHUNKS} of {records}, {mode}"
                    values = {"seconds": round(answer["seconds"], 3), **usage.row()}
                    results.add("backfill", work, side.name, **values)
