"""Checks of a root: what is wrong with it, and how to mend it.

`sparklog doctor` runs all of them, the web console those that only read a little. Rights, put-if-absent,
leftovers, brokers, transactions, use of space; the deep ones read every batch of every extent, visible or
staged, and compare its checksum.
Not here: Python, Java and Spark (sparklog/cli/doctor.py).
"""

import contextlib
import enum
import secrets
import shlex
import shutil
import stat
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from sparklog.client.cluster_view import (
    BrokerView,
    describe_brokers,
    describe_controller,
    describe_partitions,
    is_served,
    last_seen_ms,
)
from sparklog.client.consumer import read_batches
from sparklog.client.log import SparkLog
from sparklog.errors import AlreadyExistsError, SparklogError, UnknownTopicError
from sparklog.log.read_plan import plan_read
from sparklog.log.reader import read_ranges
from sparklog.maintenance import measure_usage
from sparklog.metadata import NO_NODE, ExtentList, Image, PartitionState, Transaction
from sparklog.metadata.loading import read_incarnation
from sparklog.storage.base import TEMPORARY_DIRECTORY, Store
from sparklog.storage.filesystems import Trust, judge, mount_of
from sparklog.storage.local import is_reserve
from sparklog.wording import human_age, human_bytes

SILENT_MS = 60_000  # without a heartbeat; far above any useful session timeout
LATE_MS = 300_000  # past the timeout of a transaction; as the metric has it
LOW_SPACE_BYTES = 1_000_000_000
RACERS = 4
MAX_NAMED = 5
USAGE_LIMIT_MS = 5_000
MUCH_UNUSED_BYTES = 100_000_000


