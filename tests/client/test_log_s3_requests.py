"""The whole log on a real S3 server: what each call costs in requests, and several writers at once."""

import concurrent.futures
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.metadata import RequestApplied
from sparklog.metadata.documents.properties import REQUESTS
from sparklog.metadata.loading import read_commit
from sparklog.storage.s3 import S3Store

WRITERS, APPENDS = 4, 6


def rows(*values: str) -> pa.Table:
    return pa.table({"value": list(values)})


@pytest.fixture
def log(s3_root: str) -> Iterator[SparkLog]:
    with sparklog.open(s3_root) as opened:
        opened.create_topic("t", partitions=1)
        yield opened


@contextmanager
def counted(log: SparkLog) -> Iterator[Counter[str]]:
    assert isinstance(log.store, S3Store)
    before = Counter(log.store.requests)
    requests: Counter[str] = Counter()
    yield requests
    made = Counter(log.store.requests) - before
    requests.update({name: count for name, count in made.items() if not name.endswith("_bytes")})


def test_an_append_is_one_put_of_data_and_one_of_the_commit(log: SparkLog) -> None:
    log.append("t", rows("first"))
    with counted(log) as requests:
        for number in range(5):
            log.append("t", rows(f"value {number}"))
    requests.pop("list_objects_v2", None)  # whether others wait, once a second
    assert requests == {"put_object": 10}


def test_following_is_one_get(log: SparkLog, s3_root: str) -> None:
    with sparklog.open(s3_root) as other:
        other.refresh()
        with counted(other) as requests:
            for _ in range(5):
                other.refresh()
        assert requests == {"get_object": 5}
        log.append("t", rows("a"))
        assert other.log_end_offset("t", 0) == 1


def test_reading_is_one_get_for_each_small_append(log: SparkLog, s3_root: str) -> None:
    for number in range(20):
        log.append("t", rows(f"value {number}"))
    with sparklog.open(s3_root) as other:
        other.refresh()
        with counted(other) as requests:
            values = [value.as_py() for batch in other.read_batches("t", 0) for value in batch["value"]]
        assert values == [f"value {number}".encode() for number in range(20)]
        assert requests == {"get_object": 21}  # and a look for newer commits


def test_a_large_append_is_read_in_few_requests(log: SparkLog) -> None:
    value = "x" * 10_000
    log.append("t", rows(*[value] * 2_000))
    with counted(log) as requests:
        assert sum(batch.num_rows for batch in log.read_batches("t", 0)) == 2_000
    assert requests["get_object"] <= 8  # 20 MB in pieces of 4 MiB, the end of the log, no look for sizes


def append_many(root: str, writer: int, start: threading.Barrier) -> None:
    with sparklog.open(root) as log:
        start.wait()
        for number in range(APPENDS):
            log.append("t", rows(f"{writer} {number}"), txn=(f"writer {writer}", number))


def test_writers_that_publish_at_once(log: SparkLog, s3_root: str) -> None:
    start = threading.Barrier(WRITERS)
    with concurrent.futures.ThreadPoolExecutor(WRITERS) as pool:
        for future in [pool.submit(append_many, s3_root, writer, start) for writer in range(WRITERS)]:
            future.result()
    values = log.read("t", 0, 0).column("value").to_pylist()
    for writer in range(WRITERS):
        mine = [value.decode() for value in values if value.startswith(b"%d " % writer)]
        assert mine == [f"{writer} {number}" for number in range(APPENDS)]
    assert len(values) == WRITERS * APPENDS
    assert log.store.list(REQUESTS) == []
    markers = [
        action
        for commit in range(log.image.commit + 1)
        for action in read_commit(log.store, commit, log.cluster_id)[1]
        if isinstance(action, RequestApplied)
    ]
    assert len(markers) == len({(one.publisher, one.sequence) for one in markers})
