"""`sparklog topics`: create, list, describe, alter, delete. Flag names are those of kafka-topics.

Lists leave internal topics out unless `--include-internal` asks for them. Under the names of Kafka's tools
they are shown, and descriptions have Kafka's formats.

`--pattern` deletes nothing that was not shown and confirmed, by a person or by `--yes`. An internal topic is
deleted only with `--internal`, so that a loop over all topics with `--yes` does not delete it.
Not here: what a setting means (sparklog/log/config.py).
Sources: Kafka TopicCommand, ConfigCommand.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from sparklog.cli.framework import (
    Group,
    confirm,
    current,
    internal_option,
    is_terminal,
    note,
    require_topics,
    yes_option,
)
from sparklog.cli.output import (
    SETTING_COLUMNS,
    Document,
    cell,
    setting_row,
    show,
    show_json,
    show_rows,
    tell,
)
from sparklog.errors import InvalidRequestError, SparklogError, UnknownTopicError
from sparklog.wording import counted

if TYPE_CHECKING:
    from sparklog.client import OpenedRoot, SparkLog
    from sparklog.client.admin import EffectiveConfig, TopicDescription
    from sparklog.metadata import Image

MOST_NAMED = 5  # groups, in a message
LIST_COLUMNS = "topic partitions records size_bytes:SIZE:bytes"
PARTITION_COLUMNS = (
    "partition log_start_offset log_end_offset size_bytes:SIZE:bytes extents leader leader_epoch replicas isr"
)

# --- options -----------------------------------------------------------------------------------------

topic_option = click.option("--topic", "-t", "topic", required=True, metavar="NAME", help="The topic.")
topics_option = click.option("--topic", "-t", "names", multiple=True, metavar="NAME", help="A topic.")
pattern_option = click.option(
    "--pattern",
    metavar="REGEX",
    help="Topics by a regular expression (RE2's) that matches the whole name; a comma is an or.",
)


def parse_configs(
    _ctx: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    """Callback of an option: `key=value`."""
    configs = {}
    for value in values:
        key, separator, text = value.partition("=")
        if not separator or not key:
            raise click.BadParameter(f"found {value!r}, expected key=value.")
        configs[key.strip()] = text.strip()
    return configs


config_option = click.option(
    "--config", "configs", multiple=True, callback=parse_configs, help="Set key=value."
)
delete_config_option = click.option(
    "--delete-config", "deleted", multiple=True, metavar="KEY", help="Back to the default."
)


def topics_of(
    log: OpenedRoot, pattern: str, *, with_internal: bool = True, may_be_none: bool = False
) -> list[str]:
    """The topics that a pattern matches, sorted. A note names the internal ones that are left out.

    Raises:
        UnknownTopicError: TOPIC_MISSING, it matches none, unless `may_be_none`.
        InvalidRequestError: INVALID_PATTERN.
    """
    from sparklog.client.patterns import matching
    from sparklog.metadata import is_internal

    known = log.topics(include_internal=True)
    expression = pattern.replace(" ", "").replace(",", "|").strip("\"'")
    matches = matching(expression, known, of="topics")
    found = [name for name, is_match in zip(known, matches, strict=True) if is_match]
    internal = [] if with_internal else list(filter(is_internal, found))
    if internal:
        note(f"Note: {', '.join(internal)} left out: internal.")
        found = [name for name in found if name not in internal]
    if not found and not may_be_none:
        raise UnknownTopicError(
            "TOPIC_MISSING",
            f"found no topic whose name matches {pattern!r}",
            fix="`sparklog topics list` shows their names; the expression must match a whole one",
        )
    return found


# --- topics ------------------------------------------------------------------------------------------


@click.group("topics", cls=Group)
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


@topics.command("create")
@topic_option
@click.option(
    "--partitions", type=click.IntRange(min=1), help="How many; default: the root's num.partitions."
)
@config_option
@click.option("--if-not-exists", is_flag=True, help="Do nothing when the topic exists.")
@click.option(
    "--replication-factor",
    "factor",
    type=click.IntRange(min=1),
    help="How many brokers may lead it; default: the root's default.replication.factor.",
)
def create(
    topic: str, partitions: int | None, configs: dict[str, str], if_not_exists: bool, factor: int | None
) -> None:
    """Create a topic (and the root, when it is new)."""
    log = current().open_root(create=True)
    is_asked = _validate_factor(log.image, factor)
    created = log.create_topic(topic, partitions=partitions, configs=configs, if_not_exists=if_not_exists)
    if created and is_asked and factor is not None:
        _replicate(log, topic, factor)
    found = log.describe_topic(topic)
    done = f"Created topic {topic} with {counted(len(found.partitions), 'partition')}."
    show({**topic_document(found), "created": created}, done if created else f"Topic {topic} exists already.")


def _validate_factor(image: Image, factor: int | None) -> bool:
    """True if the controller can be asked for so many replicas; notes that there are no brokers.

    Raises:
        InvalidRequestError: INVALID_OPTION, more replicas than brokers.
    """
    if factor is None:
        return False
    if not image.brokers:
        if factor > 1:
            note(f"Note: --replication-factor {factor} has no effect: no brokers share this root.")
        return False
    running = _running(image)
    if factor > len(running):
        raise InvalidRequestError(
            "INVALID_OPTION",
            f"--replication-factor: found {factor}, expected at most {len(running)}, the brokers that run",
            fix="start more brokers, or ask for fewer replicas; records are as safe with one",
        )
    return True


def _replicate(log: OpenedRoot, topic: str, factor: int) -> None:
    """Give a new topic so many replicas; until then it has the root's default number. Nothing is copied."""
    from sparklog.cli.partitions import propose, raise_failures

    image = log.refresh(force=True)
    wanted = propose(image, [topic], _running(image), factor, racks=True, start=image.commit)
    raise_failures(current().controller(log).reassign(wanted))
    log.refresh(force=True)


