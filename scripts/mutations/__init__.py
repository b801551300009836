"""All mutants, those of a layer in a module of its own; scripts/mutants.py runs them."""

from scripts.mutations import (
    broker,
    clients,
    cluster,
    combining,
    compaction,
    coordination,
    forgetting,
    groups,
    leaderships,
    maintenance,
    metadata,
    protocol,
    readers,
    records,
    runners,
    spark,
    staged,
    storage,
    sweeping,
    upkeep,
)
from scripts.mutations.mutant import Mutant

# In the order of docs/mutants.md.
MUTANTS: tuple[Mutant, ...] = (
    *storage.MUTANTS,
    *metadata.MUTANTS,
    *upkeep.MUTANTS,
    *combining.MUTANTS,
    *clients.MUTANTS,
    *spark.MUTANTS,
    *coordination.MUTANTS,
    *groups.MUTANTS,
    *records.MUTANTS,
    *broker.MUTANTS,
    *maintenance.MUTANTS,
    *forgetting.MUTANTS,
    *runners.MUTANTS,
    *compaction.MUTANTS,
    *sweeping.MUTANTS,
    *readers.MUTANTS,
    *cluster.MUTANTS,
    *leaderships.MUTANTS,
    *staged.MUTANTS,
    *protocol.MUTANTS,
)
