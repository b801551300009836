"""Makes what becomes of records durable: transitions of share partitions, one commit after the other.

While a commit is under way the next one gathers: their number does not grow with the load. A transition with
dead letters is a commit of its own, which also appends these: whatever is wrong with the dead-letter topic
concerns no other partition, and a dead letter is there exactly if its record is archived.

Invariants: a future has its new state only if the commit is durable; each action is checked by the image that
    its commit follows (metadata/model/sharing.py), and one that is refused harms no other.
Not here: what a transition does (partition.py), dead letters (dead_letters.py).
Concurrency: event loop; plans run in the publisher's thread.
After a crash: what was not answered is written or not; the records are delivered again, or not.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from sparklog.errors import FencedError, RetriableError, SparklogError, as_value
from sparklog.metadata import (
    Action,
    DraftExtent,
    Image,
    Plan,
    PublishResult,
    SharePlace,
    ShareRange,
    ShareRecords,
    ShareState,
    plan_begin_share,
    share_refusal,
)
from sparklog_server.publish.group_commit import DraftPlan
from sparklog_server.publish.parts import AppendPart
from sparklog_server.runtime.lifecycle import Background

MAX_ACTIONS = 1_000  # in a commit


class Publishing(Protocol):
    """publish/publisher.py."""

    def submit_plan(self, plan: Plan) -> "asyncio.Future[PublishResult]":
        """Publish a change of metadata."""

    def submit_appending(
        self, parts: Sequence[AppendPart], plan: DraftPlan
    ) -> "asyncio.Future[PublishResult]":
        """Append batches and publish a change, in one commit."""


@dataclass(slots=True, eq=False)
class _Pending:
    action: ShareRecords
    letters: Sequence[AppendPart]
    future: "asyncio.Future[ShareState]"


class ShareWriter:
    """See the module's docstring."""

    def __init__(self, publisher: Publishing, get_image: Callable[[], Image], node_id: int) -> None:
        self._publisher = publisher
        self._get_image = get_image
        self._node_id = node_id
        self._pending: list[_Pending] = []
        self._background = Background()
        self._is_running = False

    def stop(self) -> None:
        """Write nothing more; what waits fails."""
        self._background.cancel()
        for one in self._pending:
            _fail(one, _stopping())
        self._pending = []

    async def begin(self, group: str, starts: Mapping[SharePlace, int], *, is_reset: bool = False) -> None:
        """Begin in partitions; see plan_begin_share.

        Raises:
            SparklogError: nothing was begun, or (RetriableError, StorageError) perhaps not.
        """
        await self._publisher.submit_plan(
            lambda image: plan_begin_share(image, group, starts, is_reset=is_reset)
        )

    def write(self, action: ShareRecords, letters: Sequence[AppendPart] = ()) -> "asyncio.Future[ShareState]":
        """Return the future of the state after it; it raises a SparklogError if it is not written."""
        future: asyncio.Future[ShareState] = asyncio.get_running_loop().create_future()
        self._pending.append(_Pending(action, letters, future))
        if not self._is_running:
            self._is_running = True
            self._background.spawn(self._write_all())
        return future

    async def _write_all(self) -> None:
        try:
            while self._pending:
                await asyncio.sleep(0)  # what comes in the same turn of the loop is one commit
                plain = [one for one in self._pending if not one.letters][:MAX_ACTIONS]
                taken = plain or self._pending[:1]
                self._pending = [one for one in self._pending if one not in taken]
                await self._write(taken)
        finally:
            self._is_running = False

    async def _write(self, taken: Sequence[_Pending]) -> None:
        planned = _Planned(taken, self._node_id)
        try:
            if taken[0].letters:
                await self._publisher.submit_appending(taken[0].letters, planned.with_letters)
            else:
                await self._publisher.submit_plan(planned)
        except asyncio.CancelledError:
            for one in taken:
                _fail(one, _stopping())
            raise
        except Exception as error:  # noqa: BLE001 - the callers get it, whatever it is
            for one in taken:
                _fail(one, error)
            return
        image = self._get_image()
        for one in taken:
            refusal = planned.refused.get(id(one))
            state = image.shares.get(one.action.group, {}).get((one.action.topic_id, one.action.partition))
            if refusal is not None:
                _fail(one, refusal)
            elif state is None or state.state_epoch != one.action.state_epoch:
                _fail(one, _gone())  # it was written, and reset since
            elif not one.future.done():
                one.future.set_result(state)


class _Planned:
    """The plan of a commit; `refused`: by its last call."""

    def __init__(self, taken: Sequence[_Pending], node_id: int) -> None:
        self._taken = taken
        self._node_id = node_id
        self.refused: dict[int, SparklogError] = {}

    def __call__(self, image: Image) -> list[Action]:
        refused: dict[int, SparklogError] = {}
        actions: list[Action] = []
        for same in _of_one_place(self._taken):
            action = _joined([one.action for one in same])
            refusal = share_refusal(image, action, node_id=self._node_id)
            if refusal is None:
                actions.append(action)
            else:
                refused.update((id(one), refusal) for one in same)
        self.refused = refused
        return actions

    def with_letters(
        self, image: Image, drafts: Sequence[DraftExtent]
    ) -> tuple[Sequence[DraftExtent], Sequence[Action]]:
        """Return the dead letters and their action: both, or nothing."""
        actions = self(image)
        return (drafts if actions else ()), actions


def _of_one_place(taken: Sequence[_Pending]) -> list[list[_Pending]]:
    """Return those of one group, partition and epochs together: their records differ."""
    found: dict[tuple[str, str, int, int, int], list[_Pending]] = {}
    for one in taken:
        action = one.action
        key = (action.group, action.topic_id, action.partition, action.leader_epoch, action.state_epoch)
        found.setdefault(key, []).append(one)
    return list(found.values())


def _joined(actions: Sequence[ShareRecords]) -> ShareRecords:
    if len(actions) == 1:
        return actions[0]
    ranges: list[ShareRange] = sorted(
        (part for one in actions for part in one.ranges), key=lambda part: part.first
    )
    return msgspec.structs.replace(actions[0], ranges=tuple(ranges))


def _fail(one: _Pending, error: Exception) -> None:
    if not one.future.done():
        one.future.set_exception(as_value(error) if isinstance(error, SparklogError) else error)
        one.future.exception()  # the caller may be gone


def _stopping() -> RetriableError:
    return RetriableError(
        "PUBLISH_BACKLOG_FULL",
        "the broker is stopping; perhaps the acknowledgement was written, perhaps not",
        fix="fetch again at the partition's next leader",
    )


def _gone() -> SparklogError:
    return FencedError(
        "SHARE_STATE_CHANGED",
        "the offsets of the share group were reset, or it was deleted, since this was acknowledged",
        fix="fetch again",
    )