def _running(image: Image) -> list[int]:
    return [node_id for node_id, one in sorted(image.brokers.items()) if not one.is_fenced]


@topics.command("list")
@internal_option
@click.option("--names", is_flag=True, help="Names only, one a line, as kafka-topics prints them.")
@pattern_option
def list_topics(with_internal: bool, names: bool, pattern: str | None) -> None:
    """List the topics."""
    log = current().open_root()
    found = log.topics(include_internal=with_internal)
    if pattern is not None:
        found = topics_of(
            log, pattern, with_internal=with_internal or pattern.startswith("_"), may_be_none=True
        )
    if names and not current().json:
        for name in found:
            tell(name)
        return
    from sparklog.client.admin import describe_topic

    rows = [topic_row(describe_topic(log.image, name)) for name in found]  # one image: none of them is gone
    show_rows(LIST_COLUMNS, rows)


@topics.command("describe")
@topics_option
@pattern_option
@internal_option
@click.option(
    "--all", "with_settings", is_flag=True, help="Every setting in force, its source, what it overrides."
)
@click.option(
    "--under-replicated-partitions",
    "under_replicated",
    is_flag=True,
    help="Only partitions with a fenced replica.",
)
@click.option(
    "--unavailable-partitions", "unavailable", is_flag=True, help="Only partitions without a leader."
)
@click.option("--as", "tool", type=click.Choice(["kafka-topics", "kafka-configs"]), hidden=True)
def describe(
    names: tuple[str, ...],
    pattern: str | None,
    with_internal: bool,
    with_settings: bool,
    under_replicated: bool,
    unavailable: bool,
    tool: str | None,
) -> None:
    """Show settings, offsets and sizes of topics, and who leads their partitions."""
    from sparklog.client.admin import describe_topic

    if names and pattern is not None:
        raise click.UsageError("--topic excludes --pattern.")
    log = current().open_root()
    require_topics(log, names)
    if pattern is not None:
        names = tuple(topics_of(log, pattern, with_internal=with_internal or pattern.startswith("_")))
    shown = names or log.topics(include_internal=with_internal)
    if under_replicated or unavailable:
        from sparklog.cli.partitions import COLUMNS, partition_rows

        rows = partition_rows(log.image, shown, under_replicated=under_replicated, unavailable=unavailable)
        if tool == "kafka-topics" and not current().json:
            tell_partitions(rows)
        else:
            show_rows(COLUMNS, rows)
        return
    found = [topic_document(describe_topic(log.image, name)) for name in shown]
    if with_settings or tool == "kafka-configs":
        from sparklog.client.admin import effective_configs

        settings = {
            name: [
                one for one in effective_configs(log.image, name) if with_settings or one.source == "topic"
            ]
            for name in shown
        }
        show_settings(found, settings, with_defaults=with_settings, tool=tool)
    else:
        show_descriptions(found, tool=tool)


