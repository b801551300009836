"""Maintenance: rewrites stored records in a better layout, without changing their meaning.

Merging and compaction have three steps: choose works (choose.py, pure), do them in any process with access to
the store (merging.py, compaction.py), and publish the result of each in one commit (work_loop.py). retain.py
removes records that are past their retention, sweep.py removes unreferenced files; restoring.py prepares a
root that was restored from a backup. rounds.py runs the due steps, within a budget.
Names are imported at their first use: a command that reads records needs none of this. No name may be that of
a module here, which would take its place.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparklog.maintenance.budget import (
        NO_LIMIT,
        ROUND,
        Budget,
        SkippedPartition,
        SkippedPartitions,
        alone,
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
    from sparklog.maintenance.compaction import CompactedTopic, CompactionReport, compact
    from sparklog.maintenance.merging import MergedTopic, MergeReport, optimize
    from sparklog.maintenance.restoring import RestoreReport, restore
    from sparklog.maintenance.retain import Expiry, expire
    from sparklog.maintenance.rounds import RoundReport, StepReport, Terms, due_steps, maintain
    from sparklog.maintenance.sweep import (
        RETAIN_MS,
        DeadFile,
        Tally,
        Usage,
        VacuumReport,
        measure_usage,
        vacuum,
    )
    from sparklog.maintenance.work_loop import Progress

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
    "MergeReport",
    "MergeWork",
    "MergedTopic",
    "Piece",
    "Progress",
    "RestoreReport",
    "RoundReport",
    "SkippedPartition",
    "SkippedPartitions",
    "StepReport",
    "Tally",
    "Terms",
    "Usage",
    "VacuumReport",
    "alone",
    "compact",
    "due_steps",
    "expire",
    "maintain",
    "measure_usage",
    "optimize",
    "restore",
    "urgent_topics",
    "vacuum",
    "why_not_due",
]

_MODULES = {
    "budget": ("Budget", "NO_LIMIT", "ROUND", "SkippedPartition", "SkippedPartitions", "alone"),
    "choose": (
        "CompactionLimits",
        "CompactionWork",
        "MergeLimits",
        "MergeWork",
        "Piece",
        "urgent_topics",
        "why_not_due",
    ),
    "compaction": ("CompactedTopic", "CompactionReport", "compact"),
    "merging": ("MergeReport", "MergedTopic", "optimize"),
    "restoring": ("RestoreReport", "restore"),
    "retain": ("Expiry", "expire"),
    "rounds": ("RoundReport", "StepReport", "Terms", "due_steps", "maintain"),
    "sweep": ("DeadFile", "RETAIN_MS", "Tally", "Usage", "VacuumReport", "measure_usage", "vacuum"),
    "work_loop": ("Progress",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
