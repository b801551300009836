"""Metadata documents: a header line and a body line of JSON, guarded by length, CRC-32C and UUID.

Used for commits and for the manifests of snapshots. The checksum covers every byte of the file except its own
eight digits, so that every flipped bit is detected, also in the header.

Invariants: the same input gives the same bytes; any damage to a document is CorruptLogError, an intact
document with unknown content is UnsupportedVersionError.
Not here: the meaning of the body (model/), files (creating.py, loading.py, snapshot.py).
Sources: FORMAT.md#metadata-log; invariants 1, 6 and 9.
"""

from collections.abc import Sequence
from typing import TypeVar

import crc32c
import msgspec

from sparklog.errors import CorruptLogError, InvalidRequestError, UnsupportedVersionError, why_not_utf8
from sparklog.metadata.documents.extent_columns import (
    AppendColumns,
    StageColumns,
    WireAction,
    from_wire,
    to_wire,
)
from sparklog.metadata.model.action import ActionBase, Int64
from sparklog.metadata.model.actions import ACTION_TYPES, Action
from sparklog.metadata.model.extent_list import Extent
from sparklog.metadata.model.image import BrokerListener

# Of commits, manifests and requests. A change that older software can decode and must not misread is a
# feature (model/settings.py).
VERSION = 1
# The actions of a commit: only there, extents may be in columns.
WIRE_TYPES: tuple[type[ActionBase], ...] = (*ACTION_TYPES, AppendColumns, StageColumns)
MAX_DOCUMENT_BYTES = 64 << 20
MAX_HEADER_BYTES = 4096
_CRC_PLACEHOLDER = b"00000000"
_CRC_SUFFIX = b'"}\n'
# The last field: deeper nesting than in anything that we write, and perhaps than other parsers support.
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """First line of a document. `crc32c` must stay the last field."""

    version: Int64  # VERSION
    kind: str  # "commit", "snapshot" or "request"
    commit: Int64  # the number; of a request: its sequence
    cluster_id: str
    uuid: str  # of this commit; of a snapshot: of its commit; of a request: its publisher
    previous: str  # UUID of the previous commit; of commit 0 and of snapshots: empty
    timestamp_ms: Int64  # by the writer's clock; for display and ages, never for ordering
    length: Int64  # bytes of the second line, without its line feed
    crc32c: str = _CRC_PLACEHOLDER.decode()


class CommitBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Second line of a commit."""

    actions: tuple[WireAction, ...]


class SnapshotPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of a snapshot, in the snapshot's directory."""

    name: str
    size: Int64
    crc32c: str


class ManifestBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Second line of a snapshot's manifest."""

    state: SnapshotPart
    extents: SnapshotPart


class RequestBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Second line of a request; the client defines the payload."""

    base: Int64  # the newest commit that the publisher had seen when it posted
    nonce: str  # distinguishes requests of clones with the same publisher and number
    incarnation: str = ""  # of the root; left out if it was never restored
    publish: msgspec.Raw


_Body = TypeVar("_Body", CommitBody, ManifestBody, RequestBody)
_encoder = msgspec.json.Encoder()


def checksum(*chunks: bytes | memoryview) -> str:
    """Return the CRC-32C of the chunks, as eight hexadecimal digits."""
    value = 0
    for chunk in chunks:
        value = crc32c.crc32c(chunk, value)
    return f"{value:08x}"


def encode_commit(header: Header, actions: Sequence[Action]) -> bytes:
    """Encode a commit, many extents in columns.

    Raises: TypeError, ValueError: it would be read back differently. Plans are checked for bounds and not for
        types, and 3.0 and True are within the bounds of integers. So the actions are decoded again, and
        columns as they are made (extent_columns.py).
    """
    wire = to_wire(actions)
    data = encode_document(header, CommitBody(actions=wire))
    try:
        found = msgspec.json.decode(memoryview(data)[data.index(b"\n") + 1 : -1], type=CommitBody)
    except _UNDECODABLE as error:
        raise ValueError(str(error)) from error
    if found.actions != wire:
        raise ValueError("the encoded actions differ from the planned ones")
    return data


def encode_document(header: Header, body: CommitBody | ManifestBody | RequestBody) -> bytes:
    """Encode a document; fills in `length` and `crc32c` of the header."""
    try:
        second = _encoder.encode(body)
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            "INVALID_ACTIONS",
            f"commit {header.commit}: found {why_not_utf8(error.object)}",
            fix="Correct that text; nothing was published",
        ) from None
    header = msgspec.structs.replace(header, length=len(second), crc32c=_CRC_PLACEHOLDER.decode())
    first = _encoder.encode(header)
    prefix = first[: -len(_CRC_PLACEHOLDER) - 2]
    data = b"".join((first, b"\n", second, b"\n"))
    if len(data) > MAX_DOCUMENT_BYTES:
        raise InvalidRequestError(
            "COMMIT_TOO_LARGE",
            f"commit {header.commit}: {len(data)} bytes, at most {MAX_DOCUMENT_BYTES} are allowed",
            fix="Publish fewer extents in one commit",
        )
    crc = checksum(prefix, _CRC_PLACEHOLDER, data[len(first) - 2 :]).encode()
    return b"".join((prefix, crc, data[len(first) - 2 :]))


def decode_commit(
    data: bytes, *, where: str, commit: int, cluster_id: str
) -> tuple[Header, tuple[Action, ...]]:
    """Decode a commit and check every byte; `commit` and `cluster_id` are the expected ones."""
    header, second = _decode_header(data, where=where, kind="commit", code="CORRUPT_METADATA_COMMIT")
    _check_identity(header, where=where, commit=commit, cluster_id=cluster_id, code="CORRUPT_METADATA_COMMIT")
    body = _decode_body(second, CommitBody, where=where, code="CORRUPT_METADATA_COMMIT")
    try:
        return header, from_wire(body.actions)
    except msgspec.DecodeError as error:
        raise corrupt("CORRUPT_METADATA_COMMIT", where, f"cannot be decoded: {error}") from error


def uuid_in(start: bytes) -> str | None:
    """Return the UUID in the first MAX_HEADER_BYTES of a commit, unchecked; None if there is no header."""
    try:
        return msgspec.json.decode(start.partition(b"\n")[0], type=Header).uuid
    except _UNDECODABLE:
        return None


def decode_manifest(data: bytes, *, where: str, commit: int, cluster_id: str) -> tuple[Header, ManifestBody]:
    """Decode a snapshot's manifest and check every byte."""
    code = "CORRUPT_METADATA_SNAPSHOT"
    header, second = _decode_header(data, where=where, kind="snapshot", code=code)
    _check_identity(header, where=where, commit=commit, cluster_id=cluster_id, code=code)
    return header, _decode_body(second, ManifestBody, where=where, code=code)


def decode_request(data: bytes, *, where: str, sequence: int, cluster_id: str) -> tuple[Header, RequestBody]:
    """Decode a request and check every byte, except its payload."""
    code = "CORRUPT_METADATA_REQUEST"
    header, second = _decode_header(data, where=where, kind="request", code=code)
    _check_identity(header, where=where, commit=sequence, cluster_id=cluster_id, code=code)
    return header, _decode_body(second, RequestBody, where=where, code=code)


def corrupt(code: str, where: str, problem: str) -> CorruptLogError:
    """The error for a document that breaks FORMAT.md."""
    return CorruptLogError(
        code,
        f"{where}: {problem}",
        fix="Restore this file from a copy; see FORMAT.md, 'Metadata log', recovery",
    )


def _decode_header(data: bytes, *, where: str, kind: str, code: str) -> tuple[Header, bytes]:
    """Return the header, and the body without its line feed, after checking lengths and checksum."""
    if len(data) > MAX_DOCUMENT_BYTES:
        raise corrupt(code, f"{where}@0", f"found more than {MAX_DOCUMENT_BYTES} bytes")
    line = data.find(b"\n", 0, MAX_HEADER_BYTES)
    if line < 0:
        raise corrupt(code, f"{where}@0", f"no header line in {len(data)} bytes; truncated?")
    digits = line + 1 - len(_CRC_SUFFIX) - len(_CRC_PLACEHOLDER)
    if digits < 0:
        raise corrupt(code, f"{where}@0", f"a header line of {line} bytes is too short")
    found, expected = data[digits : digits + 8], checksum(data[:digits], _CRC_PLACEHOLDER, data[digits + 8 :])
    intact = found == expected.encode()
    try:
        header = msgspec.json.decode(data[:line], type=Header)
    except _UNDECODABLE as error:
        raise _undecodable(data[:line], where, intact=intact, code=code, error=error) from error
    if intact and header.version != VERSION:
        what = _first_unknown(data[line + 1 :])
        raise _newer(where, _unknown_version(header.version) + (f" ({what})" if what else ""))
    body_bytes = len(data) - line - 2
    if header.length != body_bytes:
        raise corrupt(
            code,
            f"{where}@{line + 1}",
            f"found a body of {body_bytes} bytes, expected {header.length}; truncated?",
        )
    if not intact:
        raise corrupt(code, f"{where}@0", f"found CRC-32C {found!r}, expected {expected}")
    if data[-1:] != b"\n" or header.kind != kind:
        raise corrupt(code, f"{where}@0", f"found a document of kind {header.kind!r}, expected {kind!r}")
    return header, data[line + 1 : -1]


