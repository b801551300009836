"""The transaction coordinator: decides on producers' requests for a transactional id, by the newest image.

It has no state. The image has all that is known of a transaction. Each operation is an action of a commit,
planned against the newest image and fenced by this broker's registration. So any broker may do any operation
for any id, a broker that dies between two of them leaves nothing behind, and a request that is repeated at
another broker gets the same answer. The loser of a race decides again.

An end of the first protocol must name the transaction that it ends, since its epoch does not:

1. the producer sends EndTxn, the coordinator accepts it, and is slow;
2. the producer repeats it at another broker, is answered, and begins the next transaction in the same epoch;
3. the first coordinator commits: it would end the next transaction.

So an end names the number of the transaction that this broker's image showed open when it was accepted, or
none. If another one is open by the time of the commit, the producer has to retry (CONCURRENT_TRANSACTIONS,
which all clients do): a client that still waits means that one. The number is never taken from an image of a
later
refresh: step 2 may lie between step 1 and that refresh. So a producer whose transaction was just opened
through another broker has to retry as well, once for each broker that is behind: the refusal has refreshed
the image, and the retry is decided by it.

Produce and TxnOffsetCommit of the first protocol name the number likewise, for the same reason
(publish/decisions.py). But their brokers are behind most of the time: a transaction is opened through one
broker, and written to through others a moment later. So such a request is read after a refresh of the image,
which takes at most LOOK_SECONDS, or REMOTE_LOOK_SECONDS: the effect is that of a slower network. If the
refresh takes longer, the client retries if necessary.

Invariants: no refusal is based on a stale image: before a plan refuses, the metadata log is refreshed.
Not here: the rules (sparklog/metadata/model), staging (publish/), time-outs (sweep.py), Kafka's entities
    (api/).
Concurrency: event loop; decisions are made in the publisher's thread, and change nothing.
After a crash: begin again; what was answered is in the log.
Sources: Kafka TransactionCoordinator; docs/adr/0028; tests/models/transactions.py; KIP-98, KIP-360, KIP-890.
"""

import asyncio
import collections
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from sparklog.clock import Clock
from sparklog.errors import (
    FencedError,
    InvalidRequestError,
    RetriableError,
    SparklogError,
    StorageError,
    as_value,
)
from sparklog.metadata import (
    MAX_ROOT_WEIGHT,
    MAX_TRANSACTIONAL_IDS,
    NO_NUMBER,
    PARTITION_WEIGHT,
    TOPIC_WEIGHT,
    Action,
    AllocateProducerIds,
    ForgetTransactions,
    Image,
    PartitionState,
    Plan,
    PublishResult,
    TopicPartition,
    apply_actions,
    plan_abort_transactions,
    plan_add_to_transaction,
    plan_begin_producer,
    plan_end_transaction,
    weight_of_groups,
)
from sparklog_server.metrics import Metrics
from sparklog_server.protocol.apis import ErrorCode, error_code
from sparklog_server.protocol.responses import Producers
from sparklog_server.root.live_root import LiveRoot
from sparklog_server.runtime.lifecycle import Background
from sparklog_server.settings.groups import TransactionSettings

