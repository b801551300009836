"""The metadata log: what is where in a root, and the only source of truth."""

from sparklog.metadata.background import Background
from sparklog.metadata.log import MetadataLog, PublishResult
from sparklog.metadata.model.actions import VERSION, Action
from sparklog.metadata.model.agreed_version import METADATA_VERSION_KEY, WRITERS_VERSION, agreed_version
from sparklog.metadata.model.apply import apply_actions
from sparklog.metadata.model.brokers import RegisterBroker, plan_register_broker
from sparklog.metadata.model.capacity import DEFAULT_MAX_PARTITIONS, MAX_PARTITIONS_KEY, validate_room
from sparklog.metadata.model.compacting import CLEANED_VERSION, NoteCleaned, plan_note_cleaned
from sparklog.metadata.model.expiring import PRODUCERS_VERSION, ExpireProducers, plan_expire_producers
from sparklog.metadata.model.extent import DraftExtent, Extent
from sparklog.metadata.model.extent_list import NUMBER_COLUMNS, SEQUENCES, ExtentColumns, ExtentList
from sparklog.metadata.model.extents import AppendExtents, plan_append, sequenced, unknown_producer
from sparklog.metadata.model.ids import new_id
from sparklog.metadata.model.image import (
    NEVER_CLEANED,
    NEVER_MARKED_MS,
    NO_COMMIT,
    NO_DELETE_HORIZON_MS,
    NO_HORIZON,
    NOTHING_FORGOTTEN,
    BrokerListener,
    BrokerRegistration,
    Cleaned,
    Forgotten,
    Image,
    PartitionState,
    ProducerState,
    Topic,
    WriterTxnState,
    empty_image,
)
from sparklog.metadata.model.producers import AllocateProducerIds, plan_allocate_producer_ids
from sparklog.metadata.model.publishers import RequestApplied
from sparklog.metadata.model.rewriting import (
    REPLACEMENT_VERSION,
    AdvanceLogStart,
    ReplaceExtents,
    plan_advance_log_start,
    plan_replace_extents,
    plan_replacements,
    replacement,
)
from sparklog.metadata.model.sequences import (
    SequenceCheck,
    appended_offset,
    check_sequence,
    check_unknown,
    last_batch,
    last_sequence,
    mergeable,
)
from sparklog.metadata.model.settings import SetConfigs, plan_set_configs
from sparklog.metadata.model.sweeping import (
    HORIZON_VERSION,
    MoveSweepHorizon,
    born_of,
    plan_move_sweep_horizon,
)
from sparklog.metadata.model.topic_names import collision_key, is_internal, why_illegal_topic_name
from sparklog.metadata.model.topics import (
    AddPartitions,
    CreateTopic,
    DeleteTopic,
    added_partitions,
    plan_add_partitions,
    plan_create_topic,
    plan_delete_topic,
)
from sparklog.metadata.model.writers import (
    MAX_WRITER_TXNS,
    WriterTxn,
    plan_writer_txn,
    why_illegal_writer_txn,
)
from sparklog.metadata.others import Plan, SharedPlan
from sparklog.metadata.settings import MetadataSettings

__all__ = [
    "CLEANED_VERSION",
    "DEFAULT_MAX_PARTITIONS",
    "HORIZON_VERSION",
    "MAX_PARTITIONS_KEY",
    "MAX_WRITER_TXNS",
    "METADATA_VERSION_KEY",
    "NEVER_CLEANED",
    "NEVER_MARKED_MS",
    "NOTHING_FORGOTTEN",
    "NO_COMMIT",
    "NO_DELETE_HORIZON_MS",
    "NO_HORIZON",
    "NUMBER_COLUMNS",
    "PRODUCERS_VERSION",
    "REPLACEMENT_VERSION",
    "SEQUENCES",
    "VERSION",
    "WRITERS_VERSION",
    "Action",
    "AddPartitions",
    "AdvanceLogStart",
    "AllocateProducerIds",
    "AppendExtents",
    "Background",
    "BrokerListener",
    "BrokerRegistration",
    "Cleaned",
    "CreateTopic",
    "DeleteTopic",
    "DraftExtent",
    "ExpireProducers",
    "Extent",
    "ExtentColumns",
    "ExtentList",
    "Forgotten",
    "Image",
    "MetadataLog",
    "MetadataSettings",
    "MoveSweepHorizon",
    "NoteCleaned",
    "PartitionState",
    "Plan",
    "ProducerState",
    "PublishResult",
    "RegisterBroker",
    "ReplaceExtents",
    "RequestApplied",
    "SequenceCheck",
    "SetConfigs",
    "SharedPlan",
    "Topic",
    "WriterTxn",
    "WriterTxnState",
    "added_partitions",
    "agreed_version",
    "appended_offset",
    "apply_actions",
    "born_of",
    "check_sequence",
    "check_unknown",
    "collision_key",
    "empty_image",
    "is_internal",
    "last_batch",
    "last_sequence",
    "mergeable",
    "new_id",
    "plan_add_partitions",
    "plan_advance_log_start",
    "plan_allocate_producer_ids",
    "plan_append",
    "plan_create_topic",
    "plan_delete_topic",
    "plan_expire_producers",
    "plan_move_sweep_horizon",
    "plan_note_cleaned",
    "plan_register_broker",
    "plan_replace_extents",
    "plan_replacements",
    "plan_set_configs",
    "plan_writer_txn",
    "replacement",
    "sequenced",
    "unknown_producer",
    "validate_room",
    "why_illegal_topic_name",
    "why_illegal_writer_txn",
]
