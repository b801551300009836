"""A root as another process would open it: over a store and with a clock that the test owns."""

from sparklog.client import SparkLog
from sparklog.clock import Clock
from sparklog.metadata import MetadataLog
from sparklog.storage import Store


def opened(store: Store, clock: Clock) -> SparkLog:
    """The log; made, if there is none yet."""
    return SparkLog(store, MetadataLog.open(store, clock, create=True), clock)
