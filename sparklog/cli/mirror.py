"""`sparklog mirror`: topics, records and groups' offsets of an Apache Kafka cluster, copied into a root.

Not here: the copying (sparklog/mirror).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

import click

from sparklog.cli.framework import (
    Command,
    current,
    did_you_mean,
    dry_run_option,
    force_option,
    is_terminal,
    note,
)
from sparklog.cli.inputs import Stop, until_signalled
from sparklog.cli.output import Document, record_bar, show_json, show_rows
from sparklog.cli.topics import pattern_option
from sparklog.errors import DataLossError, InvalidRequestError, RetriableError, UnknownTopicError
from sparklog.wording import counted

if TYPE_CHECKING:
    from sparklog.client import SparkLog
    from sparklog.client.group_coordinators import GroupCoordinators
    from sparklog.mirror.copying import Mirror, TopicPlan
    from sparklog.mirror.group_offsets import GroupOffsets
    from sparklog.mirror.source import Source

TopicPartition = tuple[str, int]
COLUMNS = "topic partitions state offsets_to_copy configs:SETTINGS left_out:NOT-SET"
GROUP_COLUMNS = "group topic partition source_offset offset status"
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
REFRESH_S = 60.0  # --follow: new topics, partitions, and groups' offsets
RETRY_S = 1.0  # --follow: the source does not answer
REPORT_S = 10.0
MOST_SHOWN = 20
NO_TOPIC = "The source has no such topic."
IN_USE = "UNKNOWN_MEMBER_ID"  # of a commit without a membership, in a group that has members


@click.command("mirror", cls=Command)
@click.option(
    "--from",
    "servers",
    required=True,
    metavar="HOST:PORT[,...]",
    help="The Kafka cluster to copy, as its bootstrap.servers.",
)
@click.option("--from-config", type=click.File(), metavar="FILE", help="Properties of librdkafka, for it.")
@click.option("--from-property", "properties", multiple=True, metavar="KEY=VALUE", help="One of them.")
@click.option("--topic", "-t", "topics", multiple=True, metavar="NAME", help="This topic; default: all.")
@pattern_option
@click.option("--skip-groups", is_flag=True, help="Leave groups' offsets out.")
@click.option("--follow", is_flag=True, help="Go on with what is produced, until Ctrl-C or SIGTERM.")
@click.option(
    "--compression", "-z", type=click.Choice(CODECS), default="none", help="Of topics without a codec (none)."
)
@click.option(
    "--allow-data-loss", is_flag=True, help="Go on where the source has removed what was not copied."
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=1),
    default=60.0,
    metavar="SECONDS",
    help="How long the source is waited for (60).",
)
@dry_run_option
@force_option
def mirror(
    servers: str,
    from_config: TextIO | None,
    properties: tuple[str, ...],
    topics: tuple[str, ...],
    pattern: str | None,
    skip_groups: bool,
    follow: bool,
    compression: str,
    allow_data_loss: bool,
    timeout_s: float,
    dry_run: bool,
    force: bool,
) -> None:
    """Copy topics, records and groups' offsets from a Kafka cluster, exactly; run it again to go on.

    Only committed records are copied. Needs pip install 'sparklog[kafka]'.

    \b
    sparklog --root /data/log mirror --from kafka:9092 --dry-run
    sparklog --root /data/log mirror --from kafka:9092 --topic orders --follow
    """  # noqa: D301 - as in main.py
    from sparklog.mirror.copying import Mirror
    from sparklog.mirror.kafka_source import KafkaSource

    client = _properties(from_config.read() if from_config else "", properties)
    is_wanted = _wanted(topics, pattern)
    log = _open_log(create=not dry_run)
    with (
        contextlib.closing(KafkaSource(servers, client, timeout_s=timeout_s)) as source,
        until_signalled() as stop,
    ):
        copier = Mirror(
            log, source, compression=compression, allow_data_loss=allow_data_loss, timeout_s=timeout_s
        )
        run = _Run(
            log,
            source,
            copier,
            stop,
            is_wanted,
            timeout_s=timeout_s,
            force=force,
            allow_data_loss=allow_data_loss,
        )
        if not skip_groups:
            run.read_groups()
        run.plan(topics)
        if dry_run:
            run.show(is_dry_run=True)
            return
        run.copy(follow=follow)
        run.show(is_dry_run=False)
        if not run.is_complete and not follow:
            raise click.ClickException("stopped before the end: run it again to go on.")
        run.report_groups(is_strict=not follow)


@dataclass(slots=True)
class _Run:
    """A run of the command."""

    log: SparkLog
    source: Source
    mirror: Mirror
    stop: Stop
    is_wanted: Callable[[str], bool]
    timeout_s: float
    force: bool
    allow_data_loss: bool
    loss: DataLossError | None = None  # met during the copy, and not planned around yet
    plans: Sequence[TopicPlan] = ()
    found_groups: GroupOffsets = field(default_factory=dict)
    groups: GroupOffsets = field(default_factory=dict)  # of planned topics
    with_groups: bool = False
    coordinators: GroupCoordinators | None = None
    group_rows: list[Document] = field(default_factory=list)
    is_complete: bool = False
    duration_s: float = 0.0

    def read_groups(self) -> None:
        """Before the ends of partitions are: then what groups have read is copied, too."""
        self.with_groups = True
        self.found_groups = self.source.group_offsets()

    def plan(self, names: Sequence[str] = ()) -> None:
        from sparklog.client.group_expiry import refuse_served_root

        self.plans = self.mirror.plan(self.is_wanted)
        missing = sorted({*names} - {plan.name for plan in self.plans})
        if missing:
            near = did_you_mean(missing[0], list(self.source.topics()))
            raise UnknownTopicError(
                "TOPIC_MISSING",
                f"the source has no topic {missing[0]!r}{near}",
                fix="correct the name; Kafka's own topics are not copied",
            )
        planned = {plan.name for plan in self.plans}
        self.groups = {
            group: wanted
            for group, offsets in sorted(self.found_groups.items())
            if (wanted := {at: offset for at, offset in sorted(offsets.items()) if at[0] in planned})
        }
        if self.groups and self.coordinators is None:
            self.coordinators = current().coordinators(self.log, timeout_ms=round(self.timeout_s * 1000))
            if self.coordinators is None:
                refuse_served_root(self.log, force=self.force)

    def copy(self, *, follow: bool) -> None:
        from sparklog.mirror.group_offsets import translate

        started_s = time.monotonic()
        self.mirror.prepare(self.plans)
        for plan in self.plans:
            for key, why in plan.left_out.items() if plan.is_new else ():
                note(f"Topic {plan.name}: {key} is not set: {why}.")
        self._note_lost()
        total = sum(plan.offsets_to_copy for plan in self.plans)
        with _progress(self.mirror, None if follow else total):
            for turn in itertools.count():
                try:
                    if turn:
                        self._refresh()
                    self.is_complete = self.mirror.copy(self.stop, follow_s=REFRESH_S if follow else None)
                    self.duration_s = time.monotonic() - started_s
                    if self.groups:
                        offsets = translate(self.mirror, self.source, self.groups, timeout_s=self.timeout_s)
                        self.group_rows = list(self._commit_groups(offsets))
                except RetriableError as error:
                    if not follow or error.code != "SOURCE_UNREACHABLE":
                        raise
                    note(f"Warning: {error.message}; it is tried again.")
                    time.sleep(RETRY_S)
                except DataLossError as error:
                    if not self.allow_data_loss or error is self.loss:
                        raise
                    self.loss = error
                    if not self.stop.is_asked():
                        continue
                if not follow or self.stop.is_asked():
                    break

    def _refresh(self) -> None:
        if self.with_groups:
            self.read_groups()
        self.plan()
        if self.loss is not None and not any(plan.lost for plan in self.plans):
            raise self.loss
        self.loss = None
        self.mirror.prepare(self.plans)
        self._note_lost()

    def _note_lost(self) -> None:
        for plan in self.plans:
            for at, count in plan.lost.items():
                note(f"Warning: {at[0]}-{at[1]}: {count} offsets were gone before they were copied.")

    def _commit_groups(self, translated: GroupOffsets) -> Iterator[Document]:
        """Commit what is ahead of what the groups have here."""
        for group, offsets in translated.items():
            known = self.log.committed_offsets(group)
            ahead = {at: offset for at, offset in offsets.items() if offset > known.get(at, -1)}
            errors: Mapping[TopicPartition, str | None] = dict.fromkeys(ahead)
            if ahead and self.coordinators is not None:
                errors = self.coordinators.commit_offsets(group, ahead)
            elif ahead:
                self.log.commit_offsets(group, ahead)
            for at, offset in offsets.items():
                status = "kept" if at not in ahead else errors.get(at) or "committed"
                yield {
                    "group": group,
                    "topic": at[0],
                    "partition": at[1],
                    "source_offset": self.groups[group][at],
                    "offset": offset if at in ahead and errors.get(at) is None else known.get(at),
                    "status": status,
                }

    def report_groups(self, *, is_strict: bool) -> None:
        """Say which groups were not moved; raise if `is_strict`, but for those that work here already."""
        failed = {
            str(row["group"]): str(row["status"])
            for row in self.group_rows
            if row["status"] not in {"committed", "kept"}
        }
        for group, status in failed.items():
            if status == IN_USE:
                note(f"Warning: group {group} has members here, and was not moved.")
        wrong = [f"group {group}: {status}" for group, status in failed.items() if status != IN_USE]
        if wrong:
            text = f"offsets were not committed: {', '.join(wrong[:MOST_SHOWN])}; run it again"
            if is_strict:
                raise click.ClickException(f"{text}.")
            note(f"Warning: {text}.")

    def show(self, *, is_dry_run: bool) -> None:
        topics: list[Document] = [
            {
                "topic": plan.name,
                "partitions": plan.source.partitions,
                "state": "new" if plan.is_new else "mirrored",
                "offsets_to_copy": plan.offsets_to_copy,
                "configs": dict(plan.configs),
                "left_out": dict(plan.left_out),
            }
            for plan in self.plans
        ]
        if is_dry_run:
            self.group_rows = [
                {
                    "group": group,
                    "topic": at[0],
                    "partition": at[1],
                    "source_offset": offset,
                    "offset": None,
                    "status": "planned",
                }
                for group, offsets in self.groups.items()
                for at, offset in offsets.items()
            ]
        if current().json:
            show_json(
                {
                    "dry_run": is_dry_run,
                    "source_cluster_id": self.source.cluster_id,
                    "records": self.mirror.records,
                    "commits": self.mirror.commits,
                    "duration_ms": round(self.duration_s * 1000),
                    "is_complete": self.is_complete,
                    "topics": topics,
                    "groups": self.group_rows,
                }
            )
            return
        if is_dry_run:
            pairs = zip(topics, self.plans, strict=True)
            rows = [{**row, "left_out": list(plan.left_out)} for row, plan in pairs]
            show_rows(COLUMNS, rows, empty=NO_TOPIC)
        if self.group_rows:
            show_rows(GROUP_COLUMNS, self.group_rows)
        if not is_dry_run:
            self._note_result()

    def _note_result(self) -> None:
        if not self.plans:
            note(f"Warning: {NO_TOPIC}")
        records = self.mirror.records
        rate = records / max(self.duration_s, 1e-3)
        note(f"{counted(records, 'record')} copied in {self.duration_s:.1f} s ({rate:,.0f}/s).")
        if self.mirror.untimed:
            note(f"{counted(self.mirror.untimed, 'record')} had no timestamp, and got the time of the copy.")


def _open_log(*, create: bool) -> SparkLog:
    """The root; for a dry run without one, an empty one in memory."""
    from sparklog.client import open_log
    from sparklog.errors import NotFoundError

    try:
        return current().open_log(create=create)
    except NotFoundError as error:
        if error.code != "ROOT_NOT_FOUND":
            raise
        return open_log("memory://mirror-dry-run")


def _wanted(names: Sequence[str], pattern: str | None) -> Callable[[str], bool]:
    if names and pattern:
        raise click.UsageError("give --topic or --pattern, not both.")
    if pattern is None:
        return lambda name: not names or name in names
    from sparklog.client.patterns import matching

    expression = pattern.replace(" ", "").replace(",", "|").strip("\"'")
    return functools.cache(lambda name: matching(expression, [name], of="topics")[0])


def _properties(text: str, given: Sequence[str]) -> dict[str, str]:
    """Lines and options of `key=value`; an option beats a line."""
    entries = [
        (f"--from-config, line {number}", line.strip()) for number, line in enumerate(text.splitlines(), 1)
    ]
    entries = [(where, line) for where, line in entries if line and line[0] not in "#!"]
    entries += [(f"--from-property, number {number}", entry) for number, entry in enumerate(given, 1)]
    found = {}
    for where, entry in entries:
        key, separator, value = entry.partition("=")
        if not separator or not key.strip():
            raise InvalidRequestError(  # not its text: "sasl.password: hush" is such an entry
                "INVALID_OPTION",
                f"{where}: found a property without a value, expected key=value",
                fix="write one property a line",
            )
        found[key.strip()] = value.strip()
    return found


@contextlib.contextmanager
def _progress(mirror: Mirror, total: int | None) -> Iterator[None]:
    """A bar on a terminal; elsewhere a line each ten seconds, if anything was copied."""
    reported, reported_s = 0, time.monotonic()
    with record_bar(total) as advance:

        def report(done: int) -> None:
            nonlocal reported, reported_s
            advance(done)
            is_due = done != reported and time.monotonic() - reported_s >= REPORT_S
            if is_due and not is_terminal(sys.stderr):
                reported, reported_s = done, time.monotonic()
                note(f"{done:,} offsets" + ("" if total is None else f" of {total:,}"))

        mirror.on_progress = report
        yield
