"""The root that a sink writes to: made at the start of a query alone, and remembered by its checkpoint."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.errors import InvalidRequestError, SparklogError
from sparklog.spark import roots, sink_root
from sparklog.spark.options import parse_sink_options
from sparklog.spark.stream_writer import SparklogBatchWriter, SparklogStreamWriter
from sparklog.spark.write_task import TaskResult
from tests.spark.test_stream_writer_driver import (
    QUERY,
    batch_writer,
    plan,
    schema,
    stream_writer,
    values,
    write,
)
from tests.support.told import Told

RunTask = Callable[..., TaskResult]


@pytest.fixture
def log(root: str) -> SparkLog:
    return sparklog.open(root, create=True)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Of a query that has planned micro-batches 0 to 2, as Spark lays it out."""
    directory = tmp_path / "checkpoint"
    (directory / "offsets").mkdir(parents=True)
    (directory / "metadata").write_text(f'{{"id":"{QUERY}"}}')
    for batch in range(3):
        plan(directory, batch, batch + 1)
    return directory


class Context:
    """What a task knows of its micro-batch, in place of Spark's TaskContext."""

    def __init__(self, batch: int | None, query: str = QUERY) -> None:
        streaming = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)}
        self.properties = {} if batch is None else streaming

    def partitionId(self) -> int:
        return 0

    def getLocalProperty(self, name: str) -> str | None:
        return self.properties.get(name)


@pytest.fixture
def run_task(monkeypatch: pytest.MonkeyPatch) -> Callable[..., TaskResult]:
    def run(
        writer: SparklogStreamWriter | SparklogBatchWriter, batch: int | None, **given: str
    ) -> TaskResult:
        monkeypatch.setattr("pyspark.TaskContext._taskContext", Context(batch, **given))
        rows = pa.RecordBatch.from_pydict({"value": [f"{batch}"]})
        result = writer.write(iter([rows]))
        assert isinstance(result, TaskResult)
        return result

    return run


@pytest.fixture
def new_process() -> Callable[[], None]:
    """From here on as another worker, which remembers no root."""

    def forget() -> None:
        sink_root.reset()
        roots.reset()

    return forget


@pytest.mark.parametrize("remembers", [True, False])
def test_a_root_is_made_by_the_first_micro_batch_only(
    directory: Path, run_task: RunTask, new_process: Callable[[], None], remembers: bool
) -> None:
    root = str(directory)
    for batch in (0, 1):
        stream_writer(root).commit([run_task(stream_writer(root), batch)], batch)
    result = run_task(stream_writer(root), 2)
    directory.rename(directory.with_name("unmounted"))
    for left in ("nothing", "an empty directory"):
        if not remembers:
            new_process()
        if left != "nothing":
            directory.mkdir()
        for again in (
            lambda: run_task(stream_writer(root), 2),
            lambda: stream_writer(root).commit([result], 2),
        ):
            with pytest.raises(SparklogError, match="ROOT_NOT_FOUND") as info:
                again()
            assert (
                f"found no root at {root}, expected that of the earlier micro-batches" in info.value.message
            )
            assert f"of query {QUERY}: this is micro-batch 2" in info.value.message
    assert list(directory.iterdir()) == []
    directory.rmdir()
    directory.with_name("unmounted").rename(directory)
    stream_writer(root).commit([result], 2)
    assert values(sparklog.open(root), "a") == ["0", "1", "2"]


def test_the_first_micro_batch_makes_the_root_without_rows_too(root: str) -> None:
    stream_writer(root).commit([], 0)
    assert sparklog.open(root, create=False).topics() == []


