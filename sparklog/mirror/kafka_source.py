"""An Apache Kafka cluster as the source of a mirror, through confluent-kafka (librdkafka).

Invariants: isolation is read_committed; partitions are assigned, never subscribed, so no group of the cluster
    changes; nothing is committed there. A position outside of a partition is an error, never reset.
No loop over records in Python: each field of a batch of messages is one `map` over C functions.
Memory: librdkafka holds up to 64 MiB that it has prefetched; a fetch about FETCH_BYTES on top of that.
Concurrency: one thread; librdkafka has its own.
Sources: librdkafka's list of properties; KIP-98 (read_committed), KIP-516 (topic ids).
"""

import logging
import operator
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.errors import (
    HIDDEN,
    DataLossError,
    InvalidRequestError,
    RetriableError,
    SparklogError,
    may_hold_secret,
)
from sparklog.format.schema import HEADERS_TYPE
from sparklog.metadata import is_internal
from sparklog.mirror.source import Fetched, SourceTopic, TopicPartition

try:
    import confluent_kafka
    from confluent_kafka import Consumer, KafkaError, KafkaException, Message
    from confluent_kafka import admin as kafka_admin
except ImportError as error:
    raise InvalidRequestError(
        "KAFKA_NOT_INSTALLED",
        "mirror needs the package confluent-kafka, which is not installed",
        fix="Install it: pip install 'sparklog[kafka]'",
    ) from error

T = TypeVar("T")
FETCH_BYTES = 8 << 20
MOST_MESSAGES = 20_000
AT_A_TIME = 100  # topics or groups of one request
_CLIENT_ID = "sparklog-mirror"
_FIXED = {  # what exactness depends on
    "group.id": _CLIENT_ID,  # librdkafka wants a name; nothing is committed under it
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "allow.auto.create.topics": False,
}
_DEFAULTS = {"client.id": _CLIENT_ID, "fetch.max.bytes": 32 << 20, "max.partition.fetch.bytes": 4 << 20}
_RETRY_S = 0.2
_UNREACHABLE = {
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
}
_NOT_READY = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.REQUEST_TIMED_OUT,
}
_URL_SAFE = str.maketrans("+/", "-_")
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
admin: Any = kafka_admin  # exports without type hints
_EARLIEST, _LATEST = admin.OffsetSpec.earliest(), admin.OffsetSpec.latest()
_second = operator.itemgetter(1)
_log = logging.getLogger("librdkafka")
_log.addHandler(logging.NullHandler())  # the last error is in our messages; else it goes to stderr


