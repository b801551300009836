"""Versions of the code with a fence of several brokers switched off, as mutants.py has them of all else."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from sparklog.metadata import NO_NODE, ElectLeaders, Image, PartitionLeadership
from sparklog.metadata.model import conditions, registry
from sparklog.metadata.model import registry as leading
from sparklog.metadata.model.action import expanded, partitions_of
from sparklog.metadata.model.actions import EFFECTS
from sparklog.metadata.model.draft import Acting, ImageDraft, PartitionDraft
from tests.simulation.mutants import Mutant
from tests.simulation.setting import BROKERS_ON_DIRECTORY, BROKERS_ON_OBJECTS


def _leads(image: Image, node_id: int, topic_id: str, partition: int, _leader_epoch: int) -> bool:
    return image.partition_of(topic_id, partition).leadership.leader == node_id


def _require_leader(self: Acting, partition: PartitionDraft) -> None:
    next(self.epochs)
    assert partition.leadership.leader == self.node_id


@contextmanager
def _whenever_it_was_accepted() -> Iterator[None]:
    """Whoever leads appends, also what it accepted when it led before another did."""
    with (
        mock.patch.object(conditions, "may_append", _leads),
        mock.patch.object(Acting, "require_leadership", _require_leader),
    ):
        yield


@contextmanager
def _fences_end_no_leading() -> Iterator[None]:
    with mock.patch.object(registry, "_leaderless", lambda before: before):
        yield


@contextmanager
def _controllers_of_any_epoch() -> Iterator[None]:
    """Plans go by what the planner was once elected as, and apply."""
    with (
        mock.patch.object(leading, "validate_controller"),
        mock.patch.object(leading, "require_controller"),
        mock.patch.object(registry, "require_controller"),
    ):
        yield


def _elect_in_the_same_epoch(draft: ImageDraft, action: ElectLeaders) -> None:
    partitions = partitions_of(action.topics, action.topic, action.partition)
    for place, leader in zip(partitions, expanded(action.leader, len(partitions), "leader"), strict=True):
        partition = draft.partition(*place)
        before = partition.leadership
        rises = before.leader == NO_NODE  # after a fence
        partition.lead(
            PartitionLeadership(
                before.replicas, leader, before.leader_epoch + rises, before.adding, before.removing
            )
        )


BROKER_MUTANTS = (
    Mutant(
        "what was accepted in a leader epoch that is over is appended",
        BROKERS_ON_DIRECTORY,
        _whenever_it_was_accepted,
        focus=("pause",),
        first=19,
    ),
    Mutant(
        "a fence ends no leadership",
        BROKERS_ON_DIRECTORY,
        _fences_end_no_leading,
        focus=("pause",),
        first=25,
    ),
    Mutant(
        "a controller's actions apply in a later epoch",
        BROKERS_ON_OBJECTS,
        _controllers_of_any_epoch,
        focus=("pause",),
        first=11,
    ),
    Mutant(
        "a leadership moves within an epoch",
        BROKERS_ON_DIRECTORY,
        lambda: mock.patch.dict(EFFECTS, {ElectLeaders: _elect_in_the_same_epoch}),
        first=18,
    ),
)