def _check_identity(header: Header, *, where: str, commit: int, cluster_id: str, code: str) -> None:
    if header.cluster_id != cluster_id:
        raise corrupt(
            code,
            where,
            f"found cluster id {header.cluster_id!r}, expected {cluster_id!r}; a file of another root?",
        )
    if header.commit != commit:
        raise corrupt(code, where, f"found commit number {header.commit}, expected {commit}; was it renamed?")


def _decode_body(data: bytes, kind: type[_Body], *, where: str, code: str) -> _Body:
    try:
        return msgspec.json.decode(data, type=kind)
    except _UNDECODABLE as error:
        raise _undecodable(data, where, intact=True, code=code, error=error) from error


def _undecodable(
    data: bytes, where: str, *, intact: bool, code: str, error: Exception
) -> CorruptLogError | UnsupportedVersionError:
    """The error for an intact document that cannot be decoded: of a newer version, or written wrong."""
    if intact:
        unknown = _first_unknown(data)
        if unknown is not None:
            return _newer(where, unknown)
    return corrupt(code, where, f"cannot be decoded: {error}")


def _newer(where: str, found: str) -> UnsupportedVersionError:
    return UnsupportedVersionError(
        "UNSUPPORTED_METADATA",
        f"{where}: {found}; written by a newer version of sparklog",
        fix="Upgrade sparklog on every machine that uses this root",
    )


def _unknown_version(version: int) -> str:
    return f"found version {version}, expected {VERSION}"


def _first_unknown(data: bytes) -> str | None:
    """Return the first field or action type that is unknown to this version, if any."""
    try:
        document = msgspec.json.decode(data)
    except _UNDECODABLE:
        return None
    if not isinstance(document, dict):
        return None
    if "actions" not in document:
        version = document.get("version")
        if isinstance(version, int) and version != VERSION:
            return _unknown_version(version)
        return _unknown_field(document, _fields(Header) | _fields(ManifestBody), "document")
    actions = _items(document["actions"])
    return _unknown_field(document, _fields(CommitBody), "commit") or _unknown_action(actions)


def _unknown_action(actions: Sequence[object]) -> str | None:
    known = {kind.__struct_config__.tag: kind for kind in WIRE_TYPES}
    for number, action in enumerate(actions):
        if not isinstance(action, dict) or not isinstance(action.get("type"), str):
            continue
        kind = known.get(action["type"])
        if kind is None:
            return f"action {number} has the unknown type {action['type']!r}"
        unknown = _unknown_field(action, _fields(kind) | {"type"}, f"action {number} ({action['type']})")
        if unknown is not None:
            return unknown
        extents = [*_items(action.get("extents")), *_items(action.get("added"))]
        for extent in extents:
            unknown = _unknown_field(extent, _fields(Extent), f"action {number}, extent")
            if unknown is not None:
                return unknown
        for listener in _items(action.get("listeners")):
            unknown = _unknown_field(listener, _fields(BrokerListener), f"action {number}, listener")
            if unknown is not None:
                return unknown
    return None


def _items(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()


def _fields(kind: type[msgspec.Struct]) -> set[str]:
    return set(kind.__struct_encode_fields__)


def _unknown_field(value: object, known: set[str], where: str) -> str | None:
    if not isinstance(value, dict):
        return None
    unknown = sorted(set(map(str, value)) - known)
    return f"{where} has the unknown field {unknown[0]!r}" if unknown else None
