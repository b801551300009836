"""`sparklog partitions`: leaders and replicas of partitions.

    partitions reassign --topic orders --replicas 1,2,3       these brokers, immediately
    partitions reassign --topic orders --brokers 1,2,3        spread over these brokers and their racks
    partitions reassign --file FILE                           as Kafka's JSON says

Nothing is copied: a reassignment is done when all of its brokers run, mostly immediately. What is shown is in
the root; a change is asked of the controller, which decides.
Sources: Kafka's ReassignPartitionsCommand and LeaderElectionCommand; their sentences and JSON.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal

import click
import msgspec

from sparklog.cli.framework import Group, current, dry_run_option, internal_option, require_topics
from sparklog.cli.inputs import Moment, at_option, image_of
from sparklog.cli.output import Document, show_json, show_rows, tell
from sparklog.errors import InvalidRequestError, SparklogError

if TYPE_CHECKING:
    from sparklog.client import OpenedRoot
    from sparklog.client.brokers import Answers
    from sparklog.metadata import Image

MAX_FILE_BYTES = 64 << 20
MAX_NAMED = 10
COLUMNS = "topic partition leader leader_epoch replicas isr adding removing"
TopicPartition = tuple[str, int]
Replicas = Mapping[TopicPartition, Sequence[int] | None]


@click.group("partitions", cls=Group)
def partitions() -> None:
    """Leaders and replicas of partitions: list, reassign, elect."""


# --- list --------------------------------------------------------------------------------------------


@partitions.command("list")
@click.option("--topic", "-t", "names", multiple=True, metavar="NAME", help="A topic; default: all.")
@internal_option
@click.option("--under-replicated", is_flag=True, help="Only those with a fenced replica.")
@click.option("--unavailable", is_flag=True, help="Only those without a leader.")
@click.option("--not-preferred", is_flag=True, help="Only those not led by their first replica.")
@click.option("--reassigning", is_flag=True, help="Only those with a reassignment that is not done.")
@at_option
def list_partitions(
    names: tuple[str, ...], with_internal: bool, moment: Moment | None, **conditions: bool
) -> None:
    """List leaders and replicas, and which replicas are in sync."""
    from sparklog.metadata import is_internal

    log = current().open_root()
    if moment is None:
        require_topics(log, names)
    image = image_of(log, moment)
    shown = names or [name for name in image.topics if with_internal or not is_internal(name)]
    show_rows(COLUMNS, partition_rows(image, shown, **conditions))


def partition_rows(image: Image, names: Collection[str] | None = None, **conditions: bool) -> list[Document]:
    """Partitions of topics (None: of all) for which one of the asked conditions holds; without any, all."""
    from sparklog.client.cluster_view import describe_partitions, is_served
    from sparklog.metadata import NO_NODE

    asked = {name for name, is_asked in conditions.items() if is_asked}
    found = []
    for one in describe_partitions(image):
        holds = {
            "under_replicated": one.is_under_replicated,
            "unavailable": one.is_unavailable and is_served(image),
            "not_preferred": one.is_not_preferred,
            "reassigning": bool(one.adding or one.removing),
        }
        if (names is None or one.topic in names) and (not asked or any(holds[name] for name in asked)):
            row = {
                key: list(value) if isinstance(value, tuple) else value
                for key, value in dataclasses.asdict(one).items()
            }
            found.append({**row, "leader": None if one.leader == NO_NODE else one.leader})
    return found


# --- reassign ----------------------------------------------------------------------------------------


def parse_ids(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[int, ...]:
    """Callback of an option: `1,2,3`."""
    words = [word.strip() for word in value.split(",")] if value else []
    if not all(word.isascii() and word.isdigit() and len(word) <= 10 for word in words):
        raise click.BadParameter(f"found {value!r}, expected ids of brokers, such as 1,2,3.")
    if len(set(map(int, words))) != len(words):
        raise click.BadParameter(f"found {value!r}, expected each broker once.")
    return tuple(map(int, words))


@partitions.command("reassign")
@click.option("--topic", "-t", "names", multiple=True, metavar="NAME", help="A topic.")
@click.option("--partition", "-p", "numbers", type=click.IntRange(min=0), multiple=True, help="Only these.")
@click.option(
    "--replicas", callback=parse_ids, metavar="ID,...", help="The replicas; the first one is to lead."
)
@click.option("--brokers", callback=parse_ids, metavar="ID,...", help="Spread replicas over these brokers.")
@click.option(
    "--replication-factor", "factor", type=click.IntRange(min=1), help="With --brokers; default: as it is."
)
@click.option("--ignore-racks", is_flag=True, help="With --brokers: do not spread over racks.")
@click.option("--file", "file", type=click.File("rb"), metavar="FILE", help="Kafka's JSON; - is stdin.")
@click.option("--cancel", is_flag=True, help="Call off what is not done.")
@dry_run_option
def reassign(
    names: tuple[str, ...],
    numbers: tuple[int, ...],
    replicas: tuple[int, ...],
    brokers: tuple[int, ...],
    factor: int | None,
    ignore_racks: bool,
    file: BinaryIO | None,
    cancel: bool,
    dry_run: bool,
) -> None:
    """Let other brokers be the replicas of partitions. Nothing is copied.

    The replicas before it are printed first, as a file to go back with. `partitions list --reassigning` shows
    what is not done.

    \b
    sparklog partitions reassign --topic orders --replicas 2,3
    sparklog partitions reassign --topic orders --brokers 1,2,3 --replication-factor 2 --dry-run
    """  # noqa: D301 - click looks for the character, not for a backslash and a b
    if bool(names) == (file is not None):
        raise click.UsageError("give --topic NAME or --file FILE.")
    if (bool(replicas), bool(brokers), cancel).count(True) != (0 if file and not cancel else 1):
        raise click.UsageError(
            "with --topic give one of --replicas, --brokers and --cancel; with --file only --cancel, or none."
        )
    if (numbers and file) or ((factor or ignore_racks) and not brokers):
        raise click.UsageError(
            "--replication-factor and --ignore-racks go with --brokers, --partition with --topic."
        )
    log = current().open_root()
    found: Replicas = {} if file is None else _read_file(file, with_replicas=not cancel)
    require_topics(log, names or sorted({topic for topic, _ in found}))
    if file is None:
        found = {
            (name, number): replicas
            for name in names
            for number in sorted(set(numbers)) or range(len(log.image.topic(name).partitions))
        }
    if brokers:
        spread = propose(log.image, names, brokers, factor, racks=not ignore_racks)
        found = {where: spread[where] for where in found if where in spread}
    if cancel:
        active = {(row["topic"], row["partition"]) for row in partition_rows(log.image, reassigning=True)}
        found = {where: None for where in found if where in active}
    _reassign(log, found, dry_run=dry_run, cancel=cancel)


def _reassign(log: OpenedRoot, wanted: Replicas, *, dry_run: bool, cancel: bool) -> None:
    """Print who has the partitions, ask for the change, print the answer.

    In this order: where no answer comes the change may be made, and nothing else says what it was before.
    """
    from sparklog.client.cluster_view import describe_partitions

    before = _document(
        {
            (one.topic, one.partition): one.replicas
            for one in describe_partitions(log.image)
            if (one.topic, one.partition) in wanted
        }
    )
    document: Document = {"current": before, "partitions": []}
    if not cancel:
        document["proposed"] = _document(wanted)
    if not wanted and not current().json:
        tell("None of the specified partition reassignments are active.")
        return
    if not current().json:
        for line in ("Current partition replica assignment", "", json.dumps(before), ""):
            tell(line)
        tell("Save this to go back with --file FILE")
        if dry_run and not cancel:
            tell("Proposed partition reassignment configuration")
            tell(json.dumps(document["proposed"]))
    try:
        answers = current().controller(log).reassign(wanted) if wanted and not dry_run else None
    except SparklogError:
        if current().json:
            show_json(document)
        raise
    if current().json:
        show_json(document | {"partitions": answer_rows(answers) if answers else []})
    elif answers is not None:
        done = [where for where, one in sorted(answers.partitions.items()) if not one.error_code]
        verb = "cancelled" if cancel else "started"
        if done:
            many, named = "s" * (len(done) > 1), ",".join(f"{topic}-{number}" for topic, number in done)
            tell(f"Successfully {verb} partition reassignment{many} for {named}")
    if answers is not None:
        raise_failures(answers)


def propose(
    image: Image,
    topics: Sequence[str],
    brokers: Sequence[int],
    factor: int | None,
    *,
    racks: bool,
    start: int = 0,
) -> dict[TopicPartition, tuple[int, ...]]:
    """Replicas for all partitions of these topics, in turn over the brokers; by default as many as they have.

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


