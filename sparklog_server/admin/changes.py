"""Changes of metadata asked for over the network: many in one request, each with an outcome of its own.

Invariants: the parts of a request do not depend on each other (callers refuse duplicates), so all that can
    be done are done in one commit, and one that cannot harms no other. Outcomes are those of the plan that
    was committed: a plan that lost a race is made again from scratch. Every part has an outcome, whether its
    plan has run or not; what timed out before its turn came is never done.
Not here: what a part does (the API's module), fencing and bundling (publish/).
Sources: Kafka ReplicationControlManager (per-topic ApiError and one atomic list of records;
    MAX_PARTITIONS_PER_BATCH).
"""

import asyncio
import dataclasses
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from sparklog.errors import SparklogError, as_value
from sparklog.metadata import (
    Action,
    Image,
    added_partitions,
    is_internal,
    plan_advance_log_start,
    validate_room,
)
from sparklog_server.protocol.apis import ErrorCode, error_code
from sparklog_server.publish.publisher import Publisher
from sparklog_server.root.live_root import LiveRoot

K = TypeVar("K", bound=Hashable)
MAX_ADDED_PARTITIONS = 10_000  # by one request, as in Kafka
LONGEST_MESSAGE = 4_000  # characters: strings of requests before KIP-482 end at 32,767 bytes
Part = Callable[[Image], Action | None]
Completing = Callable[
    [Image, Sequence[Action]], Sequence[Action]
]  # what is committed with the parts' actions


class RefusedError(Exception):
    """A request that Kafka refuses with a code for which sparklog has no error of its own."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one part."""

    code: ErrorCode = ErrorCode.none
    message: str | None = None
    action: Action | None = None

    @property
    def is_error(self) -> bool:
        return self.code is not ErrorCode.none


_TOO_MANY = Outcome(
    ErrorCode.policy_violation,
    f"Excessively large number of partitions per request: more than {MAX_ADDED_PARTITIONS}.",
)


def outcome_of(error: Exception) -> Outcome:
    """The outcome of a part that raised. Messages name what was asked for, which may be of any length."""
    code = error.code if isinstance(error, RefusedError) else error_code(error)
    message = str(error)
    return Outcome(code, message if len(message) <= LONGEST_MESSAGE else f"{message[:LONGEST_MESSAGE]}...")


class Change(Generic[K]):
    """A plan (metadata's) made of parts; `outcomes` are those of its last run.

    The publisher's thread runs it, the event loop may give it up.
    """

    def __init__(self, parts: Mapping[K, Part], completing: Completing | None = None) -> None:
        self._parts = parts
        self._completing = completing
        self._turn = threading.Lock()
        self._has_begun = self._is_given_up = False
        self.outcomes: dict[K, Outcome] = {}

    def give_up(self) -> bool:
        """Do nothing when its turn comes. False: it has come."""
        with self._turn:
            self._is_given_up = not self._has_begun
            return self._is_given_up

    def failed(self, failure: Outcome) -> dict[K, Outcome]:
        """What was to be done has failed, what was refused stays refused."""
        planned = self.outcomes
        return {
            key: planned[key] if key in planned and planned[key].is_error else failure for key in self._parts
        }

    def __call__(self, image: Image) -> list[Action]:
        """Plan every part against the image."""
        with self._turn:
            if self._is_given_up:
                return []
            self._has_begun = True
        outcomes = {}
        added = 0
        for key, part in self._parts.items():
            try:
                action = part(image)
                if more := added_partitions(image, action):
                    validate_room(image, added + more)  # parts see the image, not each other
                    added += more
                outcomes[key] = Outcome(action=action)
            except (RefusedError, SparklogError) as error:
                outcomes[key] = outcome_of(error)
        if added > MAX_ADDED_PARTITIONS:
            outcomes = {key: outcome if outcome.is_error else _TOO_MANY for key, outcome in outcomes.items()}
        self.outcomes = outcomes
        actions = [outcome.action for outcome in outcomes.values() if outcome.action is not None]
        return actions if self._completing is None else [*actions, *self._completing(image, actions)]


