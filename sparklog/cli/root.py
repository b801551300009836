"""`sparklog root`: what a root is, and its settings, among them the defaults of its topics.

Kafka keeps the same under the cluster-wide broker (`kafka-configs --entity-type brokers --entity-default`).
Not here: what a setting means (sparklog/log/config.py), whether the root is sound (root_checks.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sparklog.cli.group import LazyGroup
from sparklog.cli.output import Column, cell, show_json, show_rows, tell
from sparklog.cli.settings import common_options, current
from sparklog.cli.topics import parse_configs

if TYPE_CHECKING:
    from sparklog.client import SparkLog

Document = dict[str, object]
_DAY_MS = 24 * 3_600_000
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
    from sparklog.log.broker_keys import is_broker_key
    from sparklog.log.config import TopicConfig
    from sparklog.log.root_config import RootConfig
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
