"""How many tasks Spark can run at the same time, so that a source need not plan more (ranges.balance).

A Python source is planned in a process of its own beside the driver's JVM, which Spark tells neither settings
nor executors. What it does get is an environment: that of the JVM, and what was put beside the registered
class. So `register`, which has the session, works the number out and leaves it there, and whoever runs the
driver may set the variable instead (a Connect server, a session for which nobody calls `register`).

Invariants: a number is given only where the session's settings fix it; nobody guesses from what happens to
be registered at the moment. Of an allocation that grows it is what it may grow to, since Spark asks for
executors by the tasks that wait. Where nothing is known, each partition has a task of its own.
After a crash: a restarted driver works it out anew, and a micro-batch that comes again may have other tasks.
Not here: who shares a task (ranges.py, input_partitions.py).
Sources: Spark's configuration guide; SchedulerBackendUtils, LocalSchedulerBackend.
"""

import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sparklog.spark.values import parse_int

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("sparklog.spark")
VARIABLE = "SPARKLOG_TASK_SLOTS"  # 0: as if nothing were known
_LOCAL = re.compile(r"local(?:\[\s*(\*|[0-9]+)\s*(?:,\s*[0-9]+\s*)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*([0-9]+)\s*,\s*([0-9]+)\s*,.*\]")
_SETTINGS = (
    "spark.master",
    "spark.task.cpus",
    "spark.executor.cores",
    "spark.executor.instances",
    "spark.cores.max",
    "spark.dynamicAllocation.enabled",
    "spark.dynamicAllocation.maxExecutors",
)
_NO_LIMIT = 2**31 - 1  # Spark's default for the most executors of dynamic allocation


def task_slots_of_environment(environment: Mapping[str, str]) -> int | None:
    """What the process that plans was told.

    Raises:
        InvalidRequestError: it is no whole number.
    """
    text = environment.get(VARIABLE, "").strip()
    if not text:
        return None
    return parse_int({VARIABLE.lower(): text}, VARIABLE, minimum=0) or None


def task_slots_of_settings(conf: Mapping[str, str], processors: int) -> int | None:
    """How many tasks run at the same time, where the settings of the session fix it.

    Args:
        conf: of the SparkContext, those of _SETTINGS.
        processors: that the driver's JVM sees.
    """
    cpus = _number(conf, "spark.task.cpus") or 1
    master = conf.get("spark.master", "").strip()
    if local := _LOCAL.fullmatch(master):
        threads = processors if local[1] == "*" else int(local[1] or 1)
        return threads // cpus or None
    if cluster := _LOCAL_CLUSTER.fullmatch(master):
        return int(cluster[1]) * (int(cluster[2]) // cpus) or None
    cores = _number(conf, "spark.executor.cores")
    if _is_dynamic(conf):
        executors = _number(conf, "spark.dynamicAllocation.maxExecutors")
        executors = None if executors is None or executors >= _NO_LIMIT else executors
    elif master.startswith(("yarn", "k8s:")):
        executors = _number(conf, "spark.executor.instances") or 2
    else:
        executors = None
    if master.startswith(("yarn", "k8s:")):
        cores = cores or 1  # elsewhere an executor takes all that its machine has
    known = executors * (cores // cpus) if executors and cores else None
    if master.startswith("spark:") and (most_cores := _number(conf, "spark.cores.max")) is not None:
        # Executors of so many cores each, or of what each machine has left.
        fixed = most_cores // cores * (cores // cpus) if cores else most_cores // cpus
        known = fixed if known is None else min(known, fixed)
    return known or None


def tell_task_slots(spark: "SparkSession", name: str) -> None:
    """Leave the number with the class that is registered under this name, for those who plan with it.

    Not over Spark Connect, whose server's settings are its own.
    """
    jvm = getattr(spark, "_jvm", None) if hasattr(spark, "_jsparkSession") else None
    if jvm is None or jvm.java.lang.System.getenv(VARIABLE) is not None:
        return
    # Importing sparklog.spark must stay cheap, and py4j has no types.
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415

    given = spark.sparkContext._jsc.getConf()  # all of them would be hundreds of calls
    conf = {setting: given.get(setting, "") for setting in _SETTINGS}
    slots = task_slots_of_settings(conf, jvm.java.lang.Runtime.getRuntime().availableProcessors())
    try:
        manager = spark._jsparkSession.sessionState().dataSourceManager()
        variables = manager.lookupDataSource(name).dataSourceCls().envVars()
        if slots is None:
            variables.remove(VARIABLE)  # of an earlier context of this JVM
        else:
            variables.put(VARIABLE, str(slots))
    except Py4JError as error:  # these are no public interfaces: all works without
        logger.debug("the planner is not told how many tasks can run: %s", error)


def _is_dynamic(conf: Mapping[str, str]) -> bool:
    return conf.get("spark.dynamicAllocation.enabled", "").strip().lower() == "true"


def _number(conf: Mapping[str, str], name: str) -> int | None:
    text = conf.get(name, "").strip()
    return int(text) if re.fullmatch(r"[0-9]+", text) else None
