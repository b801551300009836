"""`sparklog partitions`: who leads partitions, and who may.

What is shown is the root's; what is changed is asked of the controller, which alone may decide it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING

import click

from sparklog.cli.framework import (
    LazyCommand,
    LazyGroup,
    OnceCommand,
    common_options,
    common_options_without_broker_list,
    current,
    require_topics,
)
from sparklog.cli.output import Column, Moment, at_option, image_of, show_json, show_rows, tell
from sparklog.errors import InvalidRequestError, SparklogError

if TYPE_CHECKING:
    from sparklog.client import SparkLog
    from sparklog.client.brokers import Answers
    from sparklog.client.cluster_view import PartitionView
    from sparklog.metadata import Image

# --- reassignment files ------------------------------------------------------------------------------
#
# Kafka's JSON of partitions: who is to have which replicas, which topics are to move, who is to be elected.
#
#     {"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2]}]}
#     {"version": 1, "topics": [{"topic": "orders"}]}
#
# Invariants: whatever a file says, either its fields, or InvalidRequestError INVALID_PARTITION_FILE; what is
#     read is bounded.
# Not here: whether it can be done, which the controller.
# decides.
# Sources: Kafka's ReassignPartitionsCommand, LeaderElectionCommand.


MAX_FILE_BYTES = 64 << 20
_VERSION = 1
_ANY = "any"
TopicPartition = tuple[str, int]
_MARK = "\ufeff"  # with which editors on Windows begin


def reassignment_document(replicas: Mapping[TopicPartition, Sequence[int]]) -> dict[str, object]:
    """Kafka's document, from which `read_reassignments` makes the same again."""
    return {
        "version": _VERSION,
        "partitions": [
            {"topic": topic, "partition": partition, "replicas": list(listed)}
            for (topic, partition), listed in replicas.items()
        ],
    }


def read_reassignments(file: IO[str]) -> dict[TopicPartition, tuple[int, ...]]:
    """The replicas of each partition that is named."""
    found: dict[TopicPartition, tuple[int, ...]] = {}
    for where, entry in _entries(file, "partitions"):
        key = _partition(where, entry)
        replicas = entry.get("replicas")
        if not isinstance(replicas, list) or not replicas or not all(_is_node_id(one) for one in replicas):
            raise _invalid(f"{where}: found replicas {replicas!r}, expected a list of node ids")
        if len(set(replicas)) != len(replicas):
            raise _invalid(f"{where}: found a broker twice in {replicas}, expected each once")
        directories = entry.get("log_dirs") or []
        if not isinstance(directories, list) or any(one != _ANY for one in directories):
            raise _invalid(f'{where}: found log_dirs, expected none or "any": brokers share one root')
        if key in found:
            raise _invalid(f"{where}: found {key[0]}-{key[1]} again, expected each partition once")
        found[key] = tuple(replicas)
    return found


def read_partitions(file: IO[str]) -> list[TopicPartition]:
    """The partitions that are named, each once."""
    return list(dict.fromkeys(_partition(where, entry) for where, entry in _entries(file, "partitions")))


def read_topics(file: IO[str]) -> list[str]:
    """The topics that are named, each once."""
    return list(dict.fromkeys(_topic(where, entry) for where, entry in _entries(file, "topics")))


def _entries(file: IO[str], field: str) -> Iterable[tuple[str, dict[str, object]]]:
    try:
        text = file.read(MAX_FILE_BYTES + 1)
    except UnicodeDecodeError as error:
        raise _invalid(f"{file.name}: is no UTF-8: {error.reason} at byte {error.start}") from None
    if len(text) > MAX_FILE_BYTES:
        raise _invalid(f"{file.name}: more than {MAX_FILE_BYTES:,} characters")
    try:
        document = json.loads(text.removeprefix(_MARK))
    except (ValueError, RecursionError) as error:
        raise _invalid(f"{file.name}: is no JSON: {error}") from None
    listed = document.get(field) if isinstance(document, dict) else None
    if not isinstance(listed, list) or not listed:
        raise _invalid(f"{file.name}: found no list of {field}")
    if document.get("version", _VERSION) != _VERSION:
        raise _invalid(f"{file.name}: found version {document['version']!r}, expected {_VERSION}")
    found = []
    for number, entry in enumerate(listed):
        where = f"{file.name}, {field}[{number}]"
        if not isinstance(entry, dict):
            raise _invalid(f"{where}: expected an object")
        found.append((where, entry))
    return found


