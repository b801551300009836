"""The steps of a round of maintenance, in their order: each says when it is due, and does it.

Order: what goes is not rewritten first (expire and compact, then merge), producers are forgotten before that,
which makes more extents fit for it, and files go last, those that were written more than a week ago.
Invariants: whether a step is due is told from the image, the time and limits alone, without looking at the
    storage; a step removes records only where the root agrees to it (`sparklog.automatic.removal`), and
    writes only metadata documents of a version that it agrees to (`sparklog.metadata.version`), or says
    otherwise what is due, and how to agree.
Not here: a round (maintain.py), what the steps do (retain.py, compact.py, run.py, sweep.py).
Sources: Kafka LogManager.cleanupLogs, LogCleaner.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from sparklog.clock import Clock
from sparklog.log.root_config import AUTOMATIC_REMOVAL_KEY, RootConfig
from sparklog.maintenance.budget import Meter
from sparklog.maintenance.choose import MergeLimits, choose_merges
from sparklog.maintenance.choose_compactions import (
    DEDUPE_BUFFER_BYTES,
    NO_DEFAULTS,
    CompactionLimits,
    Dirtiness,
    choose_compactions,
    dirtiness,
    is_compacted,
)
from sparklog.maintenance.compact import CompactionReport, compact
from sparklog.maintenance.retain import choose_expired, expire
from sparklog.maintenance.run import Progress, Report, optimize
from sparklog.maintenance.sweep import DAY_MS, vacuum
from sparklog.maintenance.uncleanable import MAX_TOLD, Uncleanable
from sparklog.metadata import (
    CLEANED_VERSION,
    HORIZON_VERSION,
    METADATA_VERSION_KEY,
    PRODUCERS_VERSION,
    REPLACEMENT_VERSION,
    VERSION,
    WRITERS_VERSION,
    Action,
    Image,
    MetadataLog,
    SetConfigs,
    agreed_version,
    is_internal,
    plan_expire_producers,
)

# In the root's settings, but declared nowhere: when the last vacuum by itself began, in Unix time (ms).
LAST_VACUUM_KEY = "sparklog.last.vacuum.ms"
_VACUUM_COMMITS = 256
_MAX_NAMED = 3
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What a step did, or would do.

    Fields:
        step: its name, that of the command which does the same.
        outcome: done, nothing (was due), due (in a dry run), withheld (the root does not agree), cut (by the
            budget, or because somebody asked for an end), busy (another process does it), failed.
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
    """`is_due` is pure: (image, time, terms), and asks for nobody's consent to the version of the metadata
    documents that the step writes, `version`.
    """

    name: str
    version: int
    is_due: Callable[[Image, int, Terms], bool]
    run: Callable[[Round], StepReport]
    is_command: bool = True  # that can be given, of this name

    def is_agreed(self, image: Image) -> bool:
        """May the root be written with documents of that version by itself?"""
        return agreed_version(image.configs) >= self.version

    def withheld(self, round_: Round) -> StepReport:
        """What is said instead of doing it, where the root does not agree."""
        image = round_.metadata.image
        if not self.is_due(image, round_.clock.now_ms(), round_.terms):
            return StepReport(step=self.name, outcome="nothing")
        once = f"; to do it once: sparklog {self.name}" if self.is_command else ""
        message = f"{self.name} is due. {why_withheld(image)}{once}"
        return StepReport(step=self.name, outcome="withheld", message=message)


def why_withheld(image: Image) -> str:
    """Of a step that the root does not agree to for its version."""
    return (
        "This root is written by itself with metadata documents of version "
        f"{agreed_version(image.configs)} at most, which older sparklogs on other machines can read. "
        "Once every machine that uses it is upgraded: "
        f"sparklog root alter --config {METADATA_VERSION_KEY}={VERSION}"
    )


def may_remove(image: Image) -> bool:
    """Does the root agree that records go by themselves?"""
    return RootConfig.parse(image.configs).automatic_removal


# --- expire ------------------------------------------------------------------------------------------------


def _expire_is_due(image: Image, now_ms: int, terms: Terms) -> bool:
    return may_remove(image) and any(
        True for _ in choose_expired(image, now_ms, terms.topics, terms.defaults)
    )


def _expire(round_: Round) -> StepReport:
    agreed = may_remove(round_.metadata.image)
    gone = expire(
        round_.metadata,
        round_.clock.now_ms(),
        round_.terms.topics,
        dry_run=round_.dry_run or not agreed,
        defaults=round_.terms.defaults,
    )
    figures = {
        "partitions": len(gone),
        "offsets": sum(one.offsets for one in gone),
        "bytes": sum(one.size_bytes for one in gone),
    }
    if not gone:
        return StepReport(step="expire", outcome="nothing", figures=figures)
    if agreed:
        return StepReport(step="expire", outcome="due" if round_.dry_run else "done", figures=figures)
    topics = sorted({one.topic for one in gone})
    return StepReport(
        step="expire",
        outcome="withheld",
        figures=figures,
        message=f"{figures['offsets']} records of {_named(topics)} are past their retention and stay, since "
        "this root does not let records go by themselves. To agree: sparklog root alter --config "
        f"{AUTOMATIC_REMOVAL_KEY}=true; to remove them once: sparklog expire",
    )


def _named(topics: list[str]) -> str:
    more = f" and {len(topics) - 3} more topics" if len(topics) > 3 else ""
    return ", ".join(topics[:3]) + more


# --- producers ---------------------------------------------------------------------------------------------


def _expire_producers(image: Image, now_ms: int, terms: Terms) -> list[Action]:
    """Of whole roots; see metadata/model/expiring.py."""
    if terms.topics is not None:
        return []
    expiration_ms = RootConfig.parse({**terms.defaults, **image.configs}).producer_id_expiration_ms
    action = plan_expire_producers(image, now_ms, expiration_ms)
    return [] if action is None else [action]


def _producers_are_due(image: Image, now_ms: int, terms: Terms) -> bool:
    return bool(_expire_producers(image, now_ms, terms))


def _producers(round_: Round) -> StepReport:
    metadata, terms, now_ms = round_.metadata, round_.terms, round_.clock.now_ms()
    before = metadata.image
    if round_.dry_run:
        is_due = _producers_are_due(before, now_ms, terms)
        return StepReport(step="producers", outcome="due" if is_due else "nothing")
    done = metadata.publish(lambda image: _expire_producers(image, now_ms, terms)).actions
    left, there = _count_producers(metadata.image), _count_producers(before)
    return StepReport(
        step="producers",
        outcome="done" if done else "nothing",
        figures={"forgotten_producers": max(0, there - left), "known_producers": left},
    )


def _count_producers(image: Image) -> int:
    """Of all partitions, each as often as it has written to one."""
    return sum(len(state.producers) for topic in image.topics.values() for state in topic.partitions)


# --- compact -----------------------------------------------------------------------------------------------


def dirtiness_of(image: Image, now_ms: int, terms: Terms) -> Dirtiness:
    """How much there is for compaction by itself, due or not."""
    names = _compactable(image, terms, agreed=may_remove(image))
    return dirtiness(image, now_ms, terms.compaction_limits, names)


def _compactable(image: Image, terms: Terms, *, agreed: bool) -> list[str]:
    """Topics that are to be compacted by themselves: also internal ones of a root that does not agree, of
    which nobody reads what is superseded.
    """
    return [
        name
        for name in (sorted(image.topics) if terms.topics is None else terms.topics)
        if (agreed or is_internal(name)) and name in image.topics and is_compacted(image.topics[name], image)
    ]


def _compact_is_due(image: Image, now_ms: int, terms: Terms) -> bool:
    names = _compactable(image, terms, agreed=may_remove(image))
    return bool(names) and bool(choose_compactions(image, now_ms, terms.compaction_limits, names))


def _compact(round_: Round) -> StepReport:
    image, limits = round_.metadata.image, round_.terms.compaction_limits
    agreed = may_remove(image)
    report = compact(
        round_.metadata,
        round_.clock,
        _compactable(image, round_.terms, agreed=agreed),
        limits,
        dry_run=round_.dry_run,
        raises=False,
        meter=round_.meter,
        progress=round_.progress,
    )
    topics = report.topics.values()
    figures = {
        "partitions": sum(one.partitions for one in topics),
        "records_removed": sum(one.records_removed for one in topics),
        "read_bytes": sum(one.bytes_before for one in topics),
        "written_bytes": sum(one.bytes_after for one in topics),
        "left_out": sum(one.left_out for one in topics),
    }
    works = figures["partitions"] if round_.dry_run else sum(one.rounds for one in topics)
    done = _report("compact", round_, figures, report, work_done=works)
    kept = [] if agreed else _compactable(image, round_.terms, agreed=True)
    waiting = choose_compactions(image, round_.clock.now_ms(), limits, kept) if kept else []
    topics_kept = sorted({work.topic for work in waiting if not is_internal(work.topic)})
    if not topics_kept:
        return done
    return replace(
        done,
        outcome="withheld" if done.outcome == "nothing" else done.outcome,
        message=f"{done.message} {_named(topics_kept)}: cleanup.policy=compact is not acted on, since this "
        "root does not let records go by themselves. To agree: sparklog root alter --config "
        f"{AUTOMATIC_REMOVAL_KEY}=true; to compact once: sparklog compact".lstrip(),
    )


def _report(
    step: str, round_: Round, figures: Figures, report: Report | CompactionReport, *, work_done: int
) -> StepReport:
    """Of a step that rewrites partitions."""
    failed = report.uncleanable
    outcome = "done" if work_done else "failed" if failed else "nothing"
    if round_.dry_run and work_done:
        outcome = "due"
    if report.is_cut:
        outcome = "cut"
    more = f"; and {len(failed) - _MAX_NAMED} more" if len(failed) > _MAX_NAMED else ""
    return StepReport(
        step=step,
        outcome=outcome,
        figures=figures,
        message="; ".join(one.message for one in failed[:_MAX_NAMED]) + more,
        uncleanable=tuple(failed[:MAX_TOLD]),
    )


# --- optimize ----------------------------------------------------------------------------------------------


def _merge_is_due(image: Image, _now_ms: int, terms: Terms) -> bool:
    return any(True for _ in choose_merges(image, terms.merge_limits, terms.topics))


def _merge(round_: Round) -> StepReport:
    report = optimize(
        round_.metadata,
        round_.clock,
        round_.terms.topics,
        round_.terms.merge_limits,
        dry_run=round_.dry_run,
        raises=False,
        meter=round_.meter,
        progress=round_.progress,
    )
    topics = report.topics.values()
    figures = {
        "merged_extents": sum(one.merged_extents for one in topics),
        "read_bytes": sum(one.merged_bytes for one in topics),
        "added_extents": sum(one.added_extents for one in topics),
        "written_bytes": sum(one.added_bytes for one in topics),
        "left_out": sum(one.left_out for one in topics),
    }
    return _report("optimize", round_, figures, report, work_done=figures["merged_extents"])


# --- vacuum ------------------------------------------------------------------------------------------------


def _vacuum_is_due(image: Image, now_ms: int, terms: Terms) -> bool:
    """Once a day, which the image remembers; of whole roots, that have been written to for a while."""
    if terms.topics is not None or image.commit < _VACUUM_COMMITS:
        return False
    text = image.configs.get(LAST_VACUUM_KEY, "")
    return (
        not text.isdecimal() or abs(now_ms - int(text)) >= DAY_MS
    )  # whoever was last, and whatever its clock


def _vacuum(round_: Round) -> StepReport:
    metadata, now_ms = round_.metadata, round_.clock.now_ms()
    if not _vacuum_is_due(metadata.image, now_ms, round_.terms):
        return StepReport(step="vacuum", outcome="nothing")
    if round_.dry_run:
        return StepReport(step="vacuum", outcome="due")
    # First: a vacuum that fails, or is killed with its round, has listed the storage all the same.
    metadata.publish(lambda _image: [SetConfigs(configs={LAST_VACUUM_KEY: str(now_ms)})])
    report = vacuum(
        metadata, round_.clock, progress=lambda _: round_.meter.check(), removed=round_.meter.spend_files
    )
    figures = {
        "files": report.dead.files,
        "bytes": report.dead.size_bytes,
        "waiting_files": report.waiting.files,
        "temporary": report.temporary,
        "requests": report.requests,
    }
    return StepReport(step="vacuum", outcome="done", figures=figures)


STEPS: tuple[Step, ...] = (
    Step("expire", WRITERS_VERSION, _expire_is_due, _expire),
    Step("producers", PRODUCERS_VERSION, _producers_are_due, _producers, is_command=False),
    Step("compact", CLEANED_VERSION, _compact_is_due, _compact),
    Step("optimize", REPLACEMENT_VERSION, _merge_is_due, _merge),
    Step("vacuum", HORIZON_VERSION, _vacuum_is_due, _vacuum),
)
