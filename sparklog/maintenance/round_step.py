"""What a step of a round of maintenance is: what it is given, and what it reports.

Not here: the steps (steps.py), a round of them (maintain.py).
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sparklog.clock import Clock
from sparklog.maintenance.budget import Meter
from sparklog.maintenance.choose import MergeLimits
from sparklog.maintenance.choose_compactions import DEDUPE_BUFFER_BYTES, NO_DEFAULTS, CompactionLimits
from sparklog.maintenance.run import Progress
from sparklog.maintenance.uncleanable import Uncleanable
from sparklog.metadata import Image, MetadataLog

Figures = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a choice depends on besides the image.

    Fields:
        topics: None: all, internal ones too.
        limits: when extents are merged.
        defaults: settings of topics where neither they nor the root say anything: a broker's.
        dedupe_buffer_bytes: see CompactionLimits.
        but: (topic_id, partition) of what is not rewritten, since it was found uncleanable lately.
    """

    topics: Collection[str] | None = None
    limits: MergeLimits = field(default_factory=MergeLimits)
    defaults: Mapping[str, str] = field(default_factory=lambda: NO_DEFAULTS)
    dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES
    but: frozenset[tuple[str, int]] = frozenset()

    @property
    def merge_limits(self) -> MergeLimits:
        """Without what is left out."""
        return replace(self.limits, but=self.limits.but | self.but) if self.but else self.limits

    @property
    def compaction_limits(self) -> CompactionLimits:
        """As compaction by itself has them."""
        return CompactionLimits(
            only_due=True,
            min_extents=self.limits.fan_in or 1,
            dedupe_buffer_bytes=self.dedupe_buffer_bytes,
            but=self.but,
            defaults=self.defaults,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What a step is given."""

    metadata: MetadataLog
    clock: Clock
    terms: Terms
    meter: Meter
    dry_run: bool
    progress: Callable[[Progress], None]

    @property
    def how(self) -> dict[str, Any]:
        """What optimize and compact are told alike: what cannot be read is a matter of the report."""
        return {
            "dry_run": self.dry_run,
            "raises": False,
            "meter": self.meter,
            "progress": self.progress,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What a step did, or would do.

    Fields:
        step: its name, that of the command which does the same.
        outcome: done, nothing (was due), due (in a dry run), cut (by the budget, or because somebody
            asked for an end), busy (another process does it), failed.
        figures: counts by name, such as offsets or read_bytes.
        message: for people, where the outcome says too little.
        uncleanable: partitions that were left as they are, since they cannot be read; the others were done.
    """

    step: str
    outcome: str
    figures: Figures = field(default_factory=dict)
    message: str = ""
    uncleanable: tuple[Uncleanable, ...] = ()
    duration_ms: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """`is_due` is pure: (image, time, terms)."""

    name: str
    is_due: Callable[[Image, int, Terms], bool]
    run: Callable[[Round], StepReport]
