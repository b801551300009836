"""An image while actions are applied to it: shared state is copied once, at its first change.

Invariants: a topic or partition that has a draft is read only through the draft. After a refused action the
draft is unusable.
Not here: the effects of actions (their subjects' modules), their order and commits (actions.py).
Concurrency: a draft belongs to one thread; the images it takes and returns are immutable.
"""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

import msgspec
from msgspec.structs import replace

from sparklog.metadata.model.action import ActionRefusedError
from sparklog.metadata.model.extent_list import Extent, ExtentColumns, ExtentList
from sparklog.metadata.model.image import (
    Image,
    PartitionLeadership,
    PartitionState,
    ProducerState,
    Replayed,
    Topic,
    WriterTxnState,
)
from sparklog.metadata.model.retired import RetiredDraft
from sparklog.metadata.model.share_values import SharePlace, ShareState
from sparklog.metadata.model.transaction_values import (
    NO_PARTITIONS,
    NOBODY,
    SharedMapDraft,
    TopicPartition,
    Transaction,
    Transactions,
)

# --- transaction draft -------------------------------------------------------------------------------
#
# Transactions while actions are applied: shared state is copied once, at its first change.
#
# Invariants: as of the values; a commit without transactions copies nothing of them, one that stages copies
# the state of its own transactions, and a small share of the dictionaries of ids (transaction_values.py).
# Not here: the effects of actions (transactions.py, staging.py).
# Concurrency: a draft belongs to one thread; the values it takes and returns are immutable.


class OpenTransaction:
    """A mutable ongoing transaction, with its staged extents."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._partitions = transaction.partitions
        self._added: dict[str, set[int]] = {}
        self._staged = dict(transaction.staged)
        self.itself = frozenset({transaction.producer_id})
        self._pending: dict[TopicPartition, list[Extent]] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._extents, self._bytes = transaction.staged_extents, transaction.staged_bytes

    @property
    def producer_id(self) -> int:
        """As of the transaction."""
        return self._transaction.producer_id

    @property
    def producer_epoch(self) -> int:
        """As of the transaction."""
        return self._transaction.producer_epoch

    def has(self, place: TopicPartition) -> bool:
        """True if the partition was added."""
        return place[1] in self._added.get(place[0], ()) or place in self._partitions

    def add(self, place: TopicPartition) -> None:
        """Add a partition, if it is missing."""
        if not self.has(place):
            self._added.setdefault(place[0], set()).add(place[1])

    def end_of(self, place: TopicPartition) -> int:
        """Return the start of the next extent of an added partition."""
        end = self._ends.get(place)
        if end is not None:
            return end
        staged = self._staged.get(place)
        return 0 if staged is None else staged.end_offset

    def stage(self, extent: Extent) -> None:
        """Append an extent to its partition's."""
        place = extent.topic_id, extent.partition
        self._pending.setdefault(place, []).append(extent)
        self._ends[place] = extent.end_offset
        self._extents += 1
        self._bytes += extent.size

    def flushed(self) -> Transaction:
        """Return the transaction with all changes; call it last."""
        for place, extents in self._pending.items():
            before = self._staged.get(place)
            self._staged[place] = (ExtentList(*place) if before is None else before).appended(extents)
        return dataclasses.replace(
            self._transaction,
            partitions=self._partitions.having(self._added),
            staged=self._staged,
            staged_extents=self._extents,
            staged_bytes=self._bytes,
        )


