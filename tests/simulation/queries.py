"""What a streaming query keeps outside of the log: its checkpoint.

A query reads a source of numbered records, each of which belongs to one topic and partition, always the same.
A batch is planned once, and written down before it runs. A checkpoint may be restored from an older copy.
Then batches are planned again, from the same places on, and may end elsewhere.
"""

import zlib
from dataclasses import dataclass, field, replace

from tests.simulation.keyed import KEYED, text_of
from tests.simulation.setting import Setting

_SIZES = (1, 1, 2, 4)


@dataclass(frozen=True)
class Batch:
    """Records [start, end) of the source."""

    version: int
    start: int
    end: int
    values: dict[str, list[str]]  # key -> values
    writes: tuple[tuple[str, ...], ...]  # topics: all in one publish, or one publish after the other

    @property
    def content(self) -> str:
        """What the writer tells the log of it."""
        return f"{self.start}-{self.end}"

    def values_of(self, topics: tuple[str, ...]) -> dict[str, list[str]]:
        """What goes to these topics."""
        return {key: texts for key, texts in self.values.items() if key.rpartition("-")[0] in topics}


@dataclass
class Query:
    """One checkpoint."""

    name: str = ""
    restored: int = 0  # so many times
    generation: int = 0  # of its name, after an operator had to start it anew
    version: int = 0
    position: int = 0
    furthest: int = 0  # of the source, ever
    pending: Batch | None = None
    starts: dict[int, int] = field(default_factory=dict)  # of the batches, by version

    @property
    def application(self) -> str:
        """Under which it commits."""
        return f"{self.name}{self.generation or ''}"

    @property
    def was_restored(self) -> bool:
        """Under this name?"""
        return self.restored > 0

    def copy(self) -> "Query":
        """A checkpoint of its own."""
        return replace(self, starts=dict(self.starts))

    def next_batch(self, setting: Setting) -> Batch:
        """The one that is to be run: planned before, or now."""
        if self.pending is None:
            end = self.position + setting.dice.choice(_SIZES)
            values: dict[str, list[str]] = {}
            for number in range(self.position, end):
                key, text = _record(self.name, number, setting)
                values.setdefault(key, []).append(text)
            topics = tuple(dict.fromkeys(key.rpartition("-")[0] for key in values))
            writes = (topics,) if setting.dice.random() < 0.5 else tuple((topic,) for topic in topics)
            self.pending = Batch(self.version, self.position, end, values, writes)
            self.starts[self.version] = self.position
            self.furthest = max(self.furthest, end)
        return self.pending

    def note_done(self) -> None:
        """The batch is published."""
        assert self.pending is not None
        self.version, self.position, self.pending = self.version + 1, self.pending.end, None

    def restore(self, back: int) -> bool:
        """From a copy of the checkpoint that was made so many batches ago."""
        if self.version < back:
            return False
        self.restored += 1
        self.version -= back
        self.position, self.pending = self.starts[self.version], None
        return True

    def start_anew(self) -> None:
        """What an operator does who was told that the checkpoint does not fit: another name, and go on."""
        self.generation += 1
        self.restored = self.version = 0
        self.position, self.pending = self.furthest, None
        self.starts.clear()


def _record(name: str, number: int, setting: Setting) -> tuple[str, str]:
    """A record of the source: where it goes, and its text. It follows from its number alone."""
    thrown = zlib.crc32(f"{name}/{number}".encode())
    topic = setting.topics[thrown % len(setting.topics)]
    thrown //= len(setting.topics)
    place = f"{topic}-{thrown % setting.partitions}"
    if topic != KEYED:
        return place, f"{topic}/{name}/{number}"
    assert setting.compaction is not None
    thrown //= setting.partitions
    key = f"k{thrown % setting.compaction.keys}"
    return place, text_of(name, number, key, is_tombstone=thrown // setting.compaction.keys % 4 == 0)
