"""`sparklog partitions reassign`: other brokers as partitions' replicas. Kafka's habits, and a short form.

    partitions reassign --topic orders --replicas 1,2,3                 at once
    partitions reassign --generate --topics orders --broker-list 1,2,3  a proposal, as Kafka's JSON
    partitions reassign --execute FILE | --verify FILE | --cancel FILE | --list

Nothing is copied: a reassignment is over when all of its brokers are there, mostly at once.
Not here: Kafka's JSON (reassignment_files.py), the request (sparklog/client/controller.py), how replicas are
    spread (sparklog/client/placement.py).
Sources: Kafka's ReassignPartitionsCommand; its sentences, so that scripts which look for them go on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING

import click

from sparklog.cli.controller_answers import answer_rows, raise_failures
from sparklog.cli.group import OnceCommand
from sparklog.cli.near_names import require_topics
from sparklog.cli.output import show_json, tell
from sparklog.cli.reassignment_files import (
    TopicPartition,
    read_partitions,
    read_reassignments,
    read_topics,
    reassignment_document,
)
from sparklog.cli.reassignment_plans import Document, of_topic, progress, propose, reassigning
from sparklog.cli.settings import common_options_without_broker_list, current
from sparklog.errors import SparklogError

if TYPE_CHECKING:
    from sparklog.client import SparkLog
    from sparklog.metadata import Image

VERBS = ("--generate", "--execute", "--verify", "--cancel", "--list", "--replicas")


def parse_ids(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[int, ...]:
    """`1,2,3`; none for none."""
    words = [word.strip() for word in value.split(",")] if value else []
    if not all(word.isascii() and word.isdigit() and len(word) <= 10 for word in words):
        raise click.BadParameter(f"found {value!r}, expected ids of brokers, such as 1,2,3.")
    ids = tuple(map(int, words))
    if len(set(ids)) != len(ids):
        raise click.BadParameter(f"found {value!r}, expected each broker once.")
    return ids


@click.command("reassign", cls=OnceCommand)
@click.option("--topic", "-t", metavar="NAME", help="With --replicas: the topic.")
@click.option("--partition", "-p", "numbers", type=click.IntRange(min=0), multiple=True, help="Only these.")
@click.option("--replicas", callback=parse_ids, metavar="ID,...", help="Who is to have it, by preference.")
@click.option("--generate", is_flag=True, help="Propose replicas, spread over brokers and racks.")
@click.option("--topics", metavar="NAME,...", help="With --generate: the topics.")
@click.option(
    "--topics-to-move-json-file", "topics_file", type=click.File(), help="With --generate: Kafka's file."
)
@click.option("--broker-list", callback=parse_ids, metavar="ID,...", help="With --generate: the brokers.")
@click.option(
    "--replication-factor", "factor", type=click.IntRange(min=1), help="With --generate: another one."
)
@click.option("--disable-rack-aware", is_flag=True, help="With --generate: racks do not matter.")
@click.option("--execute", type=click.File(), metavar="FILE", help="Begin what the file says.")
@click.option("--verify", type=click.File(), metavar="FILE", help="How far it is.")
@click.option("--cancel", type=click.File(), metavar="FILE", help="Call off what is not over.")
@click.option("--list", "lists", is_flag=True, help="What is not over.")
@common_options_without_broker_list
def reassign(
    topic: str | None,
    numbers: tuple[int, ...],
    replicas: tuple[int, ...],
    generate: bool,
    topics: str | None,
    topics_file: IO[str] | None,
    broker_list: tuple[int, ...],
    factor: int | None,
    disable_rack_aware: bool,
    execute: IO[str] | None,
    verify: IO[str] | None,
    cancel: IO[str] | None,
    lists: bool,
) -> None:
    """Have other brokers as replicas of partitions. Nothing is copied."""
    chosen = [generate, execute is not None, verify is not None, cancel is not None, lists, bool(replicas)]
    if sum(chosen) != 1:
        raise click.UsageError(f"give exactly one of {', '.join(VERBS)}.")
    if bool(replicas) != (topic is not None) or (numbers and not replicas):
        raise click.UsageError("--replicas wants --topic NAME, and perhaps --partition N; no other does.")
    named = [one.strip() for one in (topics or "").split(",") if one.strip()]
    named += [] if topics_file is None else read_topics(topics_file)
    if generate != bool(broker_list) or generate != bool(named):
        raise click.UsageError(
            "--generate wants --topics NAME,... and --broker-list ID,...; nothing else does."
        )
    log = current().open_log()
    if topic is not None:
        require_topics(log, [topic])
        _begin(log, of_topic(log.image, topic, numbers, replicas))
    elif generate:
        require_topics(log, named)
        _show_proposal(
            log.image, propose(log.image, named, broker_list, factor, racks=not disable_rack_aware)
        )
    elif execute is not None:
        _begin(log, read_reassignments(execute))
    elif verify is not None:
        _show_progress(progress(log.image, read_reassignments(verify)))
    elif cancel is not None:
        _cancel(log, read_partitions(cancel))
    else:
        _show_list(log.image)


def _begin(log: SparkLog, wanted: Mapping[TopicPartition, tuple[int, ...]]) -> None:
    """Tell who has these partitions, ask for it, tell what was answered.

    In this order: where no answer comes it may be done already, and nothing else says what to go back to.
    """
    from sparklog.client.cluster_view import describe_partitions

    require_topics(log, sorted({topic for topic, _ in wanted}))
    before = reassignment_document(
        {
            (one.topic, one.partition): one.replicas
            for one in describe_partitions(log.image)
            if (one.topic, one.partition) in wanted
        }
    )
    if not current().json:
        for line in ("Current partition replica assignment", "", json.dumps(before), ""):
            tell(line)
        tell("Save this to use as the file of --execute during rollback")
    try:
        answers = current().controller(log).reassign(wanted)
    except SparklogError:
        if current().json:
            show_json({"current": before, "partitions": []})
        raise
    if current().json:
        show_json({"current": before, "partitions": answer_rows(answers)})
    else:
        done = [key for key, one in answers.partitions.items() if one.error_code == 0]
        if done:
            many = "s" * (len(done) > 1)
            tell(f"Successfully started partition reassignment{many} for {_named(done)}")
    raise_failures(answers)


def _show_proposal(image: Image, proposed: Mapping[TopicPartition, tuple[int, ...]]) -> None:
    from sparklog.client.cluster_view import describe_partition

    now = {key: describe_partition(image, key[0], image.partition(*key)).replicas for key in proposed}
    if current().json:
        show_json({"current": reassignment_document(now), "proposed": reassignment_document(proposed)})
        return
    for line in ("Current partition replica assignment", json.dumps(reassignment_document(now)), ""):
        tell(line)
    tell("Proposed partition reassignment configuration")
    tell(json.dumps(reassignment_document(proposed)))


def _show_progress(rows: list[Document]) -> None:
    if current().json:
        show_json(rows)
        return
    tell("Status of partition reassignment:")
    for row in rows:
        name = f"{row['topic']}-{row['partition']}"
        if row["state"] == "completed":
            tell(f"Reassignment of partition {name} is completed.")
        elif row["state"] == "in progress":
            tell(f"Reassignment of partition {name} is still in progress.")
        elif row["state"] == "missing":
            tell(f"There is no partition {name}.")
        else:
            tell(
                f"There is no active reassignment of partition {name}, but replica set is "
                f"{_ids(row['replicas'])} rather than {_ids(row['wanted'])}."
            )


def _cancel(log: SparkLog, partitions: Sequence[TopicPartition]) -> None:
    under_way = {(one.topic, one.partition) for one in reassigning(log.image)}
    active = [key for key in partitions if key in under_way]
    if not active:
        if current().json:
            show_json([])
        else:
            tell("None of the specified partition reassignments are active.")
        return
    answers = current().controller(log).reassign(dict.fromkeys(active))
    if current().json:
        show_json(answer_rows(answers))
    else:
        done = [key for key, one in answers.partitions.items() if one.error_code == 0]
        if done:
            many = "s" * (len(done) > 1)
            tell(f"Successfully cancelled partition reassignment{many} for: {_named(done)}")
    raise_failures(answers)


def _show_list(image: Image) -> None:
    from sparklog.cli.partitions import partition_row

    found = reassigning(image)
    if current().json:
        show_json([partition_row(one) for one in found])
    elif not found:
        tell("No partition reassignments found.")
    else:
        tell("Current partition reassignments:")
        for one in found:
            words = [f"replicas: {_ids(one.replicas)}."]
            words += [f"adding: {_ids(one.adding)}."] if one.adding else []
            words += [f"removing: {_ids(one.removing)}."] if one.removing else []
            tell(f"{one.topic}-{one.partition}: {' '.join(words)}")


def _named(partitions: Sequence[TopicPartition]) -> str:
    return ",".join(f"{topic}-{partition}" for topic, partition in sorted(partitions))


def _ids(value: object) -> str:
    assert isinstance(value, list | tuple)
    return ",".join(map(str, value))
