"""`sparklog perf`: how fast a root takes and gives records, in the formats of Kafka's performance tools.

The root itself is measured, by the embedded client: no broker is between. A batch of records is one append:
its bytes are durable, and its commit is published, when it is counted. So the batch, not the record, is what
costs; --batch-size is what to vary.
Invariants: no loop over records, except for `e2e`, in which each is an append; payloads, latencies and sizes
    are arrays.
Not here: what a broker adds (Kafka's own tools measure that), and repeatable benchmarks (benchmarks/).
Sources: Kafka ProducerPerformance, ConsumerPerformance, EndToEndLatency.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click

from sparklog.cli.framework import Group, current, note, require_topics
from sparklog.cli.inputs import Stop, until_signalled
from sparklog.cli.output import Document, show_json, tell
from sparklog.cli.record_format import FormatError, unescape

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from sparklog.client import SparkLog

MB = 1 << 20
SAMPLES = 500_000  # latencies that are kept for the percentiles, as in Kafka
POLL_S = 0.1
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999}


@click.group("perf", cls=Group)
def perf() -> None:
    """Measure producing, consuming and end-to-end latency."""


# --- figures -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Tally:
    """Records since a moment, and what they took."""

    started_s: float
    records: int = 0
    payload_bytes: int = 0
    total_ms: float = 0.0
    max_ms: float = 0.0

    def add(self, latencies_ms: npt.NDArray[np.float64], payload_bytes: int) -> None:
        """Add records by their latencies."""
        self.records += latencies_ms.size
        self.payload_bytes += payload_bytes
        self.total_ms += float(latencies_ms.sum())
        self.max_ms = max(self.max_ms, float(latencies_ms.max(initial=0.0)))

    def words(self, now_s: float, *, kind: str = "", digits: int = 1) -> str:
        """Kafka's words, without the stop at the end."""
        per_second, mb_per_second = self.rates(now_s)
        return (
            f"{self.records}{kind} records sent, {per_second:.{1 if digits == 1 else 6}f} records/sec "
            f"({mb_per_second:.2f} MB/sec), {self.average_ms:.{digits}f} ms avg latency, "
            f"{self.max_ms:.{digits}f} ms max latency"
        )

    def rates(self, now_s: float) -> tuple[float, float]:
        """Records and MB (of 1,048,576 bytes) a second."""
        seconds = max(now_s - self.started_s, 1e-6)
        return self.records / seconds, self.payload_bytes / MB / seconds

    @property
    def average_ms(self) -> float:
        return self.total_ms / self.records if self.records else 0.0


