"""What `sparklog doctor` looks at in one: rights, put-if-absent, leftovers, settings, versions, use, bytes.

Writes a small file into the root, a few into an object store, and removes them; all else only reads.
With `deep`
every batch of every extent, visible or staged, is read and its checksum compared.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from sparklog.cli.broker_checks import check_brokers
from sparklog.cli.environment_checks import Finding, Status
from sparklog.cli.failures import in_shell_words
from sparklog.cli.output import human_bytes
from sparklog.cli.transaction_checks import check_staged, check_transactions
from sparklog.errors import AlreadyExistsError, SparklogError, UnknownTopicError

if TYPE_CHECKING:
    from sparklog.client import SparkLog
    from sparklog.storage.base import Store

LOW_SPACE_BYTES = 1_000_000_000
RACERS = 4
MAX_NAMED = 5
USAGE_LIMIT_MS = 5_000
MUCH_UNUSED_BYTES = 100_000_000


def check_root(root: str, *, deep: bool, cluster_id: str | None = None) -> Iterator[Finding]:
    """All checks of one root; ends at the first failure that hides the others."""
    from sparklog.client import open_log
    from sparklog.client.signs_of_life import last_seen_ms
    from sparklog.storage import open_store

    try:
        log = open_log(root, create=False, cluster_id=cluster_id)
        store = open_store(root)
    except (SparklogError, OSError) as error:
        told = in_shell_words(error)
        fix = told.fix if isinstance(told, SparklogError) else "name the directory that sparklog made"
        yield Finding("root", Status.FAIL, str(told), fix)
        return
    topics = len(log.topics(include_internal=True))
    yield Finding("root", Status.OK, f"{store.url}: cluster {log.cluster_id}, topics: {topics}")
    yield check_put_if_absent(store)
    yield from check_directory(store)
    yield from check_requests(store)
    yield from check_lifecycle(store)
    if store.traits.is_remote:
        yield from check_incarnation(log)
    brokers = check_brokers(log.image, last_seen_ms(store, log.clock) if log.image.brokers else {})
    if brokers is not None:
        yield brokers
    transactions = check_transactions(log.image, log.clock.now_ms())
    if transactions is not None:
        yield transactions
    yield check_uncleanable(log)
    yield check_usage(log)
    if deep:
        staged = check_staged(log)
        if staged is not None:
            yield staged
        yield check_extents(log)


def check_incarnation(log: SparkLog) -> Iterator[Finding]:
    """Has a restore from a backup begun that did not end? Then nobody may publish."""
    from sparklog.metadata.incarnation import read_incarnation

    found, own = read_incarnation(log.store), log.image.incarnation.incarnation_id
    if found not in (None, own):
        detail = f"found {found} named as its newest incarnation, expected {own or 'none'}"
        yield Finding("restore", Status.FAIL, detail, "run `sparklog root restore` again: it was interrupted")


def check_put_if_absent(store: Store) -> Finding:
    """Let several threads create one name: exactly one may win, or commits could be lost."""
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
        return Finding(
            "writable", Status.FAIL, str(refused[0]), "correct the directory's rights, or free space"
        )
    winners = outcomes.count(None)
    if winners != 1:
        detail = f"{winners} of {RACERS} racing writers created the same name, expected exactly 1"
        return Finding("put-if-absent", Status.FAIL, detail, "do not use this storage: commits would be lost")
    return Finding("put-if-absent", Status.OK, f"1 of {RACERS} racing writers won; writable")


def check_directory(store: Store) -> Iterator[Finding]:
    """Free space, and what interrupted writers left behind."""
    from sparklog.storage.local_temporary import is_reserve
    from sparklog.storage.names import TEMPORARY_DIRECTORY

    parts = urlsplit(store.url)
    if parts.scheme != "file":
        return
    directory = Path(unquote(parts.path))
    yield check_file_system(str(directory))
    yield check_permissions(directory)
    free = shutil.disk_usage(directory).free
    status = Status.OK if free >= LOW_SPACE_BYTES else Status.WARN
    yield Finding("free space", status, human_bytes(free), "" if status is Status.OK else "free some space")
    files = (directory / TEMPORARY_DIRECTORY).glob("*")
    leftovers = [path for path in files if path.is_file() and not is_reserve(path.name)]
    if leftovers:
        size = human_bytes(sum(path.stat().st_size for path in leftovers))
        yield Finding(
            "temporary files",
            Status.WARN,
            f"{len(leftovers)} files of unfinished writes, {size}, in {directory / TEMPORARY_DIRECTORY}",
            "harmless; `sparklog root sweep` removes those older than a day",
        )
    else:
        yield Finding("temporary files", Status.OK, "none left behind")


def check_permissions(directory: Path) -> Finding:
    """Who else may write there could replace what is committed: everything in a root is trusted."""
    seen = (path for path in (directory, *directory.iterdir()) if path.is_dir() or path.is_file())
    open_to_all = [path for path in seen if path.stat().st_mode & stat.S_IWOTH]
    if not open_to_all:
        return Finding("permissions", Status.OK, "not writable for everybody")
    names = ", ".join(str(path) for path in open_to_all[:MAX_NAMED])
    return Finding(
        "permissions",
        Status.WARN,
        f"everybody on this machine may write to {names}",
        f"chmod -R o-w {directory}, and run writers with umask 0027",
    )


def check_requests(store: Store) -> Iterator[Finding]:
    """Does an object store still do all that writing and maintenance need? Roots are older than upgrades."""
    if not store.traits.is_remote:
        return
    try:
        store.try_requests()
    except SparklogError as error:
        yield Finding("requests", Status.FAIL, str(error), error.fix)
    else:
        yield Finding("requests", Status.OK, "the store knows all that are needed")


def check_lifecycle(store: Store) -> Iterator[Finding]:
    """Rules of a bucket that would remove what the log refers to."""
    if urlsplit(store.url).scheme != "s3":
        return
    from sparklog.storage.s3 import S3Store
    from sparklog.storage.s3_rules import harmful_rules

    assert isinstance(store, S3Store)
    fix = "let no lifecycle rule remove or archive objects under the root"
    try:
        harmful = harmful_rules(store)
    except SparklogError as error:
        yield Finding("lifecycle rules", Status.WARN, f"not known: {error.message}", fix)
        return
    if harmful:
        yield Finding("lifecycle rules", Status.FAIL, "; ".join(harmful), fix)
    else:
        yield Finding("lifecycle rules", Status.OK, "none takes objects of the root away")


def check_uncleanable(log: SparkLog) -> Finding:
    """What maintenance on this machine could not read within the last hour."""
    from sparklog.client.round_state import RoundStates
    from sparklog.maintenance import still_remembered

    states = RoundStates(log.url, log.cluster_id, patience=log.clock)
    known = still_remembered(states.read().uncleanable, log.clock.now_ms())
    ids = {topic.topic_id for topic in log.image.topics.values()}
    found = [one.found for one in known if one.found.topic_id in ids]
    if not found:
        return Finding(
            "uncleanable", Status.OK, "no partition that maintenance on this machine could not read"
        )
    more = f"; and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
    return Finding(
        "uncleanable",
        Status.WARN,
        "; ".join(one.message for one in found[:MAX_NAMED]) + more,
        "restore these files; the partitions are tried again within an hour, by `sparklog maintain` at once",
    )


def check_usage(log: SparkLog) -> Finding:
    """How much there is that nothing refers to; as far as can be seen in a few seconds."""
    from sparklog.maintenance import measure_usage

    try:
        found = measure_usage(log.metadata, log.clock, limit_ms=USAGE_LIMIT_MS)
    except SparklogError as error:
        return Finding("unused files", Status.WARN, f"not known: {error.message}", error.fix)
    unused, live = found.unused, found.live
    least = "" if found.is_whole else "at least "
    detail = (
        f"{least}{unused.files:,} files, {human_bytes(unused.size_bytes)}, that nothing refers to, beside "
        f"{live.files:,} files, {human_bytes(live.size_bytes)}"
    )
    if found.dead_bytes:
        detail += f", of which {human_bytes(found.dead_bytes)} are of no record any more"
    if unused.size_bytes + found.dead_bytes <= max(live.size_bytes - found.dead_bytes, MUCH_UNUSED_BYTES):
        return Finding("unused files", Status.OK, detail)
    return Finding(
        "unused files",
        Status.WARN,
        detail,
        "`sparklog maintain` rewrites files that are mostly dead, and `sparklog vacuum` removes what is "
        "older than a week",
    )


def check_file_system(directory: str) -> Finding:
    """What it promises; where a root is refused, the doctor has said so before."""
    from sparklog.storage.filesystems import Trust, judge, mount_of

    mount = mount_of(directory)
    trust, why = judge(mount)
    detail = f"{mount.kind or 'unknown'}, mounted at {mount.point}"
    if trust is Trust.TRUSTED:
        return Finding("file system", Status.OK, detail)
    found = {Trust.UNTRIED: "untried", Trust.UNSAFE: "unsafe, and allowed by the user"}[trust]
    return Finding("file system", Status.WARN, f"{detail}: {found}: {why}", "see docs/filesystems.md")


def check_extents(log: SparkLog) -> Finding:
    """Read everything that the metadata refers to."""
    from sparklog.client.consumer import read_batches

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
                return Finding(
                    "segments", Status.FAIL, f"{name}-{one.partition}: {error}", "see FORMAT.md, recovery"
                )
    return Finding(
        "segments", Status.OK, f"{extents:,} extents read, {records:,} records, all checksums right"
    )
