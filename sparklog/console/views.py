"""What a page is: a function from a root to plain values, which a template shows and the API gives as JSON.

A subject module (topics.py, ...) has a `SUBJECT`: its name in the navigation, and its views. `app.py` makes
of each view a page, a path of the API, and an entry of its description: each fact is computed in one place.
Invariants: a view reads, and never changes the root; its memory is bounded (pages of MAX_ROWS rows).
Concurrency: views run in a few threads; an image is taken once for one answer.
"""

import collections
import dataclasses
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from starlette.requests import Request
from starlette.routing import BaseRoute

from sparklog.client import SparkLog
from sparklog.client.lag import LagHistory
from sparklog.client.security import PLAINTEXT
from sparklog.console.history_file import HistoryFile
from sparklog.console.message_masks import MessageRules
from sparklog.errors import InvalidRequestError
from sparklog.metadata import Image

MAX_ROWS: Final = 100
MAX_FILTER: Final = 200  # characters
RATE_MS: Final = 60_000
MAX_CACHED: Final = 20_000  # values of facts that never change
_MAX_PAST: Final = 3  # images; each may be large
T = TypeVar("T")


class MissingError(Exception):
    """There is no such thing; the text says which."""


class Console:
    """What views read: an opened root, its newest image, the history of lag, and a cache."""

    def __init__(
        self,
        log: SparkLog,
        image: Callable[[], Image],
        history: LagHistory,
        messages: MessageRules | None = None,
        *,
        can_write: bool = False,
    ) -> None:
        """`messages`: rules for showing records; None: none are shown."""
        self.log = log
        self.can_write = can_write
        self.closed_topics: frozenset[str] = frozenset()
        self.security = PLAINTEXT  # how to connect to coordinators of groups
        self.history_file: HistoryFile | None = None
        self.history = history
        self.rules = messages or MessageRules()
        self.has_messages = messages is not None
        self._ends: list[Callable[[], None]] = []
        self._image = image
        self._lock = threading.Lock()
        self._facts: dict[Hashable, Any] = {}
        self._recent: dict[Hashable, tuple[int, Any]] = {}
        self._past: dict[int, Image] = {}
        self._coordinator_problem = (0, "")
        self.images = RecentImages()

    @property
    def image(self) -> Image:
        """The newest image; take it once for one answer."""
        return self._image()

    @property
    def now_ms(self) -> int:
        return self.log.clock.now_ms()

    def at_end(self, end: Callable[[], None]) -> None:
        """Register what ends streams that would not end by themselves."""
        self._ends.append(end)

    def end_streams(self) -> None:
        """End them, since the server stops."""
        for end in self._ends:
            end()

    def fact(self, key: Hashable, find: Callable[[], T]) -> T:
        """Return what `find` returns, or has returned for this key: something that never changes."""
        with self._lock:
            if key in self._facts:
                return cast("T", self._facts[key])
        found = find()
        with self._lock:
            if len(self._facts) >= MAX_CACHED:
                self._facts.clear()
            self._facts[key] = found
        return found

    def recent(self, key: Hashable, max_age_ms: int, find: Callable[[], T]) -> T:
        """Return what `find` returns, or has returned at most so long ago. The keys must be few."""
        now_ms = self.log.clock.monotonic_ms()
        with self._lock:
            found = self._recent.get(key)
        if found is None or now_ms - found[0] > max_age_ms:
            found = (now_ms, find())
            with self._lock:
                self._recent[key] = found
        return cast("T", found[1])

    def coordinator_problem(self, max_age_ms: int) -> str:
        """Return why brokers did not say who is in a group, if that was so short a time ago; or empty."""
        at_ms, problem = self._coordinator_problem
        return problem if self.log.clock.monotonic_ms() - at_ms <= max_age_ms else ""

    def note_coordinator_problem(self, problem: str) -> None:
        """Remember it, so that pages need not wait for them again."""
        self._coordinator_problem = (self.log.clock.monotonic_ms(), problem)

    def past(self, commit: int, load: Callable[[], Image]) -> Image:
        """Return the image after a commit; the last few are kept."""
        with self._lock:
            found = self._past.pop(commit, None)
        found = found or load()
        with self._lock:
            self._past[commit] = found
            while len(self._past) > _MAX_PAST:
                del self._past[next(iter(self._past))]
        return found


