"""Copying from a cluster in memory: gaps, resumption, and what is refused."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.errors import DataLossError, InvalidRequestError, RetriableError
from sparklog.mirror import copying
from sparklog.mirror.copying import Mirror, Stop, split_configs
from sparklog.mirror.source import Fetched
from tests.mirror.clusters import After, Cluster, Never

AT = ("orders", 0)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SparkLog]:
    with sparklog.open(tmp_path / "log") as log:
        yield log


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def mirror(
    log: SparkLog, cluster: Cluster, stop: Stop | None = None, *, allow_data_loss: bool = False
) -> Mirror:
    """Run a new mirror."""
    made = Mirror(log, cluster, allow_data_loss=allow_data_loss)
    made.prepare(made.plan(lambda _: True))
    made.copy(stop or Never())
    return made


def values(log: SparkLog, topic: str = "orders", partition: int = 0) -> list[int]:
    return [int(value) for value in log.read(topic, partition, 0)["value"].to_pylist()]


def test_offsets_keys_and_times_are_the_sources(log: SparkLog, cluster: Cluster) -> None:
    cluster.add("orders", offsets=range(10))
    cluster.add("orders", 1, offsets=range(4))
    done = mirror(log, cluster)
    rows = log.read("orders", 0, 0)
    assert rows["offset"].to_pylist() == list(range(10)) == values(log)
    assert rows["key"].to_pylist() == [b"k%d" % offset for offset in range(10)]
    assert rows["timestamp"].cast(pa.int64()).to_pylist() == [1_000 + offset for offset in range(10)]
    assert values(log, partition=1) == [0, 1, 2, 3]
    assert done.records == 14


def test_it_goes_on_where_it_was(log: SparkLog, cluster: Cluster) -> None:
    cluster.add("orders", offsets=range(10))
    mirror(log, cluster)
    assert mirror(log, cluster).records == 0
    cluster.add("orders", offsets=range(10, 25))
    assert mirror(log, cluster).records == 15
    assert values(log) == list(range(25))


@pytest.mark.parametrize("looks", range(1, 8))
def test_a_stop_commits_what_was_fetched(log: SparkLog, cluster: Cluster, looks: int) -> None:
    cluster.add("orders", offsets=range(20))
    stopped = mirror(log, cluster, After(looks))
    assert values(log) == list(range(stopped.records))
    mirror(log, cluster)
    assert values(log) == list(range(20))


@pytest.mark.parametrize("fails", ["before", "after"])
def test_a_crash_at_a_commit_neither_loses_nor_repeats(
    log: SparkLog, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    monkeypatch.setattr(copying, "COMMIT_RECORDS", 3)
    cluster.add("orders", offsets=range(30))
    real = log.metadata.publish
    commits = 0

    def publish(*words: object, **options: object) -> object:
        nonlocal commits
        commits += 1
        if commits == 5 and fails == "before":
            raise KeyboardInterrupt
        result = real(*words, **options)  # type: ignore[arg-type]
        if commits == 5:
            raise KeyboardInterrupt
        return result

    with monkeypatch.context() as patched:
        patched.setattr(log.metadata, "publish", publish)
        with pytest.raises(KeyboardInterrupt):
            mirror(log, cluster)
    assert values(log) == list(range(len(values(log)))) != list(range(30))
    mirror(log, cluster)
    assert values(log) == list(range(30))


def test_what_a_failed_copy_had_fetched_is_not_copied_twice(
    log: SparkLog, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add("orders", offsets=range(20))
    made = Mirror(log, cluster)
    made.prepare(made.plan(lambda _: True))
    real, fetches = cluster.fetch, 0

    def fetch(wait_s: float) -> Fetched:
        nonlocal fetches
        fetches += 1
        if fetches == 3:
            raise cluster.unreachable()
        return real(wait_s)

    monkeypatch.setattr(cluster, "fetch", fetch)
    with pytest.raises(RetriableError):
        made.copy(Never())
    assert made.copy(Never())
    assert values(log) == list(range(20))


def test_gaps_are_closed(log: SparkLog, cluster: Cluster) -> None:
    cluster.add("orders", offsets=[7, 8, 20, 21, 40], end=44)
    mirror(log, cluster)
    cluster.add("orders", offsets=[44, 46])
    mirror(log, cluster)
    assert values(log) == [7, 8, 20, 21, 40, 44, 46]


def test_an_end_without_records_is_remembered(log: SparkLog, cluster: Cluster) -> None:
    """Markers of transactions at the end have gone: nothing is lost."""
    cluster.add("orders", offsets=[0, 1], end=5)
    mirror(log, cluster)
    cluster.remove_before(AT, 5)
    assert mirror(log, cluster).records == 0


def test_what_was_removed_before_it_was_copied_is_refused(log: SparkLog, cluster: Cluster) -> None:
    cluster.add("orders", offsets=range(10))
    mirror(log, cluster)
    cluster.add("orders", offsets=range(10, 20))
    cluster.remove_before(AT, 15)
    with pytest.raises(DataLossError, match="offsets 10 to 14 before they were copied"):
        mirror(log, cluster)
    mirror(log, cluster, allow_data_loss=True)
    assert values(log) == [*range(10), *range(15, 20)]


def test_what_others_have_written_is_refused(log: SparkLog, cluster: Cluster) -> None:
    cluster.add("orders", offsets=range(3))
    log.append("orders", pa.table({"value": ["theirs"]}))
    with pytest.raises(InvalidRequestError, match=r"orders-0: it ends at 1, and no mirror of this cluster"):
        mirror(log, cluster)
    log.delete_topic("orders")
    mirror(log, cluster)
    log.append("orders", pa.table({"value": ["theirs"]}))
    with pytest.raises(InvalidRequestError, match="it ends at 4, expected 3: others have written to it"):
        mirror(log, cluster)


def test_a_second_mirror_copies_nothing_twice(log: SparkLog, cluster: Cluster) -> None:
    cluster.add("orders", offsets=range(9))
    first, second = Mirror(log, cluster), Mirror(log, cluster)
    for one in (first, second):
        one.prepare(one.plan(lambda _: True))
    first.copy(Never())
    with pytest.raises(InvalidRequestError, match="it ends at 9, expected 0: others, or a second mirror"):
        second.copy(Never())
    assert values(log) == list(range(9))


def test_a_topic_that_was_made_again_at_the_source_is_refused(log: SparkLog, cluster: Cluster) -> None:
    cluster.add("orders", offsets=range(3))
    mirror(log, cluster)
    cluster.ids["orders"] = "another"
    with pytest.raises(InvalidRequestError, match="the source's topic was deleted, and made again"):
        mirror(log, cluster)


@pytest.mark.parametrize("is_made_again", [True, False])
def test_a_topic_that_is_made_again_during_the_copy_is_refused_before_its_records_are_committed(
    log: SparkLog, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, is_made_again: bool
) -> None:
    monkeypatch.setattr(copying, "COMMIT_RECORDS", 3)
    cluster.add("orders", offsets=range(9))
    fetch, fetches = cluster.fetch, iter(range(99))

    def replaced(wait_s: float) -> Fetched:
        """From the second fetch on it sends another topic's records, from where the first one was."""
        if next(fetches) == 1 and is_made_again:
            cluster.ids["orders"] = "another"
        return fetch(wait_s)

    monkeypatch.setattr(cluster, "fetch", replaced)
    if is_made_again:
        with pytest.raises(InvalidRequestError, match="the source's topic was deleted, and made again"):
            mirror(log, cluster)
        assert values(log) == [0, 1, 2]
    else:
        mirror(log, cluster)
        assert values(log) == list(range(9))


