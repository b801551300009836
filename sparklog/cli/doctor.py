"""`sparklog doctor`: is everything here that sparklog needs, and if not, what to do.

Exit code 1 when a check failed; warnings alone are 0. The checks are in doctor.py and
doctor.py.
"""

from __future__ import annotations

import contextlib
import enum
import importlib.metadata
import importlib.util
import os
import platform
import re
import secrets
import shlex
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import click

from sparklog.cli.framework import OnceCommand, common_options, current, in_shell_words
from sparklog.cli.output import human_age, human_bytes, show_json, tell
from sparklog.errors import AlreadyExistsError, SparklogError, UnknownTopicError
from sparklog.format import kernels
from sparklog.spark.features import MINIMUM_SPARK, missing_features
from sparklog.spark.interpreter import worker_python

if TYPE_CHECKING:
    from sparklog.client import SparkLog
    from sparklog.client.cluster_view import BrokerView
    from sparklog.metadata import ExtentList, Image, Transaction
    from sparklog.storage.base import Store

# --- environment checks ------------------------------------------------------------------------------
#
# What `sparklog doctor` looks at besides a root: Python, PySpark, Java, and how Spark finds us.
#
# Nothing of Spark is imported or started; other interpreters and Java are asked by running them.


MINIMUM_JAVA = 17
PROBE_TIMEOUT_S = 60
EXTRAS = (("server", "kio", "to serve Kafka clients"), ("s3", "botocore", "for roots in S3"))
DRIVER_CHECK = "driver's Python"  # PYSPARK_DRIVER_PYTHON is wider than the column
VECTOR_MODULE = "jdk.incubator.vector"


