"""`sparklog root`: what a root is, and its settings, among them the defaults of its topics.

Kafka keeps the same under the cluster-wide broker (`kafka-configs --entity-type brokers --entity-default`).
Not here: what a setting means (sparklog/log/config.py), whether the root is sound (doctor.py).
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from sparklog.cli.framework import LazyGroup, common_options, current, is_terminal, note
from sparklog.cli.output import Column, cell, show_json, show_rows, tell
from sparklog.cli.topics import parse_configs

if TYPE_CHECKING:
    from sparklog.client import SparkLog
    from sparklog.maintenance import RestoreReport

Document = dict[str, object]
_DAY_MS = 24 * 3_600_000
_MOST_NAMED = 20
_STOPPED = (
    "It is meant for a root that was put back from a backup. Everything that has the root open must be "
    "stopped: brokers, queries, jobs, maintenance. Transactions that are open are aborted, and what only "
    "commits after the backup referred to is removed by the next vacuum: if there is a newer copy of the "
    "root, put that back instead."
)
SETTING_COLUMNS = (
    Column("key", "SETTING"),
    Column("value", "VALUE"),
    Column("default", "DEFAULT"),
    Column("scope", "OF"),
)


@click.group("root", cls=LazyGroup)
def root() -> None:
    """The root itself: its identity and settings, with the defaults of its topics."""


@root.command("describe")
@click.option("--all", "all_settings", is_flag=True, help="Also the settings that have their default.")
@common_options
def describe(all_settings: bool) -> None:
    """Show where the root is, which cluster it is, and its settings."""
    show_root(current().open_log(), all_settings=all_settings)


@root.command("alter")
@click.option("--config", "configs", multiple=True, callback=parse_configs, help="Set key=value.")
@click.option("--delete-config", "deleted", multiple=True, metavar="KEY", help="Back to the default.")
@common_options
def alter(configs: dict[str, str], deleted: tuple[str, ...]) -> None:
    """Change settings of the root, or the defaults of its topics."""
    if not configs and not deleted:
        raise click.UsageError("nothing to alter: give --config key=value or --delete-config KEY.")
    log = current().open_log()
    log.alter_root(set=configs, delete=list(deleted))
    show_root(log, all_settings=False)


@root.command("restore")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@common_options
def restore(dry_run: bool, yes: bool) -> None:
    """Make a root that was put back from a backup safe to be used.

    Everything that has it open must be stopped before: brokers, queries, jobs, maintenance. Run it each time
    that an older copy of a root, or of its metadata, was put in its place, and before anything else opens it.
    Records stay as they are. Ids and epochs go far ahead, so that none is handed out again that a client
    got from the root after the backup was made; transactions that are open are aborted.
    """
    from sparklog.maintenance import restore as begin_incarnation

    log = current().open_log()
    if not dry_run and not yes:
        if not is_terminal(sys.stdin):
            raise click.UsageError(f"nobody can be asked without a terminal: give --yes. {_STOPPED}")
        note(_STOPPED)
        click.confirm(f"Restore {log.url}?", abort=True, err=True)
    if not dry_run and log.store.traits.is_remote:
        note("It takes a minute: as long as processes that were not stopped may take to notice.")
    show_restore(begin_incarnation(log.metadata, log.clock, dry_run=dry_run), dry_run=dry_run)


def show_restore(report: RestoreReport, *, dry_run: bool) -> None:
    """What changed, or would change, and who has to be started anew."""
    if current().json:
        show_json({"dry_run": dry_run, **dataclasses.asdict(report)})
        return
    began = f"Would begin an incarnation after commit {report.commit}."
    for line in (
        began if dry_run else f"Began incarnation {report.incarnation} in commit {report.commit}.",
        f"Producer ids: from {report.producer_id} on, instead of {report.producer_id_before}.",
        f"Leader epochs: from {report.leader_epoch} on, in {report.partitions} partitions.",
        f"Idempotent producers: {report.producers} forgotten.",
        f"Transactional ids: {report.transactions} with new producers; aborted: {_shown(report.aborted)}.",
        f"Brokers fenced: {_shown(list(map(str, report.brokers)))}.",
    ):
        tell(line)
    note(
        "Start anew: brokers, and whatever else has the root open, which is refused from now on "
        "(ROOT_RESTORED); the processes of transactional producers, which are fenced; consumers, which then "
        "go on from the offsets that the restored root has."
    )
    note(
        "Give streaming queries that read from this root new checkpoints. Those that write to it go on after "
        "their last micro-batch: what they have written since the backup is missing unless they, too, begin "
        f"anew. Applications that have written before: {_shown(report.applications)}."
    )


def _shown(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    named = ", ".join(names[:_MOST_NAMED]) or "none"
    return f"{named} and {more:,} more" if more > 0 else named


@root.command("sweep")
@click.option(
    "--older-than-hours",
    "hours",
    type=click.IntRange(min=0),
    help="Only what is older; 0 while no process has the root open.  [default: 24, and 168 for uploads]",
)
@common_options
def sweep(hours: int | None) -> None:
    """Remove what killed writers left behind: temporary files, parts of unfinished uploads."""
    store = current().open_log().store
    if hours is None:
        removed = store.sweep_temporary(older_than_ms=_DAY_MS)
    else:
        older_ms = hours * 3_600_000
        removed = store.sweep_temporary(older_than_ms=older_ms, unfinished_older_than_ms=older_ms)
    if current().json:
        show_json({"removed": removed})
    else:
        tell(f"Removed {removed} files of unfinished writes.")


def show_root(log: SparkLog, *, all_settings: bool) -> None:
    """Print the root in one line, and its settings in a table."""
    found = root_document(log, all_settings=all_settings)
    if current().json:
        show_json(found)
        return
    tell(
        f"Root: {found['root']}",
        f"ClusterId: {found['cluster_id']}",
        f"Commit: {found['commit']}",
        f"Topics: {found['topics']}",
    )
    if found["brokers"]:
        tell(*_served(found))
    settings = found["settings"]
    assert isinstance(settings, list)
    if settings:
        show_rows(SETTING_COLUMNS, settings)
    else:
        tell("All settings have their defaults (root describe --all shows them).")


def _served(found: Document) -> list[str]:
    """Who serves the root, field by field."""
    brokers, controller = found["brokers"], found["controller"]
    assert isinstance(brokers, list)
    running = [one["id"] for one in brokers if one["state"] != "fenced"]
    fenced = [one["id"] for one in brokers if one["state"] == "fenced"]
    return [
        f"Brokers: {cell(running)}",
        f"Fenced: {cell(fenced)}",
        f"Controller: {cell(controller)}",
    ]


def root_document(log: SparkLog, *, all_settings: bool) -> Document:
    """The root and its settings: those that are set, or all."""
    from sparklog.cli.brokers import broker_row
    from sparklog.client.cluster_view import describe_brokers, describe_controller
    from sparklog.log.config import RootConfig, TopicConfig, is_broker_key
    from sparklog.log.setting import declared_settings
    from sparklog.metadata import NO_NODE

    image = log.refresh()
    controller = describe_controller(image).node_id
    settings: list[Document] = []
    for scope, declared in (
        ("root", declared_settings(RootConfig)),
        ("topics", declared_settings(TopicConfig)),
    ):
        for key, (_, one) in declared.items():
            if all_settings or key in image.configs:
                default = one.format(one.default)
                value = image.configs.get(key, default)
                settings.append(
                    {
                        "key": key,
                        "value": value,
                        "default": default,
                        "scope": scope,
                        "is_set": key in image.configs,
                    }
                )
    settings += [
        {"key": key, "value": image.configs[key], "default": None, "scope": "brokers", "is_set": True}
        for key in sorted(image.configs)
        if is_broker_key(key)
    ]
    return {
        "root": log.url,
        "cluster_id": log.cluster_id,
        "commit": image.commit,
        "topics": len(log.topics()),
        "brokers": [broker_row(one) for one in describe_brokers(image)],
        "controller": None if controller == NO_NODE else controller,
        "settings": settings,
    }
