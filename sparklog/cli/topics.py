"""`sparklog topics`: create, list, describe, alter, delete. Flag names are those of kafka-topics.

Not here: what a configuration means (sparklog/log/config.py), Kafka's own grammar
(kafka_aliases.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from sparklog.cli.group import LazyGroup
from sparklog.cli.near_names import require_topics
from sparklog.cli.notes import note
from sparklog.cli.output import Column, cell, show_json, show_rows, tell
from sparklog.cli.settings import common_options, current
from sparklog.cli.topic_patterns import pattern_option, topics_of

if TYPE_CHECKING:
    from sparklog.client.admin import TopicDescription

LIST_COLUMNS = (
    Column("topic", "TOPIC"),
    Column("partitions", "PARTITIONS", number=True),
    Column("records", "RECORDS", number=True),
    Column("size_bytes", "SIZE", number=True, bytes=True),
)
PARTITION_COLUMNS = (
    Column("partition", "PARTITION", number=True),
    Column("log_start_offset", "LOG-START-OFFSET", number=True),
    Column("log_end_offset", "LOG-END-OFFSET", number=True),
    Column("size_bytes", "SIZE", number=True, bytes=True),
    Column("extents", "EXTENTS", number=True),
    Column("leader", "LEADER", number=True, optional=True),
    Column("leader_epoch", "LEADER-EPOCH", number=True, optional=True),
    Column("replicas", "REPLICAS", optional=True),
    Column("isr", "ISR", optional=True),
)
Document = dict[str, object]
topic_option = click.option("--topic", "-t", "topic", required=True, metavar="NAME", help="The topic.")


@click.group("topics", cls=LazyGroup)
def topics() -> None:
    """Create, list, describe, alter and delete topics."""


def topic_row(found: TopicDescription) -> Document:
    """A topic in one row."""
    return {
        "topic": found.name,
        "topic_id": found.topic_id,
        "partitions": len(found.partitions),
        "records": sum(one.log_end_offset - one.log_start_offset for one in found.partitions),
        "size_bytes": sum(one.size_bytes for one in found.partitions),
        "internal": found.internal,
    }


def topic_document(found: TopicDescription) -> Document:
    """A topic with its settings and partitions."""
    return {
        "topic": found.name,
        "topic_id": found.topic_id,
        "partition_count": len(found.partitions),
        "internal": found.internal,
        "configs": found.configs,
        "partitions": [
            {
                "partition": one.partition,
                "log_start_offset": one.log_start_offset,
                "log_end_offset": one.log_end_offset,
                "size_bytes": one.size_bytes,
                "extents": one.extent_count,
                "leader": one.leader,
                "leader_epoch": one.leader_epoch if one.replicas else None,
                "replicas": list(one.replicas),
                "isr": list(one.isr),
            }
            for one in found.partitions
        ],
    }


def parse_configs(
    _ctx: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    """`key=value` options as a dict."""
    configs = {}
    for value in values:
        key, separator, text = value.partition("=")
        if not separator or not key:
            raise click.BadParameter(f"found {value!r}, expected key=value.")
        configs[key.strip()] = text.strip()
    return configs


@topics.command("create")
@topic_option
@click.option(
    "--partitions", type=click.IntRange(min=1), help="How many; default: the root's num.partitions."
)
@click.option(
    "--config", "configs", multiple=True, callback=parse_configs, help="A topic setting, key=value."
)
@click.option("--if-not-exists", is_flag=True, help="Do nothing when the topic exists.")
@click.option(
    "--replication-factor",
    "factor",
    type=click.IntRange(min=1),
    help="Among how many brokers leading it moves; default: the root's default.replication.factor.",
)
@common_options
def create(
    topic: str, partitions: int | None, configs: dict[str, str], if_not_exists: bool, factor: int | None
) -> None:
    """Create a topic (and the root, when it is new)."""
    from sparklog.cli.replication import replicate, validate_factor

    log = current().open_log(create=True)
    is_asked = validate_factor(log.image, factor)
    created = log.create_topic(topic, partitions=partitions, configs=configs, if_not_exists=if_not_exists)
    if created and is_asked and factor is not None:
        replicate(log, topic, factor)
    found = topic_document(log.describe_topic(topic))
    if current().json:
        show_json({**found, "created": created})
    elif not created:
        tell(f"Topic {topic} exists already.")
    else:
        count = found["partition_count"]
        tell(f"Created topic {topic} with {count} partition{'' if count == 1 else 's'}.")


@topics.command("list")
@click.option("--exclude-internal", is_flag=True, help="Leave out Kafka's own topics.")
@click.option("--names", is_flag=True, help="Names only, one a line, as kafka-topics prints them.")
@pattern_option
@common_options
def list_topics(exclude_internal: bool, names: bool, pattern: str | None) -> None:
    """List the topics."""
    log = current().open_log()
    found = log.topics(include_internal=not exclude_internal)
    if pattern is not None:
        meant = topics_of(log, pattern, may_be_none=True)
        found = [name for name in found if name in meant]
    if names and not current().json:
        for name in found:
            tell(name)
        return
    from sparklog.client.admin import describe_topic

    rows = [topic_row(describe_topic(log.image, name)) for name in found]  # one image: none of them is gone
    show_rows(LIST_COLUMNS, rows)


@topics.command("describe")
@click.option("--topic", "-t", "names", multiple=True, metavar="NAME", help="A topic; default: all.")
@pattern_option
@click.option("--exclude-internal", is_flag=True, help="Of all, or of a pattern: not Kafka's own topics.")
@click.option(
    "--under-replicated-partitions",
    "under_replicated",
    is_flag=True,
    help="Only partitions one of whose replicas is fenced.",
)
@click.option(
    "--unavailable-partitions", "unavailable", is_flag=True, help="Only partitions that no broker leads."
)
@common_options
def describe(
    names: tuple[str, ...],
    pattern: str | None,
    exclude_internal: bool,
    under_replicated: bool,
    unavailable: bool,
) -> None:
    """Show settings, offsets and sizes of topics, and who leads their partitions."""
    from sparklog.client.admin import describe_topic

    if names and (pattern is not None or exclude_internal):
        raise click.UsageError("--topic excludes --pattern and --exclude-internal.")
    log = current().open_log()
    require_topics(log, names)
    if pattern is not None:
        names = tuple(topics_of(log, pattern, with_internal=not exclude_internal))
    shown = names or log.topics(include_internal=not exclude_internal)
    if under_replicated or unavailable:
        from sparklog.cli.partitions import PARTITION_COLUMNS as LED_COLUMNS
        from sparklog.cli.partitions import partition_rows

        rows = partition_rows(log.image, shown, under_replicated=under_replicated, unavailable=unavailable)
        show_rows(LED_COLUMNS, rows)
        return
    show_descriptions([topic_document(describe_topic(log.image, name)) for name in shown])


def show_descriptions(found: Sequence[Document]) -> None:
    """Print `topic_document`s, Kafka's heading line first."""
    if current().json:
        show_json(list(found))
        return
    for topic in found:
        configs = cell(topic["configs"]) if topic["configs"] else ""
        partitions = topic["partitions"]
        assert isinstance(partitions, list)
        factor = max((len(one["replicas"]) for one in partitions), default=0)
        tell(
            f"Topic: {topic['topic']}",
            f"TopicId: {topic['topic_id']}",
            f"PartitionCount: {topic['partition_count']}",
            *([f"ReplicationFactor: {factor}"] if factor else []),
            f"Configs: {configs}",
        )
        show_rows(PARTITION_COLUMNS, partitions)