class Status(enum.StrEnum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's report."""

    check: str
    status: Status
    detail: str
    fix: str = ""


def check_environment(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """All checks that need no root."""
    yield Finding("python", Status.OK, f"{platform.python_version()} at {sys.executable}")
    yield Finding("sparklog", Status.OK, _version("sparklog"))
    yield Finding("pyarrow", Status.OK, _version("pyarrow"))
    yield check_kernels()
    yield from check_extras()
    if importlib.util.find_spec("pyspark") is None:
        yield Finding("pyspark", Status.WARN, "not installed", "pip install 'sparklog[spark]', to use Spark")
        return
    yield _check_spark(environment)
    yield from check_interpreters(environment)
    yield check_java(environment)


def check_extras() -> Iterator[Finding]:
    """What can be installed beside; nothing is wrong without."""
    for name, package, purpose in EXTRAS:
        found = importlib.util.find_spec(package) is not None
        detail = "installed" if found else f"not installed: pip install 'sparklog[{name}]', {purpose}"
        yield Finding(name, Status.OK, detail)


def check_kernels() -> Finding:
    """Nothing can be read or written without the compiled loops."""
    try:
        kernels.load()
    except SparklogError as error:
        return Finding("compiled loops", Status.FAIL, error.message, error.fix)
    return Finding("compiled loops", Status.OK, "usable")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown version"


def _check_spark(environment: Mapping[str, str]) -> Finding:
    version = _version("pyspark")
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < MINIMUM_SPARK:
        wanted = ".".join(map(str, MINIMUM_SPARK))
        return Finding("pyspark", Status.FAIL, version, f"pip install 'pyspark>={wanted}'")
    home = environment.get("SPARK_HOME")
    if home and not _same_spark(Path(home), version):
        return Finding(
            "pyspark",
            Status.WARN,
            f"{version}, but SPARK_HOME={home} is another Spark, and wins",
            "unset SPARK_HOME, or install the pyspark of that version",
        )
    lacking = missing_features(numbers)
    if lacking:
        detail = "; ".join(f"no {feature.name}: {feature.without}" for feature in lacking)
        newest = max(feature.since for feature in lacking)
        wanted = ".".join(map(str, newest))
        return Finding(
            "pyspark", Status.WARN, f"{version}, {detail}", f"pip install 'pyspark>={wanted}', if you can"
        )
    return Finding("pyspark", Status.OK, version)


def _same_spark(home: Path, version: str) -> bool:
    return any(home.glob(f"jars/spark-core_*-{version}.jar"))


def check_interpreters(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Of Spark's workers, and of the driver's environment where that is another."""
    yield check_worker_python(environment)
    if environment.get("PYSPARK_DRIVER_PYTHON"):
        yield check_driver_python(environment)


def check_worker_python(environment: Mapping[str, str]) -> Finding:
    """Spark starts its workers with PYSPARK_PYTHON or the PATH's python3; and looks data sources up with it,
    where no PYSPARK_DRIVER_PYTHON is named.
    """
    check = "PYSPARK_PYTHON"
    named = environment.get(check)
    command = named or "python3"
    found = shutil.which(command, path=environment.get("PATH"))
    origin = f"{check}={named}" if named else "not set, so Spark runs the PATH's python3"
    fix = f"export {check}={worker_python()}, or call sparklog.spark.configure(builder)"
    if found is None:
        return Finding(check, Status.FAIL, f"{origin}: no such program", fix)
    asked = _ask(found, environment)
    if asked.reason:
        status = Status.FAIL if named or asked.version else Status.WARN
        return Finding(check, status, f"{origin} ({found}): {asked.reason}", fix)
    if not named:  # configure(builder) names it
        return Finding(check, Status.OK, f"{origin} ({found})")
    return _of_its_start(check, check, found, environment)


def check_driver_python(environment: Mapping[str, str]) -> Finding:
    """Spark looks data sources up with it, and runs a streaming query's source with what found them."""
    variable = "PYSPARK_DRIVER_PYTHON"
    named = environment[variable]
    found = shutil.which(named, path=environment.get("PATH"))
    fix = f"export {variable}={worker_python()}"
    if found is None:
        return Finding(DRIVER_CHECK, Status.FAIL, f"{variable}={named}: no such program", fix)
    asked = _ask(found, environment)
    if asked.version and asked.reason:  # which spark-submit would run the driver with
        return Finding(DRIVER_CHECK, Status.FAIL, f"{variable}={named}: {asked.reason}", fix)
    if asked.reason:  # no fault where it is `jupyter`, as is usual, and register is called
        detail = f"{variable}={named}: Spark does not find the format by itself: {asked.reason}"
        return Finding(DRIVER_CHECK, Status.WARN, detail, f"call sparklog.register(spark), or {fix}")
    return _of_its_start(DRIVER_CHECK, variable, found, environment)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What an interpreter said of itself; a reason if workers cannot run in it."""

    version: str = ""
    reason: str = ""


def _ask(interpreter: str, environment: Mapping[str, str]) -> _Asked:
    code = "import sys, sparklog.client, pyspark_sparklog; print('%d.%d' % sys.version_info[:2])"
    result = _run([interpreter, "-c", code], environment)
    if result is None:
        return _Asked(reason="cannot import sparklog: it did not run")
    if result.returncode != 0:
        last = (result.stderr.strip().splitlines() or ["it failed"])[-1]
        return _Asked(reason=f"cannot import sparklog: {last}")
    version = result.stdout.strip()
    if version != "{}.{}".format(*sys.version_info[:2]):
        return _Asked(version, f"another Python version, {version}")
    return _Asked(version)


def _of_its_start(check: str, variable: str, found: str, environment: Mapping[str, str]) -> Finding:
    """A Spark of another SPARK_HOME has its pyspark in a zip only, so nothing can be spared there."""
    better = Path(found).with_name("sparklog-python")
    if environment.get("SPARK_HOME") or Path(found).name == better.name or not os.access(better, os.X_OK):
        return Finding(check, Status.OK, found)
    detail = f"{found}: each start compiles pyspark anew (0.4 s of processor time)"
    return Finding(check, Status.WARN, detail, f"export {variable}={better}")


def check_java(environment: Mapping[str, str]) -> Finding:
    """Spark takes JAVA_HOME's Java, else the PATH's."""
    home = environment.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    fix = (
        "install a full Java 17: sudo apt-get install openjdk-17-jdk-headless, or brew install openjdk@17; "
        "then point JAVA_HOME to it"
    )
    result = _run([java, "-version"], environment)
    match = None if result is None else re.search(r'version "(\d+)[^"]*"', result.stderr + result.stdout)
    if match is None:
        return Finding("java", Status.FAIL, f"cannot run {java}", fix)
    if int(match[1]) < MINIMUM_JAVA:
        return Finding("java", Status.FAIL, f"{match[0]} at {java}, expected {MINIMUM_JAVA} or newer", fix)
    module = _run([java, "--add-modules", VECTOR_MODULE, "-version"], environment)
    if module is None or module.returncode != 0:
        return Finding("java", Status.FAIL, f"{match[0]} at {java}, without {VECTOR_MODULE}", fix)
    return Finding("java", Status.OK, f"{match[0]} with {VECTOR_MODULE}")


def _run(command: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(  # noqa: S603 - programs that the user's own environment names
            command,
            env=dict(environment),
            cwd="/",  # an interpreter must not find sparklog in the working directory
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


# --- broker checks -----------------------------------------------------------------------------------
#
# What `sparklog doctor` says of the brokers of a root: fenced ones, partitions nobody leads.
#
# Only the root is looked at: that a broker was killed is seen once the controller has fenced it.


CHECK = "brokers"
SILENT_MS = 60_000  # far above any session that is worth having


def check_brokers(image: Image, seen: Mapping[int, int]) -> Finding | None:
    """How those are that serve the root; None where nobody does, and nobody did.

    Args:
        seen: how many ms ago each gave a sign of life.
    """
    from sparklog.client.cluster_view import describe_brokers, is_served

    if not is_served(image):
        return None
    found = describe_brokers(image)
    problem, fix = _problem(image, found, seen)
    return Finding(CHECK, Status.WARN if fix else Status.OK, _told(found) + problem, fix)


def _problem(image: Image, found: list[BrokerView], seen: Mapping[int, int]) -> tuple[str, str]:
    """What is wrong, and what to do; nothing for nothing."""
    from sparklog.client.cluster_view import describe_controller, describe_partitions
    from sparklog.metadata import NO_NODE

    running = [one for one in found if not one.is_fenced]
    if not running:
        return (
            ": no broker runs, so that Kafka clients are served by nobody",
            "start one; Spark and the command line need none",
        )
    silent = [one.node_id for one in running if seen.get(one.node_id, 0) > SILENT_MS]
    if silent:
        ages = ", ".join(f"{node_id} ({human_age(seen[node_id])})" for node_id in silent[:MAX_NAMED])
        return (
            f"; last seen: {ages}: dead, and nobody has fenced them",
            "start a broker; Spark and the command line need none",
        )
    if describe_controller(image).node_id == NO_NODE:
        return (
            ": no controller",
            "one is elected within broker.session.timeout.ms, if a broker runs: look at controller.log",
        )
    unavailable = sum(one.is_unavailable for one in describe_partitions(image))
    if unavailable:
        return (
            f"; partitions that nobody leads: {unavailable:,}",
            "`sparklog partitions list --unavailable` names them: start one of their replicas",
        )
    if len(running) < len(found):
        return (
            "",
            "start the fenced brokers; or, if they will not come back, `sparklog brokers unregister ID`",
        )
    return "", ""


def _told(found: list[BrokerView]) -> str:
    """`1 (controller), 2, 3 (fenced)`, the first few of each kind."""
    words = [_word(one) for one in found[:MAX_NAMED]]
    more = [f"{len(found) - MAX_NAMED} more"] if len(found) > MAX_NAMED else []
    return ", ".join([*words, *more]) or "none is registered"


def _word(one: BrokerView) -> str:
    marks = [one.state] if one.state != "running" else []
    marks += ["controller"] if one.is_controller else []
    return f"{one.node_id} ({', '.join(marks)})" if marks else str(one.node_id)


# --- transaction checks ------------------------------------------------------------------------------
#
# What `sparklog doctor` says of transactions: how many are open, which nobody ends, and whether what they
# have staged can be read.
#
# Not here: ending them (`sparklog transactions`, rounds of.
# maintenance).


TRANSACTIONS_CHECK, DEEP_CHECK = "transactions", "staged"
LATE_MS = 300_000  # past a time-out; as the metric has it


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
        return Finding(TRANSACTIONS_CHECK, Status.OK, detail)
    oldest = sorted(late, key=lambda one: (one.started_ms, one.transactional_id))[:MAX_NAMED]
    named = ", ".join(
        f"{one.transactional_id!r} (begun {human_age(now_ms - one.started_ms)})" for one in oldest
    )
    staged = human_bytes(sum(one.staged_bytes for one in late))
    return Finding(
        TRANSACTIONS_CHECK,
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


# --- root checks -------------------------------------------------------------------------------------
#
# What `sparklog doctor` looks at in one: rights, put-if-absent, leftovers, settings, versions, use, bytes.
#
# Writes a small file into the root, a few into an object store, and removes them; all else only reads.
# With `deep`
# every batch of every extent, visible or staged, is read and its checksum compared.


LOW_SPACE_BYTES = 1_000_000_000
RACERS = 4
MAX_NAMED = 5
USAGE_LIMIT_MS = 5_000
MUCH_UNUSED_BYTES = 100_000_000


def check_root(root: str, *, deep: bool, cluster_id: str | None = None) -> Iterator[Finding]:
    """All checks of one root; ends at the first failure that hides the others."""
    from sparklog.client import open_log
    from sparklog.client.cluster_view import last_seen_ms
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
    yield check_usage(log)
    if deep:
        staged = check_staged(log)
        if staged is not None:
            yield staged
        yield check_extents(log)


def check_incarnation(log: SparkLog) -> Iterator[Finding]:
    """Has a restore from a backup begun that did not end? Then nobody may publish."""
    from sparklog.metadata.loading import read_incarnation

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
    from sparklog.storage.base import TEMPORARY_DIRECTORY
    from sparklog.storage.local import is_reserve

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
    from sparklog.storage.s3 import S3Store, harmful_rules

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


# --- doctor ------------------------------------------------------------------------------------------


@click.command("doctor", cls=OnceCommand)
@click.option("--deep", is_flag=True, help="Read every segment of the root and compare all checksums.")
@common_options
def doctor(deep: bool) -> None:
    """Check Python, Java, Spark, and a root when one is named."""
    settings = current()
    root = settings.named_root()
    if deep and not root:
        raise click.UsageError("--deep reads a root: give --root DIR, or set SPARKLOG_ROOT=DIR.")
    findings = []
    of_root = check_root(root, deep=deep, cluster_id=settings.cluster_id) if root else ()
    for found in (*check_environment(), *of_root):
        findings.append(found)
        if not settings.json:
            _show(found)
    if settings.json:
        show_json(
            [
                {"check": f.check, "status": f.status.value, "detail": f.detail, "fix": f.fix or None}
                for f in findings
            ]
        )
    failed = [found.check for found in findings if found.status is Status.FAIL]
    if failed:
        raise click.ClickException(f"{len(failed)} of {len(findings)} checks failed: {', '.join(failed)}.")


def _show(found: Finding) -> None:
    tell(f"{found.status.value:<5} {found.check:<16} {found.detail}")
    if found.fix:
        tell(f"{'':<22} fix: {found.fix}")
