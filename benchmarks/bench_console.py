"""Each page of the web console over a root of many topics: processor time of the process for one request.

    python -m benchmarks.bench_console [--topics 5000] [--partitions 2] [--groups 200] [--records 500]

Every topic has 20 extents of so many records in each partition (100 M in all; no bytes are there), every
other one a retention; the groups are behind in two partitions. `first_ms` is of the first request, with
nothing remembered; the others are the least and the median of ten. The aim is 300 ms for each.
"""

import argparse
import json
import statistics
import time

import pyarrow as pa
from starlette.testclient import TestClient

from sparklog.client import SparkLog
from sparklog.clock import SystemClock
from sparklog.console.app import create_app
from sparklog.metadata import CreateTopic, DraftExtent, MetadataLog, new_id, plan_append
from sparklog.storage import MemoryStore

PATHS = (
    *("/", "/topics", "/topics?sort=-size", "/topics?filter=42&page=2", "/topics/topic-00042", "/groups"),
    *(
        "/group?group=group-7",
        "/commits",
        "/commits?filter=nothing-has-this",
        "/commits/3",
        "/commits/3/state",
    ),
    *("/diff?from=1&to=5", "/transactions", "/maintenance"),
    *("/create-topic", "/topics/topic-00042/settings", "/topics/topic-00042/delete"),
    *("/group/reset?group=group-7", "/api/v1/openapi.json"),
)
PER_COMMIT = 500


def make(topics: int, partitions: int, groups: int, *, records: int = 10) -> SparkLog:
    """A root in memory; `records`: of each extent."""
    clock = SystemClock()
    store = MemoryStore(clock=clock)
    log = SparkLog(store, MetadataLog.open(store, clock, create=True), clock)
    log.alter_root(set={"sparklog.max.partitions": str(10 * topics * partitions)})
    created = [
        CreateTopic(
            name=f"topic-{number:05d}",
            topic_id=new_id(),
            partitions=partitions,
            configs={"retention.ms": "604800000"} if number % 2 else {},
        )
        for number in range(topics)
    ]
    for start in range(0, topics, PER_COMMIT):
        log.metadata.publish(lambda _image, part=created[start : start + PER_COMMIT]: part)
    for turn in range(20):
        drafts = [
            DraftExtent(
                topic_id=one.topic_id,
                partition=partition,
                segment=f"segments/{'W' * 22}/{turn:08d}.log",
                position=0,
                size=1000 + turn,
                record_count=records,
                max_timestamp_ms=clock.now_ms(),
            )
            for one in created
            for partition in range(partitions)
        ]
        log.metadata.publish(lambda image, drafts=drafts: [plan_append(image, drafts)])
    log.create_topic("read", partitions=1)
    log.append("read", pa.table({"value": [b"x"] * 1000}))
    for number in range(groups):
        log.commit_offsets(f"group-{number}", {("read", 0): number, ("topic-00001", 0): 200})
    return log


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--topics", type=int, default=5000)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--records", type=int, default=500)
    found = parser.parse_args()
    log = make(found.topics, found.partitions, found.groups, records=found.records)
    rows = {}
    with TestClient(create_app(log, write=True)) as client:
        client.get("/static/console.css")
        for path in PATHS:
            took = []
            for _ in range(11):
                begin = time.process_time()
                answer = client.get(path)
                took.append((time.process_time() - begin) * 1000)
                assert answer.status_code == 200, (path, answer.text)
            rows[path] = {
                "first_ms": round(took[0], 1),
                "least_ms": round(min(took[1:]), 1),
                "median_ms": round(statistics.median(took[1:]), 1),
                "bytes": len(answer.content),
            }
            print(f"{path:<36} {json.dumps(rows[path])}")


if __name__ == "__main__":
    main()
