"""What all clients of object stores share: outcomes, repetition, threads, counts; and the requests they make.

A client knows one store's protocol (s3_client.py, gcs.py, azure.py). object_store.py knows
what objects mean, and is the same for all.

Invariants:
    - `_repeat` repeats a request until `retry_timeout` has passed; only for requests that may be repeated;
    - `put_once` makes exactly one attempt if anything may have been sent (ADR 0009);
    - at most `max_concurrency` requests are in flight, and each wait for the store has a timeout, so nothing
      hangs;
    - prefetching leaves some of them to others: a refresh of the log, or a heartbeat, does not queue behind a
      reader of thousands of objects;
    - a listing in pages ends, or fails: each page begins behind the one before it (`PageOrder`).
Concurrency: any thread. After a fork the child makes its own connections and threads.
Sources: ADR 0009, ADR 0036.
"""

import contextlib
import datetime as dt
import email.utils
import enum
import itertools
import math
import random
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, TypeVar

from sparklog.clock import Clock
from sparklog.errors import RetriableError, StorageError
from sparklog.failpoints import failpoint
from sparklog.forking import notify_after_fork
from sparklog.storage.base import IndefinitePutError
from sparklog.storage.object_options import ObjectOptions

# --- answers -----------------------------------------------------------------------------------------


MAX_EMPTY_PAGES = 1000  # in a row; stores may return some after many deletions


class WrongAnswerError(OSError):
    """A response that does not match the request: a truncated body, another range, a missing field."""


class PageOrder:
    """Checks that the pages of one listing ascend, so that reading them ends.

    Two orders are known: S3's, of the keys' bytes, and that of stores with directories, in which "a/b" is
    before "a-b". A listing must keep to one of them, from its first page to its last.
    """

    def __init__(self) -> None:
        self._last = {_as_bytes: "", as_directories: ""}
        self._empty = 0

    def add(self, names: Sequence[str], directories: Sequence[str] = ()) -> None:
        """Check the names of the next page, and of the directories that it lists apart from them.

        Raises:
            WrongAnswerError: it is not behind the last one.
        """
        self._empty = 0 if names or directories else self._empty + 1
        if self._empty > MAX_EMPTY_PAGES:
            raise WrongAnswerError(f"{self._empty} pages of a listing without a name")
        for order in list(self._last):
            found = [order(name) for name in (*names, *directories)]
            ordered = [self._last[order], *(sorted(found) if directories else found)]
            if all(one < next_one for one, next_one in itertools.pairwise(ordered)):
                self._last[order] = ordered[-1]
            else:
                del self._last[order]
        if not self._last:
            listed = (*names, *directories)
            raise WrongAnswerError(
                f"a page of a listing, from {listed[0]!r} to {listed[-1]!r}, that is not in order, or not "
                "behind the previous page"
            )


def _as_bytes(name: str) -> str:
    return name


def as_directories(name: str) -> str:
    """Return a key in whose order a store with directories lists names."""
    return name.replace("/", "\0")


class Outcome(enum.Enum):
    """What an error says about its request.

    MISSING   no such object                     TAKEN      the name exists
    RANGE     the range lies past the end        CONFLICT   concurrent requests: the winner is unknown
    UNSENT    no connection: nothing happened    BUSY       no or no useful answer: unknown
    REFUSED   permanent, until someone acts
    """

    MISSING = enum.auto()
    TAKEN = enum.auto()
    CONFLICT = enum.auto()
    RANGE = enum.auto()
    UNSENT = enum.auto()
    BUSY = enum.auto()
    REFUSED = enum.auto()


REPEATED = {Outcome.UNSENT, Outcome.BUSY, Outcome.CONFLICT}


