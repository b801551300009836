"""The fields of many records at once, given where the records start.

Invariants: on success every key, value and header section lies within its record, and every record is
    consumed to its last byte; whatever the bytes, nothing outside `data` is read.
Not here: finding the starts (record_starts.py); headers themselves (record_headers.py).
Concurrency: pure functions.
Sources: FORMAT.md#records; Kafka DefaultRecord.readFrom.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparklog.format.arrow_bytes import Int64Array, UInt64Array, Words
from sparklog.format.varint import decode_long_varints, decode_varints

_U = np.uint64
_VARINT_BYTES = 5
_VARLONG_BYTES = 10


class BadRecordError(Exception):
    """Row `row` of those parsed breaks the format; the caller knows where it is."""

    def __init__(self, row: int, found: str, expected: str) -> None:
        super().__init__(row, found, expected)
        self.row, self.found, self.expected = row, found, expected


class RecordFields(NamedTuple):
    """One element per record; lengths are -1 for null; positions count from the start of the data."""

    timestamp_delta: Int64Array
    offset_delta: Int64Array
    key_position: Int64Array
    key_length: Int64Array
    value_position: Int64Array
    value_length: Int64Array
    header_count: Int64Array
    header_position: Int64Array  # of the first header
    end: Int64Array


class FieldCursor:
    """Reads one varint after the other, in all rows; fetches 8 bytes a row, and again when those are used
    up.
    """

    def __init__(self, words: Words, position: Int64Array, size: int) -> None:
        self._words, self._size = words, size
        self._word: UInt64Array = np.zeros(0, np.uint64)
        self._used = 9  # bytes of the word consumed in the row that consumed most; 9 = fetch first
        self.position = position

    def jump(self, position: Int64Array) -> None:
        self.position, self._used = position, 9

    def skip_byte(self, byte: int, what: str) -> None:
        """Expect this byte in every row; only where a fetched word surely still has one."""
        wrong = (self._word & _U(0xFF)) != byte
        if wrong.any():
            row = int(np.argmax(wrong))
            raise BadRecordError(row, f"{what} {int(self._word[row]) & 0xFF}", str(byte))
        self._word = self._word >> _U(8)
        self._used += 1
        self.position = self.position + 1

    def varint(self, what: str, most: int = _VARINT_BYTES) -> Int64Array:
        """The next varint of every row, of at most `most` bytes."""
        decoded = decode_varints(self._word) if self._used < 8 else None
        if decoded is None or self._used + decoded.max_size > 8:
            np.minimum(self.position, self._size, out=self.position)
            self._word = self._words.at(self.position)
            self._used = 0
            decoded = decode_varints(self._word)
            if decoded.max_size > 8 and most > 8:
                decoded = decode_long_varints(self._word, self._words.at(self.position + 8))
        if decoded.max_size > most:
            row = int(np.argmax(np.broadcast_to(decoded.size, len(self.position)) > most))
            raise BadRecordError(row, f"a {what} of more than {most} bytes", "a varint")
        if isinstance(decoded.size, int):
            self._word = self._word >> _U(8 * decoded.size)
        elif decoded.max_size < 8:
            self._word = self._word >> (decoded.size.view(np.uint64) << _U(3))
        self._used += decoded.max_size
        self.position = self.position + decoded.size
        return decoded.value

    def sized(self, end: Int64Array, what: str, lowest: int = -1) -> tuple[Int64Array, Int64Array]:
        """(length, position) of bytes that are led by their length and lie before `end`; goes on behind
        them.
        """
        length = self.varint(f"{what} length")
        position = self.position
        require((length >= lowest) & (length <= end - position), f"{what} length", length)
        self.jump(position + np.maximum(length, 0))
        return length, position


def parse_fields(words: Words, starts: Int64Array, size: int) -> RecordFields:
    """Parse the records that start at `starts`, each within the first `size` bytes.

    Raises: BadRecordError.
    """
    cursor = FieldCursor(words, starts.copy(), size)
    length = cursor.varint("length")
    end = cursor.position + length
    require(length >= 0, "length", length)
    require(end <= size, "length", length)
    cursor.skip_byte(0, "attributes")
    timestamp_delta = cursor.varint("timestamp delta", _VARLONG_BYTES)
    offset_delta = cursor.varint("offset delta")
    key_length, key_position = cursor.sized(end, "key")
    value_length, value_position = cursor.sized(end, "value")
    header_count = cursor.varint("header count")
    header_position = cursor.position
    require((header_count >= 0) & (header_count << 1 <= end - header_position), "header count", header_count)
    whole = (header_position == end) | (header_count > 0)
    require(whole, "bytes behind the last field of the record", end - header_position)
    return RecordFields(
        timestamp_delta,
        offset_delta,
        key_position,
        key_length,
        value_position,
        value_length,
        header_count,
        header_position,
        end,
    )


def require(holds: npt.NDArray[np.bool_], what: str, value: Int64Array) -> None:
    """BadRecordError for the first row where it does not hold."""
    if not holds.all():
        row = int(np.argmin(holds))
        raise BadRecordError(row, f"{what} {value[row]}", "one that fits into its record")