def _partition(where: str, entry: dict[str, object]) -> TopicPartition:
    number = entry.get("partition")
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 31:
        raise _invalid(f"{where}: found partition {number!r}, expected a number from 0 on")
    return _topic(where, entry), number


def _topic(where: str, entry: dict[str, object]) -> str:
    topic = entry.get("topic")
    if not isinstance(topic, str) or not topic:
        raise _invalid(f"{where}: found topic {topic!r}, expected a name")
    return topic


def _is_node_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


def _invalid(problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        "INVALID_PARTITION_FILE",
        problem,
        fix='write {"version": 1, "partitions": [{"topic": T, "partition": 0, "replicas": [1, 2]}]}, as '
        "`sparklog partitions reassign --generate` does",
    )


# --- reassignment plans ------------------------------------------------------------------------------
#
# Which partitions are to have which replicas, as far as the root says it: proposals, and how far they are.
#
# Invariants: pure functions of an image.
# Not here: how replicas are spread (sparklog/client/cluster_view.py), what the controller says to it.


def of_topic(
    image: Image, topic: str, numbers: Sequence[int], replicas: tuple[int, ...]
) -> dict[TopicPartition, tuple[int, ...]]:
    """These replicas for partitions of a topic, or for all of them."""
    chosen = numbers or range(len(image.topic(topic).partitions))
    return {(topic, number): replicas for number in sorted(set(chosen))}


def propose(
    image: Image,
    topics: Sequence[str],
    brokers: Sequence[int],
    factor: int | None,
    *,
    racks: bool,
    start: int = 0,
) -> dict[TopicPartition, tuple[int, ...]]:
    """Replicas for all partitions of these topics, in turn over the brokers; as many as they have.

    Args:
        start: any number, to begin with another broker each time.

    Raises:
        InvalidRequestError: BROKER_MISSING; INVALID_OPTION, more replicas than brokers.
    """
    from sparklog.cli.brokers import require_broker
    from sparklog.client.cluster_view import spread_replicas

    rack_of = {node_id: require_broker(image, node_id).rack if racks else "" for node_id in brokers}
    found: dict[TopicPartition, tuple[int, ...]] = {}
    for topic in topics:
        states = image.topic(topic).partitions
        wanted = factor or max(1, len(states[0].leadership.replicas))
        if wanted > len(rack_of):
            raise InvalidRequestError(
                "INVALID_OPTION",
                f"topic {topic!r}: found {len(rack_of)} brokers, expected {wanted} for as many replicas",
                fix="name more brokers, or give --replication-factor",
            )
        lists = spread_replicas(rack_of, len(states), wanted, start=start + len(found))
        found.update({(topic, number): one for number, one in enumerate(lists)})
    return found


def progress(image: Image, wanted: Mapping[TopicPartition, tuple[int, ...]]) -> list[Document]:
    """Of each partition that a file names: whether it is as the file says."""
    from sparklog.client.cluster_view import describe_partitions

    known = {(one.topic, one.partition): one for one in describe_partitions(image)}
    return [_progress(known.get(key), *key, replicas) for key, replicas in sorted(wanted.items())]


def _progress(one: PartitionView | None, topic: str, partition: int, wanted: tuple[int, ...]) -> Document:
    found: tuple[int, ...] | None = None
    if one is None:
        state = "missing"
    elif one.adding or one.removing:
        state, found = "in progress", one.replicas
    else:
        state, found = ("completed" if one.replicas == wanted else "different"), one.replicas
    return {
        "topic": topic,
        "partition": partition,
        "state": state,
        "replicas": None if found is None else list(found),
        "wanted": list(wanted),
    }


