"""`sparklog metadata`: the registry as it is and as it was, and the commits that made it so.

Only the root is read: no broker is needed, and none is asked. What a commit says can be shown for as long as
the log keeps it, the registry as of it from the oldest snapshot on; what has been cleaned is COMMIT_MISSING.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sparklog.cli.framework import LazyGroup, common_options, current, did_you_mean, json_text, note
from sparklog.cli.output import (
    Moment,
    at_option,
    commit_number,
    human_bytes,
    image_of,
    show_json,
    shown_time,
    tell,
)
from sparklog.errors import InvalidRequestError
from sparklog.metadata import (
    NO_EPOCH,
    NO_NODE,
    ActAsBroker,
    Action,
    AddPartitions,
    AddToTransaction,
    AdvanceLogStart,
    AllocateProducerIds,
    AppendExtents,
    AssignReplicas,
    BeginControlledShutdown,
    BeginProducer,
    CreateTopic,
    DeleteTopic,
    ElectController,
    ElectLeaders,
    EndTransaction,
    ExpireProducers,
    FenceBroker,
    ForgetTransactions,
    JoinBroker,
    MoveSweepHorizon,
    NoteCleaned,
    ReplaceExtents,
    RequestApplied,
    RequireFeatures,
    RestoreRoot,
    RetireSegments,
    SetConfigs,
    StageExtents,
    UnregisterBroker,
    WriterTxn,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sparklog.client import SparkLog
    from sparklog.metadata import Action, Image, RegisteredBroker, Topic
    from sparklog.metadata.documents.document import Header

# --- commit words ------------------------------------------------------------------------------------
#
# A metadata commit in words: whose it is, as far as it says, and what each of its actions does.
#
# Invariants: pure; a line is short whatever a commit holds: what it lists is cut after a few.
# Not here: which commits there are (sparklog/metadata/loading.py), a commit in full (`metadata show N` as
# JSON).
# Sources: FORMAT.md#metadata-log.


SHOWN = 3  # of what an action lists
Names = Mapping[str, str]  # topic id -> name


def authors(actions: Iterable[Action], controllers: Mapping[int, int]) -> list[str]:
    """Whose actions these are, each once: brokers, the controller, writers; nobody's that do not say.

    Args:
        controllers: who was controller, by epoch, as far as is known.
    """
    found: dict[str, None] = {}
    for action in actions:
        match action:
            case ActAsBroker() | JoinBroker() | BeginControlledShutdown():
                found[f"broker {action.node_id}"] = None
            case ElectController():
                found[f"broker {action.node_id}"] = None
            case FenceBroker(controller_epoch=epoch) if epoch == NO_EPOCH:
                found[f"broker {action.node_id}"] = None
            case FenceBroker() | UnregisterBroker() | AssignReplicas() | ElectLeaders():
                node_id = controllers.get(action.controller_epoch)
                who = "controller" if node_id is None else f"controller {node_id}"
                found[f"{who} of epoch {action.controller_epoch}"] = None
            case WriterTxn():
                found[f"writer {action.application}"] = None
            case RequestApplied():
                found[f"publisher {action.publisher}"] = None
            case _:
                pass
    return list(found)


def words(action: Action, names: Names) -> str:
    """What an action does, in one line."""
    say = _WORDS.get(type(action))
    if say is None:  # a kind that has no words yet
        return str(action.__struct_config__.tag).replace("_", " ")
    return say(action, names)


def _set_configs(action: SetConfigs, names: Names) -> str:
    whose = "the root" if action.topic_id is None else f"topic {_named(names, action.topic_id)}"
    changed = (
        f"{key} deleted" if value is None else f"{key}={value}" for key, value in action.configs.items()
    )
    return f"settings of {whose}: {_listed(changed, len(action.configs))}"


def _replaced(action: ReplaceExtents, names: Names) -> str:
    return (
        f"{_where(action, names)}: {_count(action.removed_count, 'extent')} from offset "
        f"{action.start_offset} to {action.end_offset} replaced by {len(action.added):,}"
    )


def _joined(action: JoinBroker, _names: Names) -> str:
    at = f" at {action.listeners[0].host}:{action.listeners[0].port}" if action.listeners else ""
    return f"broker {action.node_id} joins{at}, epoch {action.broker_epoch}"


def _fenced(action: FenceBroker, _names: Names) -> str:
    how = "ends, and is fenced" if action.controller_epoch == NO_EPOCH else "is fenced"
    return f"broker {action.node_id} of epoch {action.broker_epoch} {how}"


def _elected(action: ElectLeaders, names: Names) -> str:
    def one(place: int) -> str:
        leader = _at(action.leader, place)
        who = "nobody" if leader == NO_NODE else f"broker {leader}"
        return f"{_at_place(action, place, names)} {who} (epoch {_at(action.leader_epoch, place)})"

    return f"leaders: {_listed(map(one, range(len(action.partition))), len(action.partition))}"


def _assigned(action: AssignReplicas, names: Names) -> str:
    def brokers(column: int | tuple[int, ...], place: int) -> str:
        found = _at(column, place)
        return ",".join(map(str, action.lists[found])) if found >= 0 else ""

    def one(place: int) -> str:
        adding, removing = brokers(action.adding, place), brokers(action.removing, place)
        under_way = f" adding {adding}" * bool(adding) + f" removing {removing}" * bool(removing)
        return f"{_at_place(action, place, names)} [{brokers(action.replicas, place)}]{under_way}"

    return f"replicas: {_listed(map(one, range(len(action.partition))), len(action.partition))}"


def _begun(action: BeginProducer, _names: Names) -> str:
    who = f"producer {action.producer_id} epoch {action.producer_epoch}"
    return f"transactional id {action.transactional_id} has {who}"


def _added(action: AddToTransaction, names: Names) -> str:
    places = [_at_place(action, place, names) for place in range(len(action.partition))]
    groups = [f"group {group}" for group in action.groups]
    what = _listed((*places, *groups), len(places) + len(groups))
    return f"transaction of {action.transactional_id}: {what}"


def _ended(action: EndTransaction, _names: Names) -> str:
    how = "committed" if action.committed else "aborted"
    by = ", its producer fenced" if action.fences else ""
    return f"transaction of {action.transactional_id} {how}{by}"


def _appended(action: AppendExtents | StageExtents, names: Names) -> str:
    partitions = dict.fromkeys((one.topic_id, one.partition) for one in action.extents)
    records = sum(one.record_count for one in action.extents)
    size = sum(one.size for one in action.extents)
    where = _listed((_partition(names, *one) for one in partitions), len(partitions))
    return f"{_count(records, 'record')}, {human_bytes(size)}, to {where}"


def _where(action: ReplaceExtents | AdvanceLogStart | NoteCleaned, names: Names) -> str:
    return _partition(names, action.topic_id, action.partition)


def _at_place(action: ElectLeaders | AssignReplicas | AddToTransaction, place: int, names: Names) -> str:
    return _partition(names, action.topics[_at(action.topic, place)], action.partition[place])


def _at(column: int | tuple[int, ...], place: int) -> int:
    return column if isinstance(column, int) else column[place]


def _named(names: Names, topic_id: str) -> str:
    return names.get(topic_id, topic_id)


def _partition(names: Names, topic_id: str, partition: int) -> str:
    return f"{_named(names, topic_id)}-{partition}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _listed(found: Iterable[str], count: int) -> str:
    first: Sequence[str] = list(islice(found, SHOWN))
    more = f" and {count - SHOWN:,} more" if count > SHOWN else ""
    return ", ".join(first) + more


_WORDS: Mapping[type[Action], Callable[[Any, Names], str]] = {
    CreateTopic: lambda one, _: f"topic {one.name} with {_count(one.partitions, 'partition')}",
    DeleteTopic: lambda one, names: f"topic {_named(names, one.topic_id)} is deleted",
    AddPartitions: lambda one, names: (
        f"topic {_named(names, one.topic_id)} has {_count(one.partitions, 'partition')}"
    ),
    SetConfigs: _set_configs,
    AppendExtents: _appended,
    BeginProducer: _begun,
    AddToTransaction: _added,
    StageExtents: lambda one, names: f"staged: {_appended(one, names)}",
    EndTransaction: _ended,
    ForgetTransactions: lambda one, _: (
        "unused transactional ids: "
        + _listed(one.transactional_ids, len(one.transactional_ids))
        + " are forgotten"
    ),
    ReplaceExtents: _replaced,
    AdvanceLogStart: lambda one, names: (
        f"{_where(one, names)}: records below {one.log_start_offset} are gone"
    ),
    NoteCleaned: lambda one, names: f"{_where(one, names)}: compacted below {one.first_dirty_offset}",
    WriterTxn: lambda one, _: f"version {one.version} of writer {one.application}",
    AllocateProducerIds: lambda one, _: f"producer ids {one.first} to {one.first + one.count - 1}",
    RequestApplied: lambda one, _: f"request {one.sequence} of publisher {one.publisher}",
    RetireSegments: lambda one, _: (
        f"{len(one.segments)} dead segments stay dead, the files of {len(one.gone)} are gone"
    ),
    MoveSweepHorizon: lambda one, _: f"dead segments from before commit {one.horizon} stay dead",
    ExpireProducers: lambda one, _: (
        "producers are marked" if one.marks_only else "silent producers are forgotten"
    ),
    RestoreRoot: lambda one, _: (
        f"the root was restored: incarnation {one.incarnation_id}, producer ids from {one.producer_id}, "
        f"leader epochs from {one.leader_epoch}"
    ),
    RequireFeatures: lambda one, _: f"features are needed: {', '.join(one.readers + one.writers)}",
    JoinBroker: _joined,
    FenceBroker: _fenced,
    BeginControlledShutdown: lambda one, _: f"broker {one.node_id} is about to stop",
    UnregisterBroker: lambda one, _: f"broker {one.node_id} is unregistered",
    ElectController: lambda one, _: f"broker {one.node_id} is controller, epoch {one.controller_epoch}",
    AssignReplicas: _assigned,
    ElectLeaders: _elected,
    ActAsBroker: lambda one, _: f"as broker {one.node_id} of epoch {one.broker_epoch}",
}


# --- registry nodes ----------------------------------------------------------------------------------
#
# An image as a registry of paths and values: what Kafka kept in ZooKeeper, under the same names.
#
#     /admin/reassign_partitions                  reassignments that are not over; only while there are any
#     /brokers/ids/N                              a broker that is registered and not fenced
#     /brokers/fenced/N                           one that is fenced, and has not been unregistered (ours)
#     /brokers/topics/T                           the replicas of its partitions
#     /brokers/topics/T/partitions/P/state        who leads it, in which epoch, and who could
#     /cluster/id                                 the root's
#     /config/brokers/<default>                   the settings of the root, and those of all brokers
#     /config/brokers/N                           a broker's own
#     /config/topics/T                            a topic's overrides
#     /controller, /controller_epoch              who controls the brokers, and how many have been elected
#
# A value is a JSON document with Kafka's fields, and with ours beside them where we know more.
#
# Invariants: pure; paths come in the order of their names, numbers among themselves by value.
# Not here: where an image comes from (sparklog/metadata/loading.py).
# Sources: Kafka's ZkData: BrokerIdZNode, TopicZNode, TopicPartitionStateZNode, ControllerZNode,
#     ReassignPartitionsZNode, ConfigEntityZNode, ClusterIdZNode.


ALWAYS = (
    "/admin",
    "/brokers",
    "/brokers/fenced",
    "/brokers/ids",
    "/brokers/topics",
    "/cluster",
    "/config",
    "/config/brokers",
    "/config/topics",
)
DEFAULT_BROKER = "<default>"
_VERSION = 1
_BROKER_VERSION = 5  # of Kafka's document, the one with endpoints, rack and features


class Node(NamedTuple):
    """A path that has a value; the value is made when it is asked for."""

    path: str
    make: Callable[[], object]


def nodes(image: Image, path: str = "/") -> Iterator[Node]:
    """Those at and below a path, in order.

    Raises:
        InvalidRequestError: NODE_MISSING, there is no such path.
    """
    wanted = _normal(path)
    below = f"{wanted.rstrip('/')}/"
    is_known = wanted == "/" or wanted in ALWAYS
    for node in _all(image):
        if node.path == wanted or node.path.startswith(below):
            is_known = True
            yield node
    if not is_known:
        raise _missing(image, wanted)


def value_at(image: Image, path: str) -> object:
    """The value of one path, or the names below one that has none.

    Raises:
        InvalidRequestError: NODE_MISSING, there is no such path.
    """
    wanted = _normal(path)
    below = f"{wanted.rstrip('/')}/"
    names: dict[str, None] = {}
    for node in nodes(image, wanted):
        if node.path == wanted:
            return node.make()
        names[node.path.removeprefix(below).partition("/")[0]] = None
    return list(names) or [one.removeprefix(below) for one in ALWAYS if one.startswith(below)]


def _normal(path: str) -> str:
    words = [word for word in path.split("/") if word]
    return "/" + "/".join(words)


def _missing(image: Image, path: str) -> InvalidRequestError:
    known = [*ALWAYS, *(f"/brokers/topics/{name}" for name in image.topics)]
    return InvalidRequestError(
        "NODE_MISSING",
        f"commit {image.commit}: found no {path}{did_you_mean(path, known)}",
        fix="`sparklog metadata tree` shows what there is; name a path of it",
    )


def _all(image: Image) -> Iterator[Node]:
    yield from _reassignments(image)
    yield from _brokers(image)
    for name in sorted(image.topics):
        yield from _topic(image, image.topics[name])
    yield Node("/cluster/id", lambda: {"version": "1", "id": image.cluster_id})
    yield from _broker_configs(image.configs)
    for name in sorted(image.topics):
        topic = image.topics[name]
        if topic.configs:
            yield Node(f"/config/topics/{name}", lambda topic=topic: _config(topic.configs))  # type: ignore[misc]
    yield from _controller(image)


def _reassignments(image: Image) -> Iterator[Node]:
    def value() -> object:
        return {
            "version": _VERSION,
            "partitions": [
                {
                    "topic": name,
                    "partition": state.partition,
                    "replicas": [
                        one for one in state.leadership.replicas if one not in state.leadership.removing
                    ],
                    "adding_replicas": list(state.leadership.adding),
                    "removing_replicas": list(state.leadership.removing),
                }
                for name in sorted(image.topics)
                for state in image.topics[name].partitions
                if state.leadership.adding or state.leadership.removing
            ],
        }

    if any(
        state.leadership.adding or state.leadership.removing
        for topic in image.topics.values()
        for state in topic.partitions
    ):
        yield Node("/admin/reassign_partitions", value)


def _brokers(image: Image) -> Iterator[Node]:
    for directory, is_fenced in (("fenced", True), ("ids", False)):
        for node_id, one in sorted(image.brokers.items()):
            if one.is_fenced is is_fenced:
                yield Node(f"/brokers/{directory}/{node_id}", lambda one=one: _broker(one))  # type: ignore[misc]


def _endpoints(listeners: list[tuple[str, int]]) -> dict[str, object]:
    host, port = listeners[0] if listeners else (None, -1)
    return {
        "host": host,
        "port": port,
        "endpoints": [f"PLAINTEXT://{one}:{number}" for one, number in listeners],
    }


def _broker(one: RegisteredBroker) -> object:
    return {
        "version": _BROKER_VERSION,
        **_endpoints([(at.host, at.port) for at in one.listeners]),
        "rack": one.rack or None,
        "broker_epoch": one.broker_epoch,
        "incarnation_id": one.incarnation_id,
        "in_controlled_shutdown": one.in_controlled_shutdown,
    }


def _topic(image: Image, topic: Topic) -> Iterator[Node]:
    from sparklog.client.cluster_view import describe_partition

    def replicas() -> object:
        found = [state.leadership for state in topic.partitions]
        return {
            "version": 3,
            "topic_id": topic.topic_id,
            "partitions": {str(number): list(one.replicas) for number, one in enumerate(found)},
            "adding_replicas": {
                str(number): list(one.adding) for number, one in enumerate(found) if one.adding
            },
            "removing_replicas": {
                str(number): list(one.removing) for number, one in enumerate(found) if one.removing
            },
        }

    def state_of(partition: int) -> object:
        found = describe_partition(image, topic.name, topic.partitions[partition])
        return {
            "version": _VERSION,
            "controller_epoch": image.controller.controller_epoch,
            "leader": found.leader,
            "leader_epoch": found.leader_epoch,
            "isr": list(found.isr),
        }

    yield Node(f"/brokers/topics/{topic.name}", replicas)
    for number in range(len(topic.partitions)):
        path = f"/brokers/topics/{topic.name}/partitions/{number}/state"
        yield Node(path, lambda number=number: state_of(number))  # type: ignore[misc]


def _config(configs: object) -> object:
    return {"version": _VERSION, "config": configs}


def _broker_configs(configs: Mapping[str, str]) -> Iterator[Node]:
    from sparklog.log.config import broker_configs, is_broker_key, nodes_with_configs

    of_root = {key: value for key, value in configs.items() if not is_broker_key(key)}
    for node_id in nodes_with_configs(configs):
        own = broker_configs(configs, node_id)
        yield Node(f"/config/brokers/{node_id}", lambda own=own: _config(own))  # type: ignore[misc]
    of_all = of_root | broker_configs(configs, None)
    yield Node(f"/config/brokers/{DEFAULT_BROKER}", lambda: _config(of_all))


def _controller(image: Image) -> Iterator[Node]:
    from sparklog.client.cluster_view import describe_controller
    from sparklog.metadata import NO_NODE

    found = describe_controller(image)
    if found.node_id != NO_NODE:
        yield Node(
            "/controller",
            lambda: {
                "version": _VERSION,
                "brokerid": found.node_id,
                "broker_epoch": found.broker_epoch,
            },
        )
    yield Node("/controller_epoch", lambda: found.controller_epoch)


# --- metadata ----------------------------------------------------------------------------------------


MAX_NODES = 1_000
MAX_COMMITS = 20
MAX_VALUE = 2_000  # characters of a value in a tree
Document = dict[str, object]


@click.group("metadata", cls=LazyGroup)
def metadata() -> None:
    """The registry of brokers, topics and leaders, at any commit that is kept."""


@metadata.command("tree")
@click.argument("path", default="/")
@at_option
@click.option(
    "--max",
    "most",
    type=click.IntRange(min=1, max=sys.maxsize),
    default=MAX_NODES,
    show_default=True,
    help="Show so many at most.",
)
@common_options
def tree(path: str, moment: Moment | None, most: int) -> None:
    """Show the paths at and below PATH, each with its value."""
    image = image_of(current().open_log(), moment)
    found = nodes(image, path)
    shown = [(one.path, one.make()) for one in islice(found, most)]
    left_out = sum(1 for _ in found)
    if current().json:
        show_json(
            {
                "commit": image.commit,
                "nodes": [{"path": where, "value": value} for where, value in shown],
                "left_out": left_out,
            }
        )
        return
    for where, value in shown:
        tell(f"{where}  {_short(value)}")
    if left_out:
        note(f"Note: {left_out:,} more paths are not shown: name a PATH, or give --max.")


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
@common_options
def show_log(first: int | None, most: int) -> None:
    """Show commits, one a line: number, time, whose it is, what it does."""
    from sparklog.metadata.loading import oldest_commit, read_past_commits

    log = current().open_log()
    image, store = log.image, log.store
    if image.commit < 0:
        found: Iterator[Document] = iter(())
    else:
        if first is None:
            first = max(image.commit - most + 1, oldest_commit(store, image))
        last = max(first, min(image.commit, first + most - 1))
        known = _Known(image)
        found = (known.commit_document(*one) for one in read_past_commits(store, image, first, last))
    if current().json:
        show_json(list(found))
        return
    for one in found:
        tell(_line(one, SHOWN))


@metadata.command("show")
@click.argument("what", metavar="PATH|COMMIT")
@at_option
@common_options
def show(what: str, moment: Moment | None) -> None:
    """Show the value of a path (what is below one that has none), or all that a commit says."""
    log = current().open_log()
    if what.startswith("/"):
        image = image_of(log, moment)
        value = value_at(image, what)
        show_json({"commit": image.commit, "path": what, "value": value} if current().json else value)
        return
    commit = commit_number(what)
    if commit is None or moment is not None:
        raise click.UsageError(f"found {what!r}, expected a path such as /controller, or a commit's number.")
    _show_commit(log, commit)


class _Known:
    """Names of topics, and who was controller: as of the newest image, and of the commits seen so far.

    A topic that was deleted before the image, and made before the first of the commits, has only its id.
    """

    def __init__(self, image: Image) -> None:
        self.names = {topic.topic_id: name for name, topic in image.topics.items()}
        self.controllers = {image.controller.controller_epoch: image.controller.node_id}
        if image.controller.node_id < 0:
            self.controllers.clear()

    def commit_document(self, header: Header, actions: Sequence[Action]) -> Document:
        """A commit in words."""
        from sparklog.metadata import CreateTopic, ElectController

        for one in actions:
            match one:
                case CreateTopic():
                    self.names[one.topic_id] = one.name
                case ElectController():
                    self.controllers[one.controller_epoch] = one.node_id
                case _:
                    pass
        return {
            "commit": header.commit,
            "timestamp_ms": header.timestamp_ms,
            "by": authors(actions, self.controllers),
            "actions": [
                {"type": action.__struct_config__.tag, "words": words(action, self.names)}
                for action in actions
            ],
        }


def _show_commit(log: SparkLog, commit: int) -> None:
    import msgspec

    from sparklog.metadata.loading import read_past_commits

    image = log.image
    ((header, actions),) = read_past_commits(log.store, image, commit, commit)
    document = _Known(image).commit_document(header, actions)
    if current().json:
        document |= {"uuid": header.uuid, "previous": header.previous, "version": header.version}
        document["actions"] = [
            {**told, **_fields(msgspec.to_builtins(action))}
            for told, action in zip(_told(document), actions, strict=True)
        ]
        show_json(document)
        return
    tell(_line(document | {"actions": []}, 0))
    for one in _told(document)[:MAX_NODES]:
        tell(f"  {one['type']}: {one['words']}")
    if len(actions) > MAX_NODES:
        note(f"Note: {len(actions) - MAX_NODES:,} more actions are not shown: --output json has them all.")


def _fields(built: object) -> Document:
    assert isinstance(built, dict)
    return built


def _told(document: Document) -> list[Document]:
    actions = document["actions"]
    assert isinstance(actions, list)
    return actions


def _line(document: Document, most: int) -> str:
    """Number, time, whose, and so many of the actions."""
    commit, time_ms, by = document["commit"], document["timestamp_ms"], document["by"]
    assert isinstance(time_ms, int)
    assert isinstance(by, list)
    # Whose it is stands before: that a scope begins says no more.
    told = [str(one["words"]) for one in _told(document) if one["type"] != "act_as_broker"]
    more = [f"and {len(told) - most:,} more"] if len(told) > most else []
    what = "; ".join([*told[:most], *more])
    return f"{commit:>8}  {shown_time(time_ms)}  {', '.join(by) or '-'}  {what}".rstrip()


def _short(value: object) -> str:
    text = json_text(value)
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}... ({len(text):,} characters)"
