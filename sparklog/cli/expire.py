"""`sparklog expire`: remove the records that are past their topic's retention.

Not here: what is past it (sparklog/maintenance/retain.py), freeing the storage (vacuum.py).
"""

from __future__ import annotations

import dataclasses

import click

from sparklog.cli.group import OnceCommand
from sparklog.cli.maintenance_words import chosen_topics, topics_argument
from sparklog.cli.output import Column, show_json, show_rows, tell
from sparklog.cli.settings import common_options, current

COLUMNS = (
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION", number=True),
    Column("log_start_offset", "LOG-START-OFFSET", number=True),
    Column("new_log_start_offset", "NEW", number=True),
    Column("offsets", "OFFSETS", number=True),
    Column("size_bytes", "SIZE", number=True, bytes=True),
)


@click.command("expire", cls=OnceCommand)
@topics_argument
@click.option("--dry-run", is_flag=True, help="Only show what would go.")
@common_options
def expire(topics: tuple[str, ...], dry_run: bool) -> None:
    """Remove records of TOPICs, or of all, that are past retention.ms or retention.bytes.

    They are gone for every reader at once. By default topics keep everything: only those go for which
    the topic, or the root, sets a retention. `sparklog vacuum` frees their space on the storage.
    """
    from sparklog.maintenance import expire as remove
    from sparklog.maintenance.sober_time import shown_now_ms, sober_now_ms

    log = current().open_log()
    chosen = chosen_topics(log, topics)
    now_ms = (shown_now_ms if dry_run else sober_now_ms)(log.store, log.clock)
    gone = remove(log.metadata, now_ms, chosen, dry_run=dry_run)
    rows = [dataclasses.asdict(one) | {"offsets": one.offsets} for one in gone]
    if current().json:
        show_json({"dry_run": dry_run, "partitions": rows})
    elif rows:
        show_rows(COLUMNS, rows)
    else:
        tell("Nothing is past its retention.")
