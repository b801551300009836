"""The steps of a round of maintenance, in their order: each says when it is due, and does it.

Order: what goes is not rewritten first (expire and compact, then merge), producers are forgotten before that,
which makes more extents fit for it, and files go last, those that were written more than a week ago; what
nobody is going to commit is dropped before all.
Invariants: whether a step is due is told from the image, the time and limits alone, without looking at the
    storage.
Not here: what a step is (round_step.py), a round (maintain.py), what the steps do (left_open.py,
    retain.py, compact.py, run.py, sweep.py).
Sources: Kafka LogManager.cleanupLogs, LogCleaner.
"""

from functools import partial

from sparklog.log.config import TopicConfig
from sparklog.log.root_config import RootConfig
from sparklog.maintenance.choose import choose_merges, choose_rewrites
from sparklog.maintenance.choose_compactions import (
    Dirtiness,
    choose_compactions,
    dirtiness,
    is_compacted,
)
from sparklog.maintenance.compact import CompactionReport, compact
from sparklog.maintenance.left_open import abort_left_open, choose_left_open
from sparklog.maintenance.retain import choose_expired, expire
from sparklog.maintenance.retire import retire, retire_is_due
from sparklog.maintenance.round_step import Figures, Round, Step, StepReport, Terms
from sparklog.maintenance.run import Report, optimize
from sparklog.maintenance.sober_time import both_now_ms, sober_now_ms
from sparklog.maintenance.sweep import DAY_MS, mostly_dead_segments, vacuum
from sparklog.maintenance.uncleanable import MAX_TOLD
from sparklog.metadata import (
    Action,
    Image,
    SetConfigs,
    plan_expire_producers,
)

# In the root's settings, but declared nowhere: when the last vacuum by itself began, in Unix time (ms).
LAST_VACUUM_KEY = "sparklog.last.vacuum.ms"
_VACUUM_COMMITS = 256
_MAX_NAMED = 3

# --- transactions ------------------------------------------------------------------------------------------


def _transactions_are_due(image: Image, now_ms: int, terms: Terms) -> bool:
    """Of whole roots: a transaction may be in any topics."""
    return terms.topics is None and bool(choose_left_open(image, now_ms))


def _transactions(round_: Round) -> StepReport:
    metadata, clock = round_.metadata, round_.clock
    if not _transactions_are_due(metadata.image, sober_now_ms(metadata.store, clock), round_.terms):
        return StepReport(step="transactions", outcome="nothing")
    if round_.dry_run:
        return StepReport(step="transactions", outcome="due")
    aborted = abort_left_open(metadata, clock, round_.meter.check)
    figures = {"aborted": len(aborted), "staged_bytes": sum(one.staged_bytes for one in aborted)}
    return StepReport(step="transactions", outcome="done" if aborted else "nothing", figures=figures)


# --- expire ------------------------------------------------------------------------------------------------


def _expire_is_due(image: Image, now_ms: int, terms: Terms) -> bool:
    return any(True for _ in choose_expired(image, now_ms, terms.topics, terms.defaults))


def _expire(round_: Round) -> StepReport:
    gone = expire(
        round_.metadata,
        sober_now_ms(round_.metadata.store, round_.clock),
        round_.terms.topics,
        dry_run=round_.dry_run,
        defaults=round_.terms.defaults,
    )
    figures = {
        "partitions": len(gone),
        "offsets": sum(one.offsets for one in gone),
        "bytes": sum(one.size_bytes for one in gone),
    }
    done = "due" if round_.dry_run else "done"
    return StepReport(step="expire", outcome=done if gone else "nothing", figures=figures)


# --- producers ---------------------------------------------------------------------------------------------


def _expire_producers(image: Image, now_ms: int, terms: Terms, latest_ms: int = 0) -> list[Action]:
    """Of whole roots; see metadata/model/expiring.py."""
    if terms.topics is not None:
        return []
    expiration_ms = RootConfig.parse({**terms.defaults, **image.configs}).producer_id_expiration_ms
    action = plan_expire_producers(image, now_ms, expiration_ms, latest_ms=latest_ms)
    return [] if action is None else [action]


def _producers_are_due(image: Image, now_ms: int, terms: Terms) -> bool:
    return bool(_expire_producers(image, now_ms, terms))