# --- gathering ---------------------------------------------------------------------------------------
#
# When idle, an operation is committed immediately. During a commit the operations for the next one gather, so
# that a hundred producers that end their transactions at the same time wait for one or two commits.
#
# Invariants:
#     1. each operation decides by the image that its commit is planned against, which is the newest: neither
#        answers nor refusals are based on an older one;
#     2. operations on one transactional id are in different commits, in the order of `submit`. So those of
#        one commit need to know of each other only which producer ids are taken, and which ids are forgotten,
#        and one that is refused harms no other;
#     3. the installed image agrees with the answer to the client.
# Bounds: operations and partitions of one commit; pending operations, beyond which further ones are refused.
# Not here: fencing (publish/).
# Concurrency: event loop; `decide` is called in the publisher's thread, more than once if the commit loses a
#     race: it must have no side effects.
# After a crash: an unanswered operation is committed or not, and its client repeats it.
# Sources: publish/publisher.py, which gathers records in the same way.


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
    """Gathers operations of producers on their transactions into group commits."""

    def __init__(self, publisher: Publishing) -> None:
        self._publisher = publisher
        self._waiting: collections.deque[_Operation] = collections.deque()
        self._background = Background()
        self._is_at_work = False

    def __len__(self) -> int:
        """Return the number of pending operations."""
        return len(self._waiting)

    def stop(self) -> None:
        """Begin no more commits; pending requests get no answer."""
        self._background.cancel()

    def submit(self, transactional_id: str, decide: Decide[T], *, weight: int = 1) -> "asyncio.Future[T]":
        """Commit the actions that `decide(image)` returns; the future gets its answer after the commit.

        The future fails with the error of `decide` or of the commit.

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
        """Return the operations of the next commit: in order, each transactional id once."""
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
            # Together they do not apply, or are too large for a document: retry them one by one.
            if len(operations) == 1:
                _fail(operations, as_value(error))
                return
            for one in operations:
                await self._commit([one])
        except Exception as error:  # noqa: BLE001 - the callers get it
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
    """Return the image for the next operation, without the ids that these actions take or forget."""
    taken = sum(one.count for one in actions if isinstance(one, AllocateProducerIds))
    forgotten = [one for one in actions if isinstance(one, ForgetTransactions)]
    if forgotten:  # rare: it costs a copy
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
            one.future.exception()  # retrieved: the caller may be gone


# --- refusals ----------------------------------------------------------------------------------------
#
# Kafka's error codes of refusals: each client acts on them, and some clients only know old ones.
#
# Reactions of producers (Java; others are similar):
#
#     PRODUCER_FENCED, INVALID_PRODUCER_EPOCH   another process has its transactional id: the producer fails
#     INVALID_PRODUCER_ID_MAPPING               the id is unknown, or another producer's: it fails, or
#                                               initialises again
#     INVALID_TXN_STATE                         the request does not fit the state: a bug, it fails
#     POLICY_VIOLATION                          there is no room for its id: it fails; librdkafka retries
#                                               until its time-out
#     CONCURRENT_TRANSACTIONS                   it retries at this broker
#     NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE   it finds the coordinator, and retries there
#
# Invariants: errors other than those of the transaction itself become one of the last two: the outcome is
#     unknown, and a retry gets the true one. No producer fails because of them.
# Not here: the rules (sparklog/metadata/model), which APIs mask which codes since which version
# (sparklog_server/api).
# Sources: Kafka TransactionCoordinator, TransactionStateManager.appendTransactionToLog, KafkaApis
#     (PRODUCER_FENCED for clients that know it), TransactionManager.TxnRequestHandler.


_BY_CODE: Mapping[str, ErrorCode] = MappingProxyType(
    {
        "BROKER_FENCED": ErrorCode.not_coordinator,
        "COORDINATOR_MOVED": ErrorCode.not_coordinator,
        "INVALID_TRANSACTIONAL_ID": ErrorCode.invalid_request,
        "INVALID_TRANSACTION_TIMEOUT": ErrorCode.invalid_transaction_timeout,
        "PRODUCER_FENCED": ErrorCode.producer_fenced,
        "PRODUCER_UNMAPPED": ErrorCode.invalid_producer_id_mapping,
        "TRANSACTIONS_FULL": ErrorCode.policy_violation,
        "TRANSACTION_CHANGED": ErrorCode.concurrent_transactions,
        "TRANSACTION_MISSING": ErrorCode.transactional_id_not_found,
        "TRANSACTION_STATE": ErrorCode.invalid_txn_state,
        "TRANSACTION_TOO_LARGE": ErrorCode.transaction_abortable,
    }
)


def refusal_of(error: BaseException) -> ErrorCode:
    """Return the error code for a failed operation on a transaction."""
    if isinstance(error, SparklogError):
        known = _BY_CODE.get(error.code)
        if known is not None:
            return known
    if isinstance(error, InvalidRequestError):
        return error_code(error)
    if isinstance(error, FencedError):
        return ErrorCode.not_coordinator
    if isinstance(error, RetriableError | StorageError | TimeoutError):
        return ErrorCode.coordinator_not_available
    return error_code(error)


def refusal_once_begun(error: BaseException) -> ErrorCode:
    """Return the error code for a failed addition to a transaction: while the root has no room, retriable.

    POLICY_VIOLATION would end Java's producer at AddOffsetsToTxn and TxnOffsetCommit, and its transaction at
    AddPartitionsToTxn.
    """
    code = refusal_of(error)
    return ErrorCode.coordinator_not_available if code is ErrorCode.policy_violation else code


def masked(error: ErrorCode, *, knows_fenced: bool) -> ErrorCode:
    """Return the code that the client knows: clients older than PRODUCER_FENCED get its predecessor."""
    if error is ErrorCode.producer_fenced and not knows_fenced:
        return ErrorCode.invalid_producer_epoch
    return error


# --- active producers --------------------------------------------------------------------------------
#
# The latest writers of a partition: the producers that it remembers, and those with staged records.
#
# Invariants: pure; as of one image. A time is that of the last extent that a producer has there: where
#     extents were merged it may be another's, and later; -1 where there is none any more.
# Cost: half a microsecond for each producer, and a search in the partition's extents, which are not copied.
# Not here: bytes (sparklog_server/api).
# Concurrency: pure functions; in a storage thread, since a partition may remember thousands.
# Sources: Kafka ReplicaManager.activeProducerState, ProducerStateEntry; KIP-664.


_UNKNOWN_MS = -1


def active_producers(image: Image, state: PartitionState) -> Producers:
    """Return the active producers, least recent first."""
    producers = state.producers
    times = _times(state, _column(state, "last_offset"))
    staging = image.transactions.staging_in(state.topic_id, state.partition)
    places = {producer_id: place for place, producer_id in enumerate(producers)} if staging else {}
    for producer_id in staging:
        transaction = image.transactions.of_producer(producer_id)
        if transaction is not None and producer_id in places:
            newest = transaction.staged_in(state.topic_id, state.partition)[-1]
            times[places[producer_id]] = newest.max_timestamp_ms
    return Producers(
        producer_id=np.fromiter(producers, np.int64, len(producers)),
        producer_epoch=_column(state, "producer_epoch"),
        last_sequence=_column(state, "last_sequence"),
        last_timestamp_ms=times,
    )


def _column(state: PartitionState, name: str) -> npt.NDArray[np.int64]:
    producers = state.producers
    return np.fromiter(map(attrgetter(name), producers.values()), np.int64, len(producers))


def _times(state: PartitionState, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the times of the extents that hold these offsets."""
    times = np.full(len(offsets), _UNKNOWN_MS, np.int64)
    for _, block in state.extents.column_blocks():
        index = np.searchsorted(block.base_offset, offsets, side="right") - 1
        length = block.column("record_count")[index]
        inside = (index >= 0) & (offsets - block.base_offset[index] < length)
        times[inside] = block.column("max_timestamp_ms")[index[inside]]
    return times


