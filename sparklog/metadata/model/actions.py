"""All kinds of actions: what one metadata commit can say, and the table of what each does.

Invariants: unknown action types and unknown fields are refused (decode in documents/document.py), never
skipped; what a document can hold, the table can apply (a test compares both with FORMAT.md).
Not here: a kind itself (its subject's module).
Sources: FORMAT.md#metadata-log.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from sparklog.metadata.model import (
    access,
    extents,
    registry,
    restoring,
    sequences,
    settings,
    sharing,
    staging,
    sweeping,
    topics,
    transactions,
    users,
    writers,
)
from sparklog.metadata.model.access import ChangeAcls, SetQuotas
from sparklog.metadata.model.action import ActionBase, ActionRefusedError
from sparklog.metadata.model.draft import ImageDraft
from sparklog.metadata.model.extents import AdvanceLogStart, AppendExtents, ReplaceExtents
from sparklog.metadata.model.image import NOT_REPLAYED, Image, Replayed
from sparklog.metadata.model.registry import (
    ActAsBroker,
    AssignReplicas,
    BeginControlledShutdown,
    ElectController,
    ElectLeaders,
    FenceBroker,
    JoinBroker,
    UnregisterBroker,
)
from sparklog.metadata.model.restoring import RestoreRoot
from sparklog.metadata.model.sequences import AllocateProducerIds, ExpireProducers
from sparklog.metadata.model.settings import RequireFeatures, SetConfigs
from sparklog.metadata.model.sharing import BeginShare, ForgetShare, ShareRecords
from sparklog.metadata.model.staging import StageExtents
from sparklog.metadata.model.sweeping import MoveSweepHorizon, NoteCleaned, RetireSegments
from sparklog.metadata.model.topics import AddPartitions, CreateTopic, DeleteTopic
from sparklog.metadata.model.transactions import (
    AddToTransaction,
    BeginProducer,
    EndTransaction,
    ForgetTransactions,
)
from sparklog.metadata.model.users import SetScramCredential
from sparklog.metadata.model.writers import RequestApplied, WriterTxn

Action = (
    CreateTopic
    | DeleteTopic
    | AddPartitions
    | SetConfigs
    | AppendExtents
    | ReplaceExtents
    | AdvanceLogStart
    | WriterTxn
    | AllocateProducerIds
    | RequestApplied
    | MoveSweepHorizon
    | NoteCleaned
    | ExpireProducers
    | JoinBroker
    | FenceBroker
    | BeginControlledShutdown
    | UnregisterBroker
    | ElectController
    | AssignReplicas
    | ElectLeaders
    | ActAsBroker
    | BeginProducer
    | AddToTransaction
    | StageExtents
    | EndTransaction
    | ForgetTransactions
    | RetireSegments
    | RestoreRoot
    | RequireFeatures
    | SetScramCredential
    | ChangeAcls
    | SetQuotas
    | BeginShare
    | ShareRecords
    | ForgetShare
)
ACTION_TYPES: tuple[type[ActionBase], ...] = get_args(Action)

# What each kind does to an image; it refuses what does not apply.
EFFECTS: Mapping[type[ActionBase], Callable[[ImageDraft, Any], None]] = {
    CreateTopic: topics.create_topic,
    DeleteTopic: topics.delete_topic,
    AddPartitions: topics.add_partitions,
    SetConfigs: settings.set_configs,
    AppendExtents: extents.append_extents,
    ReplaceExtents: extents.replace_extents,
    AdvanceLogStart: extents.advance_log_start,
    WriterTxn: writers.note_writer_txn,
    AllocateProducerIds: sequences.allocate_producer_ids,
    RequestApplied: writers.settle_request,
    MoveSweepHorizon: sweeping.move_sweep_horizon,
    NoteCleaned: sweeping.note_cleaned,
    ExpireProducers: sequences.expire_producers,
    JoinBroker: registry.join_broker,
    FenceBroker: registry.fence_broker,
    BeginControlledShutdown: registry.begin_controlled_shutdown,
    UnregisterBroker: registry.unregister_broker,
    ElectController: registry.elect_controller,
    AssignReplicas: registry.assign_replicas,
    ElectLeaders: registry.elect_leaders,
    ActAsBroker: registry.act_as_broker,
    BeginProducer: transactions.begin_producer,
    AddToTransaction: transactions.add_to_transaction,
    StageExtents: staging.stage_extents,
    EndTransaction: transactions.end_transaction,
    ForgetTransactions: transactions.forget_transactions,
    RetireSegments: sweeping.retire_segments,
    RestoreRoot: restoring.restore_root,
    RequireFeatures: settings.require_features,
    SetScramCredential: users.set_scram_credential,
    ChangeAcls: access.change_acls,
    SetQuotas: access.set_quotas,
    BeginShare: sharing.begin_share,
    ShareRecords: sharing.share_records,
    ForgetShare: sharing.forget_share,
}

# What changes who serves the root, what is in it to be served, and who does so.
OF_THE_CLUSTER: frozenset[type[ActionBase]] = frozenset(
    {
        CreateTopic,
        DeleteTopic,
        AddPartitions,
        JoinBroker,
        FenceBroker,
        BeginControlledShutdown,
        UnregisterBroker,
        ElectController,
        AssignReplicas,
        ElectLeaders,
        RestoreRoot,
    }
)


# --- apply -------------------------------------------------------------------------------------------
#
# Applying commits to an image: the one way by which it changes, live and in replay.
#
# Invariants: either all actions of a commit apply, or the image stays as it was, and ActionRefusedError says
# why. Everything is checked against the image, also what a plan has checked: a commit that does not apply
# means that the log, or the code that wrote it, is wrong.
# Not here: what an action does (its effect, in its subject's module); whether a
# refusal means a corrupt log or a wrong call (log.py decides).
# Concurrency: a builder belongs to one thread; the images it takes and gives are immutable.


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
        self._draft = ImageDraft(image)
        self._commit_uuid = image.commit_uuid

    def apply(
        self, actions: Sequence[Action], *, commit: int, commit_uuid: str, timestamp_ms: int = 0
    ) -> None:
        """Apply one commit, the next one; `timestamp_ms`: when it was made, as it says."""
        draft = self._draft
        if commit != draft.commit + 1:
            raise ActionRefusedError(f"commit {commit} does not follow commit {draft.commit}")
        draft.commit = commit
        for number, action in enumerate(actions):
            draft.actions_left = len(actions) - number - 1
            try:
                EFFECTS[type(action)](draft, action)
            except ActionRefusedError as error:
                kind = action.__struct_config__.tag
                raise ActionRefusedError(f"action {number} ({kind}): {error}") from None
            if type(action) in OF_THE_CLUSTER:
                draft.cluster_changed = commit
            if draft.acting is not None and draft.acting.until == draft.actions_left:
                draft.acting.end()
                draft.acting = None
        self._commit_uuid = commit_uuid
        draft.newest_ms = max(draft.newest_ms, timestamp_ms)
        writers.forget(draft.publishers, commit)

    @property
    def configs(self) -> Mapping[str, str]:
        """The root's settings, as of what has been applied so far."""
        return self._draft.configs

    def image(self, replayed: Replayed = NOT_REPLAYED) -> Image:
        """The image after everything applied; it takes over the builder's state, so call this last."""
        draft = self._draft
        return draft.image(commit=draft.commit, commit_uuid=self._commit_uuid, replayed=replayed)
