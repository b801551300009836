"""Following the log to its end: the newest commit, and when it was known to be the newest.

Where a lookup is cheap (a file system), the end is looked up every time: n+1 is missing, and then n is still
there (cleaning.py). Where each lookup is a request (an object store), one GET of n+1 must suffice:

    A *confirmed* end n at a moment t says: n+1, if it exists, was created after t. Commits are removed when
    they are six hours old, not before (cleaning.py). So for an hour after t, "there is no n+1" proves that
    there never was one. Later, and after a start, n is asked for as well, which is exact as above.

Invariants: the image only goes forward; moments are taken before the requests that they vouch for, and wall
clocks again after each answer: the earlier time counts. An hour is the larger of the times by the monotonic
clock and by the wall clock, so a suspended machine trusts nothing.
Not here: reading and applying commits (loading.py), installing an image durably (log.py).
Concurrency: used under the metadata log's lock, except the guards, which a store may call in its threads, and
refreshes concurrent with a publish.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from sparklog.clock import Clock
from sparklog.errors import SparklogError
from sparklog.metadata.cleaning import commit_was_cleaned
from sparklog.metadata.documents.properties import commit_name
from sparklog.metadata.loading import Commit, another_incarnation, follow, reload_cleaned
from sparklog.metadata.model.image import NO_COMMIT, Image
from sparklog.storage import Store

TRUST_MS = 3_600_000
_MAX_WINDOW = 32  # commits that a follower that lags fetches together


class Moment(NamedTuple):
    """A point in time, by both clocks."""

    monotonic_ms: int
    wall_ms: int


class Follower(Protocol):
    """Finds the end of the log."""

    @property
    def followed(self) -> tuple[Commit, ...]:
        """The commits that the last call of `newest` or `step` read and applied."""
        ...

    def newest(self, image: Image, *, expected: int = 0) -> tuple[Image, SparklogError | None]:
        """Follow from `image` to the end, or to the commit before a broken one.

        Args:
            expected: the number of commits that are known to be there; saves round trips.
        """
        ...

    def step(self, image: Image) -> tuple[Image, SparklogError | None]:
        """Follow by at least one commit, if there is one: usually one request."""
        ...

    def guard(self, commit: int) -> Callable[[], bool]:
        """For a put of `commit`: false when the number may be free only because it was used and cleaned."""
        ...

    def is_taken(self, commit: int) -> bool:
        """After a guard returned false: true if the number is known to be used."""
        ...

    def is_confirmed(self, commit: int, *, within_ms: int = TRUST_MS) -> bool:
        """True if a put of the successor of `commit` may be tried without a refresh."""
        ...

    def refresh_concurrently(self, image: Image) -> tuple[Image, Moment] | None:
        """Return the image that follows `image`, and a moment at which it was the newest; None if that is not
        known. Callable from any thread, without a lock.
        """
        ...

    def now(self) -> Moment:
        """Return the current time, by both clocks."""
        ...

    def confirm(self, commit: int, asked: Moment) -> None:
        """Record that the successor of `commit`, if it exists, was created after `asked`."""
        ...


Seen = Callable[[Image, Moment], None]


def _follow(
    store: Store, image: Image, *, window: int = 1, limit: int | None = None
) -> tuple[Image, tuple[Commit, ...], SparklogError | None]:
    """As loading.follow, within one incarnation of the root: the image stays at the one before a restore."""
    max_window = _MAX_WINDOW if store.traits.is_remote else 1
    newer, commits, error = follow(store, image, window=window, max_window=max_window, limit=limit)
    fenced = another_incarnation(store, image, newer)
    return (newer, commits, error) if fenced is None else (image, (), fenced)


def make_follower(store: Store, clock: Clock, on_end: Seen) -> Follower:
    """The kind of follower that suits a store.

    Args:
        on_end: of a remote store: called whenever the end of the log was found; the successor of this image,
            if it exists, was created after that moment.
    """
    return RemoteFollower(store, clock, on_end) if store.traits.is_remote else LookingFollower(store, clock)


class LookingFollower:
    """For stores where a lookup costs nothing: remembers nothing."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.followed: tuple[Commit, ...] = ()

    def newest(self, image: Image, *, expected: int = 0) -> tuple[Image, SparklogError | None]:
        del expected
        self.followed = ()
        while self._store.exists(commit_name(image.commit + 1)):
            image, commits, error = _follow(self._store, image)
            self.followed += commits
            if error is not None:
                return image, error
        # The order matters: see cleaning.py. Missing n+1, then present n: that is the end of the log.
        if commit_was_cleaned(self._store, image.commit):
            return reload_cleaned(self._store, image)
        return image, None

    def step(self, image: Image) -> tuple[Image, SparklogError | None]:
        return self.newest(image)

    def refresh_concurrently(self, image: Image) -> None:
        """A publish holds the lock no longer than a lookup would wait for the file system."""
        del image

    def guard(self, commit: int) -> Callable[[], bool]:
        return lambda: not commit_was_cleaned(self._store, commit - 1)

    def is_taken(self, commit: int) -> bool:
        return commit_was_cleaned(self._store, commit - 1)

    def is_confirmed(self, commit: int, *, within_ms: int = TRUST_MS) -> bool:
        del commit, within_ms
        return False

    def now(self) -> Moment:
        return Moment(self._clock.monotonic_ms(), self._clock.now_ms())

    def confirm(self, commit: int, asked: Moment) -> None:
        """No-op: nothing is remembered."""


