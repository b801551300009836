"""Applying actions to an image: the one place that says what an action does, live and in replay.

Invariants: either all actions of a commit apply, or the image stays as it was, and
ActionRefusedError says why.
Everything is checked against the image, also what plan.py has checked: a commit that does not apply
means that the log, or the code that wrote it, is wrong.
Not here: whether a refusal means a corrupt log or a wrong call (log.py decides).
Concurrency: a builder belongs to one thread; the images it takes and gives are immutable.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from sparklog.metadata import publishers
from sparklog.metadata.actions import (
    NO_PRODUCER_ID,
    Action,
    AddPartitions,
    AdvanceLogStart,
    AllocateProducerIds,
    AppendExtents,
    CreateTopic,
    DeleteTopic,
    Extent,
    RegisterBroker,
    ReplaceExtents,
    RequestApplied,
    SetConfigs,
    WriterTxn,
)
from sparklog.metadata.drafts import PartitionDraft, TopicDraft
from sparklog.metadata.extent_list import ExtentList
from sparklog.metadata.ids import is_id
from sparklog.metadata.image import (
    BrokerRegistration,
    Image,
    PartitionState,
    ProducerState,
    Topic,
    WriterTxnState,
)
from sparklog.metadata.refusing import ActionRefusedError, refuse
from sparklog.metadata.replacing import refuse_unordered, replaced_range
from sparklog.metadata.sequences import SequenceCheck, check_sequence, last_sequence, remember
from sparklog.metadata.topic_names import why_illegal_topic_name
from sparklog.metadata.validate import (
    why_illegal_configs,
    why_illegal_extent,
    why_illegal_partition_count,
    why_illegal_producer_ids,
    why_illegal_registration,
    why_illegal_request,
    why_illegal_writer_txn,
)


def apply_actions(image: Image, actions: Sequence[Action], *, commit: int, commit_uuid: str) -> Image:
    """The image after one more commit."""
    builder = ImageBuilder(image)
    builder.apply(actions, commit=commit, commit_uuid=commit_uuid)
    return builder.image()


class ImageBuilder:
    """Applies any number of commits; what they share is copied once, when it is first changed.

    After a refusal the builder is of no more use.
    """

    def __init__(self, image: Image) -> None:
        self._commit = image.commit
        self._commit_uuid = image.commit_uuid
        self._cluster_id = image.cluster_id
        # Topics that have a draft are stale in these two, until image() puts the drafts in.
        self._by_name = dict(image.topics)
        self._by_id = dict(image.topic_by_id)
        self._writer_txns = dict(image.writer_txns)
        self._configs = dict(image.configs)
        self._broker = image.broker
        self._next_producer_id = image.next_producer_id
        self._publishers = dict(image.publishers)
        self._topic_drafts: dict[str, TopicDraft] = {}
        self._partition_drafts: dict[tuple[str, int], PartitionDraft] = {}

    def apply(self, actions: Sequence[Action], *, commit: int, commit_uuid: str) -> None:
        """Apply one commit, the next one."""
        if commit != self._commit + 1:
            raise ActionRefusedError(f"commit {commit} does not follow commit {self._commit}")
        for number, action in enumerate(actions):
            try:
                self._apply(action, commit, len(actions) - number - 1)
            except ActionRefusedError as error:
                kind = action.__struct_config__.tag
                raise ActionRefusedError(f"action {number} ({kind}): {error}") from None
        self._commit, self._commit_uuid = commit, commit_uuid
        publishers.forget(self._publishers, commit)

    def image(self) -> Image:
        """The image after everything applied; it takes over the builder's state, so call this last."""
        for (topic_id, partition), draft in self._partition_drafts.items():
            self._topic_drafts[topic_id].partitions[partition] = draft.flushed()
        for made in self._topic_drafts.values():
            topic = Topic(
                topic_id=made.topic_id,
                name=made.name,
                partitions=tuple(made.partitions),
                configs=made.configs,
                writer_txns=made.writer_txns,
            )
            self._by_name[made.name] = self._by_id[made.topic_id] = topic
        return Image(
            commit=self._commit,
            commit_uuid=self._commit_uuid,
            cluster_id=self._cluster_id,
            topics=self._by_name,
            topic_by_id=self._by_id,
            writer_txns=self._writer_txns,
            configs=self._configs,
            broker=self._broker,
            next_producer_id=self._next_producer_id,
            publishers=self._publishers,
        )

    def _apply(self, action: Action, commit: int, actions_left: int) -> None:
        match action:
            case AppendExtents():
                for extent in action.extents:
                    self._append(extent)
            case WriterTxn():
                self._writer_txn(action, commit)
            case CreateTopic():
                self._create_topic(action)
            case DeleteTopic():
                self._delete_topic(action)
            case AddPartitions():
                self._add_partitions(action)
            case SetConfigs():
                self._set_configs(action)
            case ReplaceExtents():
                self._replace(action)
            case AdvanceLogStart():
                self._advance_log_start(action)
            case RegisterBroker():
                self._register_broker(action)
            case AllocateProducerIds():
                self._allocate_producer_ids(action)
            case RequestApplied():
                self._request_applied(action, commit, actions_left)
            case _:
                assert_never(action)

    # --- topics --------------------------------------------------------------------------------------

    def _create_topic(self, action: CreateTopic) -> None:
        if not is_id(action.topic_id) or action.topic_id in self._by_id:
            raise ActionRefusedError(f"topic id {action.topic_id!r} is malformed or taken")
        refuse(why_illegal_topic_name(action.name), f"topic name {action.name!r}")
        if action.name in self._by_name:
            raise ActionRefusedError(f"topic name {action.name!r} is taken")
        refuse(why_illegal_partition_count(action.partitions), f"topic {action.name!r}")
        refuse(why_illegal_configs(action.configs), f"topic {action.name!r}")
        topic = Topic(topic_id=action.topic_id, name=action.name, partitions=(), configs={})
        self._by_name[action.name] = self._by_id[action.topic_id] = topic
        self._topic_drafts[action.topic_id] = TopicDraft(
            action.topic_id,
            action.name,
            _empty_partitions(action.topic_id, 0, action.partitions),
            dict(action.configs),
            {},
        )

    def _delete_topic(self, action: DeleteTopic) -> None:
        draft = self._topic(action.topic_id)
        del self._by_id[action.topic_id], self._by_name[draft.name], self._topic_drafts[action.topic_id]
        self._partition_drafts = {
            key: state for key, state in self._partition_drafts.items() if key[0] != action.topic_id
        }

    def _add_partitions(self, action: AddPartitions) -> None:
        draft = self._topic(action.topic_id)
        refuse(why_illegal_partition_count(action.partitions), f"topic {draft.name!r}")
        count = len(draft.partitions)
        if action.partitions <= count:
            raise ActionRefusedError(
                f"{action.partitions} partitions, the topic has {count} and can only grow"
            )
        draft.partitions += _empty_partitions(action.topic_id, count, action.partitions)

    def _set_configs(self, action: SetConfigs) -> None:
        refuse(why_illegal_configs(action.configs), "settings")
        configs = self._configs if action.topic_id is None else self._topic(action.topic_id).configs
        for key, value in action.configs.items():
            if value is None:
                configs.pop(key, None)
            else:
                configs[key] = value

    def _topic(self, topic_id: str) -> TopicDraft:
        draft = self._topic_drafts.get(topic_id)
        if draft is None:
            topic = self._by_id.get(topic_id)
            if topic is None:
                raise ActionRefusedError(f"no topic has the id {topic_id!r}")
            draft = TopicDraft(
                topic_id, topic.name, list(topic.partitions), dict(topic.configs), topic.writer_txns
            )
            self._topic_drafts[topic_id] = draft
        return draft

    # --- partitions ----------------------------------------------------------------------------------

    def _append(self, extent: Extent) -> None:
        where = f"partition {extent.partition} of topic {extent.topic_id}"
        refuse(why_illegal_extent(extent), where)
        draft = self._partition(extent.topic_id, extent.partition)
        if extent.base_offset != draft.log_end_offset:
            raise ActionRefusedError(
                f"{where}: base offset {extent.base_offset}, expected the log end {draft.log_end_offset}"
            )
        if extent.producer_id != NO_PRODUCER_ID:
            self._produce(draft, extent, where)
        draft.pending.append(extent)
        draft.log_end_offset = extent.end_offset

    def _produce(self, draft: PartitionDraft, extent: Extent, where: str) -> None:
        if draft.producers is None:
            draft.producers = dict(draft.state.producers)
        known = draft.producers.get(extent.producer_id)
        check = check_sequence(known, extent.producer_epoch, extent.base_sequence)
        if check is not SequenceCheck.NEXT:
            raise ActionRefusedError(
                f"{where}: producer {extent.producer_id} epoch {extent.producer_epoch} sequence "
                f"{extent.base_sequence} {check.value}, known is {known}"
            )
        last = last_sequence(extent.base_sequence, extent.record_count)
        state = ProducerState(extent.producer_epoch, last, extent.end_offset - 1)
        remember(draft.producers, extent.producer_id, state)

    def _replace(self, action: ReplaceExtents) -> None:
        where = f"partition {action.partition} of topic {action.topic_id}"
        draft = self._partition(action.topic_id, action.partition)
        state = draft.flushed()
        start, stop = replaced_range(state, action, where)
        refuse_unordered(action, where)
        draft.state = replace(state, extents=state.extents.replaced(start, stop, action.added))

    def _advance_log_start(self, action: AdvanceLogStart) -> None:
        where = f"partition {action.partition} of topic {action.topic_id}"
        draft = self._partition(action.topic_id, action.partition)
        state = draft.flushed()
        if not state.log_start_offset < action.log_start_offset <= state.log_end_offset:
            raise ActionRefusedError(
                f"{where}: log start offset {action.log_start_offset}, expected above "
                f"{state.log_start_offset} and at most {state.log_end_offset}"
            )
        draft.state = replace(
            state,
            log_start_offset=action.log_start_offset,
            extents=state.extents.dropped_before(action.log_start_offset),
        )

    def _partition(self, topic_id: str, partition: int) -> PartitionDraft:
        draft = self._partition_drafts.get((topic_id, partition))
        if draft is None:
            partitions = self._topic(topic_id).partitions
            if not 0 <= partition < len(partitions):
                raise ActionRefusedError(
                    f"topic {topic_id} has no partition {partition}, only {len(partitions)}"
                )
            state = partitions[partition]
            draft = PartitionDraft(state, state.log_end_offset, [])
            self._partition_drafts[topic_id, partition] = draft
        return draft

    # --- writers -------------------------------------------------------------------------------------

    def _writer_txn(self, action: WriterTxn, commit: int) -> None:
        refuse(why_illegal_writer_txn(action), "writer transaction")
        of_root = self._writer_txns.get(action.application, -1)
        if action.topics is None:
            _refuse_version(action, of_root, "")
            self._writer_txns[action.application] = action.version
            return
        for topic_id in action.topics:
            draft = self._topic(topic_id)
            found = draft.writer_txns.get(action.application)
            known = of_root if found is None else max(of_root, found.version)
            _refuse_version(action, known, f" in topic {draft.name!r}")
            draft.note(action.application, WriterTxnState(action.version, commit, action.content))

    def _request_applied(self, action: RequestApplied, commit: int, actions_left: int) -> None:
        refuse(why_illegal_request(action), "request")
        if action.actions > actions_left:
            raise ActionRefusedError(f"{action.actions} actions of a request, found {actions_left}")
        refusal = publishers.settle(self._publishers, action, commit)
        if refusal is not None:
            raise ActionRefusedError(refusal)

    # --- brokers -------------------------------------------------------------------------------------

    def _register_broker(self, action: RegisterBroker) -> None:
        refuse(why_illegal_registration(action), "broker registration")
        if self._broker is not None and action.broker_epoch <= self._broker.broker_epoch:
            raise ActionRefusedError(
                f"broker epoch {action.broker_epoch}, expected one above {self._broker.broker_epoch}"
            )
        self._broker = BrokerRegistration(
            node_id=action.node_id,
            broker_epoch=action.broker_epoch,
            incarnation_id=action.incarnation_id,
            listeners=action.listeners,
        )

    def _allocate_producer_ids(self, action: AllocateProducerIds) -> None:
        refuse(why_illegal_producer_ids(action), "producer ids")
        if action.first != self._next_producer_id:
            raise ActionRefusedError(f"producer ids from {action.first}, expected {self._next_producer_id}")
        self._next_producer_id = action.first + action.count


def _refuse_version(action: WriterTxn, known: int, where: str) -> None:
    if action.version <= known:
        raise ActionRefusedError(
            f"version {action.version} of {action.application!r}{where}, expected one above {known}"
        )


def _empty_partitions(topic_id: str, start: int, stop: int) -> list[PartitionState]:
    return [
        PartitionState(
            topic_id=topic_id,
            partition=partition,
            log_start_offset=0,
            log_end_offset=0,
            extents=ExtentList(topic_id, partition),
        )
        for partition in range(start, stop)
    ]


__all__ = ["ActionRefusedError", "ImageBuilder", "apply_actions"]
