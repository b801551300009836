"""How `consume` prints a record: kcat's `-f` tokens and kcat's `-J` JSON lines.

A format is compiled once into pieces; a record is then one join. Bytes are printed as they are
with `-f`; JSON needs text, so bytes that are not UTF-8 become `{"base64": "..."}`.
Sources: kcat's manual; docs/cli.md lists tokens and JSON fields.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sparklog.cli.framework import json_text

TIMESTAMP_TYPES = {0: "create", 1: "logappend"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumedRecord:
    """One record as `consume` prints it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


Piece = Callable[[ConsumedRecord], bytes]

TOKENS: dict[str, str] = {
    "s": "value",
    "S": "value's size in bytes, -1 when null",
    "k": "key",
    "K": "key's size in bytes, -1 when null",
    "t": "topic",
    "p": "partition",
    "o": "offset",
    "T": "timestamp in ms",
    "h": "headers, a=1,b=2",
    "%": "a percent sign",
}
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "0": "\0"}
_ESCAPE = re.compile(r"\\x([0-9a-fA-F]{2})|\\(.?)", re.DOTALL)
_SPECIAL = re.compile(r"%(.?)|" + _ESCAPE.pattern, re.DOTALL)


class FormatError(ValueError):
    """The format string is wrong; the message says where and what is known."""


def compile_format(text: str, *, null: bytes = b"") -> Callable[[ConsumedRecord], bytes]:
    r"""Turn `%t [%p] at %o: %s\n` into a function from record to bytes.

    Args:
        null: what stands for a null key or value.
    """
    pieces: list[Piece | bytes] = []
    position = 0
    for match in _SPECIAL.finditer(text):
        pieces.append(text[position : match.start()].encode())
        pieces.append(_piece(match, null))
        position = match.end()
    pieces.append(text[position:].encode())
    pieces = [piece for piece in pieces if piece != b""]

    def render(record: ConsumedRecord) -> bytes:
        return b"".join(piece if isinstance(piece, bytes) else piece(record) for piece in pieces)

    return render


def _piece(match: re.Match[str], null: bytes) -> Piece | bytes:
    token, byte, escape = match.groups()
    if byte is not None:
        return bytes([int(byte, 16)])
    if escape is not None:
        return _escaped(escape)
    pieces: dict[str, Piece | bytes] = {
        "s": lambda record: null if record.value is None else record.value,
        "S": lambda record: b"%d" % (-1 if record.value is None else len(record.value)),
        "k": lambda record: null if record.key is None else record.key,
        "K": lambda record: b"%d" % (-1 if record.key is None else len(record.key)),
        "t": lambda record: record.topic.encode(),
        "p": lambda record: b"%d" % record.partition,
        "o": lambda record: b"%d" % record.offset,
        "T": lambda record: b"%d" % record.timestamp_ms,
        "h": lambda record: _headers_text(record, null),
        "%": b"%",
    }
    if token not in pieces:
        known = " ".join(f"%{name}" for name in TOKENS)
        raise FormatError(f"unknown token %{token} in the format; known: {known}.")
    return pieces[token]


def unescape(text: str) -> bytes:
    r"""The bytes of a text in which `\t`, `\xNN` and the other escapes of a format may stand.

    Raises:
        FormatError: an escape that is not known.
    """
    parts: list[bytes] = []
    position = 0
    for match in _ESCAPE.finditer(text):
        byte, escape = match.groups()
        parts.append(os.fsencode(text[position : match.start()]))
        parts.append(_escaped(escape) if byte is None else bytes([int(byte, 16)]))
        position = match.end()
    return b"".join(parts) + os.fsencode(text[position:])


def _escaped(escape: str) -> bytes:
    if escape not in _ESCAPES:
        raise FormatError(f"unknown escape \\{escape}; known: \\n \\r \\t \\\\ \\0 \\xNN.")
    return _ESCAPES[escape].encode()


def _headers_text(record: ConsumedRecord, null: bytes) -> bytes:
    return b",".join(
        name.encode() + b"=" + (null if value is None else value) for name, value in record.headers
    )


def json_line(record: ConsumedRecord) -> bytes:
    """The JSON envelope of kcat, one line."""
    headers: list[object] = []
    for name, value in record.headers:
        headers += [name, json_bytes(value)]
    document = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "tstype": TIMESTAMP_TYPES.get(record.timestamp_type, "unknown"),
        "ts": record.timestamp_ms,
        "headers": headers,
        "key": json_bytes(record.key),
        "payload": json_bytes(record.value),
    }
    return json_text(document, separators=(",", ":")).encode() + b"\n"


def json_bytes(value: bytes | None) -> object:
    """A key or value as JSON: text if it is UTF-8, else base64 in an object."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
