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
(CONCURRENT_TRANSACTIONS, which all clients do): whoever still waits means that one. The number is never
taken later, from an image that was looked for since: between step 1 and that look is step 2. So a producer
whose transaction was opened through another broker a moment ago is asked again as well, once by each broker
that is behind: what refuses it has looked at the newest, and shows it when the request comes again.

Produce and TxnOffsetCommit of the first protocol name the number likewise, for the same reason
(publish/staged_parts.py). But their brokers are behind most of the time: a transaction is opened through one
broker, and written to through others a moment later. So such a request is read after a look at the newest
image, which is waited for LOOK_SECONDS at most, or REMOTE_LOOK_SECONDS: the request might as well have been
so much longer on the way. If the look takes longer, the client sends again, if it has to.

Invariants: no refusal rests on an image that may be an old one: before a plan refuses, the metadata log has
    looked at the newest.
Not here: the rules and what they do (sparklog/metadata/model), what is staged (publish/), what has taken too
    long (sweep.py), Kafka's entities (api/), which commits (gathering.py).
Concurrency: event loop; what decides runs in the publisher's thread, and changes nothing.
After a crash: begin again; what was answered is in the log.
Sources: Kafka TransactionCoordinator; docs/adr/0028; tests/models/transactions.py; KIP-98, KIP-360, KIP-890.
"""

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from sparklog.clock import Clock
from sparklog.errors import FencedError, InvalidRequestError, RetriableError, SparklogError
from sparklog.metadata import (
    NO_NUMBER,
    PARTITION_WEIGHT,
    TOPIC_WEIGHT,
    Image,
    TopicPartition,
    plan_abort_transactions,
    plan_add_to_transaction,
    plan_begin_producer,
    plan_end_transaction,
    weight_of_groups,
)
from sparklog_server.metrics import Metrics
from sparklog_server.root.live_root import LiveRoot
from sparklog_server.settings.transactions import TransactionSettings
from sparklog_server.transactions.gathering import MOST_WEIGHT, Decision, Gathering, Publishing
from sparklog_server.transactions.shares import ClientShares

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
    """See the module's docstring. What is refused is a SparklogError (refusals.py)."""

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
            await self._root.look_in_order(seconds=REMOTE_LOOK_SECONDS if is_remote else LOOK_SECONDS)

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

        # Who has them is known only when it is decided: the operation is by itself in its commit.
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