class TransactionsDraft:
    """The mutable state of transactions, for the effects of actions."""

    def __init__(self, before: Transactions) -> None:
        self._before = before
        self._by_id = SharedMapDraft(before.by_id)
        self._by_producer = SharedMapDraft(before.by_producer)
        self._deadlines = SharedMapDraft(before.deadlines)
        self._staging: dict[TopicPartition, frozenset[int]] | None = None
        # Newer than the transactions of these ids, which are flushed when all are requested.
        self._open: dict[str, OpenTransaction] = {}
        self.staged_extents, self.staged_bytes = before.staged_extents, before.staged_bytes
        self._weight = before.weight

    def get(self, transactional_id: str) -> Transaction | None:
        """Return the transaction as changed so far."""
        opened = self._open.pop(transactional_id, None)
        if opened is not None:
            self.put(opened.flushed())
        return self._by_id.get(transactional_id)

    def of_producer(self, producer_id: int) -> Transaction | None:
        """As `get`, by the producer id."""
        transactional_id = self._by_producer.get(producer_id)
        return None if transactional_id is None else self.get(transactional_id)

    def open_of_producer(self, producer_id: int) -> OpenTransaction | None:
        """Return a producer's ongoing transaction; None if it has no transactional id, or none is ongoing."""
        transactional_id = self._by_producer.get(producer_id)
        if transactional_id is None:
            return None
        found = self._open.get(transactional_id)
        if found is None:
            transaction = self.get(transactional_id)
            if transaction is not None and transaction.is_ongoing:
                found = self._open[transactional_id] = OpenTransaction(transaction)
        return found

    def staging_in(self, topic_id: str, partition: int) -> frozenset[int]:
        """Return the producers whose open transactions have staged extents in a partition."""
        staging = self._before.staging if self._staging is None else self._staging
        return staging.get((topic_id, partition), NOBODY)

    def refers_to(self, segment: str) -> bool:
        """True if a staged extent is in this segment."""
        return self.transactions().refers_to(segment)

    def put(self, transaction: Transaction) -> None:
        """Replace the transaction of its id."""
        name = transaction.transactional_id
        self._open.pop(name, None)
        before = self._by_id.get(name)
        if before is None or before.producer_id != transaction.producer_id:
            if before is not None:
                self._by_producer.remove(before.producer_id)
            self._by_producer[transaction.producer_id] = name
        self._by_id[name] = transaction
        self._weight += transaction.weight - (0 if before is None else before.weight)
        deadline_ms, before_ms = transaction.deadline_ms, self._deadlines.get(name)
        if deadline_ms is not None and deadline_ms != before_ms:
            self._deadlines[name] = deadline_ms
        elif deadline_ms is None and before_ms is not None:
            self._deadlines.remove(name)

    def remove(self, transaction: Transaction) -> None:
        """Forget a transaction without staged extents."""
        self._by_id.remove(transaction.transactional_id)
        self._by_producer.remove(transaction.producer_id)

    def add_partitions(self, transaction: Transaction, added: Iterable[TopicPartition]) -> Transaction:
        """Return an ongoing transaction with partitions added; the caller puts it."""
        opened = OpenTransaction(transaction)
        for place in added:
            opened.add(place)
        return opened.flushed()

    def stage(self, opened: OpenTransaction, extent: Extent) -> None:
        """Stage an extent, whose offsets count from 0."""
        opened.stage(extent)
        self.staged_extents += 1
        self.staged_bytes += extent.size
        place = extent.topic_id, extent.partition
        if opened.producer_id not in self.staging_in(*place):
            staging = self._own_staging()
            others = staging.get(place)
            staging[place] = opened.itself if others is None else others | opened.itself

    def clear(self, transaction: Transaction) -> Transaction:
        """Return a transaction without partitions, groups and staged extents; the caller puts it."""
        for place in transaction.staged:
            self._leave(place, transaction.producer_id)
        self.staged_extents -= transaction.staged_extents
        self.staged_bytes -= transaction.staged_bytes
        return dataclasses.replace(
            transaction, partitions=NO_PARTITIONS, staged={}, groups=(), staged_extents=0, staged_bytes=0
        )

    def staged_in_topic(self, topic_id: str) -> list[ExtentList]:
        """Return everything staged in a topic."""
        return [
            extents
            for transaction in self.transactions().by_id.values()
            for (topic, _), extents in transaction.staged.items()
            if topic == topic_id
        ]

    def drop_topic(self, topic_id: str, partitions: int) -> None:
        """Drop the staged extents of a deleted topic."""
        if self._staging is None and not self._before.staging:
            return
        for place in ((topic_id, partition) for partition in range(partitions)):
            for producer_id in self.staging_in(*place):
                transaction = self.of_producer(producer_id)
                assert transaction is not None, "staging is consistent with the transactions"
                left = dict(transaction.staged)
                dropped = left.pop(place).columns()
                sizes = dropped.stored_bytes
                self.put(
                    dataclasses.replace(
                        transaction,
                        partitions=transaction.partitions.without(*place),
                        staged=left,
                        staged_extents=transaction.staged_extents - len(dropped),
                        staged_bytes=transaction.staged_bytes - sizes,
                    )
                )
                self.staged_extents -= len(dropped)
                self.staged_bytes -= sizes
                self._leave(place, producer_id)

    def _own_staging(self) -> dict[TopicPartition, frozenset[int]]:
        if self._staging is None:
            self._staging = dict(self._before.staging)
        return self._staging

    def _leave(self, place: TopicPartition, producer_id: int) -> None:
        staging = self._own_staging()
        left = staging[place] - {producer_id}
        if left:
            staging[place] = left
        else:
            del staging[place]

    def transactions(self) -> Transactions:
        """Return the transactions with all changes; call it last."""
        for transactional_id in list(self._open):
            self.get(transactional_id)
        by_id = self._by_id.done()
        if by_id is self._before.by_id:
            return self._before
        return Transactions(
            by_id=by_id,
            by_producer=self._by_producer.done(),
            deadlines=self._deadlines.done(),
            staging=self._before.staging if self._staging is None else self._staging,
            staged_extents=self.staged_extents,
            staged_bytes=self.staged_bytes,
            weight=self._weight,
        )