class Shares:
    """Room for what users have open at the same time.

    A user may hold as much as is left free for others, so that one alone gets half, and cannot keep them out.
    "" (nobody logs in) may hold all.
    """

    def __init__(self) -> None:
        self._held: collections.Counter[str] = collections.Counter()

    def take(self, user: str, room: int) -> bool:
        """Take a place of `room`; False: there is none for this user. Give it back."""
        free = room - self._held.total()
        if free <= (self._held[user] if user else 0):
            return False
        self._held[user] += 1
        return True

    def give_back(self, user: str) -> None:
        """Give a place back."""
        self._held[user] -= 1
        if not self._held[user]:
            del self._held[user]


def user_of(request: Request) -> str:
    """Return who is logged in; "" where nobody logs in."""
    return str(request.scope.get("state", {}).get("user", ""))


class RecentImages:
    """Images of the last minute, by which rates go. They share what has not changed."""

    def __init__(self) -> None:
        self._images: collections.deque[tuple[int, Image]] = collections.deque()

    def add(self, at_ms: int, image: Image) -> None:
        """Add the newest, and forget what is older than a minute, except for the newest of those."""
        self._images.append((at_ms, image))
        while len(self._images) > 2 and self._images[1][0] <= at_ms - RATE_MS:
            self._images.popleft()

    def oldest(self, now_ms: int) -> tuple[float, Image] | None:
        """Return how many seconds ago the oldest was taken, and it; None: there is none, or just now."""
        found = next(iter(self._images), None)
        seconds = 0.0 if found is None else (now_ms - found[0]) / 1000
        return (seconds, found[1]) if found is not None and seconds >= 1 else None


class Query:
    """The parameters of a request: those of the path, and those after `?`."""

    def __init__(self, path: Mapping[str, Any], values: Mapping[str, str]) -> None:
        self._path = path
        self._values = values

    def name(self, key: str) -> str:
        """A part of the path."""
        return str(self._path[key])

    def text(self, key: str, default: str = "") -> str:
        return self._values.get(key, default)

    def number(self, key: str, default: int) -> int:
        """A number of at least 0.

        Raises:
            InvalidRequestError: INVALID_OPTION.
        """
        text = str(self._path[key]) if key in self._path else self._values.get(key, "")
        if not text:
            return default
        if not (text.isascii() and text.isdecimal() and len(text) <= 18):
            raise InvalidRequestError(
                "INVALID_OPTION", f"{key}: found {text[:40]!r}, expected a number", fix="give a number"
            )
        return int(text)

    @property
    def filter(self) -> str:
        return self.text("filter").strip()[:MAX_FILTER]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Paging:
    """Which part of a list is shown. `total` is after the filter; pages count from 1."""

    page: int
    pages: int
    total: int
    filter: str
    sort: str


def paged(
    rows: Sequence[T], query: Query, *, sort: str = "", key: str = "page", size: int = MAX_ROWS
) -> tuple[Paging, Sequence[T]]:
    """Return the rows of the page that is asked for."""
    pages = max(1, -(-len(rows) // size))
    page = min(max(1, query.number(key, 1)), pages)
    paging = Paging(page=page, pages=pages, total=len(rows), filter=query.filter, sort=sort)
    return paging, rows[(page - 1) * size : page * size]


def matches(text: str, wanted: str) -> bool:
    """True if a filter's text is in another, in any case of letters."""
    return wanted.casefold() in text.casefold()


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter after `?`."""

    name: str
    doc: str


FILTER = Parameter("filter", "Only rows with this text.")
PAGE = Parameter("page", f"The page, from 1 on; each has {MAX_ROWS} rows.")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A page, and its path of the API.

    Fields:
        path: of the page, with {parameters}; {name:any} may have slashes in it.
        template: empty: there is no page, only the API.
        data: returns a dataclass; its annotation describes the API's answer.
        api: the path below /api/v1, if it differs.
        is_slow: it reads much, and runs apart from the others.
    """

    path: str
    template: str = ""
    data: Callable[[Console, Query], Any]
    doc: str
    parameters: tuple[Parameter, ...] = ()
    api: str = ""
    is_slow: bool = False

    @property
    def api_path(self) -> str:
        return self.api or self.path


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Views of one subject.

    Fields:
        views: the entry of the navigation leads to the first.
        routes: makes routes for what is no page, such as a stream or a file to save.
        in_navigation: false: other pages link to it.
    """

    title: str
    views: tuple[View, ...]
    routes: Callable[[Console], Sequence[BaseRoute]] = lambda _console: ()
    in_navigation: bool = True
