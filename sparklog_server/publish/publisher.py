"""The publisher: gathers what connections submit, and publishes it in group commits.

When idle, the first part that comes is published immediately. While a group commit is written and synced the
next one gathers: group commits grow with the load, and their number does not.

Threads: the event loop submits and resolves; one publisher thread decides, writes, syncs and commits, and
accepts the batches of small requests; the checkers validate the rest concurrently (backlog.py).

Invariants:
    1. parts of one partition are appended in the order of `submit`, whatever validation takes;
    2. a future is resolved with outcomes when its parts are durable and visible, or with the error; one bad
       part fails alone;
    3. every plan is fenced, by the registration of its moment (cluster/membership.py);
    4. after a failed fsync nothing is acknowledged any more, and the broker stops. One that was fenced
       acknowledges nothing that it had accepted, and goes on.
Bounds: bytes and parts of a group commit; bytes and submissions that wait, beyond which submit refuses (the
    network layer's own bounds come first, and push back).
Not here: how a group commit is made (group_commit.py), validating (backlog.py, produced_batches.py).
After a crash: unacknowledged requests are there or not; idempotent producers find out by repeating them.
Sources: docs/design.md; databases, which commit together what comes together. Kafka syncs each partition.
"""

import asyncio
import collections
import contextlib
import dataclasses
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence

from sparklog.errors import FatalStorageError, FencedError, RetriableError
from sparklog.failpoints import failpoint
from sparklog.metadata import AllocateProducerIds, Plan, PublishResult, plan_allocate_producer_ids
from sparklog_server.cluster.membership import Membership
from sparklog_server.metrics import Gauge, Metrics
from sparklog_server.publish.backlog import Backlog, Checkers, Submission
from sparklog_server.publish.group_commit import DraftPlan, GroupCommitter, OnAppended
from sparklog_server.publish.parts import AppendPart, PartOutcome
from sparklog_server.publish.produced_batches import CheckMemory, TopicRules, UncheckedPart
from sparklog_server.root.live_root import LiveRoot
from sparklog_server.settings.broker import PublishSettings

_log = logging.getLogger("sparklog_server.publish")
_WAKE = None  # in the inbox: something may have become ready


@dataclasses.dataclass(slots=True, eq=False)
class _PlanSubmission:
    """One call of submit_plan."""

    plan: Plan
    future: "asyncio.Future[PublishResult]"


@dataclasses.dataclass(slots=True, eq=False)
class _AppendingSubmission:
    """One call of submit_appending."""

    parts: Sequence[AppendPart]
    plan: DraftPlan
    future: "asyncio.Future[PublishResult]"


_Change = _PlanSubmission | _AppendingSubmission


