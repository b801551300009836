"""Every commit that there ever was, one after the other, held against what brokers promise each other.

Knows nothing of plans, and of effects only what images say before and after.

    two leaders      in a leader epoch a partition has one leader, of one registration
    two controllers  a controller epoch is one registration's, and nothing is done under an older one
    falls            leader and controller epochs grow, by one with each change, and never otherwise
    fenced           who is fenced changes nothing
    deposed          what was accepted in an epoch is appended in that epoch, by who leads in it
    order            the leader epochs under which records were accepted never fall within a partition
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from sparklog.metadata import (
    NO_NODE,
    ActAsBroker,
    Action,
    AppendExtents,
    ElectController,
    Image,
    apply_actions,
    empty_image,
)
from sparklog.metadata.documents.document import decode_commit
from sparklog.metadata.documents.properties import commit_of
from sparklog.metadata.model.action import ActionRefusedError


@dataclass
class Audit:
    """See the module's docstring."""

    image: Image
    problems: list[str] = field(default_factory=list)
    _leaders: dict[tuple[str, int, int], int] = field(default_factory=dict)  # partition, epoch: registration
    _controllers: dict[int, int] = field(default_factory=dict)
    _accepted: dict[tuple[str, int], int] = field(default_factory=dict)  # the newest epoch of records

    def follow(self, actions: tuple[Action, ...], *, commit: int, commit_uuid: str) -> None:
        """The next commit."""
        before = self.image
        after = apply_actions(before, actions, commit=commit, commit_uuid=commit_uuid)
        self._check_controller(before, after, actions)
        self._check_leaders(before, after)
        self._check_acting(before, actions)
        self.image = after

    def _wrong(self, text: str) -> None:
        self.problems.append(f"commit {self.image.commit + 1}: {text}")

    def _check_controller(self, before: Image, after: Image, actions: tuple[Action, ...]) -> None:
        old, new = before.controller, after.controller
        elected = sum(isinstance(one, ElectController) for one in actions)
        if new.controller_epoch != old.controller_epoch + elected:
            self._wrong(f"controller epoch {old.controller_epoch}, then {new.controller_epoch}")
        if new.node_id != NO_NODE:
            holder = after.brokers[new.node_id]
            if holder.is_fenced or holder.broker_epoch != new.broker_epoch:
                self._wrong(f"a controller that is fenced: {holder}")
            known = self._controllers.setdefault(new.controller_epoch, new.broker_epoch)
            if known != new.broker_epoch:
                self._wrong(f"two controllers in epoch {new.controller_epoch}: {known}, {new.broker_epoch}")
        epoch, holder_id = old.controller_epoch, old.node_id
        for one in actions:
            named = getattr(one, "controller_epoch", -1)
            if isinstance(one, ElectController):
                epoch, holder_id = named, one.node_id
            elif named not in {-1, epoch} or (named == epoch and holder_id == NO_NODE):
                self._wrong(f"an action of controller epoch {named}, in epoch {epoch} of {holder_id}")

    def _check_leaders(self, before: Image, after: Image) -> None:
        for topic in after.topics.values():
            known = before.topic_by_id.get(topic.topic_id)
            if known is None:
                continue
            for was, now in zip(known.partitions, topic.partitions, strict=False):
                old, new = was.leadership, now.leadership
                where = f"partition {now.partition}"
                # A commit may elect more than once.
                grown = new.leader_epoch - old.leader_epoch
                if grown < 0 or (grown == 0 and old.leader != new.leader):
                    self._wrong(f"{where}: {old}, then {new}")
                if new.leader == NO_NODE:
                    continue
                broker = after.brokers[new.leader]
                if broker.is_fenced:
                    self._wrong(f"{where}: led by {new.leader}, which is fenced")
                place = topic.topic_id, now.partition, new.leader_epoch
                of = self._leaders.setdefault(place, broker.broker_epoch)
                if of != broker.broker_epoch:
                    self._wrong(f"{where}: two leaders in epoch {new.leader_epoch}: {of}, {broker}")

    def _check_acting(self, before: Image, actions: tuple[Action, ...]) -> None:
        for number, acting in enumerate(actions):
            if not isinstance(acting, ActAsBroker):
                continue
            broker = before.brokers.get(acting.node_id)
            if broker is None or broker.is_fenced or broker.broker_epoch != acting.broker_epoch:
                self._wrong(f"acts as {acting.node_id} of epoch {acting.broker_epoch}: {broker}")
            extents = [
                extent
                for one in actions[number + 1 : number + 1 + acting.actions]
                if isinstance(one, AppendExtents)
                for extent in one.extents
            ]
            epochs = acting.leader_epoch
            for at, extent in enumerate(extents):
                epoch = epochs[at] if isinstance(epochs, tuple) else epochs
                self._check_appended(before, acting.node_id, extent.topic_id, extent.partition, epoch)

    def _check_appended(self, before: Image, node_id: int, topic_id: str, partition: int, epoch: int) -> None:
        now = before.topic_by_id[topic_id].partitions[partition].leadership
        if (now.leader, now.leader_epoch) != (node_id, epoch):
            self._wrong(f"partition {partition}: appended by {node_id} under epoch {epoch}, led by {now}")
        newest = self._accepted.get((topic_id, partition), 0)
        if epoch < newest:
            self._wrong(f"partition {partition}: a record of epoch {epoch} after one of epoch {newest}")
        self._accepted[topic_id, partition] = max(newest, epoch)


def audit(commits: Mapping[str, bytes]) -> list[str]:
    """What is wrong with commits, by their names: all from the first one on."""
    by_number = {commit_of(name): name for name in commits}
    if not by_number:
        return []
    cluster_id = json.loads(commits[by_number[0]].partition(b"\n")[0])["cluster_id"]
    found = Audit(empty_image(cluster_id))
    for number in range(len(by_number)):
        name = by_number.get(number)
        if name is None:
            return [*found.problems, f"commit {number} is missing"]
        header, actions = decode_commit(commits[name], where=name, commit=number, cluster_id=cluster_id)
        try:
            found.follow(actions, commit=number, commit_uuid=header.uuid)
        except ActionRefusedError as error:
            return [*found.problems, f"commit {number} does not apply: {error}"]
    return found.problems
