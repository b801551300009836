"""`sparklog doctor`: check that everything sparklog needs is there, and say how to mend the rest.

Without a root: Python, PySpark, Java, and how Spark finds us. Nothing of Spark is imported or started; other
interpreters and Java are run and asked. With a root: rights, put-if-absent, leftovers, brokers, transactions,
use of space; `--deep` reads every batch of every extent, visible or staged, and compares its checksum. It
writes a small file into the root, a few into an object store, and removes them.
Exit code 1 when a check failed; warnings alone are 0.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import click

from sparklog.cli.framework import Command, current, in_shell_words
from sparklog.cli.output import show_json, tell
from sparklog.client.root_checks import Finding, Status, check_log, fail, ok, warn
from sparklog.errors import SparklogError
from sparklog.format import kernels
from sparklog.spark.features import MINIMUM_SPARK, missing_features
from sparklog.spark.interpreter import worker_python
from sparklog.storage.opening import is_installed

MINIMUM_JAVA = 17
PROBE_TIMEOUT_S = 60
EXTRAS = (
    ("server", "kio", "to serve Kafka clients"),
    ("console", "jinja2", "for the web console"),
    ("s3", "botocore", "for roots in S3"),
    ("gs", "google.auth", "for roots in Google Cloud Storage"),
    ("azure", "azure.identity", "for roots in Azure"),
    ("hdfs", "urllib3", "for roots in HDFS"),
    ("fsspec", "fsspec", "for roots in other file systems"),
    ("kafka", "confluent_kafka", "to mirror a Kafka cluster"),
)
VECTOR_MODULE = "jdk.incubator.vector"


# --- environment -------------------------------------------------------------------------------------


def check_environment(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """All checks that need no root."""
    yield ok("python", f"{platform.python_version()} at {sys.executable}")
    yield ok("sparklog", _version("sparklog"))
    yield ok("pyarrow", _version("pyarrow"))
    yield check_kernels()
    yield from check_extras()
    if importlib.util.find_spec("pyspark") is None:
        yield warn("pyspark", "not installed", "pip install 'sparklog[spark]', to use Spark")
        return
    yield _check_spark(environment)
    yield from check_interpreters(environment)
    yield check_java(environment)


def check_extras() -> Iterator[Finding]:
    """Optional packages."""
    for name, package, purpose in EXTRAS:
        found = is_installed(package)
        yield ok(name, "installed" if found else f"not installed: pip install 'sparklog[{name}]', {purpose}")


def check_kernels() -> Finding:
    """Nothing can be read or written without the compiled loops."""
    try:
        kernels.load()
    except SparklogError as error:
        return fail("compiled loops", error.message, error.fix)
    return ok("compiled loops", "usable")


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
        return fail("pyspark", version, f"pip install 'pyspark>={wanted}'")
    home = environment.get("SPARK_HOME")
    if home and not any(Path(home).glob(f"jars/spark-core_*-{version}.jar")):
        detail = f"{version}, but SPARK_HOME={home} is another Spark, and wins"
        return warn("pyspark", detail, "unset SPARK_HOME, or install the pyspark of that version")
    if lacking := missing_features(numbers):
        detail = "; ".join(f"no {feature.name}: {feature.without}" for feature in lacking)
        wanted = ".".join(map(str, max(feature.since for feature in lacking)))
        return warn("pyspark", f"{version}, {detail}", f"pip install 'pyspark>={wanted}', if you can")
    return ok("pyspark", version)


def check_interpreters(environment: Mapping[str, str]) -> Iterator[Finding]:
    yield check_worker_python(environment)
    if environment.get("PYSPARK_DRIVER_PYTHON"):
        yield check_driver_python(environment)


def check_worker_python(environment: Mapping[str, str]) -> Finding:
    """PYSPARK_PYTHON, or the PATH's python3: it runs Spark's workers, and without PYSPARK_DRIVER_PYTHON finds
    data sources.
    """
    check = "PYSPARK_PYTHON"
    named = environment.get(check)
    command = named or "python3"
    found = shutil.which(command, path=environment.get("PATH"))
    origin = f"{check}={named}" if named else "not set, so Spark runs the PATH's python3"
    fix = f"export {check}={worker_python()}, or call sparklog.spark.configure(builder)"
    if found is None:
        return fail(check, f"{origin}: no such program", fix)
    asked = _ask(found, environment)
    if asked.reason:
        status = Status.FAIL if named or asked.version else Status.WARN
        return Finding(check, status, f"{origin} ({found}): {asked.reason}", fix)
    if not named:  # configure(builder) names it
        return ok(check, f"{origin} ({found})")
    return _start_up(check, check, found, environment)


def check_driver_python(environment: Mapping[str, str]) -> Finding:
    """PYSPARK_DRIVER_PYTHON: it finds data sources, and runs the source of a streaming query."""
    variable = "PYSPARK_DRIVER_PYTHON"
    named = environment[variable]
    found = shutil.which(named, path=environment.get("PATH"))
    fix = f"export {variable}={worker_python()}"
    if found is None:
        return fail("driver's Python", f"{variable}={named}: no such program", fix)
    asked = _ask(found, environment)
    if asked.version and asked.reason:  # which spark-submit would run the driver with
        return fail("driver's Python", f"{variable}={named}: {asked.reason}", fix)
    if asked.reason:  # no fault where it is `jupyter`, as is usual, and register is called
        detail = f"{variable}={named}: Spark does not find the format by itself: {asked.reason}"
        return warn("driver's Python", detail, f"call sparklog.register(spark), or {fix}")
    return _start_up("driver's Python", variable, found, environment)


class _Asked(NamedTuple):
    """The version of an interpreter; a reason if workers cannot run in it."""

    version: str = ""
    reason: str = ""


def _ask(interpreter: str, environment: Mapping[str, str]) -> _Asked:
    code = "import sys, sparklog.client.log, pyspark_sparklog; print('%d.%d' % sys.version_info[:2])"
    result = _run([interpreter, "-c", code], environment)
    if result is None:
        return _Asked(reason="cannot import sparklog: it did not run")
    if result.returncode != 0:
        last = (result.stderr.strip().splitlines() or ["it failed"])[-1]
        return _Asked(reason=f"cannot import sparklog: {last}")
    version = result.stdout.strip()
    is_ours = version == "{}.{}".format(*sys.version_info[:2])
    return _Asked(version, "" if is_ours else f"another Python version, {version}")


def _start_up(check: str, variable: str, found: str, environment: Mapping[str, str]) -> Finding:
    """Name a faster interpreter. (A Spark of SPARK_HOME has its pyspark in a zip: none is faster.)"""
    better = Path(found).with_name("sparklog-python")
    if environment.get("SPARK_HOME") or Path(found).name == better.name or not os.access(better, os.X_OK):
        return ok(check, found)
    detail = f"{found}: each start compiles pyspark anew (0.4 s of processor time)"
    return warn(check, detail, f"export {variable}={better}")


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
        return fail("java", f"cannot run {java}", fix)
    if int(match[1]) < MINIMUM_JAVA:
        return fail("java", f"{match[0]} at {java}, expected {MINIMUM_JAVA} or newer", fix)
    module = _run([java, "--add-modules", VECTOR_MODULE, "-version"], environment)
    if module is None or module.returncode != 0:
        return fail("java", f"{match[0]} at {java}, without {VECTOR_MODULE}", fix)
    return ok("java", f"{match[0]} with {VECTOR_MODULE}")


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


# --- root ------------------------------------------------------------------------------------------


def check_root(root: str, *, deep: bool, cluster_id: str | None = None) -> Iterator[Finding]:
    """All checks of one root, if it can be opened."""
    from sparklog.client import open_log
    from sparklog.storage import open_store

    try:
        log = open_log(root, create=False, cluster_id=cluster_id)
        store = open_store(root)
    except (SparklogError, OSError) as error:
        shown = in_shell_words(error)
        if isinstance(shown, SparklogError):
            yield fail("root", f"[SPARKLOG_{shown.code}] {shown.message}", shown.fix)
        else:
            yield fail("root", str(shown), "name the directory that sparklog made")
        return
    yield from check_log(log, store, deep=deep)


# --- doctor ------------------------------------------------------------------------------------------


@click.command("doctor", cls=Command)
@click.option("--deep", is_flag=True, help="Read every segment of the root and compare all checksums.")
def doctor(deep: bool) -> None:
    """Check Python, Java, Spark, and a root when one is named."""
    settings = current()
    root = settings.named_root()
    if deep and not root:
        raise click.UsageError("--deep reads a root: give --root DIR, or set SPARKLOG_ROOT=DIR.")
    findings = []
    of_root = check_root(root, deep=deep, cluster_id=settings.cluster_id) if root else ()
    for found in itertools.chain(check_environment(), of_root):
        findings.append({**found._asdict(), "status": found.status.value, "fix": found.fix or None})
        if not settings.json:
            tell(f"{found.status.value:<5} {found.check:<16} {found.detail}")
            if found.fix:
                tell(f"{'':<22} fix: {found.fix}")
    if settings.json:
        show_json(findings)
    failed = [str(found["check"]) for found in findings if found["status"] == Status.FAIL]
    if failed:
        raise click.ClickException(f"{len(failed)} of {len(findings)} checks failed: {', '.join(failed)}.")