def show_settings(
    found: Sequence[Document],
    settings: Mapping[str, Sequence[EffectiveConfig]],
    *,
    with_defaults: bool,
    tool: str | None,
) -> None:
    """Print `topic_document`s with settings: all in force, or as kafka-configs the topic's own."""
    if current().json:
        show_json(
            [
                one | {"settings": [dataclasses.asdict(entry) for entry in settings[str(one["topic"])]]}
                for one in found
            ]
        )
        return
    for topic in found:
        entries = settings[str(topic["topic"])]
        if tool == "kafka-configs":
            tell_settings(f"topic {topic['topic']}", entries, with_defaults=with_defaults)
            continue
        _tell_heading(topic)
        show_rows(SETTING_COLUMNS, list(map(setting_row, entries)))


def tell_settings(of: str, entries: Iterable[EffectiveConfig], *, with_defaults: bool) -> None:
    """Print settings as kafka-configs does."""
    tell(f"{'All' if with_defaults else 'Dynamic'} configs for {of} are:")
    for entry in entries:
        tell(f"  {entry.name}={entry.value} sensitive=false synonyms={{{_synonyms(entry)}}}")


KAFKA_SOURCES = {
    "topic": "DYNAMIC_TOPIC_CONFIG",
    "group": "DYNAMIC_GROUP_CONFIG",
    "broker": "STATIC_BROKER_CONFIG",
    "all brokers": "DYNAMIC_DEFAULT_BROKER_CONFIG",
    "root": "DYNAMIC_DEFAULT_BROKER_CONFIG",
    "default": "DEFAULT_CONFIG",
}


def _synonyms(entry: EffectiveConfig) -> str:
    values = [(entry.source, entry.value), *((one.source, one.value) for one in entry.overridden)]
    return ", ".join(f"{KAFKA_SOURCES[source]}:{entry.name}={value}" for source, value in values)


def tell_partitions(rows: Iterable[Document]) -> None:
    """Print partitions as kafka-topics does, a line each."""
    for row in rows:
        leader = "none" if row["leader"] is None else row["leader"]
        replicas, isr = (",".join(map(str, _numbers(row[field]))) for field in ("replicas", "isr"))
        tell(
            "",
            f"Topic: {row['topic']}",
            f"Partition: {row['partition']}",
            f"Leader: {leader}",
            f"Replicas: {replicas}",
            f"Isr: {isr}",
        )


def _numbers(value: object) -> Sequence[int]:
    assert isinstance(value, list | tuple)
    return value


def show_descriptions(found: Sequence[Document], *, tool: str | None = None) -> None:
    """Print `topic_document`s, Kafka's heading line first."""
    if current().json:
        show_json(list(found))
        return
    for topic in found:
        _tell_heading(topic)
        partitions = topic["partitions"]
        assert isinstance(partitions, list)
        if tool == "kafka-topics":
            tell_partitions({"topic": topic["topic"], **one} for one in partitions)
        else:
            show_rows(PARTITION_COLUMNS, partitions)


def _tell_heading(topic: Document) -> None:
    partitions = topic["partitions"]
    assert isinstance(partitions, list)
    factor = max((len(one["replicas"]) for one in partitions), default=0)
    configs = cell(topic["configs"]) if topic["configs"] else ""
    tell(
        f"Topic: {topic['topic']}",
        f"TopicId: {topic['topic_id']}",
        f"PartitionCount: {topic['partition_count']}",
        *([f"ReplicationFactor: {factor}"] if factor else []),
        f"Configs: {configs}",
    )


@topics.command("alter")
@topic_option
@click.option(
    "--partitions", type=click.IntRange(min=1), help="The new number of partitions; it can only grow."
)
@config_option
@delete_config_option
@click.option("--as", "tool", type=click.Choice(["kafka-configs"]), hidden=True)
def alter(
    topic: str, partitions: int | None, configs: dict[str, str], deleted: tuple[str, ...], tool: str | None
) -> None:
    """Change settings, or add partitions."""
    if partitions is None and not configs and not deleted:
        raise click.UsageError(
            "nothing to alter: give --partitions N, --config key=value or --delete-config KEY."
        )
    from sparklog.client import admin

    log = current().open_root()
    require_topics(log, [topic])
    count = log.partition_count(topic)
    if partitions == count:
        raise InvalidRequestError(
            "INVALID_PARTITION_COUNT",
            f"topic {topic}: has {counted(count, 'partition')} already; {count} would not be an increase",
            fix=f"give --partitions a number above {count}, or leave it out",
        )
    before = log.refresh(force=True)
    admin.alter_topic(log.metadata, topic, configs, deleted, partitions=partitions)
    if partitions is not None:
        note("Note: keys hash over the new number of partitions from now on; records already there stay.")
    note_losses(log, before, {topic})
    if tool is not None and not current().json:
        tell(f"Completed updating config for topic {topic}.")
        return
    show_descriptions([topic_document(log.describe_topic(topic))])