# --- Kafka's file ------------------------------------------------------------------------------------

_Id = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class _Move(msgspec.Struct):
    topic: Annotated[str, msgspec.Meta(min_length=1)]
    partition: _Id
    replicas: list[_Id] = []
    log_dirs: list[Literal["any"]] | None = None  # brokers share one root


class _Moves(msgspec.Struct):
    partitions: Annotated[list[_Move], msgspec.Meta(min_length=1)]
    version: Literal[1] = 1


def _document(replicas: Replicas) -> Document:
    """Kafka's document, which `--file` reads again."""
    return {
        "version": 1,
        "partitions": [
            {"topic": topic, "partition": partition, "replicas": list(listed or ())}
            for (topic, partition), listed in replicas.items()
        ],
    }


def _read_file(file: BinaryIO, *, with_replicas: bool) -> dict[TopicPartition, Sequence[int]]:
    """The replicas of each partition in the file; raise InvalidRequestError INVALID_PARTITION_FILE."""
    text = file.read(MAX_FILE_BYTES + 1)
    problem = f"more than {MAX_FILE_BYTES:,} bytes" if len(text) > MAX_FILE_BYTES else ""
    found: dict[TopicPartition, Sequence[int]] = {}
    moves: list[_Move] = []
    try:
        if not problem:  # editors on Windows begin a file with a byte order mark
            moves = msgspec.json.decode(text.removeprefix(b"\xef\xbb\xbf"), type=_Moves).partitions
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        problem = str(error)
    for move in moves:
        where = f"{move.topic}-{move.partition}"
        if (move.topic, move.partition) in found:
            problem = f"found {where} again, expected each partition once"
        if with_replicas and (not move.replicas or len(set(move.replicas)) != len(move.replicas)):
            problem = f"{where}: found replicas {move.replicas}, expected brokers, each once"
        found[move.topic, move.partition] = move.replicas
    if problem:
        raise InvalidRequestError(
            "INVALID_PARTITION_FILE",
            f"{file.name}: {problem}",
            fix='write {"version": 1, "partitions": [{"topic": T, "partition": 0, "replicas": [1, 2]}]}, as '
            "`sparklog partitions reassign --dry-run` does",
        )
    return found


