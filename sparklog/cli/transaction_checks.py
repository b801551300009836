"""What `sparklog doctor` says of transactions: how many are open, which nobody ends, and whether what they
have staged can be read.

Not here: other checks of a root (root_checks.py), ending them (`sparklog transactions`, rounds of
maintenance).
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from sparklog.cli.environment_checks import Finding, Status
from sparklog.cli.output import human_age, human_bytes
from sparklog.errors import SparklogError

if TYPE_CHECKING:
    from sparklog.client import SparkLog
    from sparklog.metadata import ExtentList, Image, Transaction

CHECK, DEEP_CHECK = "transactions", "staged"
LATE_MS = 300_000  # past a time-out; as the metric has it
MAX_NAMED = 5


def check_transactions(image: Image, now_ms: int) -> Finding | None:
    """Who has one open, and for too long; None where nobody has any."""
    known = image.transactions
    if not known:
        return None
    is_open = [one for one in known.values() if one.is_ongoing]
    late = [one for one in is_open if one.is_timed_out(now_ms - LATE_MS)]
    detail = (
        f"ids: {len(known):,}; open: {len(is_open):,}, {known.staged_extents:,} extents staged, "
        f"{human_bytes(known.staged_bytes)}"
    )
    if not late:
        return Finding(CHECK, Status.OK, detail)
    oldest = sorted(late, key=lambda one: (one.started_ms, one.transactional_id))[:MAX_NAMED]
    named = ", ".join(
        f"{one.transactional_id!r} (begun {human_age(now_ms - one.started_ms)})" for one in oldest
    )
    staged = human_bytes(sum(one.staged_bytes for one in late))
    return Finding(
        CHECK,
        Status.WARN,
        f"{detail}; past their time-out: {len(late):,}, such as {named}; they hold {staged}, and nobody up",
        "`sparklog maintain` aborts those that no broker aborts; `sparklog transactions abort` one of them",
    )


def check_staged(log: SparkLog) -> Finding | None:
    """Read all that is staged; None where nothing is."""
    extents = records = read = 0
    image = log.image
    if not image.transactions.staging:
        return None
    for one in image.transactions.values():
        try:
            found = read_staged(log, image, one)
        except (SparklogError, OSError) as error:
            if not _is_still(log.refresh(force=True), one):
                continue  # ended meanwhile: what was aborted may be gone
            return Finding(
                DEEP_CHECK,
                Status.FAIL,
                f"transactional id {one.transactional_id!r}: {error}",
                "restore the file; or `sparklog transactions abort --transactional-id "
                f"{shlex.quote(one.transactional_id)}`: its producer does it again",
            )
        extents, records, read = extents + one.staged_extents, records + found, read + bool(found)
    return Finding(
        DEEP_CHECK,
        Status.OK,
        f"{extents:,} extents of {read:,} transactions read, {records:,} records, all checksums right",
    )


def read_staged(log: SparkLog, image: Image, one: Transaction) -> int:
    """How many records a transaction has staged, all of which were read."""
    return sum(_read(log, image, extents) for extents in one.staged.values())


def _read(log: SparkLog, image: Image, extents: ExtentList) -> int:
    """They are laid out as a partition that begins with them."""
    from sparklog.log.read_plan import plan_read
    from sparklog.log.reader import read_ranges
    from sparklog.metadata import PartitionState

    alone = PartitionState(
        topic_id=extents.topic_id,
        partition=extents.partition,
        log_start_offset=0,
        log_end_offset=extents.end_offset,
        extents=extents,
    )
    topic = image.topic_by_id[extents.topic_id].name
    plan = plan_read(log.store, alone, 0, extents.end_offset, topic=topic)
    return sum(len(decoded.offset) for decoded in read_ranges(log.store, plan))


def _is_still(image: Image, one: Transaction) -> bool:
    now = image.transactions.get(one.transactional_id)
    return now is not None and now.is_ongoing and now.number == one.number