class Publisher:
    """See the module's docstring."""

    def __init__(
        self,
        root: LiveRoot,
        membership: Membership,
        settings: PublishSettings,
        rules: TopicRules,
        metrics: Metrics,
        *,
        on_appended: OnAppended,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """The callbacks get the appended batches, before readers see them (in the publisher's thread), and
        the error after which nothing is acknowledged (on the loop).
        """
        self._root = root
        self._membership = membership
        self._settings = settings
        self._rules = rules
        self._metrics = metrics
        self._on_appended = on_appended
        self._on_fatal = on_fatal
        self._inbox: queue.SimpleQueue[Submission | _Change | None] = queue.SimpleQueue()
        self._backlog = Backlog(settings.publish_backlog_bytes)
        self._checkers = Checkers(lambda: self._inbox.put(_WAKE), self._backlog)
        self.check_memory = CheckMemory(self._settings.produce_check_bytes)
        self._pending: collections.deque[Submission | _Change] = collections.deque()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writer: GroupCommitter | None = None
        self._failure: Exception | None = None
        self.is_stopping = False
        self._last_parts = 0
        self._busy_until = 0.0

    @property
    def pending_bytes(self) -> int:
        """Return the bytes that wait to be published."""
        return self._backlog.used_bytes

    @property
    def pending_submissions(self) -> int:
        """Return the number of unresolved calls of `submit`."""
        return self._backlog.submissions

    # --- life ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Accept parts; the broker is registered."""
        self._loop = asyncio.get_running_loop()
        self._writer = GroupCommitter(
            self._root.log, self._membership.current, self._rules.config_of, self._on_appended
        )
        self._metrics.gauge(Gauge.PUBLISH_BACKLOG_BYTES, lambda: self.pending_bytes)
        self._checkers.start()
        self._thread = threading.Thread(target=self._publish_forever, name="publisher", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Publish all submissions, and end."""
        self.is_stopping = True
        self._inbox.put(_WAKE)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        self._checkers.finish()  # last: until its end the publisher may hand parts over
        await asyncio.to_thread(self._checkers.join)

    # --- handing in (event loop) ----------------------------------------------------------------------

    def submit(
        self, parts: Sequence[AppendPart | UncheckedPart], *, is_for_producer: bool = False
    ) -> "asyncio.Future[list[PartOutcome]]":
        """Append parts, all or some of them: one outcome per part, in order.

        The future never fails on account of a part. It fails, and nothing was acknowledged, with
        RetriableError PUBLISH_BACKLOG_FULL, FatalStorageError, FencedError BROKER_FENCED; `is_for_producer`:
        by `send_away`, too, with SentAwayError or RetriableError PUBLISH_UNRESOLVED.

        Concurrency: event loop. Order of calls is order in each partition.
        """
        assert self._loop is not None
        future: asyncio.Future[list[PartOutcome]] = self._loop.create_future()
        size = sum(part.size_bytes for part in parts)
        submission = Submission(list(parts), future, size, is_for_producer=is_for_producer)
        refused = self._why_not(submission)
        if refused is not None:
            _set_exception(future, refused)
            return future
        if not parts:
            future.set_result([])
            return future
        self._backlog.add(submission)
        self._checkers.submit(submission)
        self._inbox.put(submission)
        return future

    def send_away(self) -> None:
        """Fail the submissions of producers: others may lead by now (Backlog.send_away)."""
        self._backlog.send_away()

    def submit_plan(self, plan: Plan) -> "asyncio.Future[PublishResult]":
        """Publish a change of metadata, fenced like all commits. The future raises the errors of the plan.

        Concurrency: event loop.
        """
        assert self._loop is not None
        future: asyncio.Future[PublishResult] = self._loop.create_future()
        if self._failure is not None or self.is_stopping:
            _set_exception(future, self._failure or _stopping_error())
            return future
        self._inbox.put(_PlanSubmission(plan, future))
        return future

    def submit_appending(
        self, parts: Sequence[AppendPart], plan: DraftPlan
    ) -> "asyncio.Future[PublishResult]":
        """Append batches and publish a change of metadata with them, in one commit: all of it or nothing.

        The future raises the errors of the plan and of the storage.

        Concurrency: event loop.
        """
        assert self._loop is not None
        future: asyncio.Future[PublishResult] = self._loop.create_future()
        if self._failure is not None or self.is_stopping:
            _set_exception(future, self._failure or _stopping_error())
            return future
        self._inbox.put(_AppendingSubmission(parts, plan, future))
        return future

    def _why_not(self, submission: Submission) -> Exception | None:
        if self._failure is not None:
            return self._failure
        if self.is_stopping:
            return _stopping_error()
        settings = self._settings
        if (
            not self._backlog.has_room(submission)
            or self.pending_submissions >= settings.publish_backlog_requests
        ):
            return RetriableError(
                "PUBLISH_BACKLOG_FULL",
                f"found {self.pending_submissions} requests of {self.pending_bytes} bytes waiting to be "
                f"published, expected at most {settings.publish_backlog_requests} and "
                f"{settings.publish_backlog_bytes}",
                fix="send again, slower",
            )
        return None

    # --- the publisher's thread --------------------------------------------------------------------------

    def _publish_forever(self) -> None:
        while True:
            self._receive()
            if self._failure is not None:
                self._refuse_pending(self._failure)
            elif not self._publish_some():
                if self.is_stopping and not self._pending and self._inbox.empty():
                    return
                self._wait()
            if self._failure is not None and self.is_stopping and self._inbox.empty():
                return

    def _receive(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._inbox.get_nowait()
                if item is not None:
                    self._pending.append(item)

    def _wait(self) -> None:
        with self._backlog.idle():
            item = self._inbox.get()
        if item is not None:
            self._pending.append(item)

    def _linger(self) -> None:
        """Under load, wait shortly for the next requests of answered clients (sparklog.publish.linger.ms)."""
        until = self._busy_until
        while until:
            left = until - time.perf_counter()
            if left <= 0 or len(self._pending) >= self._last_parts:
                return
            try:
                item = self._inbox.get(timeout=left)
            except queue.Empty:
                return
            if item is not None:
                self._pending.append(item)

    def _publish_some(self) -> bool:
        """Publish one group commit, or one plan; False if nothing is ready."""
        if not self._pending:
            return False
        self._linger()
        taken = self._take()
        if not taken:
            return False
        first = taken[0]
        if isinstance(first, _Change):
            self._publish_plan(first)
        else:
            self._publish_submissions([one for one in taken if isinstance(one, Submission)])
        return True

    def _take(self) -> list[Submission | _Change]:
        """Return the next submissions, in order, without unvalidated ones and those after them."""
        taken: list[Submission | _Change] = []
        blocked: set[tuple[str, int]] = set()
        size = parts = 0
        rest: list[Submission | _Change] = []
        pending = self._pending
        while pending:
            one = pending.popleft()
            if isinstance(one, _Change):
                if not taken:
                    taken.append(one)
                else:
                    rest.append(one)
                break
            if one.is_sent_away:
                self._backlog.remove(one)
                continue
            if one.unchecked and not one.in_checkers:
                self._checkers.check(one)
            if one.unchecked or (blocked and not blocked.isdisjoint(one.partitions)):
                blocked |= one.partitions
                rest.append(one)
                continue
            is_full = taken and (
                size + one.size_bytes > self._settings.publish_commit_bytes
                or parts + len(one.parts) > self._settings.publish_commit_parts
            )
            if is_full:
                rest.append(one)
                break
            if not self._backlog.begin(one):
                self._backlog.remove(one)
                continue
            taken.append(one)
            size += one.size_bytes
            parts += len(one.parts)
        pending.extendleft(reversed(rest))
        return taken

    def _publish_submissions(self, taken: list[Submission]) -> None:
        assert self._writer is not None
        started = time.perf_counter()
        parts = [part for one in taken for part in one.parts if isinstance(part, AppendPart)]
        for one in taken:
            for index, error in one.errors.items():
                if isinstance(error, RetriableError):
                    self._writer.refuse(one.parts[index])
        try:
            outcomes = iter(self._writer.write(parts))
        except Exception as error:  # noqa: BLE001 - a bug must not stop the thread
            self._submissions_failed(taken, error)
            return
        results = [
            [
                next(outcomes) if isinstance(part, AppendPart) else PartOutcome(error=one.errors[index])
                for index, part in enumerate(one.parts)
            ]
            for one in taken
        ]
        done = time.perf_counter()
        size, times = sum(one.size_bytes for one in taken), self._writer.times
        self._metrics.published(
            len(parts),
            size,
            total_ms=(done - started) * 1000,
            sync_ms=times.sync_ms,
            commit_ms=times.commit_ms,
        )
        self._last_parts = len(taken)
        linger_ms = self._settings.publish_linger_ms
        self._busy_until = done + linger_ms / 1000 if linger_ms else 0.0
        self._on_loop(lambda: self._resolve(taken, results))

    def _publish_plan(self, one: _Change) -> None:
        try:
            result = self._published(one)
        except Exception as error:  # noqa: BLE001 - the caller's to handle
            failed = error
            self._stop_if_fatal(error)
            self._on_loop(lambda: _set_exception(one.future, failed))
        else:
            self._on_loop(lambda: self._resolve_plan(one, result))

    def _published(self, one: _Change) -> PublishResult:
        if isinstance(one, _AppendingSubmission):
            assert self._writer is not None
            return self._writer.append_and_publish(one.parts, one.plan)
        return self._root.metadata.publish(self._membership.current().fenced(one.plan))

    def _submissions_failed(self, taken: list[Submission], error: Exception) -> None:
        if not self._stop_if_fatal(error):
            _log.error("publishing a group commit failed", exc_info=error)
        self._on_loop(lambda: self._reject(taken, error))

    def _stop_if_fatal(self, error: Exception) -> bool:
        """Stop acknowledging after an error that could break a promise."""
        is_over = isinstance(error, FencedError) and error.code == "ROOT_RESTORED"
        if not is_over and not isinstance(error, FatalStorageError):
            return False
        self._failure = error
        self._on_loop(lambda: self._on_fatal(error))
        return True

    def _refuse_pending(self, error: Exception) -> None:
        pending = list(self._pending)
        self._pending.clear()
        if pending:
            self._on_loop(lambda: self._reject(pending, error))
        elif not self.is_stopping:
            self._wait()

    def _on_loop(self, callback: Callable[[], None]) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed; drop the callback
            self._loop.call_soon_threadsafe(callback)

    # --- answering (event loop) ----------------------------------------------------------------------------

    def _resolve(self, taken: list[Submission], results: list[list[PartOutcome]]) -> None:
        failpoint("broker.produce.answering")
        for one in taken:
            self._backlog.remove(one)  # first: a listener of the image may send the rest away
        self._root.show()
        metrics = self._metrics
        for one, outcomes in zip(taken, results, strict=True):
            for part, outcome in zip(one.parts, outcomes, strict=True):
                if outcome.error is None and isinstance(part, AppendPart) and not outcome.duplicate:
                    metrics.messages_in(part.topic, part.encoded.record_count, part.size_bytes)
            if not one.future.done():
                one.future.set_result(outcomes)

    def _resolve_plan(self, one: _Change, result: PublishResult) -> None:
        self._root.show()
        if not one.future.done():
            one.future.set_result(result)

    def _reject(self, taken: Sequence[Submission | _Change], error: Exception) -> None:
        for one in taken:
            if isinstance(one, Submission):
                self._backlog.remove(one)
            _set_exception(one.future, error)


def _set_exception(
    future: "asyncio.Future[list[PartOutcome]] | asyncio.Future[PublishResult]", error: Exception
) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # seen: its waiter may be gone


def _stopping_error() -> RetriableError:
    return RetriableError("PUBLISH_BACKLOG_FULL", "the broker is stopping", fix="retry at the next broker")


# --- producer ids ------------------------------------------------------------------------------------
#
# Invariants: an id is assigned once, over all brokers and restarts: a commit allocates a block, and the rest
#     of a block is never used after the end of its broker.
# Concurrency: event loop; calls that come while a block is taken wait for it.
# After a crash: the next broker takes a new block.
# Sources: Kafka RPCProducerIdManager, ProducerIdsBlock (1000 ids).


BLOCK_IDS = 1000


class ProducerIds:
    """Producer ids for idempotent producers: taken from the metadata log in blocks, handed out one by one."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._next = 0
        self._end = 0
        self._lock = asyncio.Lock()

    async def allocate(self) -> int:
        """Return an unused id. Raises the errors of submit_plan."""
        async with self._lock:
            if self._next >= self._end:
                result = await self._publisher.submit_plan(
                    lambda image: [plan_allocate_producer_ids(image, BLOCK_IDS)]
                )
                (block,) = (one for one in result.actions if isinstance(one, AllocateProducerIds))
                self._next, self._end = block.first, block.first + block.count
            self._next += 1
            return self._next - 1
