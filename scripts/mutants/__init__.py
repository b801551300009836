"""Written mutants: sparklog with one rule broken that prevents a loss. `make mutants` runs them.

Each stands for a promise of docs/reliability.md or an invariant of docs/design.md. Add one for a rule that no
other mutant breaks and no operator can: an order of steps, an fsync, a fence.
"""

from scripts.mutants import brokers, log_and_clients, metadata_log, once, sharing, storage, upkeep
from scripts.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *storage.MUTANTS,
    *metadata_log.MUTANTS,
    *once.MUTANTS,
    *log_and_clients.MUTANTS,
    *upkeep.MUTANTS,
    *brokers.MUTANTS,
    *sharing.MUTANTS,
)
