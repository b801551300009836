"""The metadata log: what is where in a root, and the only source of truth."""

from sparklog.metadata.actions import (
    Action,
    AddPartitions,
    AdvanceLogStart,
    AllocateProducerIds,
    AppendExtents,
    BrokerListener,
    CreateTopic,
    DeleteTopic,
    DraftExtent,
    Extent,
    RegisterBroker,
    ReplaceExtents,
    RequestApplied,
    SetConfigs,
    WriterTxn,
)
from sparklog.metadata.capacity import (
    DEFAULT_MAX_PARTITIONS,
    MAX_PARTITIONS_KEY,
    added_partitions,
    validate_room,
)
from sparklog.metadata.extent_list import ExtentList
from sparklog.metadata.ids import new_id
from sparklog.metadata.image import BrokerRegistration, Image, PartitionState, ProducerState, Topic
from sparklog.metadata.log import MetadataLog, MetadataSettings, PublishResult
from sparklog.metadata.others import Plan, SharedPlan
from sparklog.metadata.plan import (
    plan_add_partitions,
    plan_advance_log_start,
    plan_allocate_producer_ids,
    plan_append,
    plan_create_topic,
    plan_delete_topic,
    plan_register_broker,
    plan_replace_extents,
    plan_set_configs,
    plan_writer_txn,
)
from sparklog.metadata.sequences import SequenceCheck, appended_offset, check_sequence, last_batch
from sparklog.metadata.topic_names import why_illegal_topic_name

__all__ = [
    "DEFAULT_MAX_PARTITIONS",
    "MAX_PARTITIONS_KEY",
    "Action",
    "AddPartitions",
    "AdvanceLogStart",
    "AllocateProducerIds",
    "AppendExtents",
    "BrokerListener",
    "BrokerRegistration",
    "CreateTopic",
    "DeleteTopic",
    "DraftExtent",
    "Extent",
    "ExtentList",
    "Image",
    "MetadataLog",
    "MetadataSettings",
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
    "added_partitions",
    "appended_offset",
    "check_sequence",
    "last_batch",
    "new_id",
    "plan_add_partitions",
    "plan_advance_log_start",
    "plan_allocate_producer_ids",
    "plan_append",
    "plan_create_topic",
    "plan_delete_topic",
    "plan_register_broker",
    "plan_replace_extents",
    "plan_set_configs",
    "plan_writer_txn",
    "validate_room",
    "why_illegal_topic_name",
]
