import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

Run = Callable[..., Result]
RunJson = Callable[..., Any]

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


@pytest.fixture
def segment(run: Run, root: Path) -> Path:
    run("produce", "--topic", "t", "-K:", "-H", "h=1", "-z", "lz4", stdin="k:" + "v" * 200 + "\nk2:w\n")
    (path,) = root.glob("segments/*/*.log")
    return path


def test_batches_in_kafkas_words(run: Run, segment: Path) -> None:
    heading, batch = run("dump-log", str(segment)).stdout.splitlines()
    assert heading == f"Dumping {segment}"
    assert batch.startswith(
        "baseOffset: 0 lastOffset: 1 count: 2 baseSequence: -1 lastSequence: -1 producerId: -1 "
    )
    assert "position: 0 CreateTime: " in batch
    assert " magic: 2 compresscodec: lz4 crc: " in batch
    assert batch.endswith("isvalid: true")


def test_deep_lists_records_and_print_data_shows_them(run: Run, segment: Path) -> None:
    deep = run("dump-log", "--deep", str(segment)).stdout.splitlines()
    assert deep[3].startswith("| offset: 1 CreateTime: ")
    assert deep[3].endswith(" keySize: 2 valueSize: 1 headerKeys: [h]")
    shown = run("dump-log", "--files", str(segment), "--print-data-log").stdout.splitlines()
    assert shown[3] == deep[3] + " key: k2 payload: w"


def test_json_fields_are_pinned(run_json: RunJson, segment: Path) -> None:
    (document,) = run_json("dump-log", "--print-data-log", str(segment))
    assert list(document) == ["file", "entries", "valid_bytes", "error"]
    batch, record, _ = document["entries"]
    assert list(batch) == [
        "base_offset",
        "last_offset",
        "count",
        "base_sequence",
        "last_sequence",
        "producer_id",
        "producer_epoch",
        "partition_leader_epoch",
        "is_transactional",
        "is_control",
        "position",
        "timestamp_type",
        "max_timestamp",
        "size",
        "magic",
        "compress_codec",
        "crc",
    ]
    assert list(record) == [
        "offset",
        "timestamp_type",
        "timestamp",
        "key_size",
        "value_size",
        "header_keys",
        "key",
        "payload",
    ]
    assert document["valid_bytes"] == segment.stat().st_size
    assert document["error"] is None


@pytest.mark.parametrize("damage", ["truncated", "flipped", "appended"])
def test_damage_is_reported_after_what_is_whole(run: Run, segment: Path, tmp_path: Path, damage: str) -> None:
    data = bytearray(segment.read_bytes())
    whole = bytes(data)
    if damage == "truncated":
        data = data[:-1]
    elif damage == "flipped":
        data[-1] ^= 1
    damaged = tmp_path / "damaged.log"
    damaged.write_bytes(whole + bytes(data) if damage != "appended" else whole + b"garbage")
    result = run("dump-log", str(damaged), exit_code=1)
    assert result.stdout.count("isvalid: true") == 1
    assert f"{damaged}@{len(whole)}" in result.stderr
    documents = json.loads(run("dump-log", str(damaged), "--output", "json", exit_code=1).stdout)
    assert documents[0]["valid_bytes"] == len(whole)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_segments_of_others_are_read(run: Run, tmp_path: Path, codec: str) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes((GOLDEN / f"batch_{codec}_kafka_python.bin").read_bytes())
    result = run("dump-log", "--deep", str(path))
    assert f"compresscodec: {codec}" in result.stdout
    assert "| offset: " in result.stdout


def test_indexes_are_listed(run: Run, run_json: RunJson, tmp_path: Path) -> None:
    index = tmp_path / "0.index"
    index.write_bytes(bytes.fromhex("00000005 000001f4 0000000a 000003e8"))
    assert run("dump-log", str(index)).stdout.splitlines()[1:] == [
        "offset: 5 position: 500",
        "offset: 10 position: 1000",
    ]
    time_index = tmp_path / "0.timeindex"
    time_index.write_bytes(bytes.fromhex("0000018bcfe56800 00000007") + b"\0")
    (document,) = json.loads(run("dump-log", "--output", "json", str(time_index), exit_code=1).stdout)
    assert document["entries"] == [{"timestamp": 1_700_000_000_000, "relative_offset": 7}]
    assert "multiple of 12" in document["error"]
    empty = tmp_path / "1.log"
    empty.touch()
    assert run_json("dump-log", str(empty))[0]["entries"] == []


@pytest.mark.parametrize(("name", "message"), [("x.txt", "ends with .log"), ("x.log", "no such file")])
def test_wrong_files_are_usage_errors(run: Run, tmp_path: Path, name: str, message: str) -> None:
    assert message in run("dump-log", str(tmp_path / name), exit_code=2).stderr
    assert "no file is named" in run("dump-log", exit_code=2).stderr
