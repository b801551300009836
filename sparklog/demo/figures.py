"""What the demo finds out, filled in from step to step (run.py)."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparklog.demo import verify


@dataclass(slots=True)
class Figures:
    """What the demo found out."""

    flights: int = 0
    csv_bytes: int = 0
    json_bytes: int = 0
    log_bytes: int = 0
    backfill_s: float = 0.0
    stream_s: float = 0.0
    killed_processes: int = 0
    published_at_kill: int = 0
    noted_at_kill: int = 0
    published_in_all: int = 0
    delay_records: int = 0
    lag: int = 0
    rows: verify.Difference | None = None
    sums: verify.Difference | None = None
    problems: list[str] = field(default_factory=list)
