"""Records from lines: how `produce` reads stdin.

Lines arrive in bundles: as many as are there, at most `MAX_BUNDLE_BYTES`, and no later than
`LINGER_S` after the input fell silent, so that `tail -f | sparklog produce` does not wait and
`< big.file` goes in large appends. The last line needs no newline.
Not here: partitions, timestamps and appending (produce.py).
"""

from __future__ import annotations

import io
import os
import select
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

MAX_BUNDLE_BYTES = 4 << 20
READ_BYTES = 1 << 20
MAX_LINE_BYTES = 64 << 20
LINGER_S = 0.1


class LineError(ValueError):
    """The input is not what it was said to be."""


class LineTooLongError(LineError):
    """It has no newline for longer than any record may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFormat:
    """How a line becomes a key and a value.

    key_delimiter: splits a line at its first occurrence; None: the line is the value.
    fixed_key: the key of every record whose line has none.
    empty_is_null: kcat's -Z: an empty key or value is null (a null value is a tombstone).
    null_marker: Kafka's null.marker: this text is null.
    must_have_keys: Kafka's parse.key without ignore.error: a line without the delimiter is none.
    """

    key_delimiter: bytes | None = None
    fixed_key: bytes | None = None
    empty_is_null: bool = False
    null_marker: bytes | None = None
    must_have_keys: bool = False

    def up_to_fault(self, lines: list[bytes]) -> list[bytes]:
        """The lines before the first one that must have a key, and has none; mostly all."""
        delimiter = self.key_delimiter
        if not self.must_have_keys or delimiter is None:
            return lines
        faults = (at for at, line in enumerate(lines) if delimiter not in line)
        return lines[: next(faults, None)]

    def parse(self, line: bytes) -> tuple[bytes | None, bytes | None]:
        key, value = self.fixed_key, line
        if self.key_delimiter is not None and self.key_delimiter in line:
            key, value = line.split(self.key_delimiter, 1)
        return self._nullable(key), self._nullable(value)

    def lacks_keys(self, lines: Sequence[bytes]) -> bool:
        """Would the delimiter that was given find no key in any of these lines?"""
        delimiter = self.key_delimiter
        if delimiter is None or self.fixed_key is not None:
            return False
        return not any(delimiter in line for line in lines)

    def shown_delimiter(self) -> str:
        """The delimiter for a message: what is not ASCII as an escape."""
        return repr(self.key_delimiter).removeprefix("b")

    def _nullable(self, field: bytes | None) -> bytes | None:
        if (self.empty_is_null and field == b"") or (
            self.null_marker is not None and field == self.null_marker
        ):
            return None
        return field


def peculiarities(lines: Sequence[bytes]) -> list[str]:
    """What editors and shells of other systems put into the first lines of a file; it is kept as it is."""
    found = []
    if lines[0].startswith(BOM_UTF8):
        found.append("the input begins with a byte order mark, which is part of the first record.")
    elif lines[0].startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        found.append("the input seems to be UTF-16, and is kept so: iconv -f UTF-16 -t UTF-8 changes it.")
    if all(line.endswith(b"\r") for line in lines):
        found.append("all lines so far end with a carriage return, which is kept: tr -d '\\r' removes it.")
    return found


def read_line_bundles(stream: BinaryIO) -> Iterator[list[bytes]]:
    """Yield bundles of whole lines, without their newlines, until the input ends."""
    pending: list[bytes] = []
    pending_bytes = 0
    rest = b""
    for chunk in _read_chunks(stream):
        if chunk:
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                raise LineTooLongError(f"a line is longer than {MAX_LINE_BYTES:,} bytes; is the input text?")
            pending += lines
            pending_bytes += len(chunk)
        if pending and (not chunk or pending_bytes >= MAX_BUNDLE_BYTES):
            yield pending
            pending, pending_bytes = [], 0
    if rest:
        pending.append(rest)
    if pending:
        yield pending


def _read_chunks(stream: BinaryIO) -> Iterator[bytes]:
    """Yield bytes as they come; an empty chunk says that the input has fallen silent."""
    try:
        descriptor = stream.fileno()
    except (OSError, io.UnsupportedOperation):
        while chunk := stream.read(READ_BYTES):
            yield chunk
        return
    silent = True
    while True:
        # Once silence has been reported there is nothing to flush: wait as long as it takes.
        ready, _, _ = select.select([descriptor], [], [], None if silent else LINGER_S)
        if not ready:
            silent = True
            yield b""
            continue
        chunk = os.read(descriptor, READ_BYTES)
        if not chunk:
            return
        silent = False
        yield chunk
