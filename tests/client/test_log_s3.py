"""The embedded log on an S3 server, through a proxy that goes wrong: every record once, whatever is lost."""

import json
import threading
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.errors import StorageError
from sparklog.log.writer import LogWriter
from sparklog.metadata.documents.properties import SNAPSHOT_HINT, commit_name, manifest_name, request_name
from sparklog.storage.s3 import S3Store
from tests.seaweed import KEY, READER_KEY, READER_SECRET, SECRET, SeaweedServer
from tests.storage import s3_proxy as faults
from tests.storage.s3_proxy import FaultyProxy, Request


@pytest.fixture
def proxy(s3_server: SeaweedServer) -> Iterator[FaultyProxy]:
    with FaultyProxy(s3_server.endpoint_url) as running:
        yield running


@pytest.fixture
def log(s3_root: str, proxy: FaultyProxy) -> Iterator[SparkLog]:
    options = {"key": KEY, "secret": SECRET, "endpoint_url": proxy.endpoint_url, "read_timeout": 1}
    with sparklog.open(s3_root, storage_options=options) as opened:
        opened.create_topic("t", partitions=1)
        proxy.requests.clear()
        yield opened


def rows(*values: str) -> pa.Table:
    return pa.table({"value": list(values)})


def values(log: SparkLog) -> list[str]:
    return [value.decode() for value in log.read("t", 0, 0)["value"].to_pylist()]


COMMIT_FAULTS = [
    "SLOW_DOWN",
    "ERROR_BEFORE",
    "ERROR_AFTER",
    "RESET_BEFORE",
    "RESET_AFTER",
    "LATE_ANSWER",
    "LATE_EFFECT",
    "TWICE",
    "CONFLICT",
    "ERROR_IN_200",
    "ERROR_IN_200_AFTER",
]


@pytest.mark.parametrize("fault", COMMIT_FAULTS)
def test_a_commit_with_a_doubtful_answer_is_there_once(
    log: SparkLog, proxy: FaultyProxy, fault: str, s3_root: str
) -> None:
    log.append("t", rows("before"))
    proxy.once(getattr(faults, fault), lambda request: request.is_commit)
    log.append("t", rows("doubtful"), txn=("app", 1))
    assert [chosen for chosen in proxy.faults if chosen is getattr(faults, fault)]
    proxy.fault = lambda _: None
    assert log.append("t", rows("doubtful"), txn=("app", 1)).duplicate
    log.append("t", rows("after"))
    assert all(status == 412 for status in proxy.land())
    with sparklog.open(s3_root, create=False) as fresh:
        assert values(fresh) == values(log) == ["before", "doubtful", "after"]


@pytest.mark.parametrize("fault", ["RESET_AFTER", "ERROR_AFTER", "SLOW_DOWN", "LATE_EFFECT"])
def test_data_with_a_doubtful_answer_is_there_once(log: SparkLog, proxy: FaultyProxy, fault: str) -> None:
    proxy.times(2, getattr(faults, fault), lambda r: r.method == "PUT" and "/segments/" in r.path)
    log.append("t", rows("a"))
    log.append("t", rows("b"))
    assert len(proxy.faults) == 2
    proxy.land()
    assert values(log) == ["a", "b"]


def test_a_publish_is_one_put_of_data_and_one_of_the_commit(log: SparkLog, proxy: FaultyProxy) -> None:
    log.append("t", rows("warm up"))
    proxy.requests.clear()
    log.append("t", rows("a"))
    assert [(r.method, r.is_commit) for r in proxy.requests] == [("PUT", False), ("PUT", True)]
    proxy.requests.clear()
    log.refresh()
    assert [r.method for r in proxy.requests] == ["GET"]


def test_a_root_that_may_only_be_read(s3_server: SeaweedServer, s3_root: str) -> None:
    with sparklog.open(s3_root) as writer:
        writer.create_topic("t", partitions=1)
        writer.append("t", rows("a"))
    options = {"key": READER_KEY, "secret": READER_SECRET, "endpoint_url": s3_server.endpoint_url}
    with sparklog.open(s3_root, create=False, storage_options=options) as reader:
        assert values(reader) == ["a"]
        with pytest.raises(StorageError, match=r"STORAGE_REFUSED.*403"):
            reader.append("t", rows("b"))
        assert values(reader) == ["a"]


