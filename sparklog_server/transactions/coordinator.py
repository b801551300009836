"""The coordinator of transactions: what producers ask of a transactional id, decided by the newest image.

It keeps nothing. All that is known of a transaction is in the image, and each operation is an action of a
commit, planned against the newest image and fenced as this broker's: so any broker may do any operation for
any id, a broker that dies between two of them leaves nothing behind, and who repeats a request at another one
gets the same answer. Who loses a race decides again.

An end of the first protocol must say which transaction it ends, since its epoch does not:

1. the producer sends EndTxn, the coordinator takes it in, and is slow;
2. the producer repeats it at another broker, is answered, and begins the next transaction in the same epoch;
3. the first coordinator commits: it would end the next transaction.

So an end names the number of the transaction that this broker's image showed open when it was taken in, or
none; and where another one is open by the time of the commit, the producer is asked to send again
(CONCURRENT_TRANSACTIONS, which all clients do): a client that still waits means that one. The number is never
taken later, from an image that was looked for since: between step 1 and that look is step 2. So a producer
whose transaction was opened through another broker a moment ago is asked again as well, once by each broker
that is behind: what refuses it has looked at the newest, and shows it when the request comes again.

Produce and TxnOffsetCommit of the first protocol name the number likewise, for the same reason
(publish/decisions.py). But their brokers are behind most of the time: a transaction is opened through one
broker, and written to through others a moment later. So such a request is read after a look at the newest
image, which is waited for LOOK_SECONDS at most, or REMOTE_LOOK_SECONDS: the request might as well have been
so much longer on the way. If the look takes longer, the client sends again, if it has to.

Invariants: no refusal rests on an image that may be an old one: before a plan refuses, the metadata log has
    looked at the newest.
Not here: the rules and what they do (sparklog/metadata/model), what is staged (publish/), what has taken too
    long (sweep.py), Kafka's entities (api/).
Concurrency: event loop; what decides runs in the publisher's thread, and changes nothing.
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
# At once when idle; while a commit is under way the next one gathers, so that a hundred producers that end
# their transactions at the same time wait for one or two commits, and not for a hundred.
#
# Invariants:
#     1. each operation decides by the image that its commit is planned against, which is the newest: an
#        answer never rests on an older one, a refusal neither;
#     2. operations on one transactional id are in different commits, in the order of `submit`. So those of
#        one commit need to know of each other only which producer ids are taken, and which ids are forgotten,
#        and one that is refused harms no other;
#     3. a client that is answered finds the same in the image that is installed.
# Bounds: operations and partitions of one commit; operations that wait, beyond which they are refused.
# Not here: fencing (publish/).
# Concurrency: event loop; `decide` is called in the publisher's thread, more than once if the commit loses a
#     race: it must not change anything but what it returns.
# After a crash: what was not answered is committed or not, and its client repeats it.
# Sources: publish/publisher.py, which gathers records likewise.


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
    """What producers ask of their transactions, gathered into commits: those of one moment share one."""

    def __init__(self, publisher: Publishing) -> None:
        self._publisher = publisher
        self._waiting: collections.deque[_Operation] = collections.deque()
        self._background = Background()
        self._is_at_work = False

    def __len__(self) -> int:
        """How many operations wait for a commit."""
        return len(self._waiting)

    def stop(self) -> None:
        """Begin no more commits; requests that wait are not answered any more."""
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
            one.future.exception()  # retrieved: the caller may be gone


# --- refusals ----------------------------------------------------------------------------------------
#
# Why a producer may not, in Kafka's error codes: each client acts on them, and some only on old ones.
#
# What a producer makes of them (Java's; others alike):
#
#     PRODUCER_FENCED, INVALID_PRODUCER_EPOCH   another process has its transactional id: it ends
#     INVALID_PRODUCER_ID_MAPPING               the id is not known any more, or another's: it ends, or
#                                               begins again
#     INVALID_TXN_STATE                         it asks for what does not follow: a fault, it ends
#     POLICY_VIOLATION                          there is no room for its id: it ends; librdkafka asks again,
#                                               for as long as it may take
#     CONCURRENT_TRANSACTIONS                   it asks again in a moment, here
#     NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE   it looks for the coordinator, and asks again there
#
# Invariants: whatever is not said by the transaction itself is one of the last two: nothing is known to have
#     happened, or what has is answered likewise when it is asked again. Of these no producer ends.
# Not here: the rules (sparklog/metadata/model), which APIs mask what since which version
# (sparklog_server/api).
# Sources: Kafka TransactionCoordinator, TransactionStateManager.appendTransactionToLog, KafkaApis
#     (PRODUCER_FENCED to those who know it), TransactionManager.TxnRequestHandler.


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
    """What to answer a producer whose transaction could not be worked on."""
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
    """The same for what is added to a transaction: while the root has no room, its producer asks again.

    POLICY_VIOLATION would end Java's at AddOffsetsToTxn and TxnOffsetCommit, and its transaction at
    AddPartitionsToTxn.
    """
    code = refusal_of(error)
    return ErrorCode.coordinator_not_available if code is ErrorCode.policy_violation else code


def masked(error: ErrorCode, *, knows_fenced: bool) -> ErrorCode:
    """For clients older than PRODUCER_FENCED: the code by which they knew it."""
    if error is ErrorCode.producer_fenced and not knows_fenced:
        return ErrorCode.invalid_producer_epoch
    return error


# --- active producers --------------------------------------------------------------------------------
#
# The latest writers of a partition: the producers that it remembers, and those that have staged
# something.
#
# Invariants: pure; as of one image. A time is that of the last extent that a producer has there: where
#     extents were merged it may be another's, and later; -1 where there is none any more.
# Cost: half a microsecond for each producer, and a search in the partition's extents, which are not copied.
# Not here: bytes (sparklog_server/api).
# Concurrency: pure functions; in a storage thread, since a partition may remember thousands.
# Sources: Kafka ReplicaManager.activeProducerState, ProducerStateEntry; KIP-664.


_UNKNOWN_MS = -1


def active_producers(image: Image, state: PartitionState) -> Producers:
    """The least recent first."""
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
    """Of the extents in which these offsets are."""
    times = np.full(len(offsets), _UNKNOWN_MS, np.int64)
    for _, block in state.extents.column_blocks():
        index = np.searchsorted(block.base_offset, offsets, side="right") - 1
        length = block.column("record_count")[index]
        inside = (index >= 0) & (offsets - block.base_offset[index] < length)
        times[inside] = block.column("max_timestamp_ms")[index[inside]]
    return times


# --- shares ------------------------------------------------------------------------------------------
#
# What a client may have of a root's transactions: a share for each address, so that none keeps others out.
#
# All of it is in the memory of everyone who uses the root, and has bounds (transaction_values.py). Without
# shares a single client could use them up, and every other one would be refused.
#
#     transactional ids    an address may have a quarter of what a root may; for the next one its own that was
#                          unused for longest is forgotten
#     open transactions    an address may hold a third of the weight that is free, as of network/frames.py:
#                          alone a quarter of the bound, and less where several hold much
#
# Invariants: an id is of the address that has used it last at this broker. Brokers do not share this, and one
#     that starts knows no address: so a share is what one broker lets a client have.
#     A refusal here may rest on an image that is a moment old: it is answered as "try again".
# Not here: the bounds, and which ids are forgotten (sparklog/metadata/model/transactions.py).
# Concurrency: event loop only.


FREE_PARTS: Final = 3  # an address may hold one of so many of what is free
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
        """How many ids are remembered."""
        return len(self._client_of)

    def note(self, transactional_id: str, client: str, image: Image) -> None:
        """An id is used by a client."""
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
        """The client's ids, if it has as many as it may; else none."""
        own = self._ids.get(client, ())
        if len(own) < self.max_ids:
            return ()
        for gone in [one for one in own if one not in image.transactions]:
            self._remove(gone)
        own = self._ids.get(client, ())
        return tuple(own) if len(own) >= self.max_ids else ()

    def refusal(self, client: str, image: Image, weight: int) -> RetriableError | None:
        """Why a client may not add so much to open transactions; None: it may."""
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
REMOTE_LOOK_SECONDS: Final = 0.5  # on an object store, where a look may have to wait for a commit


