"""The sinks' driver side without Spark: versions, what is left out, and what is said about it."""

import dataclasses
import logging
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import StringType, StructType

import sparklog
from sparklog.client import AppendResult, SparkLog
from sparklog.errors import InvalidRequestError
from sparklog.spark import write_task
from sparklog.spark import write_task as publishing
from sparklog.spark.options import parse_sink_options
from sparklog.spark.stream_writer import SparklogBatchWriter, SparklogStreamWriter
from sparklog.spark.write_task import TaskResult
from sparklog.storage import open_store
from tests.support.told import Told

QUERY = "7a7e0c4e-0000-4000-8000-000000000001"


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


def test_a_skipped_batch_write_is_said(log: SparkLog, root: str, told: Told) -> None:
    batch_writer(root, 3).commit(list(staged(log, "a")))
    assert told("sparklog.spark") == []
    commit = log.refresh().commit
    batch_writer(root, 3).commit(list(staged(log, "a", "b")))
    (message,) = told("sparklog.spark")
    assert "this write is version 3 of 'job'" in message
    assert message.endswith(f": a has version 3, in commit {commit}")
    told.forget()
    batch_writer(root, 2).commit(list(staged(log, "b")))
    (message,) = told("sparklog.spark")
    assert f"b has version 3, in commit {commit + 1}" in message
    assert (values(log, "a"), values(log, "b")) == (["a None"], ["b None"])


def test_a_repeated_micro_batch_is_said(log: SparkLog, root: str, told: Told) -> None:
    for batch in (0, 1):
        stream_writer(root).commit(list(staged(log, "a", batch=batch)), batch)
    assert told("sparklog.spark") == []
    stream_writer(root).commit(list(staged(log, "a", batch=1)), 1)
    (message,) = told("sparklog.spark")
    assert message.startswith(
        f"micro-batch 1 of query {QUERY} is skipped for topic a, which has it (version 1,"
    )
    assert message.endswith("without its checkpoint the two cannot be compared")
    assert values(log, "a") == ["a 0", "a 1"]
    assert told.records("sparklog.spark")[0].levelno == logging.WARNING