@pytest.mark.parametrize(("size", "count"), [(10, 1), (1_000_000, 20)], ids=["one PUT", "multipart"])
def test_clones_of_a_process_lose_nothing_of_each_other(
    log: SparkLog, s3_root: str, s3_server: SeaweedServer, size: int, count: int
) -> None:
    """Resumed twice from one image, they have the same names for data ahead of them."""
    first, other = ["f" * size] * count, ["o" * size] * count
    with sparklog.open(s3_root) as opened:
        seen, name = (opened.image.commit, -1), log.writer.writer_id
        writer = LogWriter(opened.store, opened.clock, writer_id=name, seen=lambda: seen)
        clone = SparkLog(opened.store, opened.metadata, opened.clock, writer=writer)
        log.append("t", rows(*first))
        with pytest.raises(StorageError, match="exists, expected no such file"):
            clone.append("t", rows(*other))
        assert values(log) == first
        clone.append("t", rows(*other))
        log.append("t", rows("again"))
        clone.append("t", rows("again by the clone"))
    assert values(log) == [*first, *other, "again", "again by the clone"]


def test_a_denial_in_the_middle_loses_nothing_and_is_not_acknowledged(
    log: SparkLog, proxy: FaultyProxy
) -> None:
    log.append("t", rows("a"))
    proxy.once(faults.DENIED, lambda request: request.is_commit)
    with pytest.raises(StorageError, match="STORAGE_REFUSED"):
        log.append("t", rows("denied"))
    assert values(log) == ["a"]
    log.append("t", rows("b"))
    assert values(log) == ["a", "b"]


def test_a_store_that_fails_for_half_a_minute(s3_root: str, proxy: FaultyProxy) -> None:
    clock = ManualClock()
    options = {"key": KEY, "secret": SECRET, "endpoint_url": proxy.endpoint_url}
    with sparklog.open(s3_root, storage_options=options, clock=clock) as log:
        log.create_topic("t", partitions=1)
        start_ms = clock.monotonic_ms()

        def failing(_: Request) -> faults.Fault | None:
            return faults.SLOW_DOWN if clock.monotonic_ms() - start_ms < 30_000 else None

        proxy.fault = failing
        log.append("t", rows("a"))
        assert 30_000 <= clock.monotonic_ms() - start_ms < 40_000
        assert values(log) == ["a"]


def test_writers_in_threads_lose_and_double_nothing(s3_root: str, s3_server: SeaweedServer) -> None:
    sparklog.open(s3_root).create_topic("t", partitions=1)

    def write(number: int) -> None:
        with sparklog.open(s3_root) as log:
            for turn in range(5):
                log.append("t", rows(f"{number}-{turn}"))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with sparklog.open(s3_root) as log:
        found = values(log)
        assert sorted(found) == sorted(f"{number}-{turn}" for number in range(3) for turn in range(5))
        for number in range(3):
            mine = [value for value in found if value.startswith(f"{number}-")]
            assert mine == sorted(mine)


def test_the_documented_policy_denies_nothing_that_we_send(
    log: SparkLog, proxy: FaultyProxy, s3_root: str
) -> None:
    """It denies a PUT without If-None-Match to some names; IAM's wildcards are fnmatch's."""
    text = Path(__file__).parents[2].joinpath("docs/s3.md").read_text()
    (statement,) = json.loads(text.partition("```json\n")[2].partition("```")[0])["Statement"]
    assert statement["Condition"] == {"Null": {"s3:if-none-match": "true"}}
    patterns = [one.removeprefix("arn:aws:s3:::bucket/shop-log/") for one in statement["Resource"]]

    def protected(name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    log.append("t", pa.table({"value": ["x" * 100] * 20_000}))
    log.commit_offsets("group", {("t", 0): 1})
    log.metadata.write_snapshot()
    assert isinstance(log.store, S3Store)
    puts = [request for request in proxy.requests if request.method in {"PUT", "POST"}]
    names = {request.number: request.key.partition(log.store.key_prefix)[2] for request in puts}
    conditional = {names[request.number] for request in puts if "if-none-match" in request.headers}
    assert {name for name in names.values() if protected(name)} <= conditional
    assert all(map(protected, ("meta.properties", commit_name(7), manifest_name(7))))
    assert sum(map(protected, names.values())) >= 5  # commits, and a snapshot of three objects
    assert not protected(request_name("J" * 22, 4, 1_700_000_000_000))
    assert not protected(SNAPSHOT_HINT)


def test_nothing_under_the_root_holds_credentials(log: SparkLog, s3_server: SeaweedServer) -> None:
    log.append("t", rows("a"))
    log.commit_offsets("group", {("t", 0): 1})
    log.metadata.write_snapshot()
    assert isinstance(log.store, S3Store)
    stored = log.store.list("", recursive=True)
    assert len(stored) > 5
    for file in stored:
        content = log.store.read(file.name)
        assert SECRET.encode() not in content
        assert KEY.encode() not in content
    for text in (repr(log), repr(log.store), log.url):
        assert SECRET not in text
        assert KEY not in text
