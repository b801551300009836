"""Maintenance: what is stored is written anew, in a better order; what it says stays the same.

Merging has three steps, each of its own: choose what is worth the work (choose.py, pure), do it anywhere
(merge.py: a store, no Spark, no broker), and publish what came of it in one commit (merge.py). merge.py has
all three. Compaction has the same steps: choose.py, compact.py, compact.py. Retention is
in retain.py; sweep.py removes the files that nothing refers to any more; restore.py is for a root that was
put back from a backup. maintain.py does whatever of all
that is due (maintain.py), within a budget.
"""

from sparklog.maintenance.budget import (
    NO_LIMIT,
    ROUND,
    Budget,
    Remembered,
    Uncleanable,
    alone,
    keys_of,
    remembered_after,
    still_remembered,
)
from sparklog.maintenance.choose import (
    CompactionLimits,
    CompactionWork,
    MergeLimits,
    MergeWork,
    Piece,
    urgent_topics,
    why_not_due,
)
from sparklog.maintenance.compact import CompactedTopic, CompactionReport, compact
from sparklog.maintenance.maintain import RoundReport, StepReport, Terms, due_steps, maintain
from sparklog.maintenance.merge import Progress, Report, TopicReport, optimize
from sparklog.maintenance.restore import RestoreReport, restore
from sparklog.maintenance.retain import Expiry, expire
from sparklog.maintenance.sweep import (
    RETAIN_MS,
    DeadFile,
    Tally,
    Usage,
    VacuumReport,
    measure_usage,
    vacuum,
)

__all__ = [
    "NO_LIMIT",
    "RETAIN_MS",
    "ROUND",
    "Budget",
    "CompactedTopic",
    "CompactionLimits",
    "CompactionReport",
    "CompactionWork",
    "DeadFile",
    "Expiry",
    "MergeLimits",
    "MergeWork",
    "Piece",
    "Progress",
    "Remembered",
    "Report",
    "RestoreReport",
    "RoundReport",
    "StepReport",
    "Tally",
    "Terms",
    "TopicReport",
    "Uncleanable",
    "Usage",
    "VacuumReport",
    "alone",
    "compact",
    "due_steps",
    "expire",
    "keys_of",
    "maintain",
    "measure_usage",
    "optimize",
    "remembered_after",
    "restore",
    "still_remembered",
    "urgent_topics",
    "vacuum",
    "why_not_due",
]
