"""Maintenance: what is stored is written anew, in a better order; what it says stays the same.

Merging has three steps, each of its own: choose what is worth the work (choose.py, pure), do it anywhere
(merge.py: a store, no Spark, no broker), and publish what came of it in one commit (publish.py). run.py has
all three. Compaction has the same steps: choose_compactions.py, run_compaction.py, compact.py. Retention is
in retain.py; sweep.py removes the files that nothing refers to any more; restore.py is for a root that was
put back from a backup. maintain.py does whatever of all
that is due (steps.py), within a budget.
"""

from sparklog.maintenance.alone import ROUND, alone
from sparklog.maintenance.budget import NO_LIMIT, Budget
from sparklog.maintenance.choose import MergeLimits
from sparklog.maintenance.choose_compactions import CompactionLimits, CompactionWork, why_not_due
from sparklog.maintenance.compact import CompactedTopic, CompactionReport, compact
from sparklog.maintenance.maintain import RoundReport, due_steps, maintain
from sparklog.maintenance.restore import RestoreReport, restore
from sparklog.maintenance.retain import Expiry, expire
from sparklog.maintenance.round_step import StepReport, Terms
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
from sparklog.maintenance.uncleanable import (
    Remembered,
    Uncleanable,
    keys_of,
    remembered_after,
    still_remembered,
)
from sparklog.maintenance.urgent import urgent_topics
from sparklog.maintenance.work import MergeWork, Piece

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