class Stats:
    """A tally, with a sample of its latencies: every n-th, so that there are at most about SAMPLES."""

    def __init__(self, now_s: float, expected: int) -> None:
        self.tally = Tally(now_s)
        self._stride = max(1, expected // SAMPLES)
        self._sampled: list[npt.NDArray[np.float64]] = []

    def add(self, latencies_ms: npt.NDArray[np.float64], payload_bytes: int) -> None:
        first = -self.tally.records % self._stride
        self._sampled.append(latencies_ms[first :: self._stride].copy())
        self.tally.add(latencies_ms, payload_bytes)

    def percentiles(self) -> dict[str, float]:
        return percentiles_of(self._sampled)

    def line(self, now_s: float, kind: str = "") -> str:
        found = {name: int(value) for name, value in self.percentiles().items()}
        words = self.tally.words(now_s, kind=kind, digits=2)
        return (
            f"{words}, {found['p50']} ms 50th, {found['p95']} ms 95th, {found['p99']} ms 99th, "
            f"{found['p999']} ms 99.9th."
        )

    def document(self, now_s: float) -> Document:
        per_second, mb_per_second = self.tally.rates(now_s)
        figures = {"avg": self.tally.average_ms, "max": self.tally.max_ms, **self.percentiles()}
        return {
            "records": self.tally.records,
            "payload_bytes": self.tally.payload_bytes,
            "duration_ms": round((now_s - self.tally.started_s) * 1000),
            "records_per_second": round(per_second, 1),
            "mb_per_second": round(mb_per_second, 3),
            "latency_ms": {name: round(value, 3) for name, value in figures.items()},
        }


def percentiles_of(parts: list[npt.NDArray[np.float64]]) -> dict[str, float]:
    """By name; as Kafka takes them: the value at `int(share * count)` of the sorted ones."""
    import numpy as np

    found = np.sort(np.concatenate(parts)) if parts else np.zeros(0)
    if not found.size:
        return dict.fromkeys(PERCENTILES, 0.0)
    return {name: float(found[int(share * found.size)]) for name, share in PERCENTILES.items()}


def show_metrics(metrics: Mapping[str, float]) -> None:
    """Print metrics as Kafka's tools do: a name, a colon, a number."""
    width = max(map(len, metrics))
    tell("")
    tell(f"{'Metric Name':<{width}}   Value")
    for name, value in sorted(metrics.items()):
        tell(f"{name:<{width}} : {value:.3f}")


# --- payloads ----------------------------------------------------------------------------------------


class Payloads(Protocol):
    """Values of records."""

    average_bytes: int

    def values(self, first: int, count: int) -> pa.Array:
        """The values of records number `first` and the following."""
        ...


class RandomPayloads:
    """Random capital letters, as Kafka's; drawn once, since drawing costs more than appending."""

    def __init__(self, size: int, most: int) -> None:
        import numpy as np
        import pyarrow as pa

        self.average_bytes = size
        letters = np.random.default_rng(0).integers(65, 91, size * most, dtype=np.uint8)
        fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(size), most, [None, pa.py_buffer(letters)])
        self._values = fixed.cast(pa.binary())

    def values(self, first: int, count: int) -> pa.Array:  # noqa: ARG002 - all are alike
        return self._values.slice(0, count)


