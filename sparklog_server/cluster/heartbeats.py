"""Signs of life: a small object for each broker, beside the metadata log, which the broker replaces.

No broker needs to reach another one. What an object says is the broker epoch of a registration, and a counter
that the broker raises with each write. Replacing is no commit: a PUT that was repeated may land late, and
take the object back to an older state for a moment. So a sign of life is what is newer than all that were
seen before, and nothing else is: by broker epoch first, so that a registration's first counters are newer
than the last ones of the registration before.

Invariants: a counter is written once. An object that is missing, or is none, is no sign of life, and no
error. Not here: whom to take for dead (observer.py), and the fence itself, which is a commit
    (sparklog/metadata/model/registry.py).
Concurrency: one thread says what comes next; any may write it, and read.
After a crash: the counter of the next registration begins anew.
Sources: FORMAT.md#metadata-log; tests/models/liveness.py.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from sparklog.metadata.documents.paths import HEARTBEATS
from sparklog.storage import Store

_MAX_BYTES = 64
_FORM = re.compile(rb"(\d{1,18}) (\d{1,18})\n")


class Beat(NamedTuple):
    """What an object says; the newer one is the larger."""

    broker_epoch: int
    counter: int


NO_BEAT = Beat(-1, 0)


class Heartbeat:
    """That of one registration."""

    def __init__(self, store: Store, node_id: int, broker_epoch: int) -> None:
        self._store = store
        self._name = heartbeat_name(node_id)
        self._last = Beat(broker_epoch, 0)

    def next(self) -> Beat:
        """What is to be written next."""
        self._last = Beat(self._last.broker_epoch, self._last.counter + 1)
        return self._last

    def write(self, beat: Beat) -> None:
        """StorageError: it may or may not be there; the one after it counts as well. Any thread."""
        self._store.put_hint(self._name, b"%d %d\n" % beat)

    def beat(self) -> Beat:
        """Write the next one."""
        beat = self.next()
        self.write(beat)
        return beat


def say_nothing(store: Store, node_id: int, broker_epoch: int) -> None:
    """Replace an object that cannot be read by one that can, and is above nothing that anybody has seen.

    Whoever lives replaces it by the next sign of life, an interval later; whoever is dead does not, and that
    can be seen now. If it could be read by then, one sign of life is lost, as by a PUT that lands late.
    """
    Heartbeat(store, node_id, broker_epoch).write(Beat(broker_epoch, 0))


def heartbeat_name(node_id: int) -> str:
    """The object of a broker."""
    return f"{HEARTBEATS}/{node_id}"


def read_heartbeats(store: Store, node_ids: Iterable[int]) -> dict[int, Beat]:
    """What is there of these brokers: one request each, together.

    Raises:
        StorageError: the storage does not answer. Then nobody has looked, and nobody has missed anything.
    """
    nodes = list(node_ids)
    names = [heartbeat_name(node_id) for node_id in nodes]
    found = {}
    for node_id, data in zip(nodes, store.read_many(names, max_bytes=_MAX_BYTES), strict=True):
        match = None if data is None else _FORM.fullmatch(data)
        if match:
            found[node_id] = Beat(int(match[1]), int(match[2]))
    return found