def _producers(round_: Round) -> StepReport:
    metadata, terms = round_.metadata, round_.terms
    now_ms, latest_ms = both_now_ms(metadata.store, round_.clock)
    before = metadata.image
    if round_.dry_run:
        is_due = _producers_are_due(before, now_ms, terms)
        return StepReport(step="producers", outcome="due" if is_due else "nothing")
    done = metadata.publish(lambda image: _expire_producers(image, now_ms, terms, latest_ms)).actions
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
    """How much there is to compact, due or not."""
    return dirtiness(image, now_ms, terms.compaction_limits, _compactable(image, terms))


def _compactable(image: Image, terms: Terms) -> list[str]:
    """The topics whose cleanup.policy has compact."""
    return [
        name
        for name in (sorted(image.topics) if terms.topics is None else terms.topics)
        if name in image.topics and is_compacted(image.topics[name], image)
    ]


def _compact_is_due(image: Image, now_ms: int, terms: Terms) -> bool:
    names = _compactable(image, terms)
    return bool(names) and bool(choose_compactions(image, now_ms, terms.compaction_limits, names))


def _compact(round_: Round) -> StepReport:
    report = compact(
        round_.metadata,
        round_.clock,
        _compactable(round_.metadata.image, round_.terms),
        round_.terms.compaction_limits,
        **round_.how,
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
    return _report("compact", round_, figures, report, work_done=works)


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
        **round_.how,
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


# --- retire ------------------------------------------------------------------------------------------------


def _delay_ms(image: Image, terms: Terms) -> int:
    """How long readers have what is dead: the root's file.delete.delay.ms."""
    return TopicConfig.parse({}, {**terms.defaults, **image.configs}).file_delete_delay_ms


def _retire_is_due(image: Image, now_ms: int, terms: Terms) -> bool:
    """Of whole roots: a segment may have extents of any topics."""
    return terms.topics is None and retire_is_due(image, now_ms, _delay_ms(image, terms))


def _retire(round_: Round) -> StepReport:
    metadata, clock = round_.metadata, round_.clock
    now_ms = metadata.store.storage_now_ms(clock.now_ms())
    if not _retire_is_due(metadata.image, now_ms, round_.terms):
        return StepReport(step="retire", outcome="nothing")
    if round_.dry_run:
        return StepReport(step="retire", outcome="due")
    report = retire(
        metadata,
        clock,
        delay_ms=_delay_ms(metadata.image, round_.terms),
        check=round_.meter.check,
        removed=round_.meter.spend_files,
    )
    figures = {
        "retired_segments": report.retired,
        "retired_bytes": report.retired_bytes,
        "removed_segments": report.files,
    }
    return StepReport(
        step="retire", outcome="done" if report.has_done_anything else "nothing", figures=figures
    )


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
    rewritten = _rewrite_mostly_dead(round_)
    figures = {
        "rewritten_bytes": sum(one.merged_bytes for one in rewritten.topics.values()),
        "files": report.dead.files,
        "bytes": report.dead.size_bytes,
        "waiting_files": report.waiting.files,
        "temporary": report.temporary,
        "requests": report.requests,
    }
    return StepReport(
        step="vacuum",
        outcome="done",
        figures=figures,
        uncleanable=tuple(rewritten.uncleanable[:MAX_TOLD]),
    )


def _rewrite_mostly_dead(round_: Round) -> Report:
    """Move what is live out of segments that are mostly dead, so that a vacuum can remove these."""
    segments = mostly_dead_segments(round_.metadata, round_.clock)
    if not segments:
        return Report()
    choose = partial(choose_rewrites, segments=frozenset(segments))
    limits = round_.terms.merge_limits
    return optimize(round_.metadata, round_.clock, None, limits, choose=choose, **round_.how)


STEPS: tuple[Step, ...] = (
    Step("transactions", _transactions_are_due, _transactions),
    Step("expire", _expire_is_due, _expire),
    Step("producers", _producers_are_due, _producers),
    Step("compact", _compact_is_due, _compact),
    Step("optimize", _merge_is_due, _merge),
    Step("retire", _retire_is_due, _retire),
    Step("vacuum", _vacuum_is_due, _vacuum),
)
