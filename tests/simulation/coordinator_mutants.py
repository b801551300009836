"""Versions of the code with a safeguard of coordinators switched off, as mutants.py has them of all else."""

from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from sparklog.client.topic_plan import OFFSETS_TOPIC
from sparklog.metadata.model import transactions
from sparklog.metadata.model.draft import ImageDraft
from sparklog.metadata.model.extent_list import ExtentList
from sparklog.metadata.model.transaction_values import Transaction
from sparklog_server.coordination import staging
from sparklog_server.coordination.staging import StagedBy
from sparklog_server.coordination.state_log import StateLog
from sparklog_server.groups.group import Group
from sparklog_server.groups.table import GroupTable
from sparklog_server.protocol.apis import ErrorCode
from tests.simulation.mutants import Mutant
from tests.simulation.setting import GROUPS_ON_DIRECTORY, GROUPS_ON_OBJECTS


def _nothing_is(self: GroupTable, group_id: str) -> Container[Any]:
    return frozenset()


def _whoever_asks(self: Group, member_id: str, instance_id: str | None, generation_id: int) -> ErrorCode:
    return ErrorCode.none


async def _append(self: StateLog[Any, Any], records: Sequence[Any], by: StagedBy) -> None:
    await self.append(records)


@contextmanager
def _without_offsets() -> Iterator[None]:
    """An end publishes records, and drops what it has staged in __consumer_offsets."""
    original = transactions._publish

    def publish(draft: ImageDraft, transaction: Transaction, staged: ExtentList) -> None:
        if draft.topic(staged.topic_id).name != OFFSETS_TOPIC:
            original(draft, transaction, staged)

    with mock.patch.object(transactions, "_publish", publish):
        yield


def _nothing_there(*_: object) -> list[Any]:
    return []


COORDINATOR_MUTANTS = (
    Mutant(
        "offsets that a transaction may be about to change are told as stable",
        GROUPS_ON_DIRECTORY,
        lambda: mock.patch.object(GroupTable, "unstable", _nothing_is),
        focus=("pause", "kill"),
        first=14,
    ),
    Mutant(
        "a member that was given up commits its offsets",
        GROUPS_ON_DIRECTORY,
        lambda: mock.patch.object(Group, "check_staged_commit", _whoever_asks),
        focus=("pause",),
        first=25,
    ),
    Mutant(
        "offsets of a transaction are appended when they come",
        GROUPS_ON_DIRECTORY,
        lambda: mock.patch.object(StateLog, "stage", _append),
        first=5,
    ),
    Mutant(
        "the end of a transaction leaves out the offsets",
        GROUPS_ON_OBJECTS,
        _without_offsets,
    ),
    Mutant(
        "a coordinator does not know what another has staged",
        GROUPS_ON_DIRECTORY,
        lambda: mock.patch.object(staging, "replay_staged", _nothing_there),
        first=11,
    ),
)