def test_what_was_fetched_of_a_topic_that_is_gone_is_committed(
    log: SparkLog, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add("orders", offsets=range(3))
    monkeypatch.setattr(cluster, "topic_ids", lambda _names: {"orders": "id-of-orders"})
    made = Mirror(log, cluster)
    made.prepare(made.plan(lambda _: True))
    monkeypatch.setattr(cluster, "topic_ids", lambda _names: {})
    made.copy(Never())
    assert values(log) == [0, 1, 2]


def test_the_root_itself_is_refused_as_a_source(log: SparkLog, cluster: Cluster) -> None:
    """Else "delete it here" would be the advice, and delete what was to be copied."""
    cluster.cluster_id = log.cluster_id
    with pytest.raises(InvalidRequestError, match="the source is this root itself"):
        Mirror(log, cluster)


def test_a_source_that_lost_records_is_refused(log: SparkLog, cluster: Cluster) -> None:
    cluster.add("orders", offsets=range(3))
    mirror(log, cluster)
    cluster.partitions[AT].end = 2
    with pytest.raises(InvalidRequestError, match="the source ends at 2, and it is copied up to 3"):
        mirror(log, cluster)


def test_a_topic_that_was_deleted_here_is_copied_anew(log: SparkLog, cluster: Cluster) -> None:
    cluster.add("orders", offsets=range(3))
    mirror(log, cluster)
    log.delete_topic("orders")
    mirror(log, cluster)
    assert values(log) == [0, 1, 2]
    log.delete_topic("orders")
    log.create_topic("orders", 1)  # with settings of one's own
    mirror(log, cluster)
    assert values(log) == [0, 1, 2]


def test_records_out_of_order_are_refused(log: SparkLog, cluster: Cluster) -> None:
    cluster.add("orders", offsets=range(5))
    cluster.partitions[AT].offsets = [0, 2, 1]
    with pytest.raises(InvalidRequestError, match="or out of order"):
        mirror(log, cluster)


def test_silence_ends_it(log: SparkLog, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.add("orders", offsets=[], end=5)
    made = Mirror(log, cluster, timeout_s=0.0)
    made.prepare(made.plan(lambda _: True))
    monkeypatch.setattr(cluster, "fetch", lambda _: Fetched())
    with pytest.raises(RetriableError, match="SOURCE_UNREACHABLE"):
        made.copy(Never())


def test_partitions_and_topics_are_followed(log: SparkLog, cluster: Cluster) -> None:
    cluster.add("orders", offsets=range(3))
    mirror(log, cluster)
    cluster.add("orders", 1, offsets=range(2))
    cluster.add("people", offsets=range(1))
    made = mirror(log, cluster)
    assert made.records == 3
    assert log.partition_count("orders") == 2


def test_only_what_is_wanted_is_copied(log: SparkLog, cluster: Cluster) -> None:
    cluster.add("orders", offsets=range(3))
    cluster.add("people", offsets=range(3))
    made = Mirror(log, cluster)
    made.prepare(made.plan(lambda name: name == "people"))
    made.copy(Never())
    assert log.topics() == ["people", "sparklog-mirror.cluster-1"]


def test_settings(log: SparkLog, cluster: Cluster) -> None:
    cluster.add("orders", offsets=range(1))
    cluster.configs["orders"] = {"retention.ms": "-1", "message.timestamp.type": "LogAppendTime"}
    mirror(log, cluster)
    assert log.describe_topic("orders").configs == {"retention.ms": "-1"}


def test_settings_that_are_unknown_here_are_named() -> None:
    taken, left_out = split_configs(
        {"cleanup.policy": "compact", "follower.replication.throttled.replicas": "*", "segment.bytes": "1"}
    )
    assert taken == {"cleanup.policy": "compact"}
    assert [*left_out] == ["follower.replication.throttled.replicas", "segment.bytes"]
    assert "segment.bytes" in left_out["segment.bytes"]