def test_too_many_extents_for_a_commit_are_explained_to_users_of_spark(
    log: SparkLog, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = staged(log, "a", "b")
    monkeypatch.setattr("sparklog.metadata.documents.document.MAX_DOCUMENT_BYTES", 300)
    with pytest.raises(InvalidRequestError, match="1 tasks wrote 2 extents, too many for one commit") as info:
        batch_writer(root, 1).commit(list(results))
    assert info.value.code == "COMMIT_TOO_LARGE"
    assert "repartition by it" in info.value.fix


def test_a_time_before_1970_fails_the_write_on_both_paths(
    log: SparkLog, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And does not become the time of the append."""
    rows = pa.record_batch({"value": ["a"], "timestamp": pa.array([-1000], pa.timestamp("us", "UTC"))})

    def local_property(name: str) -> None:
        del name

    task = SimpleNamespace(getLocalProperty=local_property, partitionId=lambda: 0)
    monkeypatch.setattr(TaskContext, "get", lambda: task)
    options = parse_sink_options({"path": root, "topic": "a"}, streaming=False)
    with pytest.raises(InvalidRequestError, match="row 0: found timestamp -1 ms"):
        write_task.write_task(options, ["value", "timestamp"], iter([rows]))
    with pytest.raises(InvalidRequestError, match="row 0: found timestamp -1 ms"):
        log.append("a", rows)
    assert log.topics() == []


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


def plan(checkpoint: Path, batch: int, *ends: object, watermark: int = 0, version: int = 1) -> None:
    """Let a micro-batch of the checkpoint end there: a number, or a line as it is."""
    lines = [end if isinstance(end, str) else f'{{"t":{{"0":{end}}}}}' for end in ends]
    head = [f"v{version}", f'{{"batchWatermarkMs":{watermark},"batchTimestampMs":{watermark},"conf":{{}}}}']
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


def test_a_repeated_batch_is_no_mismatch(log: SparkLog, root: str, checkpoint: Path, told: Told) -> None:
    write(log, root, 1, checkpointLocation=str(checkpoint))
    told.forget()
    plan(checkpoint, 1, 2, watermark=17)  # what changes when a batch is planned again just the same
    shutil.copytree(checkpoint, checkpoint.with_name("copy"))
    for place in (str(checkpoint), checkpoint.as_uri(), str(checkpoint.with_name("copy"))):
        write(log, root, 1, checkpointLocation=place)
    assert told("sparklog.spark") == []  # to repeat the last batch is nothing that needs a warning
    assert values(log, "a") == ["a 1"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("offsets/1", None, "a file in offsets is missing"),
        ("offsets/0", None, "a file in offsets is missing"),
        ("metadata", '{"id":"another"}', "the file metadata belongs to query another"),
        ("offsets/1", "1\n{}\n{}", "begins with b'1', expected v1 or v2"),
        ("offsets/1", "v3\n{}\n0:{}", "begins with b'v3', expected v1 or v2"),
        ("offsets/1", "v1\n[]\n{}", r"found b'\[\]', expected a JSON object"),
        ("offsets/1", 'v2\n{}\n{"t":{"0":5}}', "expected a source's name"),
        ("offsets/1", 'v2\n{}\n../0:{"logOffset":1}', "expected a source's name"),
        ("offsets/1", 'v1\n{}\n{"logOffset":1,"more":2}', 'expected {"logOffset":<number>}'),
        ("offsets/1", 'v2\n{}\n0:{"logOffset":"1"}', 'expected {"logOffset":<number>}'),
        ("offsets/1", 'v2\n{}\na:{"logOffset":1}', "an entry of sources/a is missing"),
        ("offsets/1", 'v2\n{}\na:{"logOffset":99}', "more than 16 entries of sources/a"),
    ],
)
def test_a_checkpoint_that_is_not_understood_is_a_warning(
    log: SparkLog, root: str, checkpoint: Path, told: Told, name: str, text: str | None, said: str
) -> None:
    """What cannot be compared must not pass for compared: neither now nor when it is left out."""
    write(log, root, 1, checkpointLocation=str(checkpoint))
    told.forget()
    if text is None:
        (checkpoint / name).unlink()
    else:
        (checkpoint / name).write_text(text)
    for _ in range(2):
        write(log, root, 1, checkpointLocation=str(checkpoint))
    warning, *left_out = told("sparklog.spark")
    assert re.search(said, warning) or said in warning
    assert f"cannot parse the checkpoint {checkpoint} of query {QUERY}" in warning
    assert [text.endswith("without its checkpoint the two cannot be compared") for text in left_out] == [
        True,
        True,
    ]
    assert {record.levelno for record in told.records("sparklog.spark")} == {logging.WARNING}


def test_a_checkpoint_that_is_elsewhere_is_not_compared(
    log: SparkLog, root: str, checkpoint: Path, told: Told
) -> None:
    """Without a scheme it may be in the cluster's own file system, which only Spark can reach."""
    write(log, root, 1, checkpointLocation=str(checkpoint))
    told.forget()
    (checkpoint / "metadata").unlink()
    write(log, root, 1, checkpointLocation=str(checkpoint))
    (message,) = told("sparklog.spark")
    assert message.endswith("without its checkpoint the two cannot be compared")


@pytest.mark.parametrize(
    "place", ["hdfs://name/checkpoint", "dbfs:/checkpoint", "s3://bucket/checkpoint", "nowhere"]
)
def test_a_checkpoint_that_cannot_be_read_is_none(log: SparkLog, directory: Path, place: str) -> None:
    write(log, str(directory), 0, checkpointLocation=place)
    assert log.refresh().topic("a").writer_txns[f"spark-streaming:{QUERY}"].content == ""


@pytest.mark.parametrize("name", ["a b", "a%20b", "a?b", "a#b"])
@pytest.mark.parametrize("scheme", ["", "file:", "file://", "FILE://"])
def test_a_checkpoint_is_read_where_spark_writes_it(
    log: SparkLog, root: str, checkpoint: Path, name: str, scheme: str
) -> None:
    """Hadoop's paths look like URLs, and are none: %20 is no blank there."""
    moved = checkpoint.rename(checkpoint.with_name(name))
    write(log, root, 0, checkpointLocation=f"{scheme}{moved}")
    assert log.refresh().topic("a").writer_txns[f"spark-streaming:{QUERY}"].content
    assert (moved / "sparklog-sink").is_file()


def test_a_batch_below_the_last_one_is_refused(log: SparkLog, root: str, checkpoint: Path) -> None:
    """Spark never repeats one of those: it would be lost, and so would all up to the last one."""
    for batch in (0, 1, 2):
        write(log, root, batch, checkpointLocation=str(checkpoint))
    with pytest.raises(InvalidRequestError, match=r"a has version 2, in commit .* an older copy") as raised:
        stream_writer(root).commit(list(staged(log, "a", "b", batch=1)), 1)
    assert raised.value.code == "CHECKPOINT_OUTDATED"
    assert "b" not in log.topics()
    assert values(log, "a") == ["a 0", "a 1", "a 2"]


@pytest.mark.parametrize("topics", [("a",), ("a", "b")])
def test_a_batch_that_falls_below_the_last_one_as_it_is_written_is_refused(
    log: SparkLog, root: str, monkeypatch: pytest.MonkeyPatch, topics: tuple[str, ...]
) -> None:
    """By a copy of the checkpoint: just before its publication the original goes on."""
    write(log, root, 0)
    writer, mine = stream_writer(root), staged(log, *topics, batch=1)

    def late(*args: Any, **options: Any) -> AppendResult:
        monkeypatch.undo()
        write(log, root, 2)
        return publishing.publish(*args, **options)

    monkeypatch.setattr("sparklog.spark.stream_writer.publish", late)
    with pytest.raises(InvalidRequestError, match="a has version 2, in commit") as raised:
        writer.commit(list(mine), 1)
    assert raised.value.code == "CHECKPOINT_OUTDATED"
    assert raised.value.fix.endswith("nothing of the micro-batch is visible")
    assert values(log, "a") == ["a 0", "a 2"]
    assert "b" not in log.refresh().topics


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


@pytest.mark.parametrize(("version", "name"), [(1, "1"), (2, "1"), (2, "my_files")])
def test_a_source_of_files_is_known_by_its_files(
    log: SparkLog, root: str, checkpoint: Path, version: int, name: str
) -> None:
    place = {"checkpointLocation": str(checkpoint)}
    sources = checkpoint / "sources" / name
    sources.mkdir(parents=True)
    for batch in range(3):
        ends = [f'{{"t":{{"0":{batch}}}}}', f'{{"logOffset":{batch}}}']
        if version == 2:
            ends = [f"{name}:{ends[1]}", f"kafka:{ends[0]}"]  # of a map: in any order
        plan(checkpoint, batch, *ends, version=version)
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


def test_the_sources_of_version_2_have_no_order(
    log: SparkLog, root: str, checkpoint: Path, told: Told
) -> None:
    place = {"checkpointLocation": str(checkpoint)}
    plan(checkpoint, 1, 'a:{"t":{"0":1}}', 'b:{"t":{"0":2}}', version=2)
    write(log, root, 1, **place)
    told.forget()
    plan(checkpoint, 1, 'b:{"t":{"0":2}}', 'a:{"t":{"0":1}}', version=2)
    write(log, root, 1, **place)
    assert told("sparklog.spark") == []
    plan(checkpoint, 1, 'a:{"t":{"0":2}}', 'b:{"t":{"0":1}}', version=2)
    with pytest.raises(InvalidRequestError, match="TXN_CONTENT_DIFFERS"):
        write(log, root, 1, **place)


@pytest.mark.parametrize("version", [1, 2])
def test_a_topic_may_be_named_as_the_offset_of_a_source_of_files(
    log: SparkLog, root: str, checkpoint: Path, told: Told, version: int
) -> None:
    place = {"checkpointLocation": str(checkpoint)}
    name = "0:" * (version - 1)
    plan(checkpoint, 1, name + '{"logOffset":{"0":1}}', version=version)
    write(log, root, 1, **place)
    told.forget()
    plan(checkpoint, 1, name + '{"logOffset":{"0":2}}', version=version)
    with pytest.raises(InvalidRequestError, match="TXN_CONTENT_DIFFERS"):
        write(log, root, 1, **place)
    assert told("sparklog.spark") == []


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
