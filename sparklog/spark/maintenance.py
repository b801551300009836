"""Maintenance as a Spark job: one task a piece of work, on executors; the driver publishes.
On object stores a task does all that read the same small objects (sparklog/maintenance/rewrite.py).

For what is too much for one machine: a first merge, or compaction, of a large root. What is chosen and
published is what `sparklog optimize` and `sparklog compact` choose and publish, so both may be broken off at
any time, and run beside writers and readers.
Invariants: pieces of work go to executors in waves; what came of a wave is published before the next begins,
    so that whoever ends the job loses a wave at most. A task that Spark repeats leaves files that nothing
    refers to.
Not here: expiry and vacuum, which read no records (sparklog/maintenance, `sparklog expire`, `vacuum`); the
    command for spark-submit (maintenance_job.py).
Concurrency: one at a time on the driver's machine (sparklog/maintenance/budget.py).
After a crash: what was published stays; run it again.
Sources: Delta Lake OPTIMIZE, Iceberg rewrite_data_files.
"""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from sparklog.client import open_log
from sparklog.clock import SystemClock
from sparklog.errors import InvalidRequestError, SparklogError
from sparklog.maintenance import (
    CompactionLimits,
    CompactionReport,
    CompactionWork,
    MergeLimits,
    MergeWork,
    Report,
    merge,
)
from sparklog.maintenance import compact as compact_log
from sparklog.maintenance import optimize as optimize_log
from sparklog.maintenance.compact import CompactionResult, compact_each, pieces_of
from sparklog.maintenance.merge import Told
from sparklog.maintenance.rewrite import groups
from sparklog.metadata import (
    ReplaceExtents,
)
from sparklog.metadata.documents.properties import open_properties
from sparklog.storage import open_store

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

WorkT = TypeVar("WorkT", MergeWork, CompactionWork)
StorageOptions = Mapping[str, Any] | None
_log = logging.getLogger("sparklog.spark")
# What a task does of several works that read the same small objects: bytes of these, and of all. Larger:
# fewer requests; smaller: more tasks.
TASK_BYTES, MOST_TASK_BYTES = 256 << 20, 1 << 30
LEAST = {"target_file_size_bytes": 1, "min_input_files": 2, "max_concurrent_file_group_rewrites": 1}


def optimize(
    spark: "SparkSession",
    root: str,
    topics: Collection[str] | None = None,
    *,
    target_file_size_bytes: int | None = None,
    min_input_files: int | None = None,
    max_concurrent_file_group_rewrites: int | None = None,
    dry_run: bool = False,
    storage_options: StorageOptions = None,
    cluster_id: str | None = None,
) -> Report:
    """Merge small extents into large segments.

    Args:
        root: as for sparklog.open, and the same on every executor.
        topics: None: all, internal ones too.
        target_file_size_bytes: of segments; default, and most: the topic's segment.bytes.
        min_input_files: only where there are so many extents of about one size; default: wherever there are
            two.
        max_concurrent_file_group_rewrites: tasks in a wave; default: twice what Spark runs at once.
        dry_run: only say what would be merged.
        storage_options, cluster_id: as for sparklog.open.

    Raises: as sparklog.maintenance.optimize; InvalidRequestError: INVALID_OPTION for a number below LEAST,
        SPARK_CONNECT_UNSUPPORTED for a session of Spark Connect.
    """
    _validate(
        target_file_size_bytes=target_file_size_bytes,
        min_input_files=min_input_files,
        max_concurrent_file_group_rewrites=max_concurrent_file_group_rewrites,
    )
    context = _context_of(spark)
    limits = MergeLimits(fan_in=min_input_files, target_bytes=target_file_size_bytes)
    with open_log(root, create=False, storage_options=storage_options, cluster_id=cluster_id) as log:

        def run(works: Sequence[MergeWork], _told: Told) -> Iterator[list[ReplaceExtents] | SparklogError]:
            task = _task(root, storage_options, log.cluster_id, _merged)
            grouped = list(groups(log.store, works, merge.pieces_of, TASK_BYTES, MOST_TASK_BYTES))
            yield from in_waves(context, grouped, task, max_concurrent_file_group_rewrites)

        return optimize_log(log.metadata, log.clock, topics, limits, dry_run=dry_run, run=run)


