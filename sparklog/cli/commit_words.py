"""A metadata commit in words: whose it is, as far as it says, and what each of its actions does.

Invariants: pure; a line is short whatever a commit holds: what it lists is cut after a few.
Not here: which commits there are (sparklog/metadata/past.py), a commit in full (`metadata show N` as JSON).
Sources: FORMAT.md#metadata-log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from sparklog.cli.output import human_bytes
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