# --- shares ------------------------------------------------------------------------------------------
#
# The share of a root's transactions that a client may use, per address, so that no client locks others out.
#
# All transactions are in the memory of every process that uses the root, within bounds
# (transaction_values.py). Without shares a single client could use them up, and all others would be refused.
#
#     transactional ids    an address may have a quarter of the root's bound; for the next one, its own least
#                          recently used id is forgotten
#     open transactions    an address may hold a third of the weight that is free, as of network/frames.py:
#                          alone a quarter of the bound, and less where several hold much
#
# Invariants: an id belongs to the address that used it last at this broker. Brokers do not share this, and a
#     starting broker knows no address: so the shares are per broker.
#     A refusal may be based on a slightly stale image: its error is retriable.
# Not here: the bounds, and which ids are forgotten (sparklog/metadata/model/transactions.py).
# Concurrency: event loop only.


FREE_PARTS: Final = 3  # an address may hold this fraction (1/3) of the free weight
_FEW: Final = 1_000


class ClientShares:
    """See the comment at the head of this section."""

    def __init__(
        self, max_ids: int = MAX_TRANSACTIONAL_IDS // (FREE_PARTS + 1), max_weight: int = MAX_ROOT_WEIGHT
    ) -> None:
        self.max_ids = max_ids
        self.max_weight = max_weight
        self._client_of: dict[str, str] = {}
        self._ids: dict[str, set[str]] = {}

    @property
    def known(self) -> int:
        """Return the number of remembered ids."""
        return len(self._client_of)

    def note(self, transactional_id: str, client: str, image: Image) -> None:
        """Record that a client uses an id."""
        before = self._client_of.get(transactional_id)
        if before == client:
            return
        if before is not None:
            self._remove(transactional_id)
        elif len(self._client_of) > 2 * len(image.transactions) + _FEW:
            for gone in [one for one in self._client_of if one not in image.transactions]:
                self._remove(gone)
        self._client_of[transactional_id] = client
        self._ids.setdefault(client, set()).add(transactional_id)

    def ids_to_replace(self, client: str, image: Image) -> Collection[str]:
        """Return the client's ids if its share is used up; else none."""
        own = self._ids.get(client, ())
        if len(own) < self.max_ids:
            return ()
        for gone in [one for one in own if one not in image.transactions]:
            self._remove(gone)
        own = self._ids.get(client, ())
        return tuple(own) if len(own) >= self.max_ids else ()

    def refusal(self, client: str, image: Image, weight: int) -> RetriableError | None:
        """Return the error if a client may not add this weight to open transactions; else None."""
        if not weight:
            return None
        free = self.max_weight - image.transactions.weight - weight
        if FREE_PARTS * (image.transactions.weight + weight) <= free:
            return None  # whichever address holds it
        known = (image.transactions.get(one) for one in self._ids.get(client, ()))
        held = sum(one.weight for one in known if one is not None)
        if FREE_PARTS * (held + weight) <= free:
            return None
        return RetriableError(
            "TRANSACTIONS_FULL",
            f"client {client}: found {held} bytes in its open transactions and {weight} more to be added, "
            f"expected at most {max(0, free // FREE_PARTS)}: a third of what is free in the root",
            fix="end transactions that are open (`sparklog transactions list`), then try again",
        )

    def _remove(self, transactional_id: str) -> None:
        client = self._client_of.pop(transactional_id)
        ids = self._ids[client]
        ids.discard(transactional_id)
        if not ids:
            del self._ids[client]


