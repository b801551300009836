"""What `sparklog doctor` looks at besides a root: Python, PySpark, Java, and how Spark finds us.

Nothing of Spark is imported or started; other interpreters and Java are asked by running them.
"""

from __future__ import annotations

import enum
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sparklog.errors import SparklogError
from sparklog.format import kernels
from sparklog.spark.features import MINIMUM_SPARK, missing_features
from sparklog.spark.interpreter import worker_python

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
