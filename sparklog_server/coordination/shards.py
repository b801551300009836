"""The partitions of an internal topic that this broker coordinates: opened, followed, handed over.

A broker coordinates what lies in the partitions that it leads. One that it does not lead any more is handed
over: clients that wait for it are sent away, and nothing of it is applied; its next leader reads the log.
So it is with one that went to another broker and came back between two looks at the metadata log, although
this broker led it before and leads it after: who had it meanwhile has answered, and perhaps appended, in an
epoch of its own, and what has been accepted here before cannot be published any more.
With another number of partitions, or another topic of that name, everything lies elsewhere and starts over.
Invariants: a log is open exactly while this broker leads its partition in one leader epoch, as of the newest
    image that was installed; no client is answered from one that is another's as of the newest image,
    installed or not; `on_resigned` gets every log before it is closed, and all when the role is lost;
    `on_loaded` gets only logs that are open, while the role is held.
Not here: a partition's records (state_log.py), what they mean (the coordinator's state), the leaders
    (cluster/leadership.py) and whether that still holds (cluster/membership.py).
Concurrency: event loop only.
After a crash: every log is read again from its start.
Sources: Kafka CoordinatorRuntime (scheduleLoadOperation, scheduleUnloadOperation); docs/adr/0026.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, Generic

from sparklog.errors import FencedError, SparklogError
from sparklog.metadata import NO_NODE, Action, Image, PartitionState, Topic, new_id, plan_create_topic
from sparklog_server.coordination.internal_topic import (
    Host,
    InternalTopic,
    LedPartition,
    LogStatus,
    RecordT,
    StateT,
)
from sparklog_server.coordination.records import Reading
from sparklog_server.coordination.state_log import StateLog
from sparklog_server.protocol.apis import ErrorCode
from sparklog_server.protocol.wire import in_slices

_log = logging.getLogger("sparklog_server.coordinator")
LOADED_AT_ONCE: Final = 64  # what they have in common is read once
LEADER_WAIT_MS: Final = 500


class Shards(Generic[RecordT, StateT]):
    """The logs of the partitions that this broker leads."""

    def __init__(
        self,
        host: Host,
        topic: InternalTopic[RecordT],
        make_state: Callable[[], StateT],
        *,
        on_loading: Callable[[StateLog[RecordT, StateT]], Iterable[None]],
        on_loaded: Callable[[StateLog[RecordT, StateT]], None],
        on_resigned: Callable[[Collection[StateLog[RecordT, StateT]]], None],
    ) -> None:
        """The callbacks: a log has been read, and may be answered from when the last part of this is done; it
        may; some are not this broker's any more.
        """
        self.is_active = False
        self.count = 0  # of the topic's partitions; 0: there is no topic
        self.wanting_news: set[asyncio.Future[None]] = set()  # requests that wait for a leader
        self._host = host
        self._topic = topic
        self._make_state = make_state
        self._on_loading = on_loading
        self._on_loaded = on_loaded
        self._on_resigned = on_resigned
        self._topic_id: str | None = None
        self._logs: dict[int, StateLog[RecordT, StateT]] = {}
        self._reading = Reading(host.root, topic)
        self._load_turns = asyncio.Semaphore(LOADED_AT_ONCE)
        self._creating: asyncio.Task[None] | None = None

    # Life

    def open(self) -> None:
        """Begin to load what is led here."""
        self.is_active = True
        self._adopt(self._host.root.image)

    def release(self) -> None:
        """Answer for nothing from now on. Nothing more is written; what is on its way arrives."""
        self.is_active = False
        self._on_resigned(list(self))
        for log in self:
            log.release()

    def resume(self) -> None:
        """After `release`: load again, with what the log says by now; others may have had it meanwhile."""
        self._hand_over(list(self._logs))
        self.open()

    def close(self) -> None:
        """Stop whatever goes on."""
        self.is_active = False
        self._hand_over(list(self._logs))

    def follow(self, old: Image, new: Image) -> None:
        """The image has advanced: others may have appended, and partitions may have changed hands."""
        before = old.topics.get(self._topic.name)
        if self.is_active and before is not new.topics.get(self._topic.name):
            self._adopt(new, before)
            for news in self.wanting_news:
                if not news.done():
                    news.set_result(None)
        if self.is_active and old.transactions is not new.transactions:
            for log in self:
                log.follow()  # an abort changes no partition

    # Asking

    def __iter__(self) -> Iterator[StateLog[RecordT, StateT]]:
        """All that are open."""
        return iter(self._logs.values())

    def partition_of(self, name: str) -> int:
        """The partition in which `name` lies, once there is a topic."""
        return self._topic.partition_of(name, self.count)

    async def coordinators_of(self, names: Sequence[str]) -> list[int]:
        """Return the coordinator of each of these as of the newest image; NO_NODE: there is none now.

        A partition without a leader is waited for a moment: the topic may have been made just now, and the
        controller, which may be another broker, is about to assign it; or a leader has died. A client that
        gets no coordinator comes back much later, some clients after a second.
        """
        if not self.count:
            return [NO_NODE] * len(names)
        partitions = await in_slices(map(self.partition_of, names))
        wanted = set(partitions)
        clock = self._host.clock
        until_ms = clock.monotonic_ms() + LEADER_WAIT_MS
        while True:
            nodes = {partition: self._coordinator_of(partition) for partition in wanted}
            left_ms = until_ms - clock.monotonic_ms()
            if left_ms <= 0 or not self.is_active or NO_NODE not in nodes.values():
                return [nodes[partition] for partition in partitions]
            await self._news(left_ms)

    def _coordinator_of(self, partition: int) -> int:
        topic = self._host.root.image.topics.get(self._topic.name)
        if topic is None or partition >= len(topic.partitions):
            return NO_NODE
        return self._host.leadership.coordinator_of(topic.partitions[partition])

    async def _news(self, timeout_ms: int) -> None:
        """Until an image is shown that has something new of the topic, or it takes too long."""
        news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        alarm = self._host.timer.schedule(timeout_ms, lambda: None if news.done() else news.set_result(None))
        self.wanting_news.add(news)
        try:
            await news
        finally:
            self.wanting_news.discard(news)
            alarm.cancel()

    def find(self, name: str) -> StateLog[RecordT, StateT] | None:
        """The log in which `name` lies, if it is open here."""
        return self._logs.get(self.partition_of(name)) if self.count else None

    def of(self, name: str) -> StateLog[RecordT, StateT]:
        """Return the log in which `name` lies; the caller has checked `error_of` before."""
        log = self.find(name)
        assert log is not None
        return log

    def may_answer(self, log: StateLog[RecordT, StateT]) -> bool:
        """For those who have waited for it; `error_of` asks for those who come."""
        return self._host.role.is_in_charge and self.is_led(log)

    def is_led(self, log: StateLog[RecordT, StateT]) -> bool:
        """True if this broker leads it, in the same epoch, as of the newest image, installed or not."""
        found = log.current()
        return found is not None and self._epoch_here(found) == log.led.leader_epoch

    def error_of(self, name: str) -> ErrorCode:
        """Return why `name` is not served here and now; no error while there is no topic."""
        return self._error_in(self.find(name))

    def look_up(self, names: Iterable[str]) -> Iterator[tuple[ErrorCode, StateLog[RecordT, StateT] | None]]:
        """Yield the error of each, and its log. To be consumed in one turn of the loop: many share a log."""
        errors: dict[StateLog[RecordT, StateT] | None, ErrorCode] = {}
        for name in names:
            log = self.find(name)
            if log not in errors:
                errors[log] = self._error_in(log)
            yield errors[log], log

    def _error_in(self, log: StateLog[RecordT, StateT] | None) -> ErrorCode:
        if not self._host.role.is_in_charge:
            return ErrorCode.not_coordinator  # every client looks for another one then, at every request
        if not self.is_active:
            return ErrorCode.coordinator_not_available
        if not self.count:
            return ErrorCode.none
        if log is None or not self.is_led(log):
            return ErrorCode.not_coordinator
        match log.status:
            case LogStatus.LOADING:
                return ErrorCode.coordinator_load_in_progress
            case LogStatus.READY:
                return ErrorCode.none
            case _:
                return ErrorCode.coordinator_not_available

    # Opening and handing over

    def _adopt(self, image: Image, before: Topic | None = None) -> None:
        """Open, follow and hand over, as `image` has it. `before`: the topic when this was last done."""
        topic = image.topics.get(self._topic.name)
        topic_id, partitions = (None, ()) if topic is None else (topic.topic_id, topic.partitions)
        known: Sequence[PartitionState] = () if before is None else before.partitions
        if topic_id != self._topic_id or len(partitions) != self.count:
            self._hand_over(list(self._logs))
            self._topic_id, self.count, known = topic_id, len(partitions), ()
        changed = [
            partition
            for number, partition in enumerate(partitions)
            if number >= len(known) or known[number] is not partition
        ]
        self._hand_over(
            [partition.partition for partition in changed if self._has_moved(partition)], is_moved=True
        )
        for partition in changed:
            self._review(partition)

    def _has_moved(self, partition: PartitionState) -> bool:
        log = self._logs.get(partition.partition)
        return log is not None and self._epoch_here(partition) != log.led.leader_epoch

    def _review(self, partition: PartitionState) -> None:
        log, epoch = self._logs.get(partition.partition), self._epoch_here(partition)
        if log is not None:
            log.follow()
        elif epoch is not None:
            led = LedPartition(topic_id=partition.topic_id, partition=partition.partition, leader_epoch=epoch)
            log = StateLog(
                self._host,
                self._topic,
                led,
                self._make_state(),
                reading=self._reading,
                load_turns=self._load_turns,
            )
            self._logs[partition.partition] = log
            log.start(on_loading=self._on_loading, on_loaded=self._on_loaded)

    def _epoch_here(self, partition: PartitionState) -> int | None:
        """The leader epoch of a partition that this broker leads."""
        leadership = self._host.leadership
        leader = leadership.leader_of(partition)
        return leader.epoch if leader.node_id == leadership.node_id else None

    def _hand_over(self, partitions: Sequence[int], *, is_moved: bool = False) -> None:
        logs = [self._logs.pop(partition) for partition in partitions]
        if logs:
            self._on_resigned(logs)
        for log in logs:
            log.close(_moved(log) if is_moved else None)

    # The topic

    async def ensure_topic(self) -> ErrorCode:
        """Make the topic if there is none."""
        if self.count:
            return ErrorCode.none
        if self._creating is None:
            self._creating = asyncio.get_running_loop().create_task(self._create_topic())
        creating = self._creating
        try:
            await asyncio.shield(creating)
        except SparklogError as error:
            _log.warning("creating %s failed: %s", self._topic.name, error)
            return ErrorCode.coordinator_not_available
        finally:
            if creating.done() and self._creating is creating:
                self._creating = None
        if self.is_active:
            self._adopt(self._host.root.image)
        return ErrorCode.none if self.count else ErrorCode.coordinator_not_available

    async def _create_topic(self) -> None:
        name, configs = self._topic.name, self._topic.configs
        partitions = self._topic.partitions(self._host.root.root_config())
        topic_id = new_id()

        def plan(image: Image) -> Sequence[Action]:
            if name in image.topics:
                return []
            return [plan_create_topic(image, name, partitions, topic_id=topic_id, configs=configs)]

        await self._host.publisher.submit_plan(plan)


def _moved(log: StateLog[RecordT, StateT]) -> FencedError:
    return FencedError(
        "COORDINATOR_MOVED",
        f"{log.name}: this broker coordinated it in leader epoch {log.led.leader_epoch}, which is over",
        fix="look for its coordinator, and ask again there",
    )