# --- coordinator -------------------------------------------------------------------------------------


LOOK_SECONDS: Final = 0.1  # no longer than clients wait before they send again
REMOTE_LOOK_SECONDS: Final = 0.5  # on an object store, where a refresh may wait for a commit


class Producer(NamedTuple):
    """The id and epoch of a producer, actual or claimed."""

    producer_id: int
    producer_epoch: int


class Marked(NamedTuple):
    """An administrator's request to abort a producer's transaction, which must have at least one of these
    partitions.
    """

    producer: Producer
    partitions: Collection[TopicPartition]


class TransactionCoordinator:
    """Carries out the requests of producers. Refusals are SparklogErrors."""

    def __init__(
        self,
        root: LiveRoot,
        publisher: Publishing,
        settings: TransactionSettings,
        *,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._root = root
        self._settings = settings
        self._clock = clock
        self._counters = metrics.transactions
        self.gathering = Gathering(publisher)
        self.shares = ClientShares()

    async def start(self) -> None:
        """Do nothing: there is nothing to load."""

    async def stop(self) -> None:
        """Begin no more operations."""
        self.gathering.stop()

    async def look_before_reading(self) -> None:
        """Refresh the image, before a request of the first protocol without a transaction number is read.

        Calls return in the order in which they were made.
        """
        if len(self._root.image.brokers) > 1:
            is_remote = self._root.store.traits.is_remote
            await self._root.refresh_in_order(seconds=REMOTE_LOOK_SECONDS if is_remote else LOOK_SECONDS)

    # --- what producers ask ----------------------------------------------------------------------------

    async def initialise(
        self, transactional_id: str, timeout_ms: int, has: Producer | None, client: str = ""
    ) -> Producer:
        """Return the producer's new id and epoch; fence all others with its id, and abort their transaction.

        Args:
            has: its present id and epoch, if it continues after an error.
            client: the address that asks, which has a share of the root's ids.

        Raises:
            InvalidRequestError: INVALID_TRANSACTION_TIMEOUT, and the errors of plan_begin_producer.
        """
        longest_ms = self._settings.max_timeout_ms
        if not 1 <= timeout_ms <= longest_ms:
            raise InvalidRequestError(
                "INVALID_TRANSACTION_TIMEOUT",
                f"transactional id {transactional_id[:100]!r}: found a timeout of {timeout_ms} ms, "
                f"expected 1 to {longest_ms}",
                fix="lower transaction.timeout.ms of the producer, or raise the brokers' "
                "transaction.max.timeout.ms",
            )
        now_ms = self._clock.now_ms()
        known = {} if has is None else has._asdict()
        replaceable = self.shares.ids_to_replace(client, self._root.image)

        def decide(image: Image) -> Decision[Producer]:
            begun = plan_begin_producer(
                image,
                transactional_id,
                timeout_ms=timeout_ms,
                now_ms=now_ms,
                replaceable=replaceable,
                **known,
            )
            return begun.actions, Producer(begun.producer_id, begun.producer_epoch)

        given = await self.gathering.submit(transactional_id, decide)
        self.shares.note(transactional_id, client, self._root.image)
        self._counters.initialised += 1
        return given

    async def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        client: str = "",
    ) -> None:
        """Add partitions that the producer is going to write to; if nothing is open, open its next
        transaction.

        Args:
            client: the address that asks, which has a share of what may be open.
        """
        await self._add(transactional_id, producer, client, partitions=tuple(partitions))

    async def add_group(
        self, transactional_id: str, producer: Producer, group_id: str, client: str = ""
    ) -> None:
        """Add a group whose offsets the producer is going to commit; as `add_partitions`."""
        await self._add(transactional_id, producer, client, groups=(group_id,))

    async def _add(
        self,
        transactional_id: str,
        producer: Producer,
        client: str,
        *,
        partitions: tuple[TopicPartition, ...] = (),
        groups: tuple[str, ...] = (),
    ) -> None:
        now_ms = self._clock.now_ms()

        def decide(image: Image) -> Decision[None]:
            actions = plan_add_to_transaction(
                image, transactional_id, *producer, partitions=partitions, groups=groups, now_ms=now_ms
            )
            return actions, None

        refusal = self.shares.refusal(
            client, self._root.image, _weight_of_new(self._root.image, transactional_id, partitions, groups)
        )
        if refusal is not None:
            raise refusal
        await self.gathering.submit(transactional_id, decide, weight=1 + len(partitions))
        self.shares.note(transactional_id, client, self._root.image)

    async def end(
        self, transactional_id: str, producer: Producer, *, commits: bool, raises: bool
    ) -> Producer:
        """Commit or abort the transaction; return the producer's id and epoch after that.

        Args:
            raises: raise the epoch, as in the second protocol.
        """
        number = NO_NUMBER if raises else self._root.image.transactions.open_number(*producer)
        now_ms = self._clock.now_ms()

        def decide(image: Image) -> Decision[tuple[bool, Producer]]:
            if not raises:
                _validate_number(image, transactional_id, producer, number)
            ended = plan_end_transaction(
                image,
                transactional_id,
                *producer,
                committed=commits,
                second=raises,
                number=number,
                now_ms=now_ms,
            )
            return ended.actions, (bool(ended.actions), Producer(ended.producer_id, ended.producer_epoch))

        is_new, given = await self.gathering.submit(transactional_id, decide)
        if is_new and commits:
            self._counters.committed += 1
        elif is_new:
            self._counters.aborted += 1
        return given

    # --- what administrators ask -----------------------------------------------------------------------

    async def abort(self, marked: Sequence[Marked]) -> list[SparklogError | None]:
        """Abort the open transactions of these producers, and fence them, in one commit.

        Returns: the error of each, which does not affect the others. FencedError PRODUCER_FENCED: the
            producer is in another epoch by now; InvalidRequestError TRANSACTION_STATE: none of the partitions
            is in the transaction. If nothing is open nothing happens, without an error.

        Raises:
            SparklogError: the commit failed, and aborted none of them.
        """
        now_ms = self._clock.now_ms()

        def decide(image: Image) -> Decision[tuple[list[SparklogError | None], int]]:
            refused: list[SparklogError | None] = []
            names: set[str] = set()
            for one in marked:
                found = _to_abort(image, one)
                refused.append(found if isinstance(found, SparklogError) else None)
                if isinstance(found, str):
                    names.add(found)
            actions = plan_abort_transactions(image, sorted(names), now_ms=now_ms) if names else []
            return actions, (refused, len(names))

        # The producers are known only when the plan decides: the operation gets a commit of its own.
        name = f"producers {marked[0].producer.producer_id} ..."
        refused, count = await self.gathering.submit(name, decide, weight=MOST_WEIGHT)
        self._counters.aborted_by_administrators += count
        return refused