class RemoteFollower:
    """For stores where every lookup is a request."""

    def __init__(self, store: Store, clock: Clock, on_end: Seen) -> None:
        self._store = store
        self._clock = clock
        self._on_end = on_end
        self._end = NO_COMMIT - 1
        self._asked: Moment | None = None
        self.followed: tuple[Commit, ...] = ()

    def newest(self, image: Image, *, expected: int = 0) -> tuple[Image, SparklogError | None]:
        return self._follow(image, None, expected + 1)

    def step(self, image: Image) -> tuple[Image, SparklogError | None]:
        return self._follow(image, 1, 1)

    def _follow(self, image: Image, limit: int | None, window: int) -> tuple[Image, SparklogError | None]:
        self.followed = ()
        while True:
            asked = self.now()
            image, commits, error = _follow(self._store, image, window=window, limit=limit)
            # Now, and not at the end of this refresh: the machine may be suspended before the next request.
            asked = self._not_later_than_now(asked)
            self.followed += commits
            if error is not None or (limit is not None and commits):
                return image, error
            if self.is_confirmed(image.commit) or not commit_was_cleaned(self._store, image.commit):
                self.confirm(image.commit, asked)
                self._on_end(image, asked)
                return image, None
            image, error = reload_cleaned(self._store, image)
            if error is not None:
                return image, error

    def refresh_concurrently(self, image: Image) -> tuple[Image, Moment] | None:
        asked = self.now()
        image, _, error = _follow(self._store, image)
        asked = self._not_later_than_now(asked)
        # Not confirmed: the commit after it may have been cleaned. The next refresh raises the error.
        return (image, asked) if error is None and self.is_confirmed(image.commit) else None

    def guard(self, commit: int) -> Callable[[], bool]:
        return lambda: self.is_confirmed(commit - 1)

    def is_taken(self, commit: int) -> bool:
        return self._end >= commit

    def is_confirmed(self, commit: int, *, within_ms: int = TRUST_MS) -> bool:
        """What follows a confirmed end was created after it, so this holds for later commits, too."""
        if self._asked is None or self._end > commit:
            return False
        now = self.now()
        age_ms = max(now.monotonic_ms - self._asked.monotonic_ms, now.wall_ms - self._asked.wall_ms)
        return age_ms < within_ms

    def now(self) -> Moment:
        return Moment(self._clock.monotonic_ms(), self._clock.now_ms())

    def confirm(self, commit: int, asked: Moment) -> None:
        self._end, self._asked = commit, self._not_later_than_now(asked)

    def _not_later_than_now(self, asked: Moment) -> Moment:
        """Correct a wall clock that was ahead when we asked and has been set right since (the store rejects
        requests with a wrong date): it would make the confirmation look younger than it is.
        """
        return asked._replace(wall_ms=min(asked.wall_ms, self._clock.now_ms()))
