"""The embedded client: producer, consumer, admin, groups. Knows no Spark.

Only brokers.py opens a socket: it asks a broker which root it serves, and a controller for its decisions.
group_coordinators.py asks through it who the members of groups are, and for changes of groups.
Names are imported at their first use: a command that lists topics needs no appender. No name may be that of
a module here, which would take its place.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparklog.client.admin import PartitionDescription, TopicDescription
    from sparklog.client.appender import AppendOptions, PartitionedAppender, StagedAppend
    from sparklog.client.groups import CommittedOffset, partition_for_group
    from sparklog.client.log import SparkLog, open_log
    from sparklog.client.publish import AppendedRange, AppendResult, AppliedBefore, later_versions
    from sparklog.client.root import OpenedRoot, open_root
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
    "OpenedRoot",
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
    "open_root",
    "partition_for_group",
    "partition_rows",
    "refuse_internal",
]

_MODULES = {
    "admin": ("PartitionDescription", "TopicDescription"),
    "appender": ("AppendOptions", "PartitionedAppender", "StagedAppend"),
    "groups": ("CommittedOffset", "partition_for_group"),
    "log": ("SparkLog", "open_log"),
    "publish": ("AppendResult", "AppendedRange", "AppliedBefore", "later_versions"),
    "root": ("OpenedRoot", "open_root"),
    "topic_plan": ("OFFSETS_TOPIC", "PlannedTopic", "is_internal", "refuse_internal"),
    "waiting_rows": ("StickyPartitioner", "partition_rows"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