class Producer(NamedTuple):
    """Who a producer is, or says that it is."""

    producer_id: int
    producer_epoch: int


class Marked(NamedTuple):
    """Whose transaction an administrator wants aborted, and in which partitions, of which it must have one
    at least.
    """

    producer: Producer
    partitions: Collection[TopicPartition]


class TransactionCoordinator:
    """Carries out what producers ask for. What is refused is a SparklogError."""

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
        """Nothing is to be loaded."""

    async def stop(self) -> None:
        """Begin nothing more."""
        self.gathering.stop()

    async def look_before_reading(self) -> None:
        """Look at the newest image, before a request of the first protocol is read that names no number.

        Calls return in their order.
        """
        if len(self._root.image.brokers) > 1:
            is_remote = self._root.store.traits.is_remote
            await self._root.refresh_in_order(seconds=REMOTE_LOOK_SECONDS if is_remote else LOOK_SECONDS)

    # --- what producers ask ----------------------------------------------------------------------------

    async def initialise(
        self, transactional_id: str, timeout_ms: int, has: Producer | None, client: str = ""
    ) -> Producer:
        """Who the producer is from now on; all others with its id are fenced, and what is open is aborted.

        Args:
            has: who it is, if it goes on after an error.
            client: the address that asks, which has a share of the root's ids.

        Raises:
            InvalidRequestError: INVALID_TRANSACTION_TIMEOUT, and what plan_begin_producer refuses.
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
        """The producer is going to write to these; if nothing is open, this opens its next transaction.

        Args:
            client: the address that asks, which has a share of what may be open.
        """
        await self._add(transactional_id, producer, client, partitions=tuple(partitions))

    async def add_group(
        self, transactional_id: str, producer: Producer, group_id: str, client: str = ""
    ) -> None:
        """The producer is going to commit offsets of this group; as `add_partitions`."""
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
        """Who the producer is after its transaction was committed or aborted.

        Args:
            raises: the epoch is raised, as the second protocol has it.
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
        """Abort what these producers have open, and fence them, in one commit.

        Returns: what each is refused for, which harms no other. FencedError PRODUCER_FENCED: the producer is
            in another epoch by now; InvalidRequestError TRANSACTION_STATE: none of the partitions is in the
            transaction. Where nothing is open nothing happens, and nothing is refused.

        Raises:
            SparklogError: the commit failed, and none is aborted by it.
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

        # Their producers are known only when it is decided: the operation is by itself in its commit.
        name = f"producers {marked[0].producer.producer_id} ..."
        refused, count = await self.gathering.submit(name, decide, weight=MOST_WEIGHT)
        self._counters.aborted_by_administrators += count
        return refused


def _weight_of_new(
    image: Image, transactional_id: str, partitions: Collection[TopicPartition], groups: Sequence[str]
) -> int:
    """What these add to a transaction, at most."""
    known = image.transactions.get(transactional_id)
    if known is not None:
        partitions = [place for place in partitions if place not in known.partitions]
        groups = [group for group in groups if group not in known.groups]
    topics = {topic_id for topic_id, _ in partitions}
    if known is not None:
        topics -= known.partitions.by_topic.keys()
    return PARTITION_WEIGHT * len(partitions) + TOPIC_WEIGHT * len(topics) + weight_of_groups(groups)


def _to_abort(image: Image, marked: Marked) -> str | SparklogError | None:
    """The transactional id; None: nothing is open."""
    producer = marked.producer
    known = image.transactions.of_producer(producer.producer_id)
    if known is None or not known.is_ongoing:
        return None
    if known.producer_epoch != producer.producer_epoch:
        return FencedError(
            "PRODUCER_FENCED",
            f"transactional id {known.transactional_id!r}: found epoch {producer.producer_epoch} of "
            f"producer {producer.producer_id}, expected {known.producer_epoch}",
            fix="look which transaction is meant (`sparklog transactions describe`)",
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
