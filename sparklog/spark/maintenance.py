"""Maintenance as a Spark job: one work per task, on executors; the driver publishes.
On object stores a task does all works that read the same small objects (sparklog/maintenance/rewrite.py).

For roots that are too large for one machine, for example their first merge or compaction. It chooses and
publishes as `sparklog optimize` and `sparklog compact` do, so both may be interrupted at any time, and run
concurrently with writers and readers.
Invariants: works go to executors in waves; the results of a wave are published before the next begins, so
    that an interruption loses at most a wave. A task that Spark repeats leaves unreferenced files.
Not here: expiry and vacuum, which read no records (sparklog/maintenance, `sparklog expire`, `vacuum`); the
    command for spark-submit (maintenance_job.py).
Concurrency: one at a time on the driver's machine (sparklog/maintenance/budget.py).
After a crash: published works stay; run it again.
Sources: Delta Lake OPTIMIZE, Iceberg rewrite_data_files.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from sparklog.client import SparkLog, open_log
from sparklog.clock import SystemClock
from sparklog.errors import InvalidRequestError, SparklogError
from sparklog.maintenance import CompactionLimits, CompactionReport, MergeLimits, MergeReport
from sparklog.maintenance import compact as compact_log
from sparklog.maintenance import optimize as optimize_log
from sparklog.maintenance.choose import Work
from sparklog.maintenance.compaction import run_compaction
from sparklog.maintenance.merging import run_merge
from sparklog.maintenance.rewrite import OnBytes, groups
from sparklog.maintenance.work_loop import Rewrite, run_each
from sparklog.metadata.documents.properties import open_properties
from sparklog.storage import open_store

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

WorkT = TypeVar("WorkT", bound=Work)
ResultT = TypeVar("ResultT")
StorageOptions = Mapping[str, Any] | None
# Limits of a task with several works that read the same small objects: bytes of these, and in total. Larger:
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
) -> MergeReport:
    """Merge small extents into large segments.

    Args:
        root: as for sparklog.open, and the same on every executor.
        topics: None: all, internal ones too.
        target_file_size_bytes: of segments; default and maximum: the topic's segment.bytes.
        min_input_files: merge only this many extents of about the same size; default: two.
        max_concurrent_file_group_rewrites: tasks in a wave; default: twice what Spark runs concurrently.
        dry_run: only report what would be merged.
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
        wave = max_concurrent_file_group_rewrites
        run = _in_tasks(context, log, root, storage_options, run_merge, wave)
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
    """Keep the last record of each key, in topics whose cleanup.policy has compact: one task per partition.

    Args:
        only_due: apply min.cleanable.dirty.ratio and max.compaction.lag.ms. The others: as optimize.

    Raises: as sparklog.maintenance.compaction, and optimize here.
    """
    _validate(max_concurrent_file_group_rewrites=max_concurrent_file_group_rewrites)
    context = _context_of(spark)
    limits = CompactionLimits(only_due=only_due)
    with open_log(root, create=False, storage_options=storage_options, cluster_id=cluster_id) as log:
        run = _in_tasks(
            context, log, root, storage_options, run_compaction, max_concurrent_file_group_rewrites
        )
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


def _in_tasks(
    context: "SparkContext",
    log: SparkLog,
    root: str,
    storage_options: StorageOptions,
    rewrite: Rewrite[ResultT],
    wave: int | None,
) -> Callable[[Sequence[WorkT], OnBytes], Iterator[ResultT | SparklogError]]:
    """Return a function that runs works on executors (RunWorks)."""
    task, store = _task(root, storage_options, log.cluster_id, rewrite), log.store

    def run(works: Sequence[WorkT], _on_bytes: OnBytes) -> Iterator[ResultT | SparklogError]:
        yield from in_waves(context, list(groups(store, works, TASK_BYTES, MOST_TASK_BYTES)), task, wave)

    return run


def in_waves(
    context: "SparkContext", grouped: Sequence[Sequence[WorkT]], task: Any, wave: int | None
) -> Iterator[Any]:
    """Yield the result of each work, in order; a group is a task. A wave runs when its first result is
    requested; `wave`: the number of its tasks.
    """
    size = wave or 2 * context.defaultParallelism
    for start in range(0, len(grouped), size):
        tasks = grouped[start : start + size]
        for results in context.parallelize(tasks, len(tasks)).map(task).collect():
            yield from results


def _task(root: str, storage_options: StorageOptions, cluster_id: str, rewrite: Rewrite[Any]) -> Any:
    """Return the function that runs works on an executor. It needs the store, and no metadata."""

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
        return list(run_each(rewrite, store, SystemClock(), works))

    return run
