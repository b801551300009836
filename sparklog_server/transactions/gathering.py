"""What producers ask of their transactions, gathered into commits: those of one moment share one.

At once when idle; while a commit is under way the next one gathers, so that a hundred producers that end
their transactions at the same time wait for one or two commits, and not for a hundred.

Invariants:
    1. each operation decides by the image that its commit is planned against, which is the newest: an answer
       never rests on an older one, a refusal neither;
    2. operations on one transactional id are in different commits, in the order of `submit`. So those of one
       commit need to know of each other only which producer ids are taken, and which ids are forgotten, and
       one that is refused harms no other;
    3. who is answered finds what it was told in the image that is shown.
Bounds: operations and partitions of one commit; operations that wait, beyond which they are refused.
Not here: what an operation does (coordinator.py), fencing (publish/).
Concurrency: event loop; `decide` is called in the publisher's thread, more than once if the commit loses a
    race: it must not change anything but what it returns.
After a crash: what was not answered is committed or not, and repeated by who waits for it.
Sources: publish/publisher.py, which gathers records likewise.
"""

import asyncio
import collections
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeVar

from sparklog.errors import InvalidRequestError, RetriableError, as_value
from sparklog.metadata import (
    Action,
    AllocateProducerIds,
    ForgetTransactions,
    Image,
    Plan,
    PublishResult,
    apply_actions,
)
from sparklog_server.runtime.background import Background

T = TypeVar("T")
Decision = tuple[Sequence[Action], T]
Decide = Callable[[Image], Decision[T]]
MOST_OPERATIONS: Final = 1_000  # of a commit
MOST_WEIGHT: Final = 10_000  # likewise: partitions that they name
MOST_WAITING: Final = 100_000


class Publishing(Protocol):
    """publish/publisher.py."""

    def submit_plan(self, plan: Plan) -> "asyncio.Future[PublishResult]":
        """Publish a change of metadata, fenced."""


@dataclass(slots=True, eq=False)
class _Operation:
    transactional_id: str
    decide: Decide[Any]
    weight: int
    future: "asyncio.Future[Any]"
    outcome: Any = None
    error: Exception | None = None


class Gathering:
    """See the module's docstring."""

    def __init__(self, publisher: Publishing) -> None:
        self._publisher = publisher
        self._waiting: collections.deque[_Operation] = collections.deque()
        self._background = Background()
        self._is_at_work = False

    def __len__(self) -> int:
        """How many operations wait for a commit."""
        return len(self._waiting)

    def stop(self) -> None:
        """Begin no more commits; who waits is not answered any more."""
        self._background.cancel()

    def submit(self, transactional_id: str, decide: Decide[T], *, weight: int = 1) -> "asyncio.Future[T]":
        """Have `decide(image)` name the actions to commit, and what to answer when they are.

        The future fails with what `decide` raises, or what the commit does.

        Args:
            weight: how many partitions the actions name.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if len(self._waiting) >= MOST_WAITING:
            future.set_exception(
                RetriableError(
                    "PUBLISH_BACKLOG_FULL",
                    f"found {len(self._waiting)} operations on transactions waiting, expected fewer than "
                    f"{MOST_WAITING}",
                    fix="send again, slower",
                )
            )
            return future
        self._waiting.append(_Operation(transactional_id, decide, weight, future))
        if not self._is_at_work:
            self._is_at_work = True
            self._background.spawn(self._work())
        return future

    async def _work(self) -> None:
        try:
            while self._waiting:
                await self._commit(self._take())
        finally:
            self._is_at_work = False

    def _take(self) -> list[_Operation]:
        """The next commit's: in order, each transactional id once."""
        taken: list[_Operation] = []
        later: list[_Operation] = []
        ids: set[str] = set()
        weight = 0
        while self._waiting and len(taken) < MOST_OPERATIONS:
            one = self._waiting.popleft()
            if one.transactional_id in ids:
                later.append(one)
                continue
            ids.add(one.transactional_id)
            if taken and weight + one.weight > MOST_WEIGHT:
                later.append(one)
                break
            taken.append(one)
            weight += one.weight
        self._waiting.extendleft(reversed(later))
        return taken

    async def _commit(self, operations: list[_Operation]) -> None:
        try:
            await self._publisher.submit_plan(lambda image: _decide(operations, image))
        except InvalidRequestError as error:
            # Together they do not apply, or are too large for a document: then each for itself.
            if len(operations) == 1:
                _fail(operations, as_value(error))
                return
            for one in operations:
                await self._commit([one])
        except Exception as error:  # noqa: BLE001 - for whoever waits
            _fail(operations, as_value(error))
        else:
            for one in operations:
                _answer(one)


def _decide(operations: Sequence[_Operation], image: Image) -> list[Action]:
    actions: list[Action] = []
    for one in operations:
        one.outcome = one.error = None
        try:
            wanted, one.outcome = one.decide(image)
        except Exception as error:  # noqa: BLE001 - one that is refused harms no other
            one.error = as_value(error)
        else:
            actions += wanted
            image = _without(image, wanted)
    return actions


def _without(image: Image, actions: Sequence[Action]) -> Image:
    """The image for the next operation: what these take, or forget, is not there for it."""
    taken = sum(one.count for one in actions if isinstance(one, AllocateProducerIds))
    forgotten = [one for one in actions if isinstance(one, ForgetTransactions)]
    if forgotten:  # which is rare: it costs a copy
        after = apply_actions(image, forgotten, commit=image.commit + 1, commit_uuid="planned")
        image = replace(image, transactions=after.transactions)
    return replace(image, next_producer_id=image.next_producer_id + taken) if taken else image


def _answer(one: _Operation) -> None:
    if one.future.done():
        return
    if one.error is None:
        one.future.set_result(one.outcome)
    else:
        _fail([one], one.error)


def _fail(operations: Sequence[_Operation], error: Exception) -> None:
    for one in operations:
        if not one.future.done():
            one.future.set_exception(error)
            one.future.exception()  # seen: whoever waited may be gone
