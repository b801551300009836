"""Files of a scan: each format read back by another reader, and compared with the records."""

import base64
import csv
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.client.consumer import SCHEMA_WITH_HEADERS
from sparklog.console import message_export
from sparklog.console.message_export import EXPORT_FORMATS, ExportFormat, export
from sparklog.console.message_masks import MaskRule, Masks
from sparklog.console.messages import Filters, Limits, Progress, Query, Start, Step, scan
from sparklog.errors import DataLossError
from tests.console.made_records import TOPIC, Record, all_records, fill, is_found

ALL = Limits(records=None, bytes=None, seconds=None)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkLog]:
    with sparklog.open(tmp_path_factory.mktemp("root")) as log:
        fill(log)
        yield log


def exported(log: SparkLog, wanted: ExportFormat, filters: Filters, masks: Masks | None = None) -> bytes:
    query = Query(topic=TOPIC, start=Start("beginning"), filters=filters, limits=ALL)
    return b"".join(export(scan(log, query, masks), wanted))


def from_parquet(data: bytes) -> list[Record]:
    return [
        Record(
            row["partition"],
            row["offset"],
            round(row["timestamp"].timestamp() * 1000),
            row["key"],
            row["value"],
            [(entry["key"], entry["value"]) for entry in row["headers"] or []],
        )
        for row in pq.read_table(io.BytesIO(data)).to_pylist()
    ]


def from_json(value: object) -> bytes | None:
    if isinstance(value, dict):
        return base64.b64decode(value["base64"])
    return value.encode() if isinstance(value, str) else None


def from_json_headers(flat: list[object]) -> list[tuple[str, bytes | None]]:
    return [(str(name), from_json(value)) for name, value in zip(flat[::2], flat[1::2], strict=True)]


def from_json_lines(data: bytes) -> list[Record]:
    return [
        Record(
            row["partition"],
            row["offset"],
            row["ts"],
            from_json(row["key"]),
            from_json(row["payload"]),
            from_json_headers(row["headers"]),
        )
        for row in map(json.loads, data.splitlines())
    ]


def from_csv(data: bytes) -> list[Record]:
    found = []
    for row in csv.DictReader(io.StringIO(data.decode(), newline="")):
        fields: list[bytes | None] = []
        for name in ("key", "value"):
            encoding = row[f"{name}_encoding"]
            text = row[name].removeprefix("'")
            decoded = base64.b64decode(text) if encoding == "base64" else text.encode()
            fields.append(decoded if encoding else None)
        when = datetime.fromisoformat(row["timestamp"]).astimezone(UTC)
        found.append(
            Record(
                int(row["partition"]),
                int(row["offset"]),
                round(when.timestamp() * 1000),
                fields[0],
                fields[1],
                from_json_headers(json.loads(row["headers"])),
            )
        )
    return found


READERS = {"csv": from_csv, "jsonl": from_json_lines, "parquet": from_parquet}


@pytest.mark.parametrize("wanted", EXPORT_FORMATS)
@pytest.mark.parametrize(
    "filters", [Filters(), Filters(key="k3"), Filters(key="nothing")], ids=["all", "some", "none"]
)
def test_files_hold_what_is_found(filled: SparkLog, wanted: ExportFormat, filters: Filters) -> None:
    expected = [record for record in all_records(filled) if is_found(record, filters)]
    found = READERS[wanted](exported(filled, wanted, filters))
    assert sorted(found, key=lambda one: (one.partition, one.offset)) == expected


@pytest.mark.parametrize("wanted", EXPORT_FORMATS)
def test_files_are_masked(filled: SparkLog, wanted: ExportFormat) -> None:
    masks = Masks([MaskRule(regex="ann"), MaskRule(regex="^t[0-9]+$", fields=("headers",))], TOPIC)
    records = READERS[wanted](exported(filled, wanted, Filters(value_contains="***"), masks))
    assert records
    for record in records:
        assert b"ann" not in (record.value or b"")
        assert {value for name, value in record.headers if name == "trace"} <= {b"***"}


def test_parquet_is_written_in_pieces(filled: SparkLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_export, "ROW_GROUP_BYTES", 1000)
    pieces = list(export(scan(filled, Query(topic=TOPIC, limits=ALL)), "parquet"))
    assert len(pieces) > 3
    assert pq.read_metadata(io.BytesIO(b"".join(pieces))).num_row_groups == len(pieces) - 1


def step(values: list[bytes | None], problems: tuple[tuple[int, str], ...] = ()) -> Step:
    same = {"topic": "t", "partition": 0, "offset": 0, "timestamp": 0, "timestamp_type": 0}
    rows = [{"value": value} | same for value in values]
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA_WITH_HEADERS)
    return Step(Progress(problems=problems), batch)


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (b"=cmd|'/C calc'!A0", "'=cmd|'/C calc'!A0"),
        (b"+1+1", "'+1+1"),
        (b"@SUM(A1)", "'@SUM(A1)"),
        (b"\t=1", "'\t=1"),
        (b" =1", "' =1"),
        (b" \n\t @SUM(A1)", "' \n\t @SUM(A1)"),
        (b" a=1", " a=1"),
        (b"-12.5", "-12.5"),
        (b"+7", "+7"),
        (b"a=1", "a=1"),
        (b'say "hi",\r\nnow', 'say "hi",\r\nnow'),
        (b"", ""),
    ],
)
@pytest.mark.parametrize("neighbour", [b"text", b"\xff"])
def test_no_cell_of_a_csv_file_is_a_formula(value: bytes, cell: str, neighbour: bytes) -> None:
    data = b"".join(export([step([value, neighbour])], "csv"))
    rows = list(csv.DictReader(io.StringIO(data.decode(), newline="")))
    assert rows[0]["value"] == cell


@pytest.mark.parametrize("wanted", EXPORT_FORMATS)
def test_an_incomplete_file_is_not_ended(wanted: ExportFormat) -> None:
    pieces = export([step([b"a"]), step([], ((3, "it is damaged"),))], wanted)
    with pytest.raises(DataLossError, match=r"PARTITION_UNREADABLE.*partition 3: it is damaged"):
        list(pieces)
