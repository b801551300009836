"""Getting a Spark session to know the format ``sparklog``.

Spark finds Python data sources by running PYSPARK_PYTHON (or python3 of PATH) and importing every
module named ``pyspark_*`` there; the package pyspark_sparklog serves that. It only works when that
interpreter is the one in which sparklog is installed, which an environment that is not activated
(a Jupyter kernel, an IDE) gets wrong. `configure` sets it, `register` needs no finding at all.
"""

import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sparklog.errors import InvalidRequestError
from sparklog.spark.interpreter import worker_python
from sparklog.spark.task_slots import tell_task_slots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Spark hides secrets, passwords and tokens in the plans that it prints, and so in its UI and event log, but
# would show the option "key", and what Kafka's clients have besides (kafka.ssl.keystore.key).
_REDACTION = "spark.sql.redaction.options.regex"
_REDACTION_DEFAULT = "(?i)url"
REDACTION_WITH_KEYS = r"(?i)url|^(s3\.)?key$|jaas|credential|passphrase|^kafka\.(sasl|ssl)\."
# Over TCP every hand-over of a task to a Python worker waits 40 ms: the JVM's second small write (Nagle) for
# an acknowledgement that the other end delays. The directory is named because Java's may be too long for a
# socket (107 bytes, of which Spark uses 43), and because it must be there on every executor.
_SOCKETS = "spark.python.unix.domain.socket."
_SOCKET_DIRECTORY = "/tmp"  # noqa: S108 - Spark's sockets have random names, and see _sockets_are_private

# Beside each file of a checkpoint on a local disk Hadoop writes one with checksums, and runs chmod for both:
# 110 of the 250 ms of a small micro-batch (ADR 0011). Other file systems are not meant.
_LOCAL_CHECKPOINTS = "spark.hadoop.fs.AbstractFileSystem.file.impl"
_WITHOUT_CHECKSUM_FILES = "org.apache.hadoop.fs.local.RawLocalFs"


def configure(builder: "SparkSession.Builder") -> "SparkSession.Builder":
    """Prepare the environment for a session that is about to be built.

    Sets PYSPARK_PYTHON to this environment's interpreter (interpreter.py), connects Spark to its Python
    workers by Unix sockets (unless the umask would let others write to them), has checkpoints on local disks
    written without Hadoop's checksum files, and hides the option key in plans; each unless the builder or the
    environment says otherwise. Of a Spark Connect session (``builder.remote(...)``) it only hides the option:
    the rest belongs to the server's start, and Connect refuses it.

    Example:
        ``spark = sparklog.spark.configure(SparkSession.builder.appName("etl")).getOrCreate()``

    Raises:
        InvalidRequestError: a SparkContext runs already with another interpreter; it keeps it.
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
            f"Spark is running already, with the Python workers' interpreter {active.pythonExec}, and "
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
    """Say what to install where there is no pyspark."""
    if importlib.util.find_spec("pyspark") is None:
        raise InvalidRequestError(
            "SPARK_NOT_INSTALLED",
            f"this needs the package pyspark, which is not installed in {sys.executable}",
            fix="Install it: pip install 'sparklog[spark]'",
        )


def _sockets_are_private() -> bool:
    """Whoever may write to a worker's socket may have it run anything: Spark asks for no secret there."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask & 0o022 == 0o022 and Path(_SOCKET_DIRECTORY).is_dir()


def register(spark: "SparkSession") -> None:
    """Make ``format("sparklog")`` known to this session; again and again does no harm.

    Where the session's settings say how many tasks run at the same time, sources plan as many, and more
    only for much data (task_slots.py); without this call they read each partition in a task of its own.

    It also makes the session the active one of the calling thread. Spark looks formats up in that one, so
    ``save()`` and ``start()`` in a thread of one's own find none, unless the thread has called this.
    """
    require_pyspark()
    from sparklog.spark.datasource import SparklogDataSource  # noqa: PLC0415 - as above

    _activate(spark)
    if not _is_known(spark, SparklogDataSource.name()):
        spark.dataSource.register(SparklogDataSource)
    tell_task_slots(spark, SparklogDataSource.name())
    if spark.conf.get(_REDACTION, _REDACTION_DEFAULT) == _REDACTION_DEFAULT:
        spark.conf.set(_REDACTION, REDACTION_WITH_KEYS)


def _activate(spark: "SparkSession") -> None:
    """For the JVM's thread that belongs to ours. Over Spark Connect there is none, and no need."""
    jvm = getattr(spark, "_jvm", None) if hasattr(spark, "_jsparkSession") else None
    if jvm is not None:
        jvm.org.apache.spark.sql.SparkSession.setActiveSession(spark._jsparkSession)


def _is_known(spark: "SparkSession", name: str) -> bool:
    """Has Spark found it by itself (pyspark_sparklog), or was it registered? It warns of a second time."""
    session = getattr(spark, "_jsparkSession", None)
    if session is None:
        return False  # Spark Connect: its server knows, and nobody asks it
    return bool(session.sessionState().dataSourceManager().dataSourceExists(name))
