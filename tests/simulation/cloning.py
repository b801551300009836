"""Copies of a process's memory, as of a virtual machine or a container that is resumed twice.

Everything is copied, also the state of generators and what an open call has noted, but not the call itself:
in the copy it is as if it had been interrupted. Files and sockets are not part of the memory.
"""

import copy
import threading

from sparklog.client import SparkLog
from sparklog.clock import Clock
from sparklog.log.writer import LogWriter
from sparklog.storage import Store


def clone_of(log: SparkLog, store: Store, clock: Clock) -> SparkLog:
    """What another process holds of `log`, with its own way to the files."""
    memo: dict[int, object] = {id(log.store): store, id(log.clock): clock, id(log.image): log.image}
    for owner in (log.metadata, log._writer):
        if owner is not None:
            memo[id(owner._lock)] = threading.RLock()
    twin = SparkLog(store, copy.deepcopy(log.metadata, memo), clock)
    writer: LogWriter | None = copy.deepcopy(log._writer, memo)
    twin._writer = writer
    return twin