def test_a_root_that_became_another_is_refused(directory: Path, run_task: RunTask) -> None:
    root = str(directory)
    stream_writer(root).commit([run_task(stream_writer(root), 0)], 0)
    first = sparklog.open(root).cluster_id
    directory.rename(directory.with_name("first"))
    second = sparklog.open(root, create=True).cluster_id
    with pytest.raises(InvalidRequestError, match="WRONG_ROOT") as info:
        run_task(stream_writer(root), 1)
    assert f"found the root with cluster id {second} at {root}, expected {first}" in info.value.message
    # Another query may write there, and a batch write.
    other = {"query": "another query"}
    stream_writer(root).commit([run_task(stream_writer(root), 0, **other)], 0)
    run_task(batch_writer(root, 1), None)
    stream_writer(root).commit([run_task(stream_writer(root), 1, **other)], 1)


def test_a_worker_that_knew_another_root_takes_the_query_that_is_new_to_it(
    directory: Path, run_task: RunTask
) -> None:
    root = str(directory)
    run_task(stream_writer(root), 0)
    shutil.rmtree(directory)
    sparklog.open(root, create=True)  # by micro-batch 0 of the other query, in another worker
    run_task(stream_writer(root), 1, query="another query")


def test_a_root_that_has_never_seen_the_query_is_named(
    log: SparkLog,
    root: str,
    run_task: RunTask,
    new_process: Callable[[], None],
    told: Told,
) -> None:
    stream_writer(root).commit([run_task(stream_writer(root), 5)], 5)
    (message,) = told("sparklog.spark")
    assert message.startswith(f"micro-batch 5 of query {QUERY} is the first one that writes to the root ")
    assert f"(cluster id {log.cluster_id})" in message
    new_process()
    stream_writer(root).commit([run_task(stream_writer(root), 6)], 6)
    stream_writer(root).commit([run_task(stream_writer(root), 0, query="fresh")], 0)
    assert len(told("sparklog.spark")) == 1


@pytest.fixture
def moved(directory: Path, checkpoint: Path, run_task: RunTask, new_process: Callable[[], None]) -> SparkLog:
    """A query has written a micro-batch, and stopped; another root is in the place of the first."""
    stream_writer(str(directory), checkpointLocation=str(checkpoint)).commit(
        [run_task(stream_writer(str(directory)), 0)], 0
    )
    directory.rename(directory.with_name("first"))
    new_process()
    return sparklog.open(directory, create=True)


def test_another_root_is_refused_after_a_restart(
    directory: Path, moved: SparkLog, checkpoint: Path, run_task: RunTask
) -> None:
    place = {"checkpointLocation": str(checkpoint)}
    first = sparklog.open(directory.with_name("first")).cluster_id
    assert json.loads((checkpoint / "sparklog-sink").read_text()) == {
        "version": 1, "query_id": QUERY, "cluster_id": first,
    }  # fmt: skip
    for batch in (0, 1):
        result = run_task(stream_writer(str(directory), **place), batch)
        with pytest.raises(InvalidRequestError, match="WRONG_ROOT") as info:
            stream_writer(str(directory), **place).commit([result], batch)
        assert f"found the root with cluster id {moved.cluster_id} at {moved.url}" in info.value.message
        assert (
            f"expected {first}, the root of query {QUERY} in the checkpoint {checkpoint}"
            in info.value.message
        )
        assert f"set option clusterId to {moved.cluster_id}" in info.value.fix
    assert moved.topics() == []


def test_the_new_root_is_taken_where_it_is_named(
    directory: Path, moved: SparkLog, checkpoint: Path, run_task: RunTask, new_process: Callable[[], None]
) -> None:
    place = {"checkpointLocation": str(checkpoint)}
    named = stream_writer(str(directory), **place, clusterId=moved.cluster_id)
    named.commit([run_task(named, 1)], 1)
    new_process()
    again = stream_writer(str(directory), **place)
    again.commit([run_task(again, 2)], 2)
    assert values(moved, "a") == ["1", "2"]