class FilePayloads:
    """Values drawn at random from those of a file."""

    def __init__(self, path: Path, delimiter: bytes) -> None:
        import numpy as np
        import pyarrow as pa

        values = path.read_bytes().removesuffix(delimiter).split(delimiter)
        if values == [b""]:
            raise click.BadParameter(f"{path} is empty.", param_hint="--payload-file")
        self._values = pa.array(values, pa.binary())
        self._draw = np.random.default_rng(0)
        self.average_bytes = max(1, sum(map(len, values)) // len(values))

    def values(self, first: int, count: int) -> pa.Array:  # noqa: ARG002 - all are alike
        import pyarrow as pa

        return self._values.take(pa.array(self._draw.integers(0, len(self._values), count)))


class MonotonicPayloads:
    """The numbers of the records as text: 0, 1, 2 ..."""

    average_bytes = 8

    def values(self, first: int, count: int) -> pa.Array:
        import numpy as np
        import pyarrow as pa

        return pa.array(np.arange(first, first + count)).cast(pa.string()).cast(pa.binary())


def payload_size(values: pa.Array) -> int:
    """Bytes of all values; nulls have none."""
    import pyarrow.compute as pc

    return int(pc.sum(pc.binary_length(values)).as_py() or 0)


def parse_throughput(ctx: click.Context, parameter: click.Parameter, value: float) -> float | None:
    """Callback of an option: records a second; -1: no limit (None)."""
    if value == -1:
        return None
    if not 0 < value < float("inf"):
        message = f"found {value:g}, expected more than 0, or -1 for no limit."
        raise click.BadParameter(message, ctx=ctx, param=parameter)
    return value


class Pace:
    """Says how many records are due. Record n is due n / throughput seconds after the start."""

    def __init__(self, throughput: float | None, started_s: float) -> None:
        self._throughput = throughput
        self._started_s = started_s

    def due(self, sent: int, most: int, now_s: float) -> int:
        """How many records are due by now, at most `most`."""
        if self._throughput is None:
            return most
        return min(most, int((now_s - self._started_s) * self._throughput) + 1 - sent)

    def wait_s(self, sent: int, now_s: float) -> float:
        """Until the next record is due."""
        return 0.0 if self._throughput is None else self._started_s + sent / self._throughput - now_s

    def latencies_ms(self, sent: int, count: int, begun_s: float, done_s: float) -> npt.NDArray[np.float64]:
        """Of each record of a batch: since it was due, or without a limit since the append began."""
        import numpy as np

        if self._throughput is None:
            return np.full(count, (done_s - begun_s) * 1000)
        due_s = self._started_s + np.arange(sent, sent + count) / self._throughput
        return np.maximum(done_s - due_s, 0.0) * 1000


# --- produce -----------------------------------------------------------------------------------------

num_records_option = click.option(
    "--num-records", type=click.IntRange(min=1), required=True, metavar="N", help="How many records."
)
interval_option = click.option(
    "--reporting-interval",
    "interval_ms",
    type=click.IntRange(min=1),
    default=5000,
    show_default=True,
    metavar="MS",
    help="Between two lines of figures.",
)
metrics_option = click.option("--print-metrics", is_flag=True, help="Print more figures at the end.")
topic_option = click.option("--topic", "-t", required=True, metavar="NAME", help="The topic.")


@perf.command("produce")
@topic_option
@num_records_option
@click.option(
    "--record-size", type=click.IntRange(min=1), metavar="BYTES", help="Random values of this size."
)
@click.option(
    "--payload-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Values drawn at random from the lines of a file.",
)
@click.option("--payload-delimiter", default=r"\n", metavar="TEXT", help=r"Between values of the file; \n.")
@click.option("--payload-monotonic", is_flag=True, help="Values are 0, 1, 2 ...")
@click.option(
    "--throughput",
    type=float,
    default=-1,
    callback=parse_throughput,
    metavar="N",
    help="Records a second; -1 (default): as many as it takes.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=MB,
    show_default=True,
    metavar="BYTES",
    help="At most about so many bytes in an append, which is one commit.",
)
@click.option(
    "-z", "--compression", "codec", type=click.Choice(CODECS), help="Default: the topic's, else none."
)
@click.option(
    "--warmup-records",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="A last line without the first N.",
)
@metrics_option
@interval_option
def produce(
    topic: str,
    num_records: int,
    record_size: int | None,
    payload_file: Path | None,
    payload_delimiter: str,
    payload_monotonic: bool,
    throughput: float | None,
    batch_size: int,
    codec: str | None,
    warmup_records: int,
    print_metrics: bool,
    interval_ms: int,
) -> None:
    """Append records, and print rates and latencies as kafka-producer-perf-test does.

    The records stay in the topic, which is created if it does not exist.
    """
    if warmup_records >= num_records:
        raise click.UsageError("--warmup-records must be fewer than --num-records.")
    if [record_size is not None, payload_file is not None, payload_monotonic].count(True) != 1:
        raise click.UsageError("give exactly one of --record-size, --payload-file, --payload-monotonic.")
    from sparklog.client import refuse_internal

    refuse_internal(topic)
    payloads: Payloads = MonotonicPayloads()
    if record_size is not None:
        payloads = RandomPayloads(record_size, max(1, min(num_records, batch_size // record_size)))
    elif payload_file is not None:
        payloads = FilePayloads(payload_file, _delimiter(payload_delimiter))
    log = current().open_log(create=True)
    run = ProducerRun(log, topic, payloads, batch_size=batch_size, codec=codec, interval_s=interval_ms / 1000)
    with until_signalled() as stop:
        run.run(num_records, warmup_records, throughput, stop)
    run.show(print_metrics=print_metrics)


def _delimiter(text: str) -> bytes:
    try:
        found = unescape(text)
    except FormatError as error:
        raise click.BadParameter(str(error), param_hint="--payload-delimiter") from None
    if not found:
        raise click.BadParameter("it is empty.", param_hint="--payload-delimiter")
    return found


@dataclass(slots=True)
class ProducerRun:
    """A run of `perf produce`, and its figures."""

    log: SparkLog
    topic: str
    payloads: Payloads
    batch_size: int
    codec: str | None
    interval_s: float
    stats: Stats = field(init=False)
    steady: Stats | None = field(init=False, default=None)
    appends: int = field(init=False, default=0)
    slowest_append_s: float = field(init=False, default=0.0)
    append_s: float = field(init=False, default=0.0)
    done_s: float = field(init=False)

    def run(self, records: int, warmup: int, throughput: float | None, stop: Stop) -> None:
        most = max(1, self.batch_size // self.payloads.average_bytes)
        started_s = self.done_s = time.perf_counter()
        pace = Pace(throughput, started_s)
        self.stats, window = Stats(started_s, records), Tally(started_s)
        sent = 0
        while sent < records and not stop.is_asked():
            begun_s = time.perf_counter()
            limit = warmup if sent < warmup else records
            count = pace.due(sent, min(most, limit - sent), begun_s)
            if count <= 0:
                stop.wait(pace.wait_s(sent, begun_s))
                continue
            size = self._append(sent, count)
            self.done_s = time.perf_counter()
            self._time(self.done_s - begun_s)
            latencies_ms = pace.latencies_ms(sent, count, begun_s, self.done_s)
            sent += count
            self.stats.add(latencies_ms, size)
            window.add(latencies_ms, size)
            if self.steady is not None:
                self.steady.add(latencies_ms, size)
            if warmup and sent == warmup:
                self.steady = Stats(self.done_s, records - warmup)
            if self.done_s - window.started_s >= self.interval_s:
                if not current().json:
                    tell(f"{window.words(self.done_s)}.")
                window = Tally(self.done_s)

    def show(self, *, print_metrics: bool) -> None:
        if current().json:
            steady = None if self.steady is None else self.steady.document(self.done_s)
            document = {"topic": self.topic, **self.stats.document(self.done_s), "steady_state": steady}
            show_json(document | {"metrics": self._metrics() if print_metrics else None})
            return
        tell(self.stats.line(self.done_s))
        if self.steady is not None:
            tell(self.steady.line(self.done_s, " steady state"))
        if print_metrics:
            show_metrics(self._metrics())

    def _append(self, first: int, count: int) -> int:
        """Append records; return the bytes of their values."""
        import pyarrow as pa

        values = self.payloads.values(first, count)
        self.log.append(self.topic, pa.table({"value": values}), compression_type=self.codec)
        return payload_size(values)

    def _time(self, seconds: float) -> None:
        self.appends += 1
        self.append_s += seconds
        self.slowest_append_s = max(self.slowest_append_s, seconds)

    def _metrics(self) -> dict[str, float]:
        tally, appends = self.stats.tally, max(1, self.appends)
        per_second, mb_per_second = tally.rates(self.done_s)
        figures = {
            "batch-size-avg": tally.payload_bytes / appends,
            "byte-rate": mb_per_second * MB,
            "record-send-rate": per_second,
            "record-send-total": tally.records,
            "records-per-request-avg": tally.records / appends,
            "request-latency-avg": self.append_s / appends * 1000,
            "request-latency-max": self.slowest_append_s * 1000,
            "request-total": self.appends,
        }
        return {f"producer-metrics:{name}:{{topic={self.topic}}}": value for name, value in figures.items()}


# --- consume -----------------------------------------------------------------------------------------


class TopicReader:
    """Reads what all partitions of a topic have got, from `positions` (next offsets by partition) on."""

    def __init__(self, log: SparkLog, topic: str, positions: Mapping[int, int]) -> None:
        self._log = log
        self._topic = topic
        self._topic_id = log.image.topic(topic).topic_id
        self.positions = dict(positions)

    def poll(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield partitions with records, until all is read that there is now. It may be left earlier.

        Raises:
            click.ClickException: the topic was made again; its offsets mean other records.
        """
        from sparklog.client.consumer import read_batches

        image = self._log.refresh()
        if image.topic(self._topic).topic_id != self._topic_id:
            raise click.ClickException(f"topic {self._topic} was deleted and made again: start again.")
        for state in image.topic(self._topic).partitions:
            partition = state.partition
            start_offset = max(self.positions.get(partition, 0), state.log_start_offset)
            if start_offset >= state.log_end_offset:
                continue
            for arrow_batch in read_batches(
                self._log.metadata,
                image,
                self._topic,
                partition,
                start_offset=start_offset,
                skip_expired=True,
            ):
                if arrow_batch.num_rows:
                    self.positions[partition] = arrow_batch.column("offset")[-1].as_py() + 1
                    yield partition, arrow_batch
            self.positions[partition] = state.log_end_offset


_FIELDS = "data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec"
_MORE_FIELDS = "rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
HEADER = f"start.time, end.time, {_FIELDS}, {_MORE_FIELDS}"
DETAILED_HEADER = f"time, threadId, {_FIELDS}, {_MORE_FIELDS}"


@perf.command("consume")
@topic_option
@num_records_option
@click.option("--from-latest", is_flag=True, help="Begin at the end of the log, not at its start.")
@click.option(
    "--timeout",
    "timeout_ms",
    type=click.IntRange(min=0),
    default=10_000,
    show_default=True,
    metavar="MS",
    help="Stop when no record has come for so long.",
)
@click.option(
    "--show-detailed-stats", "is_detailed", is_flag=True, help="A line for each reporting interval."
)
@click.option("--hide-header", is_flag=True, help="Leave out the names of the fields.")
@metrics_option
@interval_option
def consume(
    topic: str,
    num_records: int,
    from_latest: bool,
    timeout_ms: int,
    is_detailed: bool,
    hide_header: bool,
    print_metrics: bool,
    interval_ms: int,
) -> None:
    """Read records, and print rates as kafka-consumer-perf-test does. Nothing is committed."""
    log = current().open_log()
    require_topics(log, [topic])
    partitions = log.image.topic(topic).partitions
    positions = {state.partition: state.log_end_offset for state in partitions} if from_latest else {}
    run = ConsumerRun(log.clock.now_ms(), time.perf_counter(), interval_ms / 1000)
    is_detailed = is_detailed and not current().json
    if not hide_header and not current().json:
        tell(DETAILED_HEADER if is_detailed else HEADER)
    with until_signalled() as stop:
        run.run(TopicReader(log, topic, positions), num_records, timeout_ms / 1000, stop, is_detailed)
        if run.records < num_records and not stop.is_asked():
            note(
                "WARNING: Exiting before consuming the expected number of messages: timeout "
                f"({timeout_ms} ms) exceeded. You can use the --timeout option to increase the timeout."
            )
    if current().json:
        show_json({"topic": topic, **run.document()})
        return
    if not is_detailed:
        tell(run.line())
    if print_metrics:
        names = {"bytes-consumed-total": run.payload_bytes, "records-consumed-total": run.records}
        names |= {"fetch-total": run.batches}
        prefix, suffix = "consumer-fetch-manager-metrics", f"{{topic={topic}}}"
        show_metrics({f"{prefix}:{name}:{suffix}": value for name, value in names.items()})


@dataclass(slots=True)
class ConsumerRun:
    """A run of `perf consume`, and its figures. There is no rebalance: all of the time is for fetching."""

    started_ms: int
    started_s: float
    interval_s: float
    records: int = 0
    payload_bytes: int = 0
    batches: int = 0
    done_s: float = 0.0

    def run(self, reader: TopicReader, records: int, timeout_s: float, stop: Stop, is_detailed: bool) -> None:
        self.done_s = consumed_s = self.started_s
        window = self.started_s, 0, 0
        while self.records < records and self.done_s - consumed_s <= timeout_s and not stop.is_asked():
            before = self.records
            for _, arrow_batch in reader.poll():
                self._take(arrow_batch.slice(0, records - self.records))
                if self.done_s - window[0] >= self.interval_s:
                    if is_detailed:
                        tell(self._window(*window))
                    window = self.done_s, self.records, self.payload_bytes
                if self.records >= records or stop.is_asked():
                    break
            if self.records == before:
                stop.wait(POLL_S)
                self.done_s = time.perf_counter()
            else:
                consumed_s = self.done_s

    def _take(self, arrow_batch: pa.RecordBatch) -> None:
        self.batches += 1
        self.records += arrow_batch.num_rows
        self.payload_bytes += payload_size(arrow_batch.column("key"))
        self.payload_bytes += payload_size(arrow_batch.column("value"))
        self.done_s = time.perf_counter()

    def line(self) -> str:
        seconds, mb = max(self.done_s - self.started_s, 1e-6), self.payload_bytes / MB
        rates = f"{mb / seconds:.4f}, {self.records}, {self.records / seconds:.4f}"
        fetched = f"0, {round(seconds * 1000)}, {mb / seconds:.4f}, {self.records / seconds:.4f}"
        return f"{self._time(self.started_s)}, {self._time(self.done_s)}, {mb:.4f}, {rates}, {fetched}"

    def _window(self, since_s: float, records: int, payload_bytes: int) -> str:
        seconds = max(self.done_s - since_s, 1e-6)
        mb_rate, rate = (
            (self.payload_bytes - payload_bytes) / MB / seconds,
            (self.records - records) / seconds,
        )
        return (
            f"{self._time(self.done_s)}, 0, {self.payload_bytes / MB:.4f}, {mb_rate:.4f}, {self.records}, "
            f"{rate:.4f}, 0, {round(seconds * 1000)}, {mb_rate:.4f}, {rate:.4f}"
        )

    def _time(self, moment_s: float) -> str:
        """Local time, as Kafka prints it: 2026-11-28 11:05:24:123."""
        moment_ms = self.started_ms + round((moment_s - self.started_s) * 1000)
        found = dt.datetime.fromtimestamp(moment_ms / 1000, dt.UTC).astimezone()
        return f"{found:%Y-%m-%d %H:%M:%S}:{moment_ms % 1000:03}"

    def document(self) -> Document:
        seconds = max(self.done_s - self.started_s, 1e-6)
        return {
            "records": self.records,
            "payload_bytes": self.payload_bytes,
            "duration_ms": round(seconds * 1000),
            "records_per_second": round(self.records / seconds, 1),
            "mb_per_second": round(self.payload_bytes / MB / seconds, 3),
        }


# --- e2e ---------------------------------------------------------------------------------------------


@perf.command("e2e")
@topic_option
@num_records_option
@click.option("--record-size", type=click.IntRange(min=1), default=100, show_default=True, metavar="BYTES")
@click.option("--producer-acks", type=click.Choice(["all", "-1", "1"]), expose_value=False, hidden=True)
def e2e(topic: str, num_records: int, record_size: int) -> None:
    """Append a record and read it by a second client, one after the other, as kafka-e2e-latency does.

    The second client follows the root by itself, as another process would. The records stay in the topic,
    which is created if it does not exist.
    """
    from sparklog.client import refuse_internal

    refuse_internal(topic)
    writer = current().open_log(create=True)
    writer.create_topic(topic, if_not_exists=True)
    with current().open_log() as reader, until_signalled() as stop:
        latencies_ms = _measure_each(writer, reader, topic, num_records, record_size, stop)
    if not latencies_ms.size:
        raise click.Abort
    found = percentiles_of([latencies_ms])
    if current().json:
        figures = {"avg": float(latencies_ms.mean()), "max": float(latencies_ms.max()), **found}
        rounded = {name: round(value, 3) for name, value in figures.items()}
        show_json({"topic": topic, "records": latencies_ms.size, "latency_ms": rounded})
        return
    tell(f"Avg latency: {latencies_ms.mean():.4f} ms")
    shown = f"50th = {int(found['p50'])}, 99th = {int(found['p99'])}, 99.9th = {int(found['p999'])}"
    tell(f"Percentiles: {shown}")


def _measure_each(
    writer: SparkLog, reader: SparkLog, topic: str, records: int, size: int, stop: Stop
) -> npt.NDArray[np.float64]:
    """The latency of each record; of fewer if it is stopped."""
    import numpy as np
    import pyarrow as pa

    most = min(records, 1000)
    values = RandomPayloads(size, most).values(0, most).to_pylist()
    found = np.zeros(records)
    for number in range(records):
        if stop.is_asked():
            return found[:number]
        value = values[number % most]
        begun_s = time.perf_counter()
        result = writer.append(topic, pa.table({"value": pa.array([value], pa.binary())}))
        ((partition, appended),) = result.partitions.items()
        read = None
        while read is None or not read.num_rows:
            if reader.refresh(force=True).partition(topic, partition).log_end_offset > appended.base_offset:
                read = reader.read(topic, partition, appended.base_offset, max_records=1)
        found[number] = (time.perf_counter() - begun_s) * 1000
        if read.column("value")[0].as_py() != value:
            raise click.ClickException(
                f"{topic}-{partition}@{appended.base_offset}: the record read is not the one that was sent."
            )
        if number % 1000 == 0 and not current().json:
            tell(str(number), f"{found[number]:.4f}")
    return found
