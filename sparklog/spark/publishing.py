"""What both sinks do on the driver: publish what the tasks have staged, and say what was there already.

Not here: what a task does (write_task.py), which version of which application a write is (the writers).
"""

import logging
from collections.abc import Mapping, Sequence

from pyspark.sql.datasource import WriterCommitMessage

from sparklog.client import AppendResult, AppliedBefore, SparkLog
from sparklog.client import publish as publish_staged
from sparklog.errors import InvalidRequestError, RetriableError
from sparklog.log.past_retention import past_retention_text
from sparklog.spark.options import SinkOptions
from sparklog.spark.write_task import TaskResult

logger = logging.getLogger("sparklog.spark")


def results_of(messages: Sequence[WriterCommitMessage | None]) -> list[TaskResult]:
    """The tasks' results, in the order of the tasks."""
    results = [message for message in messages if isinstance(message, TaskResult)]
    assert len(results) == len(messages), "Spark commits only when every task has succeeded"
    return results


def publish(
    log: SparkLog,
    options: SinkOptions,
    results: Sequence[TaskResult],
    *,
    txn: tuple[str, int] | None,
    content: str = "",
) -> AppendResult:
    """One commit for all tasks, in their order; says of what is past its retention already.

    Raises:
        InvalidRequestError: the tasks wrote to another root than `log`, which was found here; or too many
            extents for one commit, COMMIT_TOO_LARGE.
        RetriableError: STAGING_EXPIRED, a sweep has passed what tasks wrote; only they could write it again.
    """
    other = {result.cluster_id for result in results} - {log.cluster_id}
    if other:
        raise InvalidRequestError(
            "WRONG_ROOT",
            f"tasks wrote to the root with cluster id {other.pop()}, and on the driver {options.root} is "
            f"{log.cluster_id}",
            fix="use a path that means the same shared directory on the driver and on all executors",
        )
    try:
        done = publish_staged(
            log.metadata,
            [result.staged for result in results],
            txn=txn,
            content=content,
            now_ms=log.clock.now_ms(),
        )
    except InvalidRequestError as error:
        if error.code != "COMMIT_TOO_LARGE":
            raise
        extents = sum(len(result.staged.drafts) for result in results)
        raise InvalidRequestError(
            error.code,
            f"{len(results)} tasks wrote {extents} extents, too many for one commit: {error.message}; "
            "nothing of the write is visible",
            fix="write with fewer tasks (coalesce), or less at once: several writes, or for a stream a lower "
            "maxOffsetsPerTrigger of its source; or let each task write to few partitions (a column "
            "partition, and repartition by it); give tasks more room in TMPDIR; see docs/tuning.md",
        ) from None
    except RetriableError as error:
        if error.code != "STAGING_EXPIRED":
            raise
        raise RetriableError(
            error.code,
            "what the tasks wrote was swept before it could be published, and nothing of it is visible: "
            f"{error.message}",
            fix="run the write again, or restart the query, which repeats the micro-batch; have `sparklog "
            "vacuum` retain for longer than a write may take",
        ) from None
    if done.past_retention:
        logger.warning("%s", past_retention_text(done.past_retention))
    return done


def skipped_text(what: str, txn: tuple[str, int], skipped: Mapping[str, AppliedBefore]) -> str:
    """What a write left out, and why: for the log."""
    topics = "; ".join(f"{topic} has {found}" for topic, found in sorted(skipped.items()))
    return (
        f"{what} is version {txn[1]} of {txn[0]!r}, and was left out where that or a later version has been "
        f"applied: {topics}"
    )