def reassigning(image: Image) -> list[PartitionView]:
    """Those that are begun, and not over."""
    from sparklog.client.cluster_view import describe_partitions

    return [one for one in describe_partitions(image) if one.adding or one.removing]


# --- controller answers ------------------------------------------------------------------------------
#
# What a controller answered about partitions: as rows, and as how a command ends that could not do all.
#
# Not here: the answers' bytes (sparklog/client/brokers.py).


MAX_NAMED = 10


def answer_rows(answers: Answers) -> list[Document]:
    """A row for each partition; `error` is null where it was done."""
    return [
        {
            "topic": topic,
            "partition": partition,
            "error": None if one.error_code == 0 else one.error,
            "message": one.message,
        }
        for (topic, partition), one in sorted(answers.partitions.items())
    ]


def raise_failures(answers: Answers, *, fine: Sequence[int] = (0,)) -> None:
    """End with what could not be done, if there is any."""
    if answers.whole.error_code not in fine:
        message = f": {answers.whole.message}" if answers.whole.message else ""
        raise click.ClickException(f"{answers.whole.error}{message}")
    failed = {key: one for key, one in sorted(answers.partitions.items()) if one.error_code not in fine}
    if failed:
        told = [
            f"{topic}-{partition}: {one.error}{f': {one.message}' if one.message else ''}"
            for (topic, partition), one in list(failed.items())[:MAX_NAMED]
        ]
        more = [f"and {len(failed) - MAX_NAMED:,} more"] if len(failed) > MAX_NAMED else []
        raise click.ClickException(
            f"{len(failed):,} of {len(answers.partitions):,} partitions: {'; '.join([*told, *more])}"
        )


# --- elect -------------------------------------------------------------------------------------------
#
# `sparklog partitions elect`: another leader for partitions, by Kafka's two rules.
#
# Preferred: the first of the replicas leads, if it is there. Offline: any replica that is there leads where
# nobody does; Kafka calls that unclean, but here every replica has all records, and none can be lost by it.
# Not here: the request (sparklog/client/brokers.py).
# Sources: Kafka's LeaderElectionCommand, and its sentences.


@click.command("elect", cls=OnceCommand)
@click.option("--preferred", "election", flag_value="preferred", help="The first replica, where it is there.")
@click.option("--offline", "election", flag_value="offline", help="Any replica, where nobody leads.")
@click.option("--topic", "-t", metavar="NAME", help="The topic.")
@click.option("--partition", "-p", "numbers", type=click.IntRange(min=0), multiple=True, help="Only these.")
@click.option("--all", "all_partitions", is_flag=True, help="All partitions of all topics.")
@click.option(
    "--file",
    "file",
    type=click.File(),
    metavar="FILE",
    help="Partitions by Kafka's JSON; replicas do not matter.",
)
@common_options
def elect(
    election: str | None,
    topic: str | None,
    numbers: tuple[int, ...],
    all_partitions: bool,
    file: IO[str] | None,
) -> None:
    """Have leaders elected."""
    from sparklog.client.brokers import ELECTION_NOT_NEEDED, NO_ERROR, Election

    if election is None:
        raise click.UsageError("give --preferred or --offline.")
    if sum((topic is not None, all_partitions, file is not None)) != 1 or (numbers and topic is None):
        raise click.UsageError("give --topic NAME, perhaps with --partition N, or --all, or --file FILE.")
    log = current().open_log()
    wanted: Sequence[TopicPartition] | None = None
    if topic is not None:
        require_topics(log, [topic])
        chosen = numbers or range(len(log.image.topic(topic).partitions))
        wanted = [(topic, number) for number in sorted(set(chosen))]
    elif file is not None:
        wanted = read_partitions(file)
    answers = current().controller(log).elect(Election[election.upper()], wanted)
    if current().json:
        show_json(answer_rows(answers))
    elif not answers.partitions and not answers.whole.error_code:
        tell("No election was needed.")
    else:
        for code, sentence in (
            (NO_ERROR, f"Successfully completed leader election ({election.upper()}) for partitions"),
            (ELECTION_NOT_NEEDED, "Valid replica already elected for partitions"),
        ):
            keys = [key for key, one in sorted(answers.partitions.items()) if one.error_code == code]
            if keys:
                tell(f"{sentence} {', '.join(f'{name}-{number}' for name, number in keys)}")
    raise_failures(answers, fine=(NO_ERROR, ELECTION_NOT_NEEDED))


