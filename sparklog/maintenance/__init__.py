"""Maintenance: what is stored is written anew, in a better order; what it says stays the same.

Merging has three steps, each of its own: choose what is worth the work (choose.py, pure), do it anywhere
(merge.py: a store, no Spark, no broker), and publish what came of it in one commit (publish.py). run.py has
all three. Retention is in retain.py; sweep.py removes the files that nothing refers to any more.
"""

from sparklog.maintenance.choose import MergeLimits
from sparklog.maintenance.retain import Expiry, expire
from sparklog.maintenance.run import Progress, Report, TopicReport, optimize
from sparklog.maintenance.sweep import (
    RETAIN_MS,
    DeadFile,
    Tally,
    Usage,
    VacuumReport,
    measure_usage,
    vacuum,
)
from sparklog.maintenance.work import MergeWork, Piece

__all__ = [
    "RETAIN_MS",
    "DeadFile",
    "Expiry",
    "MergeLimits",
    "MergeWork",
    "Piece",
    "Progress",
    "Report",
    "Tally",
    "TopicReport",
    "Usage",
    "VacuumReport",
    "expire",
    "measure_usage",
    "optimize",
    "vacuum",
]
