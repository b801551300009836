"""`sparklog verify`: produce and consume with a JSON line for each event, as Kafka's verifiable clients do.

A test compares what `produce` reports as acknowledged with what `consume` reports as read, while it kills
processes, or takes the storage away. The names and fields of events are those of kafka-verifiable-producer
and kafka-verifiable-consumer.
Invariants: `producer_send_success` is printed only for records that are durable and visible. Offsets are
    committed only for records whose `records_consumed` was printed.
Not here: membership of groups, which needs a broker. All partitions are assigned, and none is revoked before
    the end.
Sources: Kafka VerifiableProducer, VerifiableConsumer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from sparklog.cli.consume import Commit, group_committer
from sparklog.cli.framework import Group, current, force_option, json_text, require_topics
from sparklog.cli.inputs import Stop, until_signalled
from sparklog.cli.output import tell
from sparklog.cli.perf import Pace, TopicReader, parse_throughput, topic_option
from sparklog.errors import SparklogError

if TYPE_CHECKING:
    import pyarrow as pa

    from sparklog.client import AppendResult, SparkLog

MOST_TOGETHER = 1000  # records in an append
POLL_S = 0.1
ACKS = ["all", "-1", "1", "0"]


@click.group("verify", cls=Group)
def verify() -> None:
    """Produce and consume with a JSON line for each event, for tests."""


class Events:
    """Prints events, each with the time."""

    def __init__(self, log: SparkLog) -> None:
        self._log = log

    def show(self, name: str, **fields: object) -> None:
        self.show_all(name, [fields])

    def show_all(self, name: str, events: Sequence[dict[str, object]]) -> None:
        head = {"timestamp": self._log.clock.now_ms(), "name": name}
        for fields in events:
            tell(json_text(head | fields, separators=(",", ":")))


max_messages_option = click.option(
    "--max-messages",
    type=click.IntRange(min=-1),
    default=-1,
    metavar="N",
    help="Stop after so many; -1 (default): with a signal.",
)

# --- produce -----------------------------------------------------------------------------------------


@verify.command("produce")
@topic_option
@max_messages_option
@click.option(
    "--throughput",
    type=float,
    default=-1,
    callback=parse_throughput,
    metavar="N",
    help="Records a second; -1 (default): as many as it takes.",
)
@click.option("--value-prefix", type=int, metavar="N", help="Values are N.0, N.1 ... instead of 0, 1 ...")
@click.option(
    "--repeating-keys", type=click.IntRange(min=1), metavar="N", help="Keys are 0 to N-1, repeated."
)
@click.option("--acks", type=click.Choice(ACKS), expose_value=False, hidden=True)  # all, always
def produce(
    topic: str,
    max_messages: int,
    throughput: float | None,
    value_prefix: int | None,
    repeating_keys: int | None,
) -> None:
    """Append 0, 1, 2 ... and print a line for each record that is acknowledged.

    The first failure ends it: its records are printed as producer_send_error, and the exit code is 1.
    """
    from sparklog.client import refuse_internal

    refuse_internal(topic)
    log = current().open_log(create=True)
    log.create_topic(topic, if_not_exists=True)
    producer = VerifiableProducer(log, topic, throughput, value_prefix, repeating_keys)
    with until_signalled() as stop:
        producer.run(max_messages, stop)


class VerifiableProducer:
    """Appends numbers; prints what becomes of them."""

    def __init__(
        self,
        log: SparkLog,
        topic: str,
        throughput: float | None,
        value_prefix: int | None,
        repeating_keys: int | None,
    ) -> None:
        self._log = log
        self._topic = topic
        self._throughput = throughput
        self._prefix = "" if value_prefix is None else f"{value_prefix}."
        self._repeating_keys = repeating_keys
        self._events = Events(log)
        self._sent = self._acked = 0
        self._turn = 0

    def run(self, max_messages: int, stop: Stop) -> None:
        self._events.show("startup_complete")
        started_s = time.perf_counter()
        pace = Pace(self._throughput, started_s)
        try:
            while not stop.is_asked() and (max_messages < 0 or self._sent < max_messages):
                most = MOST_TOGETHER if max_messages < 0 else min(MOST_TOGETHER, max_messages - self._sent)
                now_s = time.perf_counter()
                count = pace.due(self._sent, most, now_s)
                if count <= 0:
                    stop.wait(pace.wait_s(self._sent, now_s))
                    continue
                self._send(count)
        finally:
            self._events.show("shutdown_complete")
            self._events.show(
                "tool_data",
                sent=self._sent,
                acked=self._acked,
                target_throughput=-1 if self._throughput is None else self._throughput,
                avg_throughput=self._acked / max(time.perf_counter() - started_s, 1e-6),
            )

    def _send(self, count: int) -> None:
        numbers = range(self._sent, self._sent + count)
        values = [f"{self._prefix}{number}" for number in numbers]
        keys = [None if self._repeating_keys is None else str(n % self._repeating_keys) for n in numbers]
        fields: list[dict[str, object]] = [
            {"key": key, "value": value, "topic": self._topic}
            for key, value in zip(keys, values, strict=True)
        ]
        self._sent += count
        try:
            places = self._append(keys, values)
        except SparklogError as error:
            reason = {"exception": f"SPARKLOG_{error.code}", "message": error.message}
            self._events.show_all("producer_send_error", [record | reason for record in fields])
            raise
        self._acked += count
        self._events.show_all(
            "producer_send_success",
            [
                record | {"partition": partition, "offset": offset}
                for record, (partition, offset) in zip(fields, places, strict=True)
            ],
        )

    def _append(self, keys: Sequence[str | None], values: Sequence[str]) -> list[tuple[int, int]]:
        """Append records; return the partition and offset of each.

        Without keys they go to one partition, the next one each time.
        """
        import pyarrow as pa

        from sparklog.format.key_hashes import partition_for_keys

        key = pa.array(keys, pa.string()).cast(pa.binary())
        partitions = self._log.partition_count(self._topic)
        chosen = [self._turn % partitions] * len(values)
        self._turn += 1
        if self._repeating_keys is not None:
            chosen = partition_for_keys(key, partitions).tolist()
        columns = {
            "key": key,
            "value": pa.array(values, pa.string()),
            "partition": pa.array(chosen, pa.int32()),
        }
        result = self._log.append(self._topic, pa.table(columns))
        return list(_places(result, chosen))


def _places(result: AppendResult, chosen: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Within a partition records keep the order of the rows."""
    next_offsets = {partition: one.base_offset for partition, one in result.partitions.items()}
    for partition in chosen:
        yield partition, next_offsets[partition]
        next_offsets[partition] += 1