def note_losses(log: OpenedRoot, before: Image, names: Collection[str] | None = None) -> None:
    """Warn of records of these topics (None: all) that changed settings let go.

    Args:
        before: the metadata before the change.
    """
    from sparklog.log.config import TopicConfig
    from sparklog.maintenance.retain import choose_expired

    after, now_ms = log.refresh(force=True), log.clock.now_ms()
    gone = [sum(one.offsets for one in choose_expired(image, now_ms, names)) for image in (before, after)]
    if gone[1] > gone[0]:
        count = counted(gone[1] - gone[0], "record")
        note(
            f"Warning: with this the next maintenance removes {count} for good: `sparklog expire --dry-run`."
        )

    def compacted(image: Image) -> set[str]:
        return {
            name
            for name, topic in image.topics.items()
            if (names is None or name in names)
            and any(state.log_end_offset > state.log_start_offset for state in topic.partitions)
            and "compact" in TopicConfig.parse(topic.configs, image.configs).cleanup_policy
        }

    for name in sorted(compacted(after) - compacted(before))[:MOST_NAMED]:
        note(f"Warning: compaction of {name} keeps only the last record of each key, and none without a key.")


@topics.command("delete")
@topics_option
@pattern_option
@click.option("--if-exists", is_flag=True, help="Do nothing when there is no such topic.")
@click.option("--internal", is_flag=True, help="Also an internal topic, and what is kept in it.")
@yes_option
def delete(names: tuple[str, ...], pattern: str | None, if_exists: bool, internal: bool, yes: bool) -> None:
    """Delete topics and their records."""
    if bool(names) == (pattern is not None):
        raise click.UsageError("give --topic NAME (as often as needed) or --pattern REGEX.")
    from sparklog.metadata import is_internal

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
        _refuse_internal(log, wanted)
    if wanted:
        what = f"topic {wanted[0]}" if len(wanted) == 1 else f"{len(wanted)} topics: {', '.join(wanted)}"
        if pattern is not None and not yes and not is_terminal(sys.stdin):
            raise click.UsageError(
                f"the pattern means {what}. Nobody can be asked without a terminal: give --yes, if so."
            )
        lost = [f"\nLost with {name}: {_what_is_lost(log, name)}." for name in filter(is_internal, wanted)]
        records = "all its records" if len(wanted) == 1 else "all their records"
        confirm(f"Delete {what}, and {records}?{''.join(lost)}", yes=yes)
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
    show(
        list(rows),
        *(
            f"Deleted topic {row['topic']}." if row["deleted"] else f"Topic {row['topic']} does not exist."
            for row in rows
        ),
    )


def _refuse_internal(log: SparkLog, names: Sequence[str]) -> None:
    """Refuse topics in which brokers and groups keep their state: InvalidRequestError INTERNAL_TOPIC."""
    from sparklog.metadata import is_internal

    for name in filter(is_internal, names):
        raise InvalidRequestError(
            "INTERNAL_TOPIC",
            f"topic {name} is internal; with it would go {_what_is_lost(log, name)}",
            fix="leave it; if that is meant, stop what reads and writes here, and say so with --internal",
        )


def _what_is_lost(log: SparkLog, name: str) -> str:
    """What an internal topic holds, in words."""
    from sparklog.client.topic_plan import OFFSETS_TOPIC

    if name != OFFSETS_TOPIC:
        count = sum(one.log_end_offset - one.log_start_offset for one in log.describe_topic(name).partitions)
        return f"{count:,} records of brokers' own state"
    try:
        groups = log.groups()
        positions = sum(len(log.committed_offsets(group, image=log.image)) for group in groups)
    except SparklogError as error:
        return f"the positions of all groups (which could not be read: {error.message})"
    if not groups:
        return "no group's positions: none has committed any"
    named = ", ".join(map(repr, groups[:MOST_NAMED]))
    more = f" and {len(groups) - MOST_NAMED:,} more" if len(groups) > MOST_NAMED else ""
    each = "the group begins" if len(groups) == 1 else "each begins"
    return (
        f"the positions of {counted(len(groups), 'group')} in {counted(positions, 'partition')} "
        f"({named}{more}): {each} again where its auto.offset.reset says"
    )
