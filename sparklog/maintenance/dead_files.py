"""What of a root's files is dead, and may be removed: pure, of a listing and an image.

A file is dead when its segment was born before an image's sweep horizon, or is retired in that image, and no
extent of that same image is in it, staged ones included. Then no commit can bring it to life any more
(metadata/model/sweeping.py), so the verdict holds for ever: listing and image may be of any two moments, in
any order, and any time may pass until the file goes. An index goes by its segment, whether that is there or
not.

Invariants: what is dead is judged by the horizon of the image that says what is live, and by no other; a name
    that sparklog never gave is nobody's here; a file is live if any extent might mean it.
Dates decide how far the horizon may be moved, and nothing else. That is a courtesy to slow writers: a wrong
    date can make one append twice, and cannot make anybody lose anything.
Not here: listing, moving the horizon, removing (sweep.py).
Sources: adr/0019; FORMAT.md#segments-and-extents; tests/models/sweeping.py.
"""

import enum
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain

from sparklog.log.names import is_merged, is_segment_directory, segment_of
from sparklog.metadata import NO_COMMIT, ExtentList, Image, born_of
from sparklog.storage import StoredFile


class Verdict(enum.Enum):
    """What a file is.

    LIVE: an extent refers to it, or it is an index of such a file.
    DEAD: nothing refers to it, nor can anything ever.
    WAITING: nothing refers to it; but it may be published still, or a reader may hold it: not old enough.
    OTHER: not sparklog's, as far as its name says: never touched.
    EMPTY: an empty directory in which a writer, or merging, had segments.
    """

    LIVE = "live"
    DEAD = "dead"
    WAITING = "waiting"
    OTHER = "other"
    EMPTY = "empty"


class Judge:
    """Says of each file what it is, as of one image."""

    def __init__(self, image: Image, past: Image | None = None) -> None:
        """`past`: an older image; what was live then stays, although it is dead now."""
        self.horizon = image.sweep_horizon
        self._retired = image.retired
        self._live = _live_keys(image)
        self._spared = frozenset() if past is None else _live_keys(past) - self._live

    def verdict(self, file: StoredFile) -> Verdict:
        """What a file of a listing is."""
        if file.name.endswith("/") and is_segment_directory(file.name[:-1]):
            return Verdict.EMPTY
        segment = segment_of(file.name)
        if segment is None:
            return Verdict.OTHER
        key = _key(segment)
        if key in self._live:
            return Verdict.LIVE
        is_dead = born_of(segment) < self.horizon or self._retired.has(segment)
        if is_dead and key not in self._spared:
            return Verdict.DEAD
        return Verdict.WAITING


class ForeseeingJudge(Judge):
    """As if the horizon had been moved already: for telling what would go, not for removing anything."""

    def __init__(self, image: Image, horizon: int, past: Image | None = None) -> None:
        super().__init__(image, past)
        self.horizon = max(horizon, image.sweep_horizon)


def _live_keys(image: Image) -> AbstractSet[str]:
    """Of the segments that extents of the image are in, and what transactions have staged."""
    found: set[str] = set()
    for extents in all_extents(image):
        for _, block in extents.column_blocks():
            found.update(block.segment.tolist())
    return {_key(segment) for segment in found}


def all_extents(image: Image) -> Iterator[ExtentList]:
    """Yield those of each partition, and what transactions have staged."""
    published = (state.extents for topic in image.topics.values() for state in topic.partitions)
    yield from chain(published, image.transactions.staged_lists())


def live_bytes_of(image: Image) -> dict[str, int]:
    """By segment, the stored bytes of the extents that are in it, staged ones included."""
    found: dict[str, int] = {}
    for extents in all_extents(image):
        for _, block in extents.column_blocks():
            for segment, size in zip(block.segment.tolist(), block.column("size").tolist(), strict=True):
                found[segment] = found.get(segment, 0) + size
    return found


def _key(segment: str) -> str:
    """What is compared. The names of merged segments have an id that no other has, so their directories are
    left out: a file system that ignores case may show them as another topic's.
    """
    return segment.rpartition("/")[2] if is_merged(segment) else segment


@dataclass(slots=True)
class Evidence:
    """The latest birth that there can have been at some time, as the storage's own dates show.

    A file that was born at commit c, and last changed at a time, shows that c was there by then; so does the
    file of a commit or of its snapshot.

    Fields:
        until_ms: the time in question.
        birth: NO_COMMIT: none is shown to have been.
        newest_birth, newest_file: of any date.
        oldest_unused: the birth of the oldest file that nothing refers to; None: there is none.
    """

    until_ms: int
    birth: int = NO_COMMIT
    newest_birth: int = NO_COMMIT
    newest_file: str = ""
    oldest_unused: int | None = None

    def add_file(self, file: StoredFile, verdict: Verdict) -> None:
        """A data file; `verdict`: with no horizon in the way, DEAD or WAITING if nothing refers to it."""
        segment = segment_of(file.name)
        if segment is None:
            return
        born = born_of(segment)
        if born > self.newest_birth:
            self.newest_birth, self.newest_file = born, file.name
        if verdict is Verdict.WAITING and (self.oldest_unused is None or born < self.oldest_unused):
            self.oldest_unused = born
        self.add_birth(born, file.modified_ms)

    def add_birth(self, birth: int, modified_ms: int) -> None:
        """Also of a commit, or of its snapshot, by the date of its file."""
        if modified_ms <= self.until_ms:
            self.birth = max(self.birth, birth)
