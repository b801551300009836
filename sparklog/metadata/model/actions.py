"""All kinds of actions: what one metadata commit can say, and the table of what each does.

Invariants: unknown action types and unknown fields are refused (decode in documents/document.py), never
skipped; what a document can hold, the table can apply (a test compares both with FORMAT.md).
Not here: a kind itself (its subject's module), a commit's actions in order (apply.py).
Sources: FORMAT.md#metadata-log.
"""

from collections.abc import Callable, Mapping
from typing import Any, get_args

from sparklog.metadata.model import (
    acting,
    compacting,
    controller,
    ending,
    expiring,
    extents,
    features,
    leading,
    producers,
    publishers,
    registry,
    restoring,
    rewriting,
    settings,
    staging,
    sweeping,
    topics,
    transactions,
    writers,
)
from sparklog.metadata.model.acting import ActAsBroker
from sparklog.metadata.model.action import ActionBase
from sparklog.metadata.model.compacting import NoteCleaned
from sparklog.metadata.model.controller import ElectController
from sparklog.metadata.model.draft import ImageDraft
from sparklog.metadata.model.ending import EndTransaction
from sparklog.metadata.model.expiring import ExpireProducers
from sparklog.metadata.model.extents import AppendExtents
from sparklog.metadata.model.features import RequireFeatures
from sparklog.metadata.model.leading import AssignReplicas, ElectLeaders
from sparklog.metadata.model.producers import AllocateProducerIds
from sparklog.metadata.model.publishers import RequestApplied
from sparklog.metadata.model.registry import (
    BeginControlledShutdown,
    FenceBroker,
    JoinBroker,
    UnregisterBroker,
)
from sparklog.metadata.model.restoring import RestoreRoot
from sparklog.metadata.model.rewriting import AdvanceLogStart, ReplaceExtents
from sparklog.metadata.model.settings import SetConfigs
from sparklog.metadata.model.staging import StageExtents
from sparklog.metadata.model.sweeping import MoveSweepHorizon, RetireSegments
from sparklog.metadata.model.topics import AddPartitions, CreateTopic, DeleteTopic
from sparklog.metadata.model.transactions import AddToTransaction, BeginProducer, ForgetTransactions
from sparklog.metadata.model.writers import WriterTxn

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
)
ACTION_TYPES: tuple[type[ActionBase], ...] = get_args(Action)

# What each kind does to an image; it refuses what does not apply.
EFFECTS: Mapping[type[ActionBase], Callable[[ImageDraft, Any], None]] = {
    CreateTopic: topics.create_topic,
    DeleteTopic: topics.delete_topic,
    AddPartitions: topics.add_partitions,
    SetConfigs: settings.set_configs,
    AppendExtents: extents.append_extents,
    ReplaceExtents: rewriting.replace_extents,
    AdvanceLogStart: rewriting.advance_log_start,
    WriterTxn: writers.note_writer_txn,
    AllocateProducerIds: producers.allocate_producer_ids,
    RequestApplied: publishers.settle_request,
    MoveSweepHorizon: sweeping.move_sweep_horizon,
    NoteCleaned: compacting.note_cleaned,
    ExpireProducers: expiring.expire_producers,
    JoinBroker: registry.join_broker,
    FenceBroker: registry.fence_broker,
    BeginControlledShutdown: registry.begin_controlled_shutdown,
    UnregisterBroker: registry.unregister_broker,
    ElectController: controller.elect_controller,
    AssignReplicas: leading.assign_replicas,
    ElectLeaders: leading.elect_leaders,
    ActAsBroker: acting.act_as_broker,
    BeginProducer: transactions.begin_producer,
    AddToTransaction: transactions.add_to_transaction,
    StageExtents: staging.stage_extents,
    EndTransaction: ending.end_transaction,
    ForgetTransactions: transactions.forget_transactions,
    RetireSegments: sweeping.retire_segments,
    RestoreRoot: restoring.restore_root,
    RequireFeatures: features.require_features,
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
