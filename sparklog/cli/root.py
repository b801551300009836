"""`sparklog root`: what a root is, and its settings, among them the defaults of its topics.

Kafka keeps the same under the cluster-wide broker (`kafka-configs --entity-type brokers --entity-default`).
Not here: what a setting means (sparklog/log/config.py), whether the root is sound (doctor.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from sparklog.cli.framework import Group, confirm, current, dry_run_option, note, yes_option
from sparklog.cli.output import Document, cell, show, show_json, show_rows, tell
from sparklog.cli.topics import config_option, delete_config_option, note_losses

if TYPE_CHECKING:
    from sparklog.client import OpenedRoot
    from sparklog.maintenance import RestoreReport

_HOUR_MS = 3_600_000
_MOST_NAMED = 20
_STOPPED = (
    "It is meant for a root that was put back from a backup. Everything that has the root open must be "
    "stopped: brokers, queries, jobs, maintenance. Transactions that are open are aborted, and what only "
    "commits after the backup referred to is removed by the next vacuum: if there is a newer copy of the "
    "root, put that back instead."
)
SETTING_COLUMNS = "key:SETTING value default scope:OF"


@click.group("root", cls=Group)
def root() -> None:
    """The root itself: its identity and settings, with the defaults of its topics."""


@root.command("describe")
@click.option("--all", "all_settings", is_flag=True, help="Also the settings that have their default.")
def describe(all_settings: bool) -> None:
    """Show where the root is, which cluster it is, and its settings."""
    show_root(current().open_root(), all_settings=all_settings)


@root.command("alter")
@config_option
@delete_config_option
def alter(configs: dict[str, str], deleted: tuple[str, ...]) -> None:
    """Change settings of the root, or the defaults of its topics."""
    if not configs and not deleted:
        raise click.UsageError("nothing to alter: give --config key=value or --delete-config KEY.")
    log = current().open_root()
    before = log.refresh(force=True)
    log.alter_root(set=configs, delete=list(deleted))
    note_losses(log, before)
    show_root(log, all_settings=False)


@root.command("restore")
@dry_run_option
@yes_option
def restore(dry_run: bool, yes: bool) -> None:
    """Make a root that was put back from a backup safe to be used.

    Everything that has it open must be stopped before: brokers, queries, jobs, maintenance. Run it each time
    that an older copy of a root, or of its metadata, was put in its place, and before anything else opens it.
    Records stay as they are. Ids and epochs go far ahead, so that none is handed out again that a client
    got from the root after the backup was made; transactions that are open are aborted.
    """
    from sparklog.maintenance import restore as begin_incarnation

    log = current().open_root()
    confirm(f"Restore {log.url}?", yes=yes or dry_run, warning=_STOPPED, required=True)
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
def sweep(hours: int | None) -> None:
    """Remove what killed writers left behind: temporary files, parts of unfinished uploads."""
    store = current().open_root().store
    if hours is None:
        removed = store.sweep_temporary(older_than_ms=24 * _HOUR_MS)
    else:
        older_ms = hours * _HOUR_MS
        removed = store.sweep_temporary(older_than_ms=older_ms, unfinished_older_than_ms=older_ms)
    show({"removed": removed}, f"Removed {removed} files of unfinished writes.")


def show_root(log: OpenedRoot, *, all_settings: bool) -> None:
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
    brokers, settings = found["brokers"], found["settings"]
    assert isinstance(brokers, list)
    assert isinstance(settings, list)
    if brokers:
        running = [one["id"] for one in brokers if one["state"] != "fenced"]
        fenced = [one["id"] for one in brokers if one["state"] == "fenced"]
        controller = cell(found["controller"])
        tell(f"Brokers: {cell(running)}", f"Fenced: {cell(fenced)}", f"Controller: {controller}")
    empty = "All settings have their defaults (root describe --all shows them)."
    show_rows(SETTING_COLUMNS, settings, empty=empty)


def root_document(log: OpenedRoot, *, all_settings: bool) -> Document:
    """The root and its settings: those that are set, or all."""
    from sparklog.cli.brokers import broker_rows
    from sparklog.client.cluster_view import describe_controller
    from sparklog.log.config import RootConfig, TopicConfig, is_broker_key, is_group_key
    from sparklog.log.setting import declared_settings
    from sparklog.metadata import NO_NODE

    image = log.refresh()
    controller = describe_controller(image).node_id
    settings: list[Document] = []
    for scope, config in (("root", RootConfig), ("topics", TopicConfig)):
        for key, (_, one) in declared_settings(config).items():
            is_set, default = key in image.configs, one.format(one.default)
            if all_settings or is_set:
                value = image.configs.get(key, default)
                settings.append(
                    {"key": key, "value": value, "default": default, "scope": scope, "is_set": is_set}
                )
    settings += [
        {"key": key, "value": image.configs[key], "default": None, "scope": scope, "is_set": True}
        for scope, is_of_scope in (("brokers", is_broker_key), ("groups", is_group_key))
        for key in sorted(image.configs)
        if is_of_scope(key)
    ]
    return {
        "root": log.url,
        "cluster_id": log.cluster_id,
        "commit": image.commit,
        "topics": len(log.topics()),
        "brokers": broker_rows(image),
        "controller": None if controller == NO_NODE else controller,
        "settings": settings,
    }
