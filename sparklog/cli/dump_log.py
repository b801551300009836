"""`sparklog dump-log`: what a segment or an index holds, in the words of kafka-dump-log.

Any `.log` of record batches will do, Kafka's own too, as will `.index` and `.timeindex`. Whole
batches are checked (length, CRC) and listed; what follows the last whole one is reported, and the
command fails. It only reads, and needs no root.
"""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Iterator
from pathlib import Path

import click

from sparklog.cli.framework import Command, current
from sparklog.cli.output import Document, show_json, tell

SUFFIXES = (".log", ".index", ".timeindex")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")  # by Kafka's id


@click.command("dump-log", cls=Command)
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--files", metavar="FILE,...", help="Kafka's way to name the files.")
@click.option("--deep", is_flag=True, help="List every record.")
@click.option("--print-data-log", is_flag=True, help="List every record with its key and value.")
def dump_log(paths: tuple[Path, ...], files: str | None, deep: bool, print_data_log: bool) -> None:
    """Show what segment (.log) and index (.index, .timeindex) files hold."""
    chosen = [*paths, *(Path(name) for name in (files or "").split(",") if name)]
    if not chosen:
        raise click.UsageError("no file is named: give FILE... or --files FILE,FILE.")
    documents = []
    for path in chosen:
        if path.suffix not in SUFFIXES:
            raise click.UsageError(f"{path}: expected a file that ends with {', '.join(SUFFIXES)}.")
        if path.is_dir() or not path.exists():
            raise click.UsageError(f"{path}: {'is a directory' if path.is_dir() else 'no such file'}.")
        documents.append(_dump(path, deep=deep or print_data_log, data=print_data_log))
    if current().json:
        show_json(documents)
    damage = [str(document["error"]) for document in documents if document["error"]]
    if damage:
        raise click.ClickException(" ".join(damage))


def _dump(path: Path, *, deep: bool, data: bool) -> Document:
    text = not current().json
    if text:
        tell(f"Dumping {path}")
    entries: list[Document] = []
    document: Document = {"file": str(path), "entries": entries, "valid_bytes": 0, "error": None}
    with path.open("rb") as file:
        size = path.stat().st_size
        if size == 0:
            return document
        # Not closed by hand: tables of the format layer are views of it.
        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    is_segment = path.suffix == ".log"
    found = _segment(view, path, document, deep=deep) if is_segment else _index(view, path, document)
    for entry in found:
        if text:
            tell(_text_of(entry, data=data))
        else:
            entries.append(entry if data else {k: v for k, v in entry.items() if k not in DATA_FIELDS})
    return document


DATA_FIELDS = ("key", "payload")


def _segment(view: memoryview, path: Path, document: Document, *, deep: bool) -> Iterator[Document]:
    from sparklog.format.decode import scan_valid_prefix
    from sparklog.format.record_batch import parse_header

    table, valid_bytes, error = scan_valid_prefix(view, where=str(path))
    document["valid_bytes"] = valid_bytes
    document["error"] = None if error is None else str(error)
    for position in table.position.tolist():
        header = parse_header(view, position, str(path))
        last_sequence = header.base_sequence + header.last_offset_delta if header.base_sequence >= 0 else -1
        yield {
            "base_offset": header.base_offset,
            "last_offset": header.last_offset,
            "count": header.record_count,
            "base_sequence": header.base_sequence,
            "last_sequence": last_sequence,
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "partition_leader_epoch": header.partition_leader_epoch,
            "is_transactional": header.is_transactional,
            "is_control": header.is_control,
            "position": position,
            "timestamp_type": TIMESTAMP_TYPES[header.timestamp_type],
            "max_timestamp": header.max_timestamp_ms,
            "size": header.size,
            "magic": header.magic,
            "compress_codec": header.codec.label,
            "crc": header.crc,
        }
        if deep:
            yield from _records(view, position, header.size, str(path))


def _records(view: memoryview, position: int, size: int, where: str) -> Iterator[Document]:
    from sparklog.cli.record_format import json_bytes
    from sparklog.format.decode import decode_records, scan_batches

    batch = view[position : position + size]
    table = scan_batches(batch, where=where, verify_crc=False)
    records = decode_records(batch, table, include_headers=True, where=f"{where}@{position}")
    keys, values = records.key.to_pylist(), records.value.to_pylist()
    headers = [None] * records.num_rows if records.headers is None else records.headers.to_pylist()
    for row in range(records.num_rows):
        key, value = keys[row], values[row]
        yield {
            "offset": int(records.offset[row]),
            "timestamp_type": TIMESTAMP_TYPES[int(records.timestamp_type[row])],
            "timestamp": int(records.timestamp_ms[row]),
            "key_size": -1 if key is None else len(key),
            "value_size": -1 if value is None else len(value),
            "header_keys": [entry["key"] for entry in headers[row] or ()],
            "key": json_bytes(key),
            "payload": json_bytes(value),
        }


def _index(view: memoryview, path: Path, document: Document) -> Iterator[Document]:
    from sparklog.format import index

    entry = index.TIME_ENTRY if path.suffix == ".timeindex" else index.OFFSET_ENTRY
    whole = len(view) - len(view) % entry.size
    document["valid_bytes"] = whole
    if whole < len(view):
        document["error"] = f"{path}: found {len(view)} bytes, expected a multiple of {entry.size}."
    for first, second in entry.iter_unpack(view[:whole]):
        if path.suffix == ".timeindex":
            yield {"timestamp": first, "relative_offset": second}
        else:
            yield {"relative_offset": first, "position": second}


_KAFKA_NAMES = {"compress_codec": "compresscodec", "relative_offset": "offset"}


def _text_of(entry: Document, *, data: bool) -> str:
    """An entry in kafka-dump-log's words."""
    words = []
    for field, value in entry.items():
        if field == "timestamp_type" or (field in DATA_FIELDS and (value is None or not data)):
            continue
        name = _KAFKA_NAMES.get(field) or re.sub(r"_(\w)", lambda found: found[1].upper(), field)
        text = json.dumps(value) if isinstance(value, bool | dict) else str(value)
        if field in {"max_timestamp", "timestamp"} and "timestamp_type" in entry:
            name = str(entry["timestamp_type"])
        elif isinstance(value, list):
            text = f"[{','.join(value)}]"
        words.append(f"{name}: {text}")
    line = " ".join(words)
    if "key_size" in entry:
        return f"| {line}"
    return f"{line} isvalid: true" if "crc" in entry else line
