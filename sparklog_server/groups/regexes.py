"""Topics that match the regular expressions of subscriptions (KIP-848).

A client's expression is untrusted code: patterns.py bounds its size and its CPU time, RE2 does not backtrack.
One search runs at a time, in a storage thread, so that others stay free. A pattern is looked up again after
topics have come or gone, and not more often than takes a twentieth of a thread's time.
Invariants: at most KEPT patterns are remembered, and MOST_WAITING requests wait for a search: they take slots
    that all requests share. A pattern matches whole names. Internal topics match none, as in consumers
    that match topics themselves.
Not here: which members subscribe with which pattern (consumer_group.py).
Concurrency: event loop; the search in a thread.
Sources: KIP-848; Kafka GroupRegexManager.
"""

import asyncio
import copy
import time
from collections import OrderedDict
from typing import Final, NamedTuple

from sparklog.client.patterns import MOST_CHARACTERS, CpuBudget, matching
from sparklog.errors import InvalidRequestError, as_value
from sparklog.format.consumer_group_records import ResolvedRegex
from sparklog.metadata import is_internal
from sparklog_server.coordination.internal_topic import Host

MOST_PATTERNS: Final = 100  # of a group
SEARCH_SECONDS: Final = 0.25  # of CPU, for one pattern
KEPT: Final = 1_000
SHARE: Final = 20
LEAST_INTERVAL_MS: Final = 1_000
REFUSED_MS: Final = 60_000
MOST_WAITING: Final = 50


class _Kept(NamedTuple):
    """The last search of a pattern: its topics, or why it was refused."""

    found: ResolvedRegex | InvalidRequestError
    again_ms: int  # monotonic


class Regexes:
    """Looks up the topics of patterns, for all groups."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    async def topics_of(self, pattern: str) -> ResolvedRegex | None:
        """Return the topics that match, as of the newest image or a moment before; None: too many wait.

        Raises:
            InvalidRequestError: INVALID_PATTERN: it is no pattern, or takes too long.
        """
        kept = self._known(pattern)
        if kept is None and self._waiting >= MOST_WAITING:
            return None
        if kept is None:
            self._waiting += 1
            try:
                async with self._turn:
                    kept = self._known(pattern) or await self._search(pattern)
            finally:
                self._waiting -= 1
        if isinstance(kept, InvalidRequestError):
            raise copy.copy(kept)  # one that is kept would have the frames of all requests that it refused
        return kept

    def _known(self, pattern: str) -> ResolvedRegex | InvalidRequestError | None:
        kept = self._kept.get(pattern)
        if kept is None:
            return None
        found = kept.found
        is_current = isinstance(found, ResolvedRegex) and found.version == self._version
        return found if is_current or self._host.clock.monotonic_ms() < kept.again_ms else None

    async def _search(self, pattern: str) -> ResolvedRegex | InvalidRequestError:
        version = self._version
        names = [name for name in self._host.root.image.topics if not is_internal(name)]
        began = time.monotonic()
        found: ResolvedRegex | InvalidRequestError
        try:
            topics = await self._host.root.run(_matching, pattern, names)
            found = ResolvedRegex(topics=topics, version=version, timestamp_ms=self._host.clock.now_ms())
            wait_ms = max(LEAST_INTERVAL_MS, int(1000 * SHARE * (time.monotonic() - began)))
        except InvalidRequestError as error:
            found, wait_ms = as_value(error), REFUSED_MS
        if len(pattern) > MOST_CHARACTERS:  # it was refused, and would be kept as it is
            return found
        self._kept[pattern] = _Kept(found, self._host.clock.monotonic_ms() + wait_ms)
        self._kept.move_to_end(pattern)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return found

    @property
    def _version(self) -> int:
        return self._host.root.image.cluster_changed


def _matching(pattern: str, names: list[str]) -> tuple[str, ...]:
    """In a thread."""
    matches = matching(pattern, names, of="topics", budget=CpuBudget(SEARCH_SECONDS))
    return tuple(sorted(name for name, is_match in zip(names, matches, strict=True) if is_match))