class Listed(NamedTuple):
    """An object in a listing."""

    key: str
    size: int
    modified_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page of a listing.

    Fields:
        directories: common prefixes, with their final slash; only of a listing by directories.
        is_last: no page follows.
    """

    objects: Sequence[Listed] = ()
    directories: Sequence[str] = ()
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """An object that is being uploaded in parts.

    Fields:
        state: what the store has answered, for the client's use.
    """

    url: str
    key: str
    state: str
    tokens: dict[int, str] = field(default_factory=dict)


# --- client ------------------------------------------------------------------------------------------


T = TypeVar("T")
_FIRST_WAIT_MS = 50.0
_LONGEST_WAIT_MS = 2_000.0
# A wrong endpoint must fail quickly: retries are for stores that have answered before.
_FIRST_CONTACT_MS = 5_000
_LEFT_BY_READING_AHEAD = 3


class ObjectClient(ABC):
    """A bucket or container, accessed with given options.

    Fields:
        failures: what an attempt raises if it fails; everything else is a bug, or ours.
        parts_in_flight: how many parts of one upload are sent at the same time.
        starts_after: it can list from a name on; else a listing has all names of its prefix.
    """

    failures: ClassVar[tuple[type[Exception], ...]] = (OSError,)
    parts_in_flight: ClassVar[int] = 3
    starts_after: ClassVar[bool] = True

    def __init__(self, options: ObjectOptions, clock: Clock) -> None:
        self._repetition = options
        self._counts: Counter[str] = Counter()
        self._clock = clock
        self._random = random.Random()
        self._has_answered = False
        self._ahead_ms = 0  # the store's clock minus ours, as of the last answer
        self.after_fork_in_child()
        notify_after_fork(self)

    def after_fork_in_child(self) -> None:
        """Drop the parent's threads and locks. Subclasses drop its connections."""
        self._lock = threading.Lock()
        self.probe_lock = threading.Lock()  # held during the probe (object_probe.py)
        self._permits = threading.BoundedSemaphore(self._repetition.max_concurrency)
        self._pool: ThreadPoolExecutor | None = None
        self._ahead_pool: ThreadPoolExecutor | None = None
        self._random.seed()

    @property
    @abstractmethod
    def identity(self) -> str:
        """The endpoint and name of the bucket."""

    # --- requests ------------------------------------------------------------------------------------

    def put_once(self, url: str, key: str, data: bytes, guard: Callable[[], bool] | None) -> None:
        """Create an object unless it exists: one attempt; a connection that was never made is retried.

        The guard is called after the request was signed. A store that refuses old dates (S3: 15 minutes) then
        bounds how late the request can take effect, however long this process is stopped.

        Raises:
            AlreadyExistsError: the name is taken. IndefinitePutError: no definite answer.
            RetriableError: the guard returned false. StorageError: refused.
        """
        for wait_ms in self._waits():
            try:
                failpoint("s3.put.before")
                self.create(key, data, guard)
                failpoint("s3.put.answered")
            except self.failures as error:
                outcome = self.outcome_of(error)
                if outcome in {Outcome.BUSY, Outcome.CONFLICT, Outcome.RANGE}:  # no put has a range
                    raise IndefinitePutError(
                        "PUT_INDEFINITE",
                        f"{url}: no definite answer: {self.describe(error)}",
                        fix="Repeat the same put",
                    ) from error
                if outcome is not Outcome.UNSENT or wait_ms is None:
                    raise self.storage_error("put", url, error) from error
                self._clock.sleep_ms(wait_ms)
            else:
                return
        raise AssertionError("the last wait is None")

    @abstractmethod
    def create(self, key: str, data: bytes, guard: Callable[[], bool] | None) -> None:
        """Send one conditional request, if the guard agrees. Raises one of `failures`."""

    @abstractmethod
    def put(self, url: str, key: str, data: bytes) -> None:
        """Create or replace an object. Raises StorageError."""

    @abstractmethod
    def get(self, url: str, key: str, position: int, end: int | None) -> tuple[bytes, int]:
        """Return (bytes [position, end), the object's size). No bytes where the range lies past its end.

        Raises:
            NotFoundError, StorageError.
        """

    @abstractmethod
    def listed(
        self,
        url: str,
        prefix: str,
        *,
        by_directory: bool = False,
        start_after: str | None = None,
        page_size: int | None = None,
        within_ms: int = 0,
    ) -> Iterator[Page]:
        """Yield the pages of a listing, in ascending order. Raises StorageError.

        Args:
            start_after: only keys greater than this, where the store can; callers filter.
            within_ms: the timeout of each page, whatever the store does; 0: `retry_timeout`.
        """

    @abstractmethod
    def delete(self, url: str, key: str) -> None:
        """Remove an object; no error if it is missing. Raises StorageError."""

    @abstractmethod
    def delete_many(self, url: str, keys: Sequence[str]) -> None:
        """Remove objects. Raises StorageError; then some are removed."""

    @abstractmethod
    def begin_upload(self, url: str, key: str) -> Upload:
        """Begin an object in parts. Raises StorageError."""

    @abstractmethod
    def put_part(self, upload: Upload, number: int, position: int, data: bytearray, *, is_last: bool) -> None:
        """Send part `number` (from 1), which begins at `position` of the object. Raises StorageError."""

    @abstractmethod
    def complete_upload(self, upload: Upload) -> None:
        """Finish the object unless its name is taken, where the store has that condition.

        Raises:
            AlreadyExistsError, NotFoundError: perhaps because of an earlier attempt, whose answer was lost.
            StorageError.
        """

    @abstractmethod
    def abort_upload(self, upload: Upload) -> None:
        """Drop the parts. Raises StorageError."""

    @abstractmethod
    def outcome_of(self, error: Exception) -> Outcome:
        """Return the outcome of a request that raised `error`."""

    @abstractmethod
    def describe(self, error: Exception) -> str:
        """Return the response in one line, without credentials."""

    @abstractmethod
    def storage_error(self, action: str, url: str, error: Exception) -> StorageError:
        """Return the error for `action` on `url`, which failed permanently with `error`."""

    def note_time(self, date: str | None) -> None:
        """Note that the store has answered, and its time, as in a Date header. A malformed one is ignored."""
        self._has_answered = True
        if date:
            with contextlib.suppress(ValueError, TypeError, OverflowError):
                found = email.utils.parsedate_to_datetime(date)
                # A NameNode sends two, from which the parser takes the first, without its zone.
                stamp = (found if found.tzinfo else found.replace(tzinfo=dt.UTC)).timestamp()
                self._ahead_ms = round(stamp * 1000) - self._clock.now_ms()

    # --- repetition ----------------------------------------------------------------------------------

    def resolve(self, attempt: Callable[[], T]) -> T:
        """Repeat `attempt` while it raises IndefinitePutError and time is left."""
        for wait_ms in self._waits():
            try:
                return attempt()
            except IndefinitePutError:
                if wait_ms is None:
                    raise
                self._clock.sleep_ms(wait_ms)
        raise AssertionError("the last wait is None")

    def submit(self, work: Callable[[], T]) -> "Future[T]":
        """Run in a background thread, if threads can be started."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._repetition.max_concurrency, "sparklog-objects")
            pool = self._pool
        try:
            return pool.submit(work)
        except RuntimeError:  # interpreter shutdown: run in this thread, so that a last snapshot is finished
            return _done_here(work)

    def submit_ahead(self, work: Callable[[], T]) -> "Future[T]":
        """Prefetch in threads of its own, fewer than the request limit."""
        with self._lock:
            if self._ahead_pool is None:
                threads = max(1, self._repetition.max_concurrency - _LEFT_BY_READING_AHEAD)
                self._ahead_pool = ThreadPoolExecutor(threads, "sparklog-objects-ahead")
            return self._ahead_pool.submit(work)

    def counts(self) -> dict[str, int]:
        """Attempts by operation ("put_object", ...), "sent_bytes" and "received_bytes", since the start."""
        with self._lock:
            return dict(self._counts)

    def storage_now_ms(self, here_ms: int) -> int:
        """Return the store's time, estimated from its last response."""
        return here_ms + self._ahead_ms

    def now_ms(self) -> int:
        """Return this machine's time."""
        return self._clock.now_ms()

    def _repeat(self, action: str, url: str, attempt: Callable[[], T], most_ms: float = math.inf) -> T:
        """Repeat `attempt` until it succeeds, is refused, or times out."""
        for wait_ms in self._waits(most_ms):
            try:
                return attempt()
            except self.failures as error:
                if self.outcome_of(error) not in REPEATED or wait_ms is None:
                    raise self.storage_error(action, url, error) from error
                self._clock.sleep_ms(wait_ms)
        raise AssertionError("the last wait is None")

    def _count(self, more: dict[str, int]) -> None:
        with self._lock:
            self._counts.update(more)

    def _waits(self, most_ms: float = math.inf) -> Iterator[float | None]:
        """Yield the milliseconds to wait after each failed attempt; None when no time is left for another."""
        start_ms = self._clock.monotonic_ms()
        longest = _FIRST_WAIT_MS
        while True:
            patience_ms = min(self._repetition.retry_timeout * 1000, most_ms)
            if not self._has_answered:
                patience_ms = min(patience_ms, _FIRST_CONTACT_MS)
            wait_ms = self._random.uniform(longest / 2, longest)
            if self._clock.monotonic_ms() - start_ms + wait_ms > patience_ms:
                break
            yield wait_ms
            longest = min(_LONGEST_WAIT_MS, longest * 2)
        yield None

    def _within(
        self, within_ms: int, work: Callable[[float], T], late: Callable[[Exception], StorageError]
    ) -> T:
        """Run `work` with a time limit. A request that hangs continues up to its timeouts, in a thread."""
        if not within_ms:
            return work(math.inf)
        answer = self.submit(lambda: work(within_ms))
        try:
            return answer.result(within_ms / 1000)
        except TimeoutError as error:
            answer.cancel()
            raise late(TimeoutError(f"no answer within {within_ms} ms")) from error


def ask(guard: Callable[[], bool] | None) -> None:
    """Raise RetriableError if the guard of a put returns false."""
    if guard is not None and not guard():
        raise RetriableError("PUT_REFUSED", "overtaken before the put was sent", fix="Refresh and try again")


def _done_here(work: Callable[[], T]) -> "Future[T]":
    future: Future[T] = Future()
    try:
        future.set_result(work())
    except Exception as error:  # noqa: BLE001 - the future raises it
        future.set_exception(error)
    return future