@topics.command("alter")
@topic_option
@click.option(
    "--partitions", type=click.IntRange(min=1), help="The new number of partitions; it can only grow."
)
@click.option("--config", "configs", multiple=True, callback=parse_configs, help="Set key=value.")
@click.option("--delete-config", "deleted", multiple=True, metavar="KEY", help="Back to the default.")
@common_options
def alter(topic: str, partitions: int | None, configs: dict[str, str], deleted: tuple[str, ...]) -> None:
    """Change settings, or add partitions."""
    if partitions is None and not configs and not deleted:
        raise click.UsageError(
            "nothing to alter: give --partitions N, --config key=value or --delete-config KEY."
        )
    from sparklog.client import admin

    log = current().open_log()
    require_topics(log, [topic])
    admin.alter_topic(log.metadata, topic, configs, deleted, partitions=partitions)
    if partitions is not None:
        note("Note: keys hash over the new number of partitions from now on; records already there stay.")
    show_descriptions([topic_document(log.describe_topic(topic))])


@topics.command("delete")
@click.option("--topic", "-t", "names", multiple=True, metavar="NAME", help="A topic.")
@pattern_option
@click.option("--if-exists", is_flag=True, help="Do nothing when there is no such topic.")
@click.option("--internal", is_flag=True, help="Also an internal topic, and what is kept in it.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@common_options
def delete(names: tuple[str, ...], pattern: str | None, if_exists: bool, internal: bool, yes: bool) -> None:
    """Delete topics and their records."""
    from sparklog.cli.topic_deletion import confirm, refuse_internal

    if bool(names) == (pattern is not None):
        raise click.UsageError("give --topic NAME (as often as needed) or --pattern REGEX.")
    log = current().open_log()
    wanted = list(dict.fromkeys(names))
    gone: list[str] = []
    if pattern is not None:
        wanted = topics_of(log, pattern, with_internal=internal, may_be_none=if_exists)
    elif if_exists:
        known = log.topics(include_internal=True)
        gone = [name for name in wanted if name not in known]
        wanted = [name for name in wanted if name in known]
    require_topics(log, wanted)
    if not internal:
        refuse_internal(log, wanted)
    if wanted and not yes:
        confirm(log, wanted, by_pattern=pattern is not None)
    rows: list[Document] = [{"topic": name, "deleted": False} for name in gone]
    try:
        for name in wanted:
            log.delete_topic(name)
            rows.append({"topic": name, "deleted": True})
    finally:
        _show_deleted(rows)
    if not rows and not current().json:
        tell(f"No topic matches {pattern!r}.")


def _show_deleted(rows: Sequence[Document]) -> None:
    if current().json:
        show_json(list(rows))
        return
    for row in rows:
        tell(f"Deleted topic {row['topic']}." if row["deleted"] else f"Topic {row['topic']} does not exist.")
