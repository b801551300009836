"""Numbers of the metadata log.

Not here: what a root or a topic is configured to (log/config.py); these are a process's own.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataSettings:
    """Every process of a root may have its own.

    Fields:
        snapshot_bytes: commits between snapshots weigh so much at least (upkeep.py); 256 small commits.
            Larger: slower opening, fewer files rewritten.
        clean_grace_ms: how old a snapshot must be before what it covers is removed. Larger: more files,
            fewer followers that must load a snapshot after a pause.
        clean_interval_ms: a process cleans at most so often, after a snapshot of its own: it has to list all
            commits of the grace period, of which there may be 100,000s.
        snapshots_kept: at least so many; two, so that a damaged one is no disaster.
        publish_timeout_ms: give up publishing after losing races, or being unsure, for this long.
        backoff_ms: upper bound of the random wait after the first lost race; None: what suits the store.
        combine: on a remote store, publish for each other instead of racing.
    """

    snapshot_bytes: int = 1 << 20
    clean_grace_ms: int = 600_000
    clean_interval_ms: int = 60_000
    snapshots_kept: int = 2
    publish_timeout_ms: int = 60_000
    backoff_ms: float | None = None
    combine: bool = True