# --- draft -------------------------------------------------------------------------------------------


class PartitionDraft(msgspec.Struct):
    """A partition, and the extents appended to it since."""

    state: PartitionState
    log_end_offset: int
    pending: list[Extent]
    own_producers: dict[int, ProducerState] | None = None  # a copy, from the first change on

    def changing_producers(self) -> dict[int, ProducerState]:
        """Return its producers' last batches, for changes in place."""
        if self.own_producers is None:
            self.own_producers = dict(self.state.producers)
        return self.own_producers

    @property
    def leadership(self) -> PartitionLeadership:
        """The leadership as changed so far."""
        return self.state.leadership

    def lead(self, leadership: PartitionLeadership) -> None:
        """Set the leadership."""
        self.state = replace(self.state, leadership=leadership)

    def flushed(self) -> PartitionState:
        """Return the partition with all appended extents and producers' batches."""
        if self.pending or self.own_producers is not None:
            before = self.state
            self.state = replace(
                before,
                log_end_offset=self.log_end_offset,
                extents=before.extents.appended(self.pending) if self.pending else before.extents,
                producers=before.producers if self.own_producers is None else self.own_producers,
            )
            self.pending, self.own_producers = [], None
        return self.state

    def publish(self, staged: ExtentList) -> None:
        """Append staged extents, which count from 0, at the partition's end."""
        before = self.flushed()
        self.log_end_offset = before.log_end_offset + staged.end_offset
        self.state = replace(
            before,
            log_end_offset=self.log_end_offset,
            extents=before.extents.joined(staged, before.log_end_offset),
        )


@dataclass(slots=True)
class TopicDraft:
    """A mutable topic."""

    topic_id: str
    name: str
    partitions: list[PartitionState]
    configs: dict[str, str]
    writer_txns: Mapping[str, WriterTxnState]
    own_writer_txns: dict[str, WriterTxnState] | None = None  # a copy, from the first change on

    def changing_writer_txns(self) -> dict[str, WriterTxnState]:
        """Return its remembered versions, for changes in place."""
        if self.own_writer_txns is None:
            self.writer_txns = self.own_writer_txns = dict(self.writer_txns)
        return self.own_writer_txns


@dataclass(slots=True, kw_only=True)
class Acting:
    """The broker whose actions are applied (registry.py).

    Fields:
        until: the number of the commit's remaining actions after its last one.
        epochs: the leader epoch in which each extent was accepted; `is_counted`: their number must match.
    """

    node_id: int
    until: int
    epochs: Iterator[int]
    is_counted: bool

    def require_leadership(self, partition: PartitionDraft) -> None:
        """Check the leadership for one more extent; ActionRefusedError if it has changed since then."""
        now = partition.state
        epoch = next(self.epochs, None)
        if epoch is None:
            raise ActionRefusedError("more extents than leader epochs")
        if (now.leadership.leader, now.leadership.leader_epoch) != (self.node_id, epoch):
            raise ActionRefusedError(
                f"partition {now.partition} of topic {now.topic_id}: broker {self.node_id} in leader epoch "
                f"{epoch}, expected {now.leadership.leader} in {now.leadership.leader_epoch}"
            )

    def end(self) -> None:
        """Called after its last action."""
        if self.is_counted and next(self.epochs, None) is not None:
            raise ActionRefusedError("fewer extents than leader epochs")