def test_another_root_than_the_named_one_is_refused_and_none_is_made(
    directory: Path, moved: SparkLog, run_task: RunTask
) -> None:
    for root in (str(directory), str(directory.with_name("nothing"))):
        for batch in (0, 1, None):
            given = {"path": root, "topic": "a", "clusterId": "x" * 22}
            writer = (
                SparklogBatchWriter(schema(), parse_sink_options(given, streaming=False))
                if batch is None
                else stream_writer(**{**given, "root": root})
            )
            with pytest.raises(SparklogError, match=r"WRONG_ROOT|ROOT_NOT_FOUND"):
                run_task(writer, batch)
    assert not directory.with_name("nothing").exists()
    assert moved.topics() == []


def test_a_worker_that_knew_another_root_takes_the_one_that_is_named(
    directory: Path, run_task: RunTask
) -> None:
    root = str(directory)
    run_task(stream_writer(root), 0)
    directory.rename(directory.with_name("first"))
    second = sparklog.open(root, create=True).cluster_id
    run_task(stream_writer(root, clusterId=second), 1)


@pytest.mark.parametrize(
    "held",
    [b"", b"{", b"[]", b"null", b'{"query_id": "another", "cluster_id": "x"}', b"\xff", b"{}" * (3 << 20)],
)
def test_what_a_checkpoint_does_not_tell_is_written_into_it(
    log: SparkLog, root: str, checkpoint: Path, held: bytes
) -> None:
    (checkpoint / "sparklog-sink").write_bytes(held)
    write(log, root, 1, checkpointLocation=str(checkpoint))
    assert json.loads((checkpoint / "sparklog-sink").read_bytes())["cluster_id"] == log.cluster_id
    assert sorted(path.name for path in checkpoint.iterdir()) == ["metadata", "offsets", "sparklog-sink"]


def test_a_directory_that_is_no_checkpoint_is_left_alone(log: SparkLog, root: str, tmp_path: Path) -> None:
    place = tmp_path / "somewhere"
    for _ in range(2):
        write(log, root, 1, checkpointLocation=str(place))
        assert not place.exists() or list(place.iterdir()) == []
        place.mkdir(exist_ok=True)


def test_a_checkpoint_in_s3_remembers_the_root(s3_root: str, new_process: Callable[[], None]) -> None:
    log = sparklog.open(f"{s3_root}/log", create=True)
    place = {"checkpointLocation": f"{s3_root}/checkpoint"}
    write(log, log.url, 0, **place)
    new_process()
    other = sparklog.open(f"{s3_root}/other", create=True)
    with pytest.raises(InvalidRequestError, match="WRONG_ROOT"):
        write(other, other.url, 1, **place)
    write(log, log.url, 1, **place)
    assert (values(log, "a"), other.topics()) == (["a 0", "a 1"], [])


def test_a_checkpoint_that_cannot_be_written_is_tried_once_in_a_process(
    log: SparkLog,
    root: str,
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    new_process: Callable[[], None],
) -> None:
    tried = []

    def fail(place: str, *_: object) -> bool:
        tried.append(place)
        raise PermissionError(13, "Permission denied")

    new_process()
    monkeypatch.setattr(sink_root, "write_file", fail)
    for batch in (0, 1, 2):
        write(log, root, batch, checkpointLocation=str(checkpoint))
    assert tried == [str(checkpoint)]
    assert values(log, "a") == ["a 0", "a 1", "a 2"]
    assert sorted(path.name for path in checkpoint.iterdir()) == ["metadata", "offsets"]


def test_a_process_that_remembers_another_root_looks_into_the_checkpoint_again(
    log: SparkLog, root: str, checkpoint: Path
) -> None:
    write(log, root, 0, checkpointLocation=str(checkpoint))
    other = f"{root}-2"
    second = sparklog.open(other)
    held = (checkpoint / "sparklog-sink").read_text()
    (checkpoint / "sparklog-sink").write_text(held.replace(log.cluster_id, second.cluster_id))
    write(second, other, 1, checkpointLocation=str(checkpoint))
    with pytest.raises(InvalidRequestError, match="WRONG_ROOT"):
        write(log, root, 1, checkpointLocation=str(checkpoint))