def _weight_of_new(
    image: Image, transactional_id: str, partitions: Collection[TopicPartition], groups: Sequence[str]
) -> int:
    """Return the largest weight that these can add to a transaction."""
    known = image.transactions.get(transactional_id)
    if known is not None:
        partitions = [place for place in partitions if place not in known.partitions]
        groups = [group for group in groups if group not in known.groups]
    topics = {topic_id for topic_id, _ in partitions}
    if known is not None:
        topics -= known.partitions.by_topic.keys()
    return PARTITION_WEIGHT * len(partitions) + TOPIC_WEIGHT * len(topics) + weight_of_groups(groups)


def _to_abort(image: Image, marked: Marked) -> str | SparklogError | None:
    """Return the transactional id or the error; None: nothing is open."""
    producer = marked.producer
    known = image.transactions.of_producer(producer.producer_id)
    if known is None or not known.is_ongoing:
        return None
    if known.producer_epoch != producer.producer_epoch:
        return FencedError(
            "PRODUCER_FENCED",
            f"transactional id {known.transactional_id!r}: found epoch {producer.producer_epoch} of "
            f"producer {producer.producer_id}, expected {known.producer_epoch}",
            fix="find the transaction with `sparklog transactions describe`",
        )
    if not any(place in known.partitions for place in marked.partitions):
        return InvalidRequestError(
            "TRANSACTION_STATE",
            f"transactional id {known.transactional_id!r}: found none of these partitions in its "
            f"transaction {known.number}",
            fix="`sparklog transactions describe` shows which partitions it has",
        )
    return known.transactional_id


def _validate_number(image: Image, transactional_id: str, producer: Producer, number: int) -> None:
    known = image.transactions.get(transactional_id)
    if known is None or not known.is_ongoing or not known.is_of(*producer) or known.number == number:
        return
    raise RetriableError(
        "TRANSACTION_CHANGED",
        f"transactional id {transactional_id!r}: found transaction {known.number} open, expected "
        f"{number or 'none'}, as this broker knew when an end was asked for",
        fix="send again",
    )