class ImageDraft:
    """The mutable image, for the effects of actions.

    Fields:
        commit: the commit whose actions are applied.
        actions_left: the number of actions after the current one.
        cluster_id: of the root.
        acting: the broker of the current action, if any.
        cluster_changed, newest_ms: as in the image.
        transactions, retired: as in the image, changed by their own methods.
        shares: as in the image, changed by `set_share`.
        configs, reader_features, writer_features, brokers, controller, next_producer_id, publishers,
            sweep_horizon, producers_marked_ms, incarnation: as in the image, changed in place.
        acls, quotas: as in the image, replaced when they change.
    """

    def __init__(self, image: Image) -> None:
        self.commit = image.commit
        self.actions_left = 0
        self.acting: Acting | None = None
        self.cluster_changed = image.cluster_changed
        self.newest_ms = image.newest_ms
        self.configs = dict(image.configs)
        self.reader_features, self.writer_features = image.reader_features, image.writer_features
        self.brokers = dict(image.brokers)
        self.controller = image.controller
        self.next_producer_id = image.next_producer_id
        self.publishers = dict(image.publishers)
        self.sweep_horizon = image.sweep_horizon
        self.retired = RetiredDraft(image.retired)
        self.producers_marked_ms = image.producers_marked_ms
        self.transactions = TransactionsDraft(image.transactions)
        self.incarnation = image.incarnation
        self.scram = image.scram  # replaced, not changed
        self.acls, self.quotas = image.acls, image.quotas
        self.shares: dict[str, Mapping[SharePlace, ShareState]] = dict(image.shares)
        self._own_shares: dict[str, dict[SharePlace, ShareState]] = {}  # copied, and so mutable
        self._share_count: int | None = None  # not counted yet
        self.cluster_id = image.cluster_id
        # Topics that have a draft are stale in these two, until image() replaces them.
        self._by_name = dict(image.topics)
        self._by_id = dict(image.topic_by_id)
        self._topics: dict[str, TopicDraft] = {}
        self._partitions: dict[tuple[str, int], PartitionDraft] = {}

    def has_topic(self, topic_id: str) -> bool:
        """True if the topic id is taken."""
        return topic_id in self._by_id

    def has_name(self, name: str) -> bool:
        """True if the topic name is taken."""
        return name in self._by_name

    def topic(self, topic_id: str) -> TopicDraft:
        """Return a mutable topic; ActionRefusedError if there is none."""
        draft = self._topics.get(topic_id)
        if draft is None:
            topic = self._by_id.get(topic_id)
            if topic is None:
                raise ActionRefusedError(f"no topic has the id {topic_id!r}")
            draft = TopicDraft(
                topic_id, topic.name, list(topic.partitions), dict(topic.configs), topic.writer_txns
            )
            self._topics[topic_id] = draft
        return draft

    def partition(self, topic_id: str, partition: int) -> PartitionDraft:
        """Return a mutable partition; ActionRefusedError if there is none."""
        draft = self._partitions.get((topic_id, partition))
        if draft is None:
            partitions = self.topic(topic_id).partitions
            if not 0 <= partition < len(partitions):
                raise ActionRefusedError(
                    f"topic {topic_id} has no partition {partition}, only {len(partitions)}"
                )
            state = partitions[partition]
            draft = PartitionDraft(state, state.log_end_offset, [])
            self._partitions[topic_id, partition] = draft
        return draft

    def led_by(self, node_id: int) -> Iterator[PartitionDraft]:
        """Yield the partitions that a broker leads, mutable. Cost: a scan of all partitions."""
        for topic_id, topic in self._by_id.items():
            draft = self._topics.get(topic_id)
            for number, state in enumerate(topic.partitions if draft is None else draft.partitions):
                partition = self._partitions.get((topic_id, number))
                leadership = state.leadership if partition is None else partition.leadership
                if leadership.leader == node_id:
                    yield self.partition(topic_id, number)

    def refers_to(self, segment: str) -> bool:
        """True if a segment is live, as changed so far. Cost: as Image.refers_to."""
        for topic_id, topic in self._by_id.items():
            draft = self._topics.get(topic_id)
            for number, state in enumerate(topic.partitions if draft is None else draft.partitions):
                partition = self._partitions.get((topic_id, number))
                if partition is not None:
                    state = partition.state  # noqa: PLW2901 - it is stale in the topic
                    if any(extent.segment == segment for extent in partition.pending):
                        return True
                if state.extents.refers_to(segment):
                    return True
        return self.transactions.refers_to(segment)

    def states(self) -> Iterator[PartitionState]:
        """Yield all partitions, as changed so far."""
        for topic_id, topic in self._by_id.items():
            draft = self._topics.get(topic_id)
            for number, state in enumerate(topic.partitions if draft is None else draft.partitions):
                partition = self._partitions.get((topic_id, number))
                yield state if partition is None else partition.flushed()

    def live_among(self, segments: Collection[str]) -> set[str]:
        """Return the live ones of the segments, as changed so far. Cost: a scan of all extents."""
        wanted, found = set(segments), set[str]()
        for extents in chain((state.extents for state in self.states()), self._staged_lists()):
            for _, block in extents.column_blocks():
                found |= wanted.intersection(block.segment.tolist())
        return found

    def _staged_lists(self) -> Iterator[ExtentList]:
        return self.transactions.transactions().staged_lists()

    def count_removed(self, columns: ExtentColumns, *, back: bool = False) -> None:
        """Count removed extents (retired.py); `back`: these are there again."""
        self.retired.count(columns, self.sweep_horizon, back=back)

    def count_dropped(self, transaction: Transaction) -> None:
        """Count the staged extents of a transaction as removed."""
        for extents in transaction.staged.values():
            self.count_removed(extents.columns())

    @property
    def share_count(self) -> int:
        """How many states share groups have; counted once: a request may begin in thousands of partitions."""
        if self._share_count is None:
            self._share_count = sum(map(len, self.shares.values()))
        return self._share_count

    def set_share(self, group: str, place: SharePlace, state: ShareState | None) -> None:
        """Set or (None) remove the state of a share group in a partition."""
        own = self._own_shares.get(group)
        if own is None:
            own = self._own_shares[group] = dict(self.shares.get(group, {}))
        if self._share_count is not None:
            self._share_count += (state is not None) - (place in own)
        if state is None:
            own.pop(place, None)
        else:
            own[place] = state
        if own:
            self.shares[group] = own
        else:
            self.shares.pop(group, None)
            del self._own_shares[group]

    def add_topic(self, draft: TopicDraft) -> None:
        """Add a topic with a free id and name."""
        topic = Topic(topic_id=draft.topic_id, name=draft.name, partitions=(), configs={})
        self._by_name[draft.name] = self._by_id[draft.topic_id] = topic
        self._topics[draft.topic_id] = draft

    def remove_topic(self, draft: TopicDraft) -> None:
        """Remove the topic, its partitions, and their staged extents."""
        for number in range(len(draft.partitions)):
            self.count_removed(self.partition(draft.topic_id, number).flushed().extents.columns())
        for staged in self.transactions.staged_in_topic(draft.topic_id):
            self.count_removed(staged.columns())
        self.transactions.drop_topic(draft.topic_id, len(draft.partitions))
        for group, states in list(self.shares.items()):
            for place in [place for place in states if place[0] == draft.topic_id]:
                self.set_share(group, place, None)
        del self._by_id[draft.topic_id], self._by_name[draft.name], self._topics[draft.topic_id]
        self._partitions = {key: state for key, state in self._partitions.items() if key[0] != draft.topic_id}

    def image(self, *, commit: int, commit_uuid: str, replayed: Replayed) -> Image:
        """Return the image with all changes; it takes over the draft's state, so call it last."""
        for (topic_id, partition), draft in self._partitions.items():
            self._topics[topic_id].partitions[partition] = draft.flushed()
        for made in self._topics.values():
            topic = Topic(
                topic_id=made.topic_id,
                name=made.name,
                partitions=tuple(made.partitions),
                configs=made.configs,
                writer_txns=made.writer_txns,
            )
            self._by_name[made.name] = self._by_id[made.topic_id] = topic
        return Image(
            commit=commit,
            commit_uuid=commit_uuid,
            cluster_id=self.cluster_id,
            topics=self._by_name,
            topic_by_id=self._by_id,
            configs=self.configs,
            reader_features=self.reader_features,
            writer_features=self.writer_features,
            brokers=self.brokers,
            controller=self.controller,
            next_producer_id=self.next_producer_id,
            publishers=self.publishers,
            sweep_horizon=self.sweep_horizon,
            retired=self.retired.done(),
            producers_marked_ms=self.producers_marked_ms,
            transactions=self.transactions.transactions(),
            incarnation=self.incarnation,
            scram=self.scram,
            acls=self.acls,
            quotas=self.quotas,
            shares=self.shares,
            cluster_changed=self.cluster_changed,
            newest_ms=self.newest_ms,
            replayed=replayed,
        )
