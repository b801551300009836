"""The steps of a round of maintenance, in their order: each says when it is due, and does it.

Order: what goes is not rewritten first (expire and compact, then merge), producers are forgotten before that,
which makes more extents fit for it, and files go last, those that were written more than a week ago; what
nobody is going to commit is dropped before all.
Invariants: whether a step is due is told from the image, the time and limits alone, without looking at the
    storage. Where the root does not agree to one (round_step.py), it says what is due, and how to agree.
Not here: what a step is (round_step.py), a round (maintain.py), what the steps do (left_open.py,
    retain.py, compact.py, run.py, sweep.py).
Sources: Kafka LogManager.cleanupLogs, LogCleaner.
"""

from collections.abc import Collection
from dataclasses import replace
from functools import partial

from sparklog.log.config import TopicConfig
from sparklog.log.root_config import AUTOMATIC_REMOVAL_KEY, RootConfig
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
from sparklog.maintenance.round_step import Figures, Round, Step, StepReport, Terms, may_remove
from sparklog.maintenance.run import Report, optimize
from sparklog.maintenance.sober_time import both_now_ms, sober_now_ms
from sparklog.maintenance.sweep import DAY_MS, mostly_dead_segments, vacuum
from sparklog.maintenance.uncleanable import MAX_TOLD
from sparklog.metadata import (
    CLEANED_VERSION,
    HORIZON_VERSION,
    PRODUCERS_VERSION,
    REPLACEMENT_VERSION,
    TRANSACTIONS_VERSION,
    WRITERS_VERSION,
    Action,
    Image,
    SetConfigs,
    is_internal,
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
    return may_remove(image) and any(
        True for _ in choose_expired(image, now_ms, terms.topics, terms.defaults)
    )


def withheld_by_root(image: Image, now_ms: int, terms: Terms) -> str:
    """What to tell people of a root in which records are past their retention and stay, since it does not let
    records go by themselves; empty if there is nothing to tell.
    """
    if may_remove(image):
        return ""
    topics = {one.topic for one in choose_expired(image, now_ms, terms.topics, terms.defaults)}
    return _stay(topics) if topics else ""


def _stay(topics: Collection[str], count: str = "") -> str:
    return (
        f"{count}records of {_named(sorted(topics))} are past their retention and stay, since this root does "
        f"not let records go by themselves. To agree: sparklog root alter --config "
        f"{AUTOMATIC_REMOVAL_KEY}=true; to remove them once: sparklog expire"
    )


def _expire(round_: Round) -> StepReport:
    agreed = may_remove(round_.metadata.image)
    gone = expire(
        round_.metadata,
        sober_now_ms(round_.metadata.store, round_.clock),
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
    message = _stay({one.topic for one in gone}, f"{figures['offsets']} ")
    return StepReport(step="expire", outcome="withheld", figures=figures, message=message)


def _named(topics: list[str]) -> str:
    more = f" and {len(topics) - 3} more topics" if len(topics) > 3 else ""
    return ", ".join(topics[:3]) + more


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
    done = _report("compact", round_, figures, report, work_done=works)
    kept = [] if agreed else _compactable(image, round_.terms, agreed=True)
    now_ms = sober_now_ms(round_.metadata.store, round_.clock)
    waiting = choose_compactions(image, now_ms, limits, kept) if kept else []
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
    Step("transactions", TRANSACTIONS_VERSION, _transactions_are_due, _transactions, is_command=False),
    Step("expire", WRITERS_VERSION, _expire_is_due, _expire),
    Step("producers", PRODUCERS_VERSION, _producers_are_due, _producers, is_command=False),
    Step("compact", CLEANED_VERSION, _compact_is_due, _compact),
    Step("optimize", REPLACEMENT_VERSION, _merge_is_due, _merge),
    Step("retire", TRANSACTIONS_VERSION, _retire_is_due, _retire, is_command=False),
    Step("vacuum", HORIZON_VERSION, _vacuum_is_due, _vacuum),
)
