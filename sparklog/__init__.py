"""A Kafka-style commit log native to PySpark.

import sparklog

log = sparklog.open("/data/log")
"""

from sparklog import errors
from sparklog.client import (
    AppendedRange,
    AppendOptions,
    AppendResult,
    CommittedOffset,
    PartitionDescription,
    SparkLog,
    TopicDescription,
)
from sparklog.client import open_log as open  # noqa: A004 - sparklog.open(root) is the API
from sparklog.errors import SparklogError

__version__ = "0.1.0"

__all__ = [
    "AppendOptions",
    "AppendResult",
    "AppendedRange",
    "CommittedOffset",
    "PartitionDescription",
    "SparkLog",
    "SparklogError",
    "TopicDescription",
    "__version__",
    "errors",
    "open",
]