# --- consume -----------------------------------------------------------------------------------------


@verify.command("consume")
@topic_option
@click.option("--group-id", "-g", "group", required=True, metavar="NAME", help="The group that commits.")
@force_option
@max_messages_option
@click.option("--exit", "-e", "exit_at_end", is_flag=True, help="Stop at the end of the log.")
@click.option(
    "--reset-policy",
    type=click.Choice(["earliest", "latest"]),
    default="earliest",
    show_default=True,
    help="Where partitions begin for which the group has no offset.",
)
@click.option("--verbose", is_flag=True, help="A line for each record, too.")
def consume(
    topic: str,
    group: str,
    force: bool,
    max_messages: int,
    exit_at_end: bool,
    reset_policy: str,
    verbose: bool,
) -> None:
    """Read all partitions, and print what was read and what was committed."""
    log = current().open_log()
    require_topics(log, [topic])
    commit = group_committer(log, group, force=force)
    consumer = VerifiableConsumer(log, topic, group, commit, verbose=verbose)
    with until_signalled() as stop:
        consumer.run(reset_policy, max_messages, stop, exit_at_end=exit_at_end)


class VerifiableConsumer:
    """Reads all partitions of a topic, and commits for a group."""

    def __init__(self, log: SparkLog, topic: str, group: str, commit: Commit, *, verbose: bool) -> None:
        self._log = log
        self._commit = commit
        self._topic = topic
        self._group = group
        self._verbose = verbose
        self._events = Events(log)
        self._consumed = 0

    def run(self, reset_policy: str, max_messages: int, stop: Stop, *, exit_at_end: bool) -> None:
        self._events.show("startup_complete")
        with self._assigned():
            reader = TopicReader(self._log, self._topic, self._positions(reset_policy))

            def is_done() -> bool:
                return stop.is_asked() or 0 <= max_messages <= self._consumed

            while not is_done():
                before = self._consumed
                for partition, arrow_batch in reader.poll():
                    left = arrow_batch.num_rows if max_messages < 0 else max_messages - self._consumed
                    self._take(partition, arrow_batch.slice(0, left))
                    if is_done():
                        return
                if self._consumed == before:
                    if exit_at_end:
                        return
                    stop.wait(POLL_S)

    @contextmanager
    def _assigned(self) -> Iterator[None]:
        partitions = [
            {"topic": self._topic, "partition": number}
            for number in range(self._log.partition_count(self._topic))
        ]
        self._events.show("partitions_assigned", partitions=partitions)
        try:
            yield
        finally:
            self._events.show("partitions_revoked", partitions=partitions)
            self._events.show("shutdown_complete")

    def _positions(self, reset_policy: str) -> dict[int, int]:
        """The group's offsets; where it has none, or one outside of the log, by the policy."""
        committed = self._log.committed_offsets(self._group)  # before the image, which must not be older
        found = {}
        for state in self._log.refresh().topic(self._topic).partitions:
            offset = committed.get((self._topic, state.partition), -1)
            if not state.log_start_offset <= offset <= state.log_end_offset:
                is_earliest = reset_policy == "earliest"
                offset = state.log_start_offset if is_earliest else state.log_end_offset
            found[state.partition] = offset
        return found

    def _take(self, partition: int, arrow_batch: pa.RecordBatch) -> None:
        """Print a step of one partition, then commit it."""
        offsets = arrow_batch.column("offset").to_pylist()
        where: dict[str, object] = {"topic": self._topic, "partition": partition}
        if self._verbose:
            columns = zip(
                arrow_batch.column("key").to_pylist(),
                arrow_batch.column("value").to_pylist(),
                offsets,
                strict=True,
            )
            self._events.show_all(
                "record_data",
                [
                    {"key": _text(key), "value": _text(value), **where, "offset": offset}
                    for key, value, offset in columns
                ],
            )
        self._consumed += len(offsets)
        summary = {**where, "count": len(offsets), "minOffset": offsets[0], "maxOffset": offsets[-1]}
        self._events.show("records_consumed", count=len(offsets), partitions=[summary])
        next_offset = offsets[-1] + 1
        committed = [{**where, "offset": next_offset}]
        try:
            self._commit({(self._topic, partition): next_offset})
        except (SparklogError, click.ClickException) as error:
            self._events.show("offsets_committed", offsets=committed, error=error.message, success=False)
            raise
        self._events.show("offsets_committed", offsets=committed, success=True)


def _text(field: bytes | None) -> str | None:
    return None if field is None else field.decode(errors="replace")
