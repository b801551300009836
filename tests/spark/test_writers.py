"""The sinks' driver side without Spark: versions, what is left out, and what is said about it."""

import dataclasses
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructType

import sparklog
from sparklog.client import SparkLog
from sparklog.errors import InvalidRequestError, SparklogError
from sparklog.spark import pinned_root, roots, sink_root
from sparklog.spark.batch_writer import SparklogBatchWriter
from sparklog.spark.options import parse_sink_options
from sparklog.spark.stream_writer import SparklogStreamWriter
from sparklog.spark.write_task import TaskResult
from sparklog.storage import open_store

QUERY = "7a7e0c4e-0000-4000-8000-000000000001"


@pytest.fixture(autouse=True)
def _only_warnings(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever level another test has left behind: these count what users see as it comes."""
    caplog.set_level(logging.WARNING, logger="sparklog")


@pytest.fixture
def log(root: str) -> SparkLog:
    return sparklog.open(root, create=True)


def schema() -> StructType:
    return StructType().add("value", StringType())


def staged(log: SparkLog, *topics: str, batch: int | None = None) -> list[TaskResult]:
    """What one task hands over: a row for each topic."""
    log.refresh()
    with log.appender() as appender:
        for topic in topics:
            appender.add(pa.table({"value": [f"{topic} {batch}"]}), topic)
        one = appender.finish()
    query = None if batch is None else QUERY
    return [TaskResult(cluster_id=log.cluster_id, staged=one, query_id=query, batch_id=batch)]


def batch_writer(root: str, version: int) -> SparklogBatchWriter:
    options = {"path": root, "txnAppId": "job", "txnVersion": str(version)}
    return SparklogBatchWriter(schema(), parse_sink_options({**options, "topic": "a"}, streaming=False))


def stream_writer(root: str, **options: str) -> SparklogStreamWriter:
    given = {"path": root, "topic": "a", **options}
    return SparklogStreamWriter(schema(), parse_sink_options(given, streaming=True))


def values(log: SparkLog, topic: str) -> list[str]:
    return [value.decode() for value in log.read(topic, 0, 0)["value"].to_pylist()]


def test_a_skipped_batch_write_is_said(log: SparkLog, root: str, caplog: pytest.LogCaptureFixture) -> None:
    batch_writer(root, 3).commit(list(staged(log, "a")))
    assert caplog.messages == []
    commit = log.refresh().commit
    batch_writer(root, 3).commit(list(staged(log, "a", "b")))
    (message,) = caplog.messages
    assert "this write is version 3 of 'job'" in message
    assert message.endswith(f": a has version 3, in commit {commit}")
    caplog.clear()
    batch_writer(root, 2).commit(list(staged(log, "b")))
    assert [f"b has version 3, in commit {commit + 1}" in message for message in caplog.messages] == [True]
    assert (values(log, "a"), values(log, "b")) == (["a None"], ["b None"])


def test_a_repeated_micro_batch_is_said(log: SparkLog, root: str, caplog: pytest.LogCaptureFixture) -> None:
    for batch in (0, 1):
        stream_writer(root).commit(list(staged(log, "a", batch=batch)), batch)
    assert caplog.messages == []
    stream_writer(root).commit(list(staged(log, "a", batch=1)), 1)
    (message,) = caplog.messages
    assert message.startswith(
        f"micro-batch 1 of query {QUERY} is left out of topic a, which has it (version 1,"
    )
    assert message.endswith("whether it is the same cannot be told without its checkpoint")
    assert values(log, "a") == ["a 0", "a 1"]
    assert caplog.records[0].levelno == logging.WARNING


# --- checkpoints -------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Of a query that has planned micro-batches 0 to 2, as Spark lays it out."""
    directory = tmp_path / "checkpoint"
    (directory / "offsets").mkdir(parents=True)
    (directory / "metadata").write_text(f'{{"id":"{QUERY}"}}')
    for batch in range(3):
        plan(directory, batch, batch + 1)
    return directory


def plan(checkpoint: Path, batch: int, *ends: object, watermark: int = 0) -> None:
    """Let a micro-batch of the checkpoint end there: a number, or a line as it is."""
    lines = [end if isinstance(end, str) else f'{{"t":{{"0":{end}}}}}' for end in ends]
    head = ["v1", f'{{"batchWatermarkMs":{watermark},"batchTimestampMs":{watermark},"conf":{{}}}}']
    (checkpoint / "offsets" / str(batch)).write_text("\n".join([*head, *lines]))


def write(log: SparkLog, root: str, batch: int, **options: str) -> None:
    stream_writer(root, **options).commit(list(staged(log, "a", batch=batch)), batch)


def test_another_batch_of_the_same_number_is_refused(log: SparkLog, root: str, checkpoint: Path) -> None:
    place = {"checkpointLocation": str(checkpoint)}
    for batch in (0, 1):
        write(log, root, batch, **place)
    plan(checkpoint, 1, 5)
    with pytest.raises(InvalidRequestError, match="TXN_CONTENT_DIFFERS") as info:
        write(log, root, 1, **place)
    assert f"micro-batch 1 of query {QUERY} starts or ends at other offsets" in info.value.message
    assert f"topic 'a': commit {log.refresh().commit} has version 1" in info.value.message
    assert "new checkpointLocation" in info.value.fix
    plan(checkpoint, 1, 2)
    plan(checkpoint, 0, 0)  # it starts somewhere else
    with pytest.raises(InvalidRequestError, match="TXN_CONTENT_DIFFERS"):
        write(log, root, 1, **place)
    assert values(log, "a") == ["a 0", "a 1"]


def test_a_repeated_batch_is_no_mismatch(
    log: SparkLog, root: str, checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(log, root, 1, checkpointLocation=str(checkpoint))
    caplog.clear()
    plan(checkpoint, 1, 2, watermark=17)  # what changes when a batch is planned again just the same
    shutil.copytree(checkpoint, checkpoint.with_name("copy"))
    for place in (str(checkpoint), checkpoint.as_uri(), str(checkpoint.with_name("copy"))):
        write(log, root, 1, checkpointLocation=place)
    assert caplog.messages == []  # to repeat the last batch is nothing that needs a warning
    assert values(log, "a") == ["a 1"]


@pytest.mark.parametrize("damage", ["metadata", "offsets/1", "offsets/0", "id", "version", "json"])
def test_what_a_checkpoint_does_not_tell_is_not_compared(
    log: SparkLog, root: str, checkpoint: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    write(log, root, 1, checkpointLocation=str(checkpoint))
    caplog.clear()
    plan(checkpoint, 1, 5)
    if "/" in damage or damage == "metadata":
        (checkpoint / damage).unlink()
    elif damage == "id":
        (checkpoint / "metadata").write_text('{"id":"another"}')
    else:
        (checkpoint / "offsets" / "1").write_text("1\n{}\n{}" if damage == "version" else "v1\n[]\n{}")
    write(log, root, 1, checkpointLocation=str(checkpoint))
    (message,) = caplog.messages
    assert message.endswith("whether it is the same cannot be told without its checkpoint")


@pytest.mark.parametrize(
    "place", ["hdfs://name/checkpoint", "dbfs:/checkpoint", "s3://bucket/checkpoint", "nowhere"]
)
def test_a_checkpoint_that_cannot_be_read_is_none(log: SparkLog, directory: Path, place: str) -> None:
    write(log, str(directory), 0, checkpointLocation=place)
    assert log.refresh().topic("a").writer_txns[f"spark-streaming:{QUERY}"].content == ""


def test_a_batch_below_the_last_one_is_refused(log: SparkLog, root: str, checkpoint: Path) -> None:
    """Spark never repeats one of those: it would be lost, and so would all up to the last one."""
    for batch in (0, 1, 2):
        write(log, root, batch, checkpointLocation=str(checkpoint))
    with pytest.raises(InvalidRequestError, match=r"a has version 2, in commit .* an older copy") as raised:
        write(log, root, 1)
    assert raised.value.code == "CHECKPOINT_OUTDATED"
    assert values(log, "a") == ["a 0", "a 1", "a 2"]


def test_the_sessions_place_for_checkpoints(log: SparkLog, root: str, checkpoint: Path) -> None:
    def content(**options: str) -> str:
        (result,) = staged(log, "a", batch=next(batches))
        result = dataclasses.replace(result, checkpoints=f"{checkpoint.parent}/")
        stream_writer(root, **options).commit([result], result.batch_id or 0)
        return log.refresh().topic("a").writer_txns[f"spark-streaming:{QUERY}"].content

    batches = iter(range(3))
    assert content(queryName=checkpoint.name)
    assert not content()
    assert not content(queryName=checkpoint.name, checkpointLocation="nowhere")


def test_a_source_of_files_is_told_by_its_files(log: SparkLog, root: str, checkpoint: Path) -> None:
    place = {"checkpointLocation": str(checkpoint)}
    sources = checkpoint / "sources" / "1"
    sources.mkdir(parents=True)
    for batch in range(3):
        plan(checkpoint, batch, batch, f'{{"logOffset":{batch}}}')
        (sources / str(batch)).write_text(f'v1\n{{"path":"file:///{batch}","timestamp":1,"batchId":{batch}}}')
    for batch in (0, 1):
        write(log, root, batch, **place)
    write(log, root, 1, **place)
    # The same entry in a compact file counts as another text: Spark writes each but once.
    original = (sources / "1").read_text()
    (sources / "1").write_text(original.replace("file:///1", "file:///other"))
    with pytest.raises(InvalidRequestError, match="TXN_CONTENT_DIFFERS"):
        write(log, root, 1, **place)
    (sources / "1").unlink()
    write(log, root, 1, **place)  # nobody knows
    (sources / "2").rename(sources / "2.compact")
    with (sources / "2.compact").open("a") as file:
        file.write("\n" + original.split("\n")[1])
    write(log, root, 2, **place)
    with (sources / "2.compact").open("a") as file:
        file.write('\n{"path":"file:///late","timestamp":1,"batchId":2}')
    with pytest.raises(InvalidRequestError, match="TXN_CONTENT_DIFFERS"):
        write(log, root, 2, **place)
    assert values(log, "a") == ["a 0", "a 1", "a 2"]


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_a_checkpoint_in_s3_beside_the_root(s3_root: str, checkpoint: Path, scheme: str) -> None:
    log = sparklog.open(s3_root, create=True)
    place = f"{s3_root}/checkpoint"
    store = open_store(place)
    for path in checkpoint.rglob("*"):
        if path.is_file():
            store.put_hint(str(path.relative_to(checkpoint)), path.read_bytes())
    options = {"checkpointLocation": place.replace("s3:", f"{scheme}:")}
    write(log, s3_root, 1, **options)
    (state,) = log.refresh().topic("a").writer_txns.values()
    assert state.content
    plan(checkpoint, 1, 5)
    store.put_hint("offsets/1", (checkpoint / "offsets" / "1").read_bytes())
    with pytest.raises(InvalidRequestError, match="TXN_CONTENT_DIFFERS"):
        write(log, s3_root, 1, **options)


# --- roots that are away -----------------------------------------------------------------------------


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
def new_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From here on as another worker, which remembers no root."""

    def forget() -> None:
        monkeypatch.setattr(sink_root, "_cluster_ids", {})
        monkeypatch.setattr(pinned_root, "_known", {})
        monkeypatch.setattr(roots, "_opened", {})

    return forget


RunTask = Callable[..., TaskResult]


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
            assert f"found no root at {root}, expected the one" in info.value.message
            assert f"of query {QUERY} went to: this is micro-batch 2" in info.value.message
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
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream_writer(root).commit([run_task(stream_writer(root), 5)], 5)
    (message,) = caplog.messages
    assert message.startswith(f"micro-batch 5 of query {QUERY} is the first that writes to the root ")
    assert f"(cluster id {log.cluster_id})" in message
    new_process()
    stream_writer(root).commit([run_task(stream_writer(root), 6)], 6)
    stream_writer(root).commit([run_task(stream_writer(root), 0, query="fresh")], 0)
    assert len(caplog.messages) == 1


# --- the checkpoint remembers the root ---------------------------------------------------------------


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
        assert f"expected {first}, which the checkpoint {checkpoint} says" in info.value.message
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
    monkeypatch.setattr(pinned_root, "write_file", fail)
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