class KafkaSource:
    """A cluster, until `close`."""

    def __init__(
        self, bootstrap_servers: str, properties: Mapping[str, str], *, timeout_s: float = 60.0
    ) -> None:
        """Connect.

        Args:
            properties: of librdkafka, such as security.protocol.
            timeout_s: how long requests, and missing records of a partition that has some, are waited for.

        Raises:
            InvalidRequestError: INVALID_OPTION, a property.
            RetriableError: SOURCE_UNREACHABLE.
        """
        refused = sorted({*properties} & {*_FIXED, "bootstrap.servers"})
        if refused:
            raise InvalidRequestError(
                "INVALID_OPTION",
                f"property {refused[0]}: the mirror sets it itself",
                fix="leave it out; the cluster's address is --from",
            )
        self._timeout_s = timeout_s
        self._servers = bootstrap_servers
        self._last_error = "no answer"
        self._average_bytes = FETCH_BYTES / 100  # so the first fetch is small
        self._secrets = [value for name, value in properties.items() if value and may_hold_secret(name)]
        given = {
            **_DEFAULTS,
            **properties,
            "bootstrap.servers": bootstrap_servers,
            "error_cb": self._note_error,
            "logger": _log,
        }
        try:
            self._admin = admin.AdminClient({"client.id": _CLIENT_ID, **_admin_properties(given)})
            self._consumer: Consumer = Consumer({**given, **_FIXED})
        except (KafkaException, ValueError, TypeError) as error:
            raise InvalidRequestError(
                "INVALID_OPTION",
                f"properties of the source: {self._words(error)}",
                fix="use librdkafka's names, such as security.protocol, sasl.mechanism, sasl.username, "
                "sasl.password, ssl.ca.location; Java's sasl.jaas.config and key stores are not among them",
            ) from None
        self.cluster_id = self._metadata().cluster_id or bootstrap_servers

    def close(self) -> None:
        self._consumer.close()

    # The cluster

    def _metadata(self) -> Any:
        return self._asked(lambda: _interruptible(lambda: self._admin.list_topics(timeout=self._timeout_s)))

    def topics(self) -> dict[str, SourceTopic]:
        found = {}
        for name, topic in self._metadata().topics.items():
            if is_internal(name) or name.startswith("__"):
                continue
            if topic.error is not None:
                raise self._failed(f"topic {name}: {topic.error.str()}")
            found[name] = SourceTopic(name=name, topic_id="", partitions=len(topic.partitions), configs={})
        return found

    def with_configs(self, topics: Collection[SourceTopic]) -> list[SourceTopic]:
        found = []
        for some in _slices(topics):
            names = [topic.name for topic in some]
            wanted = confluent_kafka.TopicCollection(topic_names=names)
            ids = self._results(lambda wanted=wanted: self._admin.describe_topics(wanted))  # type: ignore[misc]
            resources = [admin.ConfigResource(admin.ResourceType.TOPIC, name) for name in names]
            configs = self._results(lambda resources=resources: self._admin.describe_configs(resources))  # type: ignore[misc]
            own = {resource.name: _own_configs(entries) for resource, entries in configs.items()}
            found += [
                SourceTopic(
                    name=topic.name,
                    topic_id=_topic_id(ids[topic.name]),
                    partitions=topic.partitions,
                    configs=own[topic.name],
                )
                for topic in some
            ]
        return found

    def topic_ids(self, names: Collection[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for some in _slices(names):
            found |= self._asked(lambda some=some: self._asked_ids(some))  # type: ignore[misc]
        return found

    def _asked_ids(self, names: list[str]) -> dict[str, str]:
        wanted = confluent_kafka.TopicCollection(topic_names=names)
        found = {}
        for name, future in self._admin.describe_topics(wanted).items():
            try:
                found[name] = _topic_id(future.result(self._timeout_s))
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
        return found

    def ranges(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        places = [confluent_kafka.TopicPartition(*at) for at in partitions]
        committed = confluent_kafka.IsolationLevel.READ_COMMITTED

        def asked(spec: Any) -> dict[TopicPartition, int]:
            found = self._results(
                lambda: self._admin.list_offsets(dict.fromkeys(places, spec), isolation_level=committed)
            )
            return {(at.topic, at.partition): result.offset for at, result in found.items()}

        if not places:
            return {}
        starts, ends = asked(_EARLIEST), asked(_LATEST)
        return {at: (starts[at], ends[at]) for at in partitions}

    def group_offsets(self) -> dict[str, dict[TopicPartition, int]]:
        listed = self._asked(self._listed_groups)
        found: dict[str, dict[TopicPartition, int]] = {}
        for some in _slices(listed):
            for group, answer in self._results(lambda some=some: self._asked_offsets(some)).items():  # type: ignore[misc]
                found[group] = {}
                for at in answer.topic_partitions:
                    if at.error is not None and at.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise self._failed(f"group {group}, {at.topic}-{at.partition}: {at.error.str()}")
                    if at.error is None and at.offset >= 0:
                        found[group][at.topic, at.partition] = at.offset
        return {group: offsets for group, offsets in found.items() if offsets}

    def _listed_groups(self) -> list[str]:
        listed = self._admin.list_consumer_groups(request_timeout=self._timeout_s).result(self._timeout_s)
        for error in listed.errors:
            raise KafkaException(error)
        return sorted(group.group_id for group in listed.valid)

    def _asked_offsets(self, groups: Collection[str]) -> dict[Any, Any]:
        futures: dict[Any, Any] = {}
        for group in groups:
            request = confluent_kafka.ConsumerGroupTopicPartitions(group)
            futures.update(self._admin.list_consumer_group_offsets([request]))
        return futures

    # Records

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        places = [confluent_kafka.TopicPartition(*at, offset) for at, offset in positions.items()]
        self._consumer.assign(places)
        self._consumer.resume(places)  # one that was paused would stay so

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        self._consumer.pause([confluent_kafka.TopicPartition(*at) for at in partitions])

    def fetch(self, wait_s: float) -> Fetched:
        most = int(max(1, min(MOST_MESSAGES, FETCH_BYTES / self._average_bytes)))
        messages: list[Message] = self._asked(lambda: self._consumer.consume(most, wait_s))
        reached: dict[TopicPartition, int] = {}
        if any(map(Message.error, messages)):  # an end of a partition is one, too
            events = [message for message in messages if message.error() is not None]
            messages = [message for message in messages if message.error() is None]
            for event in events:
                self._apply_event(event, reached)
        if not messages:
            return Fetched(reached=reached)
        rows, offsets = _columns(messages)
        self._average_bytes = max(1.0, rows.nbytes / len(messages))
        return Fetched(rows=rows, offsets=offsets, reached=reached)

    def _apply_event(self, event: Message, reached: dict[TopicPartition, int]) -> None:
        error = event.error()
        assert error is not None
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            reached[str(event.topic()), int(event.partition() or 0)] = int(event.offset() or 0)
        elif code in {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}:
            raise DataLossError(
                "DATA_LOSS",
                f"source {self._servers}, {event.topic()}-{event.partition()}: the next offset to copy is "
                f"outside of the log: {error.str()}",
                fix="retention was faster than the mirror, or the topic was made again: see --dry-run",
            )
        elif code not in _NOT_READY | _UNREACHABLE:
            raise self._failed(f"{event.topic()}-{event.partition()}: {error.str()}")

    # Errors

    def _note_error(self, error: KafkaError) -> None:
        self._last_error = self._words(error)

    def _words(self, error: object) -> str:
        text = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text

    def _failed(self, what: str) -> SparklogError:
        return RetriableError(
            "SOURCE_FAILED",
            f"source {self._servers}: {what}",
            fix="look at the cluster and at its ACLs (Describe, DescribeConfigs and Read of topics, Describe "
            "of groups), and run it again: it goes on where it was",
        )

    def unreachable(self) -> SparklogError:
        """Return the error for a cluster that has sent nothing for `timeout_s`."""
        self._admin.poll(0)  # which calls `_note_error`
        return RetriableError(
            "SOURCE_UNREACHABLE",
            f"source {self._servers} does not answer: {self._last_error}",
            fix="check --from, and security.protocol and the like in --from-config; run it again: it goes on "
            "where it was",
        )

    def _asked(self, ask: Callable[[], T]) -> T:
        """Ask again while the cluster is not ready: it starts, elects, loads."""
        end = time.monotonic() + self._timeout_s
        while True:
            try:
                return ask()
            except TimeoutError:
                raise self.unreachable() from None
            except KafkaException as error:
                code = error.args[0].code()
                if code in _UNREACHABLE:
                    raise self.unreachable() from None
                if code not in _NOT_READY or time.monotonic() > end:
                    raise self._failed(self._words(error)) from None
                time.sleep(_RETRY_S)

    def _results(self, ask: Callable[[], Mapping[Any, Any]]) -> dict[Any, Any]:
        """Return the results of all futures."""

        def gather() -> dict[Any, Any]:
            end = time.monotonic() + self._timeout_s
            return {key: future.result(max(0.0, end - time.monotonic())) for key, future in ask().items()}

        return self._asked(gather)


def _interruptible(call: Callable[[], T]) -> T:
    """Call it in another thread: while librdkafka waits, Python runs no handler of Ctrl-C in the main one."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future.result()


def _admin_properties(given: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are not a consumer's."""
    of_consumer = ("fetch.", "max.partition.fetch.bytes", "queued.", "check.crcs", "client.id")
    return {name: value for name, value in given.items() if not name.startswith(of_consumer)}


def _topic_id(described: Any) -> str:
    text = str(described.topic_id).translate(_URL_SAFE)
    return "" if text == _NO_ID else text


def _own_configs(entries: Mapping[str, Any]) -> dict[str, str]:
    wanted = admin.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {
        name: entry.value
        for name, entry in sorted(entries.items())
        if entry.source == wanted and entry.value is not None
    }


def _slices(things: Iterable[T]) -> list[list[T]]:
    listed = list(things)
    return [listed[start : start + AT_A_TIME] for start in range(0, len(listed), AT_A_TIME)]


# --- columns -----------------------------------------------------------------------------------------


def _columns(
    messages: list[Message],
) -> tuple[pa.RecordBatch, dict[TopicPartition, npt.NDArray[np.int64]]]:
    """Return the messages as rows, and their offsets by partition."""
    count = len(messages)
    timestamp = np.fromiter(map(_second, map(Message.timestamp, messages)), np.int64, count)
    partition = np.fromiter(map(Message.partition, messages), np.int64, count)
    offset = np.fromiter(map(Message.offset, messages), np.int64, count)
    topic = pa.array(list(map(Message.topic, messages)), pa.string()).dictionary_encode()
    columns = {
        "key": pa.array(list(map(Message.key, messages)), pa.binary()),
        "value": pa.array(list(map(Message.value, messages)), pa.binary()),
        "timestamp": pa.array(timestamp, mask=timestamp < 0),  # without one: the time of the copy
        "partition": pa.array(partition),
        "topic": topic.cast(pa.string()),
    }
    headers = list(map(Message.headers, messages))
    if any(headers):
        columns["headers"] = pa.array(headers, HEADERS_TYPE)
    names = topic.dictionary.to_pylist()
    codes = topic.indices.to_numpy().astype(np.int64)
    return pa.RecordBatch.from_pydict(columns), _by_partition(names, codes, partition, offset)


def _by_partition(
    names: list[str],
    codes: npt.NDArray[np.int64],
    partition: npt.NDArray[np.int64],
    offset: npt.NDArray[np.int64],
) -> dict[TopicPartition, npt.NDArray[np.int64]]:
    place = (codes << 32) | partition
    order = np.argsort(place, kind="stable")
    place, offset = place[order], offset[order]
    starts = np.flatnonzero(np.diff(place, prepend=-1))
    ends = [*starts[1:].tolist(), len(place)]
    return {
        (names[int(place[start]) >> 32], int(place[start]) & 0xFFFFFFFF): offset[start:end]
        for start, end in zip(starts.tolist(), ends, strict=True)
    }
