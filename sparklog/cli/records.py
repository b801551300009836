"""`sparklog records delete`: all records before an offset go, as kafka-delete-records does it.

It is a commit of the metadata log, as `sparklog expire` makes it, so brokers follow it: none is asked.
Not here: retention (maintenance.py), the space on the storage (vacuum).
"""

from __future__ import annotations

from typing import Annotated, BinaryIO, Literal

import click
import msgspec

from sparklog.cli.framework import Group, confirm, current, dry_run_option, require_topics, yes_option
from sparklog.cli.output import show_json, show_rows, tell
from sparklog.errors import InvalidRequestError
from sparklog.wording import counted

COLUMNS = "topic partition log_start_offset new_log_start_offset:NEW offsets"
MAX_FILE_BYTES = 64 << 20
TopicPartition = tuple[str, int]


@click.group("records", cls=Group)
def records() -> None:
    """Records of a partition, from its start."""


@records.command("delete")
@click.option("--topic", "-t", metavar="NAME", help="The topic.")
@click.option("--partition", "-p", type=click.IntRange(min=0), help="The partition.")
@click.option(
    "--offset", type=click.IntRange(min=-1), help="Delete all records before it; -1: all that there are now."
)
@click.option(
    "--offset-json-file", "file", type=click.File("rb"), metavar="FILE", help="Kafka's JSON; - is stdin."
)
@dry_run_option
@yes_option
def delete(
    topic: str | None,
    partition: int | None,
    offset: int | None,
    file: BinaryIO | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Delete the records before an offset: the log starts there. `vacuum` frees the space."""
    from sparklog.client.admin import delete_records

    if file is not None and (topic, partition, offset) == (None, None, None):
        before = _read_file(file)
    elif file is None and topic is not None and partition is not None and offset is not None:
        before = {(topic, partition): offset}
    else:
        raise click.UsageError("give --topic, --partition and --offset, or --offset-json-file FILE.")
    log = current().open_log()
    require_topics(log, [name for name, _ in before])
    planned = delete_records(log.metadata, before, dry_run=True)
    if not dry_run:
        count = sum(one.new_log_start_offset - one.log_start_offset for one in planned.values())
        where = ", ".join(f"{name}-{number}" for name, number in list(planned)[:5])
        more = f" and {len(planned) - 5} more" if len(planned) > 5 else ""
        confirm(f"Delete {counted(count, 'offset')} of {where}{more}, and their records?", yes=yes)
        # What was confirmed, and nothing that was written since.
        planned = delete_records(log.metadata, {at: one.new_log_start_offset for at, one in planned.items()})
    rows = [
        {
            "topic": name,
            "partition": number,
            "log_start_offset": one.log_start_offset,
            "new_log_start_offset": one.new_log_start_offset,
            "offsets": one.new_log_start_offset - one.log_start_offset,
        }
        for (name, number), one in sorted(planned.items())
    ]
    if current().json:
        show_json({"dry_run": dry_run, "partitions": rows})
    elif dry_run:
        show_rows(COLUMNS, rows)
    else:  # as kafka-delete-records prints it
        tell("Records delete operation completed:")
        for row in rows:
            tell(
                f"partition: {row['topic']}-{row['partition']}",
                f"low_watermark: {row['new_log_start_offset']}",
            )


# --- Kafka's file ------------------------------------------------------------------------------------


class _Entry(msgspec.Struct):
    topic: Annotated[str, msgspec.Meta(min_length=1)]
    partition: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    offset: Annotated[int, msgspec.Meta(ge=-1)]


class _Document(msgspec.Struct):
    partitions: Annotated[list[_Entry], msgspec.Meta(min_length=1)]
    version: Literal[1] = 1


def _read_file(file: BinaryIO) -> dict[TopicPartition, int]:
    """The offset of each partition in the file; raise InvalidRequestError INVALID_PARTITION_FILE."""
    text = file.read(MAX_FILE_BYTES + 1)
    problem = f"more than {MAX_FILE_BYTES:,} bytes" if len(text) > MAX_FILE_BYTES else ""
    found: dict[TopicPartition, int] = {}
    entries: list[_Entry] = []
    try:
        if not problem:
            entries = msgspec.json.decode(text.removeprefix(b"\xef\xbb\xbf"), type=_Document).partitions
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        problem = str(error)
    for one in entries:
        if (one.topic, one.partition) in found:
            problem = f"found {one.topic}-{one.partition} again, expected each partition once"
        found[one.topic, one.partition] = one.offset
    if problem:
        raise InvalidRequestError(
            "INVALID_PARTITION_FILE",
            f"{file.name}: {problem}",
            fix='write {"version": 1, "partitions": [{"topic": T, "partition": 0, "offset": 5}]}',
        )
    return found