class Status(enum.StrEnum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(NamedTuple):
    """One line of the report."""

    check: str
    status: Status
    detail: str
    fix: str = ""


def ok(check: str, detail: str) -> Finding:
    return Finding(check, Status.OK, detail)


def warn(check: str, detail: str, fix: str) -> Finding:
    return Finding(check, Status.WARN, detail, fix)


def fail(check: str, detail: str, fix: str) -> Finding:
    return Finding(check, Status.FAIL, detail, fix)


# --- broker ----------------------------------------------------------------------------------------


def check_brokers(image: Image, seen: Mapping[int, int]) -> Iterator[Finding]:
    """The brokers of the root, if it has or had any. A killed one is seen once the controller has fenced it.

    Args:
        seen: the age of each one's last heartbeat in ms.
    """
    if not is_served(image):
        return
    found = describe_brokers(image)
    names = []
    for one in found[:MAX_NAMED]:
        marks = [one.state] * (one.state != "running") + ["controller"] * one.is_controller
        names.append(f"{one.node_id} ({', '.join(marks)})" if marks else str(one.node_id))
    names += [f"{len(found) - MAX_NAMED} more"] if len(found) > MAX_NAMED else []
    problem, fix = _problem(image, found, seen)
    detail = (", ".join(names) or "none is registered") + problem
    yield warn("brokers", detail, fix) if fix else ok("brokers", detail)


def _problem(image: Image, found: list[BrokerView], seen: Mapping[int, int]) -> tuple[str, str]:
    """What is wrong, and what to do; empty texts for nothing."""
    running = [one for one in found if not one.is_fenced]
    start = "start a broker; Spark and the command line need none"
    if not running:
        return ": no broker runs, so that Kafka clients are served by nobody", start
    silent = [one.node_id for one in running if seen.get(one.node_id, 0) > SILENT_MS]
    if silent:
        ages = ", ".join(f"{node_id} ({human_age(seen[node_id])})" for node_id in silent[:MAX_NAMED])
        return f"; last seen: {ages}: dead, and nobody has fenced them", start
    if describe_controller(image).node_id == NO_NODE:
        fix = "one is elected within broker.session.timeout.ms, if a broker runs: look at controller.log"
        return ": no controller", fix
    if unavailable := sum(one.is_unavailable for one in describe_partitions(image)):
        fix = "`sparklog partitions list --unavailable` names them: start one of their replicas"
        return f"; partitions that nobody leads: {unavailable:,}", fix
    if len(running) < len(found):
        return (
            "",
            "start the fenced brokers; or, if they will not come back, `sparklog brokers unregister ID`",
        )
    return "", ""


# --- transaction -----------------------------------------------------------------------------------


def check_transactions(image: Image, now_ms: int) -> Iterator[Finding]:
    """Open transactions, and those open for too long."""
    known = image.transactions
    if not known:
        return
    is_open = [one for one in known.values() if one.is_ongoing]
    late = [one for one in is_open if one.is_timed_out(now_ms - LATE_MS)]
    detail = (
        f"ids: {len(known):,}; open: {len(is_open):,}, {known.staged_extents:,} extents staged, "
        f"{human_bytes(known.staged_bytes)}"
    )
    if not late:
        yield ok("transactions", detail)
        return
    oldest = sorted(late, key=lambda one: (one.started_ms, one.transactional_id))[:MAX_NAMED]
    named = ", ".join(
        f"{one.transactional_id!r} (begun {human_age(now_ms - one.started_ms)})" for one in oldest
    )
    staged = human_bytes(sum(one.staged_bytes for one in late))
    yield warn(
        "transactions",
        f"{detail}; past their time-out: {len(late):,}, such as {named}; they hold {staged}, and nobody up",
        "`sparklog maintain` aborts those that no broker aborts; `sparklog transactions abort` one of them",
    )


def check_staged(log: SparkLog) -> Iterator[Finding]:
    """Read all that transactions have staged."""
    extents = records = read = 0
    image = log.image
    if not image.transactions.staging:
        return
    for one in image.transactions.values():
        try:
            found = read_staged(log, image, one)
        except (SparklogError, OSError) as error:
            if not _is_still(log.refresh(force=True), one):
                continue  # ended meanwhile: what was aborted may be gone
            yield fail(
                "staged",
                f"transactional id {one.transactional_id!r}: {error}",
                "restore the file; or `sparklog transactions abort --transactional-id "
                f"{shlex.quote(one.transactional_id)}`: its producer does it again",
            )
            return
        extents, records, read = extents + one.staged_extents, records + found, read + bool(found)
    yield ok(
        "staged",
        f"{extents:,} extents of {read:,} transactions read, {records:,} records, all checksums right",
    )


def read_staged(log: SparkLog, image: Image, one: Transaction) -> int:
    """How many records a transaction has staged, all of which were read."""
    return sum(_read(log, image, extents) for extents in one.staged.values())


def _read(log: SparkLog, image: Image, extents: ExtentList) -> int:
    """They are laid out as a partition that begins with them."""
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


# --- root ------------------------------------------------------------------------------------------


def check_log(log: SparkLog, store: Store, *, deep: bool) -> Iterator[Finding]:
    """All checks of an opened root.

    Args:
        store: writes a small file, a few into an object store, and removes them.
        deep: read all records.
    """
    topics = len(log.topics(include_internal=True))
    yield ok("root", f"{store.url}: cluster {log.cluster_id}, topics: {topics}")
    yield check_put_if_absent(store)
    yield from check_directory(store)
    yield from check_requests(store)
    yield from check_lifecycle(store)
    if store.traits.is_remote:
        yield from check_incarnation(log)
    yield from check_brokers(log.image, last_seen_ms(store, log.clock) if log.image.brokers else {})
    yield from check_transactions(log.image, log.clock.now_ms())
    yield check_usage(log)
    if deep:
        yield from check_staged(log)
        yield check_extents(log)


def check_incarnation(log: SparkLog) -> Iterator[Finding]:
    """A restore from a backup that was interrupted: nobody may publish."""
    found, own = read_incarnation(log.store), log.image.incarnation.incarnation_id
    if found not in (None, own):
        detail = f"found {found} named as its newest incarnation, expected {own or 'none'}"
        yield fail("restore", detail, "run `sparklog root restore` again: it was interrupted")


def check_put_if_absent(store: Store) -> Finding:
    """Let several threads create one name: exactly one may succeed, or commits could be lost."""
    name = f"doctor-{secrets.token_hex(8)}"
    outcomes: list[SparklogError | None] = []

    def race(number: int) -> None:
        try:
            store.put_if_absent(name, b"%d" % number)
        except SparklogError as error:
            outcomes.append(error)
        else:
            outcomes.append(None)

    racers = [threading.Thread(target=race, args=(number,)) for number in range(RACERS)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    with contextlib.suppress(SparklogError):
        store.delete(name)
    refused = [error for error in outcomes if error is not None and not isinstance(error, AlreadyExistsError)]
    if refused:
        return fail("writable", str(refused[0]), "correct the directory's rights, or free space")
    winners = outcomes.count(None)
    if winners != 1:
        detail = f"{winners} of {RACERS} racing writers created the same name, expected exactly 1"
        return fail("put-if-absent", detail, "do not use this storage: commits would be lost")
    return ok("put-if-absent", f"1 of {RACERS} racing writers won; writable")


def check_directory(store: Store) -> Iterator[Finding]:
    """Free space, and what interrupted writers left behind."""
    parts = urlsplit(store.url)
    if parts.scheme != "file":
        return
    directory = Path(unquote(parts.path))
    yield check_file_system(str(directory))
    yield check_permissions(directory)
    free = shutil.disk_usage(directory).free
    shown = human_bytes(free)
    is_low = free < LOW_SPACE_BYTES
    yield warn("free space", shown, "free some space") if is_low else ok("free space", shown)
    files = (directory / TEMPORARY_DIRECTORY).glob("*")
    sizes = [path.stat().st_size for path in files if path.is_file() and not is_reserve(path.name)]
    if not sizes:
        yield ok("temporary files", "none left behind")
        return
    size, where = human_bytes(sum(sizes)), directory / TEMPORARY_DIRECTORY
    yield warn(
        "temporary files",
        f"{len(sizes)} files of unfinished writes, {size}, in {where}",
        "harmless; `sparklog root sweep` removes those older than a day",
    )


def check_permissions(directory: Path) -> Finding:
    """Everything in a root is trusted, so nobody else may write there."""
    seen = (path for path in (directory, *directory.iterdir()) if path.is_dir() or path.is_file())
    open_to_all = [path for path in seen if path.stat().st_mode & stat.S_IWOTH]
    if not open_to_all:
        return ok("permissions", "not writable for everybody")
    names = ", ".join(str(path) for path in open_to_all[:MAX_NAMED])
    return warn(
        "permissions",
        f"everybody on this machine may write to {names}",
        f"chmod -R o-w {directory}, and run writers with umask 0027",
    )


def check_requests(store: Store) -> Iterator[Finding]:
    """Check that an object store still serves every request that writing and maintenance need."""
    if not store.traits.is_remote:
        return
    try:
        store.try_requests()
    except SparklogError as error:
        yield fail("requests", f"[SPARKLOG_{error.code}] {error.message}", error.fix)
    else:
        yield ok("requests", "the store knows all that are needed")


def check_lifecycle(store: Store) -> Iterator[Finding]:
    """Rules of a bucket that would remove what the log refers to."""
    if urlsplit(store.url).scheme != "s3":
        return
    from sparklog.storage.s3 import S3Store, harmful_rules  # noqa: PLC0415 - needs botocore

    if not isinstance(store, S3Store):  # through fsspec
        return
    fix = "let no lifecycle rule remove or archive objects under the root"
    try:
        harmful = harmful_rules(store)
    except SparklogError as error:
        yield warn("lifecycle rules", f"not known: {error.message}", fix)
        return
    if harmful:
        yield fail("lifecycle rules", "; ".join(harmful), fix)
    else:
        yield ok("lifecycle rules", "none takes objects of the root away")


def check_usage(log: SparkLog) -> Finding:
    """Files that nothing refers to, as far as they can be counted in a few seconds."""
    try:
        found = measure_usage(log.metadata, log.clock, limit_ms=USAGE_LIMIT_MS)
    except SparklogError as error:
        return warn("unused files", f"not known: {error.message}", error.fix)
    if found.refused:
        fix = "correct the rights on these directories, or let another user run the maintenance of the root"
        return warn("unused files", "; ".join(found.refused[:MAX_NAMED]), fix)
    unused, live = found.unused, found.live
    least = "" if found.is_whole else "at least "
    detail = (
        f"{least}{unused.files:,} files, {human_bytes(unused.size_bytes)}, that nothing refers to; in use: "
        f"{live.files:,} files, {human_bytes(live.size_bytes)}"
    )
    if found.dead_bytes:
        detail += f", of which {human_bytes(found.dead_bytes)} are of no record any more"
    if unused.size_bytes + found.dead_bytes <= max(live.size_bytes - found.dead_bytes, MUCH_UNUSED_BYTES):
        return ok("unused files", detail)
    return warn(
        "unused files",
        detail,
        "`sparklog maintain` rewrites files that are mostly dead, and `sparklog vacuum` removes what is "
        "older than a week",
    )


def check_file_system(directory: str) -> Finding:
    """The promises of the file system."""
    mount = mount_of(directory)
    trust, why = judge(mount)
    detail = f"{mount.kind or 'unknown'}, mounted at {mount.point}"
    if trust is Trust.TRUSTED:
        return ok("file system", detail)
    found = {Trust.UNTRIED: "untried", Trust.UNSAFE: "unsafe, and allowed by the user"}[trust]
    return warn("file system", f"{detail}: {found}: {why}", "see docs/filesystems.md")


def check_extents(log: SparkLog) -> Finding:
    """Read everything that the metadata refers to."""
    records = extents = 0
    for name in log.topics(include_internal=True):
        for one in log.describe_topic(name).partitions:
            extents += one.extent_count
            try:
                for arrow_batch in read_batches(
                    log.metadata, log.image, name, one.partition, skip_expired=True
                ):
                    records += arrow_batch.num_rows
            except UnknownTopicError:
                continue  # deleted meanwhile
            except (SparklogError, OSError) as error:
                return fail("segments", f"{name}-{one.partition}: {error}", "see FORMAT.md, recovery")
    return ok("segments", f"{extents:,} extents read, {records:,} records, all checksums right")
