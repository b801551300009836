"""What time it is, where time ends something for good: by this machine and by the store, whichever is behind.

A machine whose clock is ahead, by a year or by a time zone, would take records for past their retention that
nobody else does, remove tombstones that readers have not seen, and abort transactions that are at work.
Invariants: on an object store, and a directory of another machine, nothing ends before both clocks say so.
    A local directory is dated by the kernel that tells this machine's time: there is no second clock to ask,
    and one that is ahead is believed. A clock that is behind ends things late, which harms nothing; but what
    it stores as the time of something would look old to others, so that is never before the newest commit's
    (Image.no_earlier_ms).
Not here: whether something is due at all, which is looked at often, from the image and this machine's clock:
    a round that begins for nothing does nothing.
"""

from sparklog.clock import Clock
from sparklog.errors import StorageError
from sparklog.storage import Store


def sober_now_ms(store: Store, clock: Clock) -> int:
    """The time of this machine, or of the store if that is behind."""
    return both_now_ms(store, clock)[0]


def shown_now_ms(store: Store, clock: Clock) -> int:
    """As sober_now_ms, for what only shows: a directory is dated by a file made in it, which one that we
    may only read does not take.
    """
    try:
        return sober_now_ms(store, clock)
    except StorageError:
        return clock.now_ms()


def both_now_ms(store: Store, clock: Clock) -> tuple[int, int]:
    """The earlier and the later of both: what is to be kept for a while is kept from the later one on.

    1. a store dates by whole seconds: it is up to a second behind, and says 5.0 at 5.9 s;
    2. a tombstone is to be kept for a second, and is marked as of 5.0;
    3. at 6.0 s both clocks say that it was, and a reader that began at 5.9 s does not see it.
    """
    here_ms = clock.now_ms()
    store_ms = store.storage_now_ms(here_ms)
    return min(here_ms, store_ms), max(here_ms, store_ms)
