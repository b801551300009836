"""When a broker was last seen alive: how old its sign of life is, by the storage's clock.

For people only: an age may be wrong by as much as two clocks differ. Whoever decides counts looks, and
goes by no clock (sparklog_server/cluster/observer.py).

Not here: what is in such an object.
Concurrency: any thread.
Sources: FORMAT.md#metadata-log.
"""

from sparklog.clock import Clock
from sparklog.metadata.documents.paths import HEARTBEATS
from sparklog.storage import Store


def last_seen_ms(store: Store, clock: Clock) -> dict[int, int]:
    """How long ago, by node id; without those that never gave one."""
    now_ms = store.storage_now_ms(clock.now_ms())
    found = {}
    for file in store.list(HEARTBEATS):
        name = file.name.removeprefix(f"{HEARTBEATS}/")
        if name.isascii() and name.isdigit():
            found[int(name)] = max(0, now_ms - file.modified_ms)
    return found
