"""What a broker answers: fields of Kafka's protocol, and of the two requests that ask for its root.

They are a stranger's bytes.

Invariants: whatever the bytes are, either the fields or NotKafkaError; no length is believed before it is
    compared with what there is.
Not here: the requests, and what is made of the fields.
Concurrency: no state; any thread.
Sources: Kafka's MetadataResponse v2, DescribeLogDirsResponse v1, after their headers.
"""

import struct
from typing import NamedTuple

METADATA, METADATA_VERSION = 3, 2
NO_TOPICS = struct.pack(">i", 0)  # null would mean all of them


class NotKafkaError(Exception):
    """The answer is not what the protocol says."""


class AnswerReader:
    """The fields of a response, one after the other; hostile lengths end in NotKafkaError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def int16(self) -> int:
        return int.from_bytes(self._take(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self._take(4), "big", signed=True)

    def count(self) -> int:
        """Of an array; null is 0. Every element takes a byte at least, so it is bounded by the data."""
        found = self.int32()
        if found > len(self._data) - self._position:
            raise NotKafkaError(f"found an array of {found} in {len(self._data)} bytes")
        return max(found, 0)

    def string(self) -> str | None:
        length = self.int16()
        return None if length < 0 else self._text(length)

    # --- of flexible versions -------------------------------------------------------------------------

    def varint(self) -> int:
        """An unsigned one, of at most five bytes."""
        found = 0
        for place in range(5):
            byte = self._take(1)[0]
            found |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                return found
        raise NotKafkaError("found a number of more than five bytes")

    def compact_count(self) -> int:
        """Of an array; null is 0. Bounded as `count`."""
        found = self.varint() - 1
        if found > len(self._data) - self._position:
            raise NotKafkaError(f"found an array of {found} in {len(self._data)} bytes")
        return max(found, 0)

    def compact_string(self) -> str | None:
        length = self.varint() - 1
        return None if length < 0 else self._text(length)

    def skip_tags(self) -> None:
        """Tagged fields, which are not known here."""
        for _ in range(self.varint()):
            self.varint()
            self._take(self.varint())

    def _text(self, length: int) -> str:
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as error:
            raise NotKafkaError(f"found a string that is no UTF-8: {error}") from None

    def skip(self, size: int) -> None:
        self._take(size)

    def _take(self, size: int) -> bytes:
        taken = self._data[self._position : self._position + size]
        if len(taken) < size:
            raise NotKafkaError("found a response that ends too early")
        self._position += size
        return taken


class Cluster(NamedTuple):
    """What Metadata says of the brokers."""

    addresses: dict[int, tuple[str, int]]
    cluster_id: str | None
    controller_id: int


def read_cluster(metadata: AnswerReader) -> Cluster:
    """Of MetadataResponse v2."""
    addresses = {}
    for _ in range(metadata.count()):
        node_id = metadata.int32()
        host = metadata.string() or ""
        addresses[node_id] = (host, metadata.int32())
        metadata.string()  # rack
    return Cluster(addresses, metadata.string(), metadata.int32())


def read_log_dirs(response: AnswerReader) -> list[str]:
    """Of DescribeLogDirsResponse v1."""
    response.skip(4)  # throttle time
    found = []
    for _ in range(response.count()):
        response.int16()  # error code: a directory that is offline is still the broker's
        found.append(response.string() or "")
        for _ in range(response.count()):  # topics; none were asked for
            response.string()
            response.skip(response.count() * (4 + 8 + 8 + 1))
    return found
