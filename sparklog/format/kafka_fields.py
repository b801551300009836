"""Kafka's plain (non-flexible) field encodings: numbers, strings, bytes, one after the other.

Invariants: a reader takes nothing beyond the end and allocates nothing that the data does not hold; whatever
    is wrong is a CorruptLogError that says where.
Not here: what the fields mean (consumer_offsets.py, group_metadata.py).
Concurrency: a reader belongs to one thread.
Sources: Kafka's protocol guide, "Protocol Primitive Types".
"""

import struct
from typing import Final

from sparklog.errors import CorruptLogError, InvalidRequestError

MAX_STRING_BYTES: Final = 2**15 - 1


class FieldReader:
    """Reads one field after the other, and nothing beyond the end."""

    def __init__(self, data: bytes, where: str) -> None:
        self._data, self._where, self._at = data, where, 0

    def number(self, code: str) -> int:
        """A number by its struct code, such as ">i"."""
        layout = struct.Struct(code)
        (number,) = layout.unpack(self._take(layout.size))
        return int(number)

    def string(self) -> str:
        """A string that is not null."""
        text = self.nullable_string()
        if text is None:
            raise self.corrupt("a string of -1 bytes")
        return text

    def nullable_string(self) -> str | None:
        """A string, or None."""
        size = self.number(">h")
        if size == -1:
            return None
        if size < 0:
            raise self.corrupt(f"a string of {size} bytes")
        try:
            return self._take(size).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.corrupt(f"a string that is not UTF-8 ({error.reason})") from error

    def blob(self) -> bytes:
        """Bytes that are not null."""
        size = self.number(">i")
        if size < 0:
            raise self.corrupt(f"bytes of size {size}")
        return self._take(size)

    def count(self, minimum_bytes: int) -> int:
        """The size of an array whose elements take at least `minimum_bytes` each."""
        count = self.number(">i")
        left = len(self._data) - self._at
        if not 0 <= count * minimum_bytes <= left:
            raise self.corrupt(f"an array of {count} elements in {left} bytes")
        return count

    def finish(self) -> None:
        """There must be nothing left."""
        if self._at != len(self._data):
            raise self.corrupt(f"{len(self._data) - self._at} bytes behind the last field")

    def corrupt(self, found: str) -> CorruptLogError:
        """The error to raise, with the place."""
        return CorruptLogError(
            "CORRUPT_CONSUMER_OFFSET",
            f"{self._where}, byte {self._at}: found {found}, expected Kafka's schema of __consumer_offsets",
            fix="see FORMAT.md#consumer-offsets; commit the group's offsets again",
        )

    def _take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise self.corrupt(f"{len(self._data) - self._at} bytes where {size} are needed")
        self._at += size
        return self._data[self._at - size : self._at]


def encode_string(text: str, name: str) -> bytes:
    """A string; too long for its i16 size: InvalidRequestError."""
    data = text.encode("utf-8")
    if len(data) > MAX_STRING_BYTES:
        raise InvalidRequestError(
            "CONSUMER_OFFSET_STRING_TOO_LONG",
            f"{name}: found {len(data)} bytes, expected at most {MAX_STRING_BYTES}",
            fix=f"shorten {name}",
        )
    return struct.pack(">h", len(data)) + data


def encode_nullable_string(text: str | None, name: str) -> bytes:
    """A string, or null."""
    return b"\xff\xff" if text is None else encode_string(text, name)


def encode_bytes(data: bytes) -> bytes:
    """Bytes behind their i32 size."""
    return struct.pack(">i", len(data)) + data