class Changes:
    """How the parts of a change are carried out: the one way to publish one, and to wait for it."""

    def __init__(self, root: LiveRoot, publisher: Publisher) -> None:
        self._root = root
        self._publisher = publisher

    async def make(
        self,
        parts: Mapping[K, Part],
        *,
        timeout_ms: int = 0,
        validate_only: bool = False,
        fenced: ErrorCode = ErrorCode.not_controller,
        completing: Completing | None = None,
    ) -> dict[K, Outcome]:
        """Carry the parts out; the outcome of each.

        Args:
            completing: from the parts' actions, what is committed with them.
            fenced: what makes clients ask another broker, when this one may not publish.
            timeout_ms: answer REQUEST_TIMED_OUT after so long. What has begun by then may still happen. 0:
                wait.
            validate_only: find out what would happen.
        """
        change = Change(parts, completing)
        if validate_only or not parts:
            error = await self._root.look()
            if error is not None:
                return change.failed(outcome_of(error))
            change = Change(parts)  # what would be committed with them is of no interest
            await self._root.run(change, self._root.image)  # thousands of topics take their time
            return change.outcomes
        publishing = self._publisher.submit_plan(change)
        publishing.add_done_callback(_look_at)
        done, _ = await asyncio.wait({publishing}, timeout=timeout_ms / 1000 if timeout_ms > 0 else None)
        if not done:
            message = "nothing was done: other changes were before it"
            if not change.give_up():
                message = "the storage did not answer in time; it may still be done: look again"
            return change.failed(Outcome(ErrorCode.request_timed_out, message))
        try:
            publishing.result()
        except SparklogError as error:
            as_value(error)  # the future keeps it
            is_fenced = error.code == "BROKER_FENCED"
            return change.failed(Outcome(fenced, str(error)) if is_fenced else outcome_of(error))
        return change.outcomes


def _look_at(publishing: "asyncio.Future[Any]") -> None:
    """Retrieve the error: if no request waits any more (timeout, connection gone) asyncio would complain."""
    if not publishing.cancelled():
        publishing.exception()


def duplicates(names: list[K]) -> set[K]:
    """What is in the list more than once."""
    seen: set[K] = set()
    return {name for name in names if name in seen or seen.add(name)}  # type: ignore[func-returns-value]


# --- records -----------------------------------------------------------------------------------------
#
# Deleting records: moving the start of a partition's log up.
#
# Invariants: judged by the image that the commit follows. As in Kafka, the records of internal topics and of
#     topics that are only compacted stay.
# Not here: Kafka's entities (api/).
# Sources: KIP-107; Kafka ReplicaManager.deleteRecordsOnLocalLog.


HIGH_WATERMARK = -1
TopicPartition = tuple[str, int]


def deletion(root: LiveRoot, key: TopicPartition, offset: int, lows: dict[TopicPartition, int]) -> Part:
    """Of all before an offset; -1: before the high watermark. `lows` takes the log's start as it will be."""

    def plan(image: Image) -> Action | None:
        name, partition = key
        topic = image.topics.get(name)
        if topic is None or not 0 <= partition < len(topic.partitions):
            raise RefusedError(ErrorCode.unknown_topic_or_partition, "there is no such partition")
        if is_internal(name):
            raise RefusedError(ErrorCode.invalid_topic_exception, "the topic is internal")
        if root.topic_config(topic).cleanup_policy == ("compact",):
            raise RefusedError(ErrorCode.policy_violation, "the topic's cleanup.policy is compact")
        state = topic.partitions[partition]
        start = state.log_end_offset if offset == HIGH_WATERMARK else offset
        if not 0 <= start <= state.log_end_offset:
            raise RefusedError(
                ErrorCode.offset_out_of_range, f"found offset {offset}, expected 0 to {state.log_end_offset}"
            )
        lows[key] = max(start, state.log_start_offset)
        return plan_advance_log_start(image, topic.topic_id, partition, start)

    return plan
