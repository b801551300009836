"""The embedded client: producer, consumer, admin, groups. Knows no Spark.

Only brokers.py opens a socket: it asks a broker which root it serves, and a controller for its decisions.
group_coordinators.py asks through it who the members of groups are, and for changes of groups.
"""

from sparklog.client.admin import PartitionDescription, TopicDescription
from sparklog.client.appender import AppendOptions, PartitionedAppender, StagedAppend
from sparklog.client.groups import CommittedOffset, partition_for_group
from sparklog.client.log import SparkLog, open_log
from sparklog.client.publish import AppendedRange, AppendResult, AppliedBefore, later_versions, publish
from sparklog.client.topic_plan import OFFSETS_TOPIC, PlannedTopic, refuse_internal
from sparklog.client.waiting_rows import StickyPartitioner, partition_rows
from sparklog.metadata import is_internal

__all__ = [
    "OFFSETS_TOPIC",
    "AppendOptions",
    "AppendResult",
    "AppendedRange",
    "AppliedBefore",
    "CommittedOffset",
    "PartitionDescription",
    "PartitionedAppender",
    "PlannedTopic",
    "SparkLog",
    "StagedAppend",
    "StickyPartitioner",
    "TopicDescription",
    "is_internal",
    "later_versions",
    "open_log",
    "partition_for_group",
    "partition_rows",
    "publish",
    "refuse_internal",
]