# --- partitions --------------------------------------------------------------------------------------


PARTITION_COLUMNS = (
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION", number=True),
    Column("leader", "LEADER", number=True),
    Column("leader_epoch", "LEADER-EPOCH", number=True),
    Column("replicas", "REPLICAS"),
    Column("isr", "ISR"),
    Column("adding", "ADDING", optional=True),
    Column("removing", "REMOVING", optional=True),
)
Document = dict[str, object]


class PartitionsGroup(LazyGroup):
    """Those that ask the controller are in modules of their own."""

    lazy = {  # noqa: RUF012 - as declared there
        "reassign": LazyCommand(
            "sparklog.cli.partitions", "reassign", "Have other brokers as replicas. Nothing is copied."
        ),
        "elect": LazyCommand("sparklog.cli.partitions", "elect", "Have leaders elected."),
    }


@click.group("partitions", cls=PartitionsGroup)
def partitions() -> None:
    """Who leads partitions, and who may: list, reassign, elect."""


@partitions.command("list")
@click.option("--topic", "-t", "names", multiple=True, metavar="NAME", help="A topic; default: all.")
@click.option("--under-replicated", is_flag=True, help="Only those one of whose replicas is fenced.")
@click.option("--unavailable", is_flag=True, help="Only those that no broker leads.")
@click.option("--not-preferred", is_flag=True, help="Only those that another than their first replica leads.")
@at_option
@common_options
def list_partitions(
    names: tuple[str, ...],
    under_replicated: bool,
    unavailable: bool,
    not_preferred: bool,
    moment: Moment | None,
) -> None:
    """List leaders, replicas, and which of those are in sync."""
    log = current().open_log()
    if moment is None:
        require_topics(log, names)
    rows = partition_rows(
        image_of(log, moment),
        names,
        under_replicated=under_replicated,
        unavailable=unavailable,
        not_preferred=not_preferred,
    )
    show_rows(PARTITION_COLUMNS, rows)


def partition_rows(
    image: Image,
    names: Collection[str],
    *,
    under_replicated: bool = False,
    unavailable: bool = False,
    not_preferred: bool = False,
) -> list[Document]:
    """Those for which one of the conditions that are asked for holds; without any, all."""
    from sparklog.client.cluster_view import describe_partitions, is_served

    is_asked = under_replicated or unavailable or not_preferred
    found = []
    for one in describe_partitions(image):
        if names and one.topic not in names:
            continue
        if (
            not is_asked
            or (under_replicated and one.is_under_replicated)
            or (unavailable and one.is_unavailable and is_served(image))
            or (not_preferred and one.is_not_preferred)
        ):
            found.append(partition_row(one))
    return found


def partition_row(one: PartitionView) -> Document:
    """A partition in one row."""
    from sparklog.metadata import NO_NODE

    row = dataclasses.asdict(one)
    lists = {key: list(value) for key, value in row.items() if isinstance(value, tuple)}
    return {**row, **lists, "leader": None if one.leader == NO_NODE else one.leader}


# --- reassign ----------------------------------------------------------------------------------------
#
# `sparklog partitions reassign`: other brokers as partitions' replicas. Kafka's habits, and a short form.
#
#     partitions reassign --topic orders --replicas 1,2,3                 at once
#     partitions reassign --generate --topics orders --broker-list 1,2,3  a proposal, as Kafka's JSON
#     partitions reassign --execute FILE | --verify FILE | --cancel FILE | --list
#
# Nothing is copied: a reassignment is over when all of its brokers are there, mostly at once.
# Not here: the request (sparklog/client/brokers.py), how replicas are spread
#     (sparklog/client/cluster_view.py).
# Sources: Kafka's ReassignPartitionsCommand; its sentences, so that scripts which look for them go on.


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
