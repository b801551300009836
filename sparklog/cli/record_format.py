"""How `consume` prints a record: a format of kcat's tokens, or a JSON object with kcat's fields.

Sources: kcat's manual; docs/cli.md lists tokens and fields.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sparklog.cli.framework import json_text
from sparklog.wording import plain


class ConsumedRecord(NamedTuple):
    """One record as `consume` prints it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


Show = Callable[[bytes], bytes]
Render = Callable[[ConsumedRecord], bytes]
_Piece = Callable[[ConsumedRecord, Callable[[bytes | None], bytes]], bytes]

TOKENS: dict[str, _Piece] = {
    "s": lambda record, show: show(record.value),
    "S": lambda record, _: b"%d" % (-1 if record.value is None else len(record.value)),
    "k": lambda record, show: show(record.key),
    "K": lambda record, _: b"%d" % (-1 if record.key is None else len(record.key)),
    "t": lambda record, _: record.topic.encode(),
    "p": lambda record, _: b"%d" % record.partition,
    "o": lambda record, _: b"%d" % record.offset,
    "T": lambda record, _: b"%d" % record.timestamp_ms,
    "h": lambda record, show: b",".join(
        show(name.encode()) + b"=" + show(value) for name, value in record.headers
    ),
    "%": lambda _record, _show: b"%",
}
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "0": "\0"}
_ESCAPE = re.compile(r"\\x([0-9a-fA-F]{2})|\\(.?)", re.DOTALL)
_SPECIAL = re.compile(r"%(.?)|" + _ESCAPE.pattern, re.DOTALL)


class FormatError(ValueError):
    """The format string is wrong; the message says where, and what is known."""


def as_is(field: bytes) -> bytes:
    return field


def as_hex(field: bytes) -> bytes:
    return field.hex().encode()


def for_terminal(field: bytes) -> bytes:
    r"""Text without characters that control a terminal: they, and bytes that are not UTF-8, are escapes."""
    return plain(field.decode(errors="backslashreplace"), keep="\t").encode()


def compile_format(text: str, *, null: bytes = b"", show: Show = as_is) -> Render:
    r"""Turn `%t [%p] at %o: %s\n` into a function from record to bytes.

    Args:
        null: what is printed for a null key or value.
        show: how the bytes of keys, values and headers are printed.
    """
    pieces: list[_Piece | bytes] = []
    position = 0
    for match in _SPECIAL.finditer(text):
        token, byte, escape = match.groups()
        pieces.append(text[position : match.start()].encode())
        if token is None:
            pieces.append(_unescaped(byte, escape))
        elif token in TOKENS:
            pieces.append(TOKENS[token])
        else:
            known = " ".join(f"%{name}" for name in TOKENS)
            raise FormatError(f"unknown token %{token} in the format; known: {known}.")
        position = match.end()
    pieces.append(text[position:].encode())

    def field(value: bytes | None) -> bytes:
        return null if value is None else show(value)

    def render(record: ConsumedRecord) -> bytes:
        return b"".join(piece if isinstance(piece, bytes) else piece(record, field) for piece in pieces)

    return render


def unescape(text: str) -> bytes:
    r"""The bytes of a text in which `\t`, `\xNN` and the other escapes of a format may stand.

    Raises:
        FormatError: an unknown escape.
    """
    parts: list[bytes] = []
    position = 0
    for match in _ESCAPE.finditer(text):
        parts += [os.fsencode(text[position : match.start()]), _unescaped(*match.groups())]
        position = match.end()
    return b"".join(parts) + os.fsencode(text[position:])


def _unescaped(byte: str | None, escape: str) -> bytes:
    if byte is not None:
        return bytes([int(byte, 16)])
    if escape not in _ESCAPES:
        raise FormatError(f"unknown escape \\{escape}; known: \\n \\r \\t \\\\ \\0 \\xNN.")
    return _ESCAPES[escape].encode()


def json_line(record: ConsumedRecord) -> bytes:
    """The JSON object of kcat, one line."""
    document = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "tstype": {0: "create", 1: "logappend"}.get(record.timestamp_type, "unknown"),
        "ts": record.timestamp_ms,
        "headers": [entry for name, value in record.headers for entry in (name, json_bytes(value))],
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