# --- elect -------------------------------------------------------------------------------------------


@partitions.command("elect")
@click.option("--preferred", "election", flag_value="preferred", help="The first replica, where it runs.")
@click.option(
    "--offline", "election", flag_value="offline", help="Any replica that runs, where nobody leads."
)
@click.option("--topic", "-t", metavar="NAME", help="The topic.")
@click.option("--partition", "-p", "numbers", type=click.IntRange(min=0), multiple=True, help="Only these.")
@click.option("--all", "all_partitions", is_flag=True, help="All partitions of all topics.")
def elect(election: str | None, topic: str | None, numbers: tuple[int, ...], all_partitions: bool) -> None:
    """Have leaders elected. No record is lost by it: every replica has them all."""
    from sparklog.client.brokers import ELECTION_NOT_NEEDED, NO_ERROR, Election

    if election is None:
        raise click.UsageError("give --preferred or --offline.")
    if (topic is None) != all_partitions or (numbers and topic is None):
        raise click.UsageError("give --topic NAME, perhaps with --partition N, or --all.")
    log = current().open_root()
    wanted: Sequence[TopicPartition] | None = None
    if topic is not None:
        require_topics(log, [topic])
        chosen = numbers or range(len(log.image.topic(topic).partitions))
        wanted = [(topic, number) for number in sorted(set(chosen))]
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
            found = [key for key, one in sorted(answers.partitions.items()) if one.error_code == code]
            if found:
                tell(f"{sentence} {', '.join(f'{name}-{number}' for name, number in found)}")
    raise_failures(answers, fine=(NO_ERROR, ELECTION_NOT_NEEDED))


# --- answers of the controller -----------------------------------------------------------------------


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
    """Fail with what could not be done, if anything."""
    if answers.whole.error_code not in fine:
        message = f": {answers.whole.message}" if answers.whole.message else ""
        raise click.ClickException(f"{answers.whole.error}{message}")
    failed = [
        f"{topic}-{partition}: {one.error}{f': {one.message}' if one.message else ''}"
        for (topic, partition), one in sorted(answers.partitions.items())
        if one.error_code not in fine
    ]
    if failed:
        more = [f"and {len(failed) - MAX_NAMED:,} more"] if len(failed) > MAX_NAMED else []
        shown = "; ".join([*failed[:MAX_NAMED], *more])
        raise click.ClickException(f"{len(failed):,} of {len(answers.partitions):,} partitions: {shown}")