def compact(
    spark: "SparkSession",
    root: str,
    topics: Collection[str] | None = None,
    *,
    only_due: bool = False,
    max_concurrent_file_group_rewrites: int | None = None,
    dry_run: bool = False,
    storage_options: StorageOptions = None,
    cluster_id: str | None = None,
) -> CompactionReport:
    """Keep the last record of each key, in topics whose cleanup.policy has compact: a partition a task.

    Args:
        only_due: go by min.cleanable.dirty.ratio and max.compaction.lag.ms. The others: as optimize.

    Raises: as sparklog.maintenance.compact, and optimize here.
    """
    _validate(max_concurrent_file_group_rewrites=max_concurrent_file_group_rewrites)
    context = _context_of(spark)
    limits = CompactionLimits(only_due=only_due)
    with open_log(root, create=False, storage_options=storage_options, cluster_id=cluster_id) as log:

        def run(works: Sequence[CompactionWork], _told: Told) -> Iterator[CompactionResult | SparklogError]:
            task = _task(root, storage_options, log.cluster_id, _compacted)
            grouped = list(groups(log.store, works, pieces_of, TASK_BYTES, MOST_TASK_BYTES))
            yield from in_waves(context, grouped, task, max_concurrent_file_group_rewrites)

        return compact_log(log.metadata, log.clock, topics, limits, dry_run=dry_run, run=run)


def _validate(**options: int | None) -> None:
    for name, value in options.items():
        if value is not None and value < LEAST[name]:
            raise InvalidRequestError(
                "INVALID_OPTION",
                f"{name}: found {value}, expected at least {LEAST[name]}",
                fix=f"leave {name} out, or give it a larger number",
            )


def _context_of(spark: "SparkSession") -> "SparkContext":
    if not hasattr(spark, "_jsparkSession"):
        raise InvalidRequestError(
            "SPARK_CONNECT_UNSUPPORTED",
            "found a Spark Connect session, expected a classic one: tasks cannot be sent through it",
            fix="run it by spark-submit on the cluster (docs/maintenance.md), or `sparklog optimize` on one "
            "machine",
        )
    return spark.sparkContext


def in_waves(
    context: "SparkContext", grouped: Sequence[Sequence[WorkT]], task: Any, at_once: int | None
) -> Iterator[Any]:
    """What came of each work, in their order; a group is a task. A wave runs when its first is asked for."""
    size = at_once or 2 * context.defaultParallelism
    for start in range(0, len(grouped), size):
        wave = grouped[start : start + size]
        for results in context.parallelize(wave, len(wave)).map(task).collect():
            yield from results


def _task(root: str, storage_options: StorageOptions, cluster_id: str, do: Any) -> Any:
    """What an executor does with some works. It needs the store, and no metadata."""

    def run(works: Any) -> Any:
        from sparklog.spark.notices import prepare_worker  # noqa: PLC0415 - on the executor

        prepare_worker()
        store = open_store(root, create=False, storage_options=storage_options, clock=SystemClock())
        found = open_properties(store, create=False, new_cluster_id="")
        if found != cluster_id:
            raise InvalidRequestError(
                "WRONG_ROOT",
                f"an executor found the root with cluster id {found} at {root}, and on the driver it is "
                f"{cluster_id}",
                fix="use a path that means the same shared directory on the driver and on all executors",
            )
        return do(store, works)

    return run


def _merged(store: Any, works: Sequence[MergeWork]) -> list[list[ReplaceExtents] | SparklogError]:
    return list(merge.merge_each(store, SystemClock(), works))


def _compacted(store: Any, works: Sequence[CompactionWork]) -> list[CompactionResult | SparklogError]:
    return list(compact_each(store, SystemClock(), works))
