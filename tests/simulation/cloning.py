"""Copies of a process's memory, as of a virtual machine or a container that is resumed twice.

Everything is copied, also the state of generators and what an open call has noted, but not the call itself:
in the copy it is as if it had been interrupted. Files and sockets are not part of the memory.
"""

import copy
import copyreg
import threading
from unittest import mock

from sparklog.client import SparkLog
from sparklog.clock import Clock
from sparklog.storage import Store


def clone_of(log: SparkLog, store: Store, clock: Clock) -> SparkLog:
    """What another process holds of `log`, which was given its writer, with its own way to the files."""
    memo: dict[int, object] = {id(log.store): store, id(log.clock): clock, id(log.image): log.image}
    free = {type(make()): lambda _, make=make: (make, ()) for make in (threading.RLock, threading.Lock)}
    with mock.patch.dict(copyreg.dispatch_table, free):
        metadata, writer = copy.deepcopy(log.metadata, memo), copy.deepcopy(log.writer, memo)
    return SparkLog(store, metadata, clock, writer=writer)
