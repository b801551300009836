"""`sparklog metadata`: the commits of a root in words, and what its metadata says after any of them.

Only the root is read; no broker has to run. A commit can be shown while the log keeps it, the metadata after
it from the oldest snapshot on; what was cleaned is COMMIT_MISSING.
Sources: FORMAT.md#metadata-log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import click
import msgspec

from sparklog.cli.brokers import BROKER_COLUMNS, broker_rows, controller_document
from sparklog.cli.framework import Group, current, note
from sparklog.cli.inputs import Moment, at_option, commit_number, image_of
from sparklog.cli.output import Document, cell, counted, human_bytes, show_json, show_rows, shown_time, tell
from sparklog.cli.partitions import COLUMNS, partition_rows
from sparklog.metadata import (
    NO_EPOCH,
    NO_NODE,
    ActAsBroker,
    Action,
    AddPartitions,
    AddToTransaction,
    AppendExtents,
    AssignReplicas,
    BeginControlledShutdown,
    CreateTopic,
    DeleteTopic,
    ElectController,
    ElectLeaders,
    FenceBroker,
    JoinBroker,
    ReplaceExtents,
    RequestApplied,
    SetConfigs,
    StageExtents,
    UnregisterBroker,
    WriterTxn,
    is_internal,
)

if TYPE_CHECKING:
    from sparklog.client import OpenedRoot
    from sparklog.metadata import Image
    from sparklog.metadata.documents.document import Header

MAX_COMMITS = 20
MAX_ACTIONS = 1_000  # of a commit, as text
SHOWN = 3  # of the items of a list, and of the actions in a line


@click.group("metadata", cls=Group)
def metadata() -> None:
    """What each commit did, and what the metadata says after any that is kept: log, show."""


@metadata.command("log")
@click.option("--from", "first", type=click.IntRange(min=0), help="Begin with this commit.")
@click.option(
    "--max",
    "most",
    type=click.IntRange(min=1, max=100_000),
    default=MAX_COMMITS,
    show_default=True,
    help="Show so many at most; without --from, the newest.",
)
def show_log(first: int | None, most: int) -> None:
    """Show commits, one a line: number, time, who wrote it, what it does."""
    from sparklog.metadata.loading import oldest_commit, read_past_commits

    log = current().open_root()
    image, store = log.image, log.store
    found: Iterator[Document] = iter(())
    if image.commit >= 0:
        if first is None:
            first = max(image.commit - most + 1, oldest_commit(store, image))
        last = max(first, min(image.commit, first + most - 1))
        known = Words(image)
        found = (known.document(*one) for one in read_past_commits(store, image, first, last))
    if current().json:
        show_json(list(found))
        return
    for one in found:
        tell(_line(one))


@metadata.command("show")
@click.argument("commit", required=False, metavar="[COMMIT]")
@click.option("--topic", "-t", "topic", metavar="NAME", help="Only this topic.")
@at_option
def show(commit: str | None, topic: str | None, moment: Moment | None) -> None:
    """Show all that COMMIT did; or, without it, brokers, topics, leaders and settings as of --at.

    \b
    sparklog metadata show 42 --output json
    sparklog metadata show --topic orders --at 1d
    diff <(sparklog metadata show --at 41) <(sparklog metadata show --at 42)
    """  # noqa: D301 - click looks for the character, not for a backslash and a b
    log = current().open_root()
    if commit is None:
        _show_state(image_of(log, moment), topic)
        return
    number = commit_number(commit)
    if number is None or moment is not None or topic is not None:
        raise click.UsageError(
            f"found {commit!r}, expected a commit's number alone, or no COMMIT and perhaps --at and --topic."
        )
    _show_commit(log, number)


def _show_state(image: Image, topic: str | None) -> None:
    names = sorted(image.topics) if topic is None else [image.topic(topic).name]
    if topic is None and not current().json:
        internal = list(filter(is_internal, names))
        names = [name for name in names if name not in internal]
        for name in internal:
            note(f"Note: an internal topic is left out; --topic {name} shows it.")
    rows = partition_rows(image, names)
    topics: list[Document] = [
        {
            "topic": name,
            "topic_id": image.topics[name].topic_id,
            "configs": dict(image.topics[name].configs),
            "partitions": [row for row in rows if row["topic"] == name],
        }
        for name in names
    ]
    brokers, settings = broker_rows(image), dict(image.configs)
    if current().json:
        show_json(
            {
                "commit": image.commit,
                "cluster_id": image.cluster_id,
                "configs": settings,
                "controller": controller_document(image),
                "brokers": brokers,
                "topics": topics,
            }
        )
        return
    tell(f"ClusterId: {image.cluster_id}", f"Configs: {cell(settings)}")
    if brokers:
        show_rows(BROKER_COLUMNS, brokers)
    for one in topics:
        configs = one["configs"]
        tell(f"Topic: {one['topic']}", f"TopicId: {one['topic_id']}", f"Configs: {cell(configs)}")
    if rows:
        show_rows(COLUMNS, rows)


def _show_commit(log: OpenedRoot, commit: int) -> None:
    from sparklog.metadata.loading import read_past_commits

    image = log.image
    ((header, actions),) = read_past_commits(log.store, image, commit, commit)
    document = Words(image).document(header, actions)
    if current().json:
        document |= {"uuid": header.uuid, "previous": header.previous, "version": header.version}
        document["actions"] = [
            {**one, **msgspec.to_builtins(action)}
            for one, action in zip(_actions(document), actions, strict=True)
        ]
        show_json(document)
        return
    tell(_line(document | {"actions": []}))
    for one in _actions(document)[:MAX_ACTIONS]:
        tell(f"  {one['type']}: {one['words']}")
    if len(actions) > MAX_ACTIONS:
        note(f"Note: {len(actions) - MAX_ACTIONS:,} more actions are not shown: --output json has them all.")


def _actions(document: Document) -> list[Document]:
    actions = document["actions"]
    assert isinstance(actions, list)
    return actions


def _line(document: Document) -> str:
    """Number, time, author and the first actions of a commit."""
    commit, time_ms, by = document["commit"], document["timestamp_ms"], document["by"]
    assert isinstance(time_ms, int)
    assert isinstance(by, list)
    # The author stands before them, so act_as_broker adds nothing.
    actions = [str(one["words"]) for one in _actions(document) if one["type"] != "act_as_broker"]
    what = "; ".join([*actions[:SHOWN], *_more(len(actions))])
    return f"{commit:>8}  {shown_time(time_ms)}  {', '.join(by) or '-'}  {what}".rstrip()


# --- words -------------------------------------------------------------------------------------------


class Words:
    """Says what commits do, with names of topics and controllers from the newest image and from the commits.

    A topic that was deleted before the image, and made before the first of the commits, has only its id.
    """

    def __init__(self, image: Image) -> None:
        self._names = {topic.topic_id: name for name, topic in image.topics.items()}
        controller = image.controller
        self._controllers = (
            {controller.controller_epoch: controller.node_id} if controller.node_id >= 0 else {}
        )

    def document(self, header: Header, actions: Sequence[Action]) -> Document:
        """A commit in words."""
        for action in actions:
            if isinstance(action, CreateTopic):
                self._names[action.topic_id] = action.name
            elif isinstance(action, ElectController):
                self._controllers[action.controller_epoch] = action.node_id
        return {
            "commit": header.commit,
            "timestamp_ms": header.timestamp_ms,
            "by": list(dict.fromkeys(filter(None, map(self._author, actions)))),
            "actions": [
                {"type": action.__struct_config__.tag, "words": self.of(action)} for action in actions
            ],
        }

    def _author(self, action: Action) -> str | None:
        match action:
            case ActAsBroker() | JoinBroker() | BeginControlledShutdown() | ElectController():
                return f"broker {action.node_id}"
            case FenceBroker(controller_epoch=epoch) if epoch == NO_EPOCH:
                return f"broker {action.node_id}"
            case FenceBroker() | UnregisterBroker() | AssignReplicas() | ElectLeaders():
                node_id = self._controllers.get(action.controller_epoch)
                who = "controller" if node_id is None else f"controller {node_id}"
                return f"{who} of epoch {action.controller_epoch}"
            case WriterTxn():
                return f"writer {action.application}"
            case RequestApplied():
                return f"publisher {action.publisher}"
        return None

    def of(self, action: Action) -> str:
        """What an action does, in one line; lists are cut."""
        match action:
            case CreateTopic():
                return f"topic {action.name} with {counted(action.partitions, 'partition')}"
            case DeleteTopic():
                return f"topic {self._name(action.topic_id)} is deleted"
            case AddPartitions():
                return f"topic {self._name(action.topic_id)} has {counted(action.partitions, 'partition')}"
            case SetConfigs():
                whose = "the root" if action.topic_id is None else f"topic {self._name(action.topic_id)}"
                changes = [
                    f"{key} deleted" if value is None else f"{key}={value}"
                    for key, value in action.configs.items()
                ]
                return f"settings of {whose}: {_listed(changes)}"
            case AppendExtents() | StageExtents():
                places = dict.fromkeys((one.topic_id, one.partition) for one in action.extents)
                records = sum(one.record_count for one in action.extents)
                size = human_bytes(sum(one.size for one in action.extents))
                staged = "staged: " if isinstance(action, StageExtents) else ""
                where = _listed([f"{self._name(topic)}-{partition}" for topic, partition in places])
                return f"{staged}{counted(records, 'record')}, {size}, to {where}"
            case ReplaceExtents():
                return (
                    f"{self._name(action.topic_id)}-{action.partition}: "
                    f"{counted(action.removed_count, 'extent')} from offset {action.start_offset} to "
                    f"{action.end_offset} replaced by {len(action.added):,}"
                )
            case JoinBroker():
                at = f" at {action.listeners[0].host}:{action.listeners[0].port}" if action.listeners else ""
                return f"broker {action.node_id} joins{at}, epoch {action.broker_epoch}"
            case FenceBroker():
                how = "ends, and is fenced" if action.controller_epoch == NO_EPOCH else "is fenced"
                return f"broker {action.node_id} of epoch {action.broker_epoch} {how}"
            case BeginControlledShutdown():
                return f"broker {action.node_id} is about to stop"
            case UnregisterBroker():
                return f"broker {action.node_id} is unregistered"
            case ElectController():
                return f"broker {action.node_id} is controller, epoch {action.controller_epoch}"
            case AssignReplicas() | ElectLeaders() | AddToTransaction():
                return self._of_partitions(action)
        return self._fields(action)

    def _of_partitions(self, action: AssignReplicas | ElectLeaders | AddToTransaction) -> str:
        found = []
        for place, partition in enumerate(action.partition):
            where = f"{self._name(action.topics[_at(action.topic, place)])}-{partition}"
            if isinstance(action, ElectLeaders):
                leader = _at(action.leader, place)
                who = "nobody" if leader == NO_NODE else f"broker {leader}"
                where += f" {who} (epoch {_at(action.leader_epoch, place)})"
            elif isinstance(action, AssignReplicas):
                lists = (action.replicas, action.adding, action.removing)
                numbers = [action.lists[at] if (at := _at(one, place)) >= 0 else () for one in lists]
                replicas, adding, removing = (",".join(map(str, one)) for one in numbers)
                where += f" [{replicas}]" + f" adding {adding}" * bool(adding)
                where += f" removing {removing}" * bool(removing)
            found.append(where)
        if isinstance(action, AddToTransaction):
            groups = [f"group {group}" for group in action.groups]
            return f"transaction of {action.transactional_id}: {_listed([*found, *groups])}"
        return f"{'leaders' if isinstance(action, ElectLeaders) else 'replicas'}: {_listed(found)}"

    def _fields(self, action: Action) -> str:
        """The action's type and fields, for one that has no sentence: `advance log start: topic=t, ...`."""
        found = []
        for name, value in msgspec.structs.asdict(action).items():
            if name == "topic_id":
                found.append(f"topic={self._name(value)}")
            elif isinstance(value, int | str):
                found.append(f"{name}={value}")
            elif value:
                found.append(f"{len(value):,} {name}")
        return f"{str(action.__struct_config__.tag).replace('_', ' ')}: {', '.join(found)}"

    def _name(self, topic_id: str) -> str:
        return self._names.get(topic_id, topic_id)


def _at(column: int | tuple[int, ...], place: int) -> int:
    return column if isinstance(column, int) else column[place]


def _listed(found: Sequence[str]) -> str:
    return ", ".join(islice(found, SHOWN)) + "".join(f" {more}" for more in _more(len(found)))


def _more(count: int) -> Iterable[str]:
    return [f"and {count - SHOWN:,} more"] if count > SHOWN else []
