"""Makes the format ``sparklog`` known to a Spark session.

Spark finds Python data sources by running PYSPARK_PYTHON (or python3 of PATH) and importing every module
named ``pyspark_*`` there; the package pyspark_sparklog is one. It only works if sparklog is installed for
that interpreter, which is not the case in an environment that is not activated (a Jupyter kernel, an IDE).
`configure` sets the interpreter; `register` works without this search.
"""

import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sparklog.errors import InvalidRequestError
from sparklog.spark.interpreter import worker_python
from sparklog.spark.task_slots import set_task_slots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Spark redacts secrets, passwords and tokens in plans, and so in its UI and event log, but not the option
# "key", nor other secrets of Kafka's clients (kafka.ssl.keystore.key).
_REDACTION = "spark.sql.redaction.options.regex"
_REDACTION_DEFAULT = "(?i)url"
REDACTION_WITH_KEYS = (
    r"(?i)url|^(s3\.)?key$|account[._]key|connection_string|sas[._]|keyfile|^fsspec\."
    r"|jaas|credential|passphrase|^kafka\.(sasl|ssl)\."
)
# Over TCP it takes 40 ms longer to pass a task to a Python worker: the JVM's second small write (Nagle) waits
# for a delayed acknowledgement. The directory is set because Java's may be too long for a socket (107 bytes,
# of which Spark uses 43), and because it must exist on every executor.
_SOCKETS = "spark.python.unix.domain.socket."
_SOCKET_DIRECTORY = "/tmp"  # noqa: S108 - Spark's sockets have random names, and see _sockets_are_private

# For each file of a checkpoint on a local disk Hadoop also writes a checksum file, and runs chmod for both:
# 110 of the 250 ms of a small micro-batch (ADR 0011). Other file systems are not affected.
_LOCAL_CHECKPOINTS = "spark.hadoop.fs.AbstractFileSystem.file.impl"
_WITHOUT_CHECKSUM_FILES = "org.apache.hadoop.fs.local.RawLocalFs"


def configure(builder: "SparkSession.Builder") -> "SparkSession.Builder":
    """Configure a session before it is built.

    Sets PYSPARK_PYTHON to this environment's interpreter (interpreter.py), connects Spark to its Python
    workers by Unix sockets (unless the umask lets others write to them), writes checkpoints on local disks
    without Hadoop's checksum files, and redacts the option key in plans; each unless the builder or the
    environment has a value. For a Spark Connect session (``builder.remote(...)``) it only redacts the option:
    the other settings belong to the server's start, and Connect refuses them.

    Example:
        ``spark = sparklog.spark.configure(SparkSession.builder.appName("etl")).getOrCreate()``

    Raises:
        InvalidRequestError: a SparkContext already runs, with another interpreter.
    """
    require_pyspark()
    if _REDACTION not in builder._options:
        builder.config(_REDACTION, REDACTION_WITH_KEYS)
    remote = builder._options.get("spark.remote", os.environ.get("SPARK_REMOTE"))
    if remote is not None:
        if str(remote).startswith("local"):  # its server is started by this process
            os.environ.setdefault("PYSPARK_PYTHON", worker_python())
        return builder
    from pyspark import SparkContext  # noqa: PLC0415 - importing sparklog.spark must stay cheap

    active = SparkContext._active_spark_context
    ours = {os.path.realpath(sys.executable), os.path.realpath(worker_python())}
    if active is not None and os.path.realpath(active.pythonExec) not in ours:
        raise InvalidRequestError(
            "WRONG_PYTHON",
            f"Spark is already running, with the Python workers' interpreter {active.pythonExec}, and "
            f"sparklog is installed for {sys.executable}",
            fix="stop that session, and call configure before the first one (or set PYSPARK_PYTHON)",
        )
    os.environ.setdefault("PYSPARK_PYTHON", worker_python())
    if f"{_SOCKETS}enabled" not in builder._options and _sockets_are_private():
        builder.config(f"{_SOCKETS}enabled", "true").config(f"{_SOCKETS}dir", _SOCKET_DIRECTORY)
    if _LOCAL_CHECKPOINTS not in builder._options:
        builder.config(_LOCAL_CHECKPOINTS, _WITHOUT_CHECKSUM_FILES)
    return builder


def require_pyspark() -> None:
    """Raise if pyspark is not installed."""
    if importlib.util.find_spec("pyspark") is None:
        raise InvalidRequestError(
            "SPARK_NOT_INSTALLED",
            f"this needs the package pyspark, which is not installed in {sys.executable}",
            fix="Install it: pip install 'sparklog[spark]'",
        )


def _sockets_are_private() -> bool:
    """Return False if other users may write to a worker's socket: Spark runs any code that it gets there."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask & 0o022 == 0o022 and Path(_SOCKET_DIRECTORY).is_dir()


def register(spark: "SparkSession") -> None:
    """Make ``format("sparklog")`` known to this session. Repeatable.

    If the session's settings fix the number of tasks that run at the same time, sources plan that many, and
    more only for much data (task_slots.py). Without this call they read each partition in its own task.

    It also makes the session the active one of the calling thread. Spark looks formats up in the active
    session, so ``save()`` and ``start()`` in another thread fail unless that thread has called this.
    """
    require_pyspark()
    from sparklog.spark.datasource import SparklogDataSource  # noqa: PLC0415 - as above

    _activate(spark)
    if not _is_known(spark, SparklogDataSource.name()):
        spark.dataSource.register(SparklogDataSource)
    set_task_slots(spark, SparklogDataSource.name())
    if spark.conf.get(_REDACTION, _REDACTION_DEFAULT) == _REDACTION_DEFAULT:
        spark.conf.set(_REDACTION, REDACTION_WITH_KEYS)


def _activate(spark: "SparkSession") -> None:
    """Set the active session of the JVM thread of this thread. Spark Connect has none, and needs none."""
    jvm = getattr(spark, "_jvm", None) if hasattr(spark, "_jsparkSession") else None
    if jvm is not None:
        jvm.org.apache.spark.sql.SparkSession.setActiveSession(spark._jsparkSession)


def _is_known(spark: "SparkSession", name: str) -> bool:
    """Return True if Spark already knows the format: to register it again logs a warning."""
    session = getattr(spark, "_jsparkSession", None)
    if session is None:
        return False  # Spark Connect: only its server knows
    return bool(session.sessionState().dataSourceManager().dataSourceExists(name))
