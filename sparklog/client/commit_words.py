"""Commits in words: who wrote each, and what its actions do, in one line each.

The command line and the web console show them.
Sources: FORMAT.md#metadata-log.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec

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
    ChangeAcls,
    CreateTopic,
    DeleteTopic,
    ElectController,
    ElectLeaders,
    FenceBroker,
    Image,
    JoinBroker,
    QuotaEntity,
    ReplaceExtents,
    RequestApplied,
    SetConfigs,
    SetQuotas,
    SetScramCredential,
    StageExtents,
    UnregisterBroker,
    WriterTxn,
)
from sparklog.metadata.documents.document import Header
from sparklog.wording import counted, human_bytes

_PAST = {"ALLOW": "allowed", "DENY": "denied"}
SHOWN = 3  # of the items of a list, and of the actions in a line


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ActionWords:
    """An action: its type in FORMAT.md, and what it does, in one line."""

    type: str
    words: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CommitWords:
    """A commit; `timestamp_ms` is by its publisher's clock."""

    commit: int
    timestamp_ms: int
    by: tuple[str, ...]
    actions: tuple[ActionWords, ...]

    @property
    def summary(self) -> str:
        """The first actions in one line. The author stands before them, so act_as_broker adds nothing."""
        found = [action.words for action in self.actions if action.type != "act_as_broker"]
        return "; ".join([*found[:SHOWN], *_more(len(found))])


class Words:
    """Says what commits do, with names of topics and controllers from the newest image and from the commits.

    A topic that was deleted before the image, and made before the first of the commits, has only its id.
    """

    def __init__(self, image: Image) -> None:
        self._image = image
        self._names: dict[str, str] = {}  # of topics that were made in the commits
        controller = image.controller
        self._controllers = (
            {controller.controller_epoch: controller.node_id} if controller.node_id >= 0 else {}
        )

    def commit(self, header: Header, actions: Sequence[Action]) -> CommitWords:
        """A commit in words."""
        for action in actions:
            if isinstance(action, CreateTopic):
                self._names[action.topic_id] = action.name
            elif isinstance(action, ElectController):
                self._controllers[action.controller_epoch] = action.node_id
        return CommitWords(
            commit=header.commit,
            timestamp_ms=header.timestamp_ms,
            by=tuple(dict.fromkeys(filter(None, map(self._author, actions)))),
            actions=tuple(
                ActionWords(type=str(action.__struct_config__.tag), words=self.of(action))
                for action in actions
            ),
        )

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
        return _access_words(action) or self._fields(action)

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
        if isinstance(action, SetScramCredential):  # whose keys are not shown
            what = "deleted" if action.credential is None else "set"
            return f"user {action.user}: credential for {action.mechanism} {what}"
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
        topic = self._image.topic_by_id.get(topic_id)
        return self._names.get(topic_id, topic_id) if topic is None else topic.name


def _access_words(action: Action) -> str | None:
    match action:
        case ChangeAcls():
            return f"ACLs: {_listed(_acl_words(action))}"
        case SetQuotas():
            changes = [
                f"{key} removed" if value is None else f"{key}={value:g}"
                for key, value in action.quotas.items()
            ]
            return f"quotas of {entity_words(action.entity)}: {_listed(changes)}"
    return None


def _acl_words(action: ChangeAcls) -> list[str]:
    return [
        f"{sign}{acl.principal} {_PAST[acl.permission]} {acl.operation} on "
        f"{acl.resource_type}:{acl.pattern_type}:{acl.name}"
        for sign, acls in (("+", action.added), ("-", action.removed))
        for acl in acls
    ]


def entity_words(entity: QuotaEntity) -> str:
    """Return `user alice, client-id default`."""
    return ", ".join(f"{kind} {'default' if name is None else name}" for kind, name in reversed(entity))


def _at(column: int | tuple[int, ...], place: int) -> int:
    return column if isinstance(column, int) else column[place]


def _listed(found: Sequence[str]) -> str:
    return ", ".join(islice(found, SHOWN)) + "".join(f" {more}" for more in _more(len(found)))


def _more(count: int) -> Iterable[str]:
    return [f"and {count - SHOWN:,} more"] if count > SHOWN else []
