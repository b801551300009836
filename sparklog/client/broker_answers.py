"""What a broker answers to the two requests that ask for its root (broker_root.py): a stranger's bytes.

Invariants: whatever the bytes are, either the fields or NotKafkaError; no length is believed before it is
    compared with what there is.
Not here: the requests, and what is made of the fields.
Concurrency: no state; any thread.
Sources: Kafka's MetadataResponse v2, DescribeLogDirsResponse v1, after their headers.
"""


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
        if length < 0:
            return None
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


def read_cluster_id(metadata: AnswerReader) -> str | None:
    """Of MetadataResponse v2."""
    for _ in range(metadata.count()):  # brokers: node id, host, port, rack
        metadata.skip(4)
        metadata.string()
        metadata.skip(4)
        metadata.string()
    return metadata.string()


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
