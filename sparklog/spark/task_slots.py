"""The number of tasks that Spark can run at the same time, for planning (ranges.balance).

A Python source is planned in a separate process next to the driver's JVM, which gets neither settings nor
executors from Spark. It gets environment variables: those of the JVM, and those stored with the registered
class. So `register`, which has the session, computes the number and stores it there. The driver's environment
may have the variable instead (a Connect server, a session without `register`).

Invariants: the number is only set if the session's settings fix it; the executors of the moment do not
count. For dynamic allocation it is the maximum, since Spark requests executors for waiting tasks. Without a
number, each partition has its own task.
After a crash: a restarted driver computes it again, and a repeated micro-batch may have other tasks.
Not here: assigning ranges to tasks (ranges.py, input_partitions.py).
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
VARIABLE = "SPARKLOG_TASK_SLOTS"  # 0: unknown
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
_NO_LIMIT = 2**31 - 1  # Spark's default for the maximum of dynamic allocation


def task_slots_of_environment(environment: Mapping[str, str]) -> int | None:
    """Return the number from the environment; None: unknown.

    Raises:
        InvalidRequestError: it is not a whole number.
    """
    text = environment.get(VARIABLE, "").strip()
    if not text:
        return None
    return parse_int({VARIABLE.lower(): text}, VARIABLE, minimum=0) or None


def task_slots_of_settings(conf: Mapping[str, str], processors: int) -> int | None:
    """Return the number of tasks that run at the same time; None if the session's settings do not fix it.

    Args:
        conf: the SparkContext's _SETTINGS.
        processors: as seen by the driver's JVM.
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
        cores = cores or 1  # elsewhere an executor uses all cores of its machine
    known = executors * (cores // cpus) if executors and cores else None
    if master.startswith("spark:") and (most_cores := _number(conf, "spark.cores.max")) is not None:
        # Executors have `cores` each, or the free cores of their machine.
        fixed = most_cores // cores * (cores // cpus) if cores else most_cores // cpus
        known = fixed if known is None else min(known, fixed)
    return known or None


def set_task_slots(spark: "SparkSession", name: str) -> None:
    """Store the number in the environment of the class that is registered under this name.

    Not over Spark Connect: the server has its own settings.
    """
    jvm = getattr(spark, "_jvm", None) if hasattr(spark, "_jsparkSession") else None
    if jvm is None or jvm.java.lang.System.getenv(VARIABLE) is not None:
        return
    # Importing sparklog.spark must stay cheap, and py4j has no types.
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415

    given = spark.sparkContext._jsc.getConf()  # reading all settings would be hundreds of calls
    conf = {setting: given.get(setting, "") for setting in _SETTINGS}
    slots = task_slots_of_settings(conf, jvm.java.lang.Runtime.getRuntime().availableProcessors())
    try:
        manager = spark._jsparkSession.sessionState().dataSourceManager()
        variables = manager.lookupDataSource(name).dataSourceCls().envVars()
        if slots is None:
            variables.remove(VARIABLE)  # that of an earlier context of this JVM
        else:
            variables.put(VARIABLE, str(slots))
    except Py4JError as error:  # not a public interface; planning works without
        logger.debug("cannot set the number of task slots for planning: %s", error)


def _is_dynamic(conf: Mapping[str, str]) -> bool:
    return conf.get("spark.dynamicAllocation.enabled", "").strip().lower() == "true"


def _number(conf: Mapping[str, str], name: str) -> int | None:
    text = conf.get(name, "").strip()
    return int(text) if re.fullmatch(r"[0-9]+", text) else None
