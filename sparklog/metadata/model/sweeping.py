"""Births of segments, and the horizon before which none that is dead comes to life: move_sweep_horizon.

A file that no extent refers to may be removed only if none can come to. A segment is born at the newest
commit that its writer had seen when it made the file; its name says so, also to who finds the file alone. The
horizon is a commit number that only grows. From the commit on that moves it, what would bring a segment to
life that was born before it does not apply, whoever publishes it, and however: so what was born before the
horizon and is dead stays dead, and no clock has a part in it.

Invariants: whatever an action makes live was born at or after the horizon, or is live already, as of the
    actions before it; the horizon is at most the number of the commit that moves it.
Not here: making names (log/names.py), removing files.
Sources: FORMAT.md#segments-and-extents; adr/0019; tests/models/sweeping.py.
"""

import re
from collections.abc import Iterable

from sparklog.errors import RetriableError
from sparklog.metadata.model.action import ActionBase, ActionRefusedError, invalid_plan
from sparklog.metadata.model.draft import ImageDraft
from sparklog.metadata.model.image import NO_HORIZON, Image
from sparklog.metadata.model.numbers import Int64

NO_BIRTH = -1  # of names that do not say it: before all
# The first names with births have a dash where the dot is.
_OWN = re.compile(r"segments/[^/]+/\d{8}[.-](\d{1,18})\.log")
_MERGED = re.compile(r"[^/]+/\d{20}[.-](\d{1,18})-[A-Za-z0-9_-]{22}\.log")  # an id of 22


class MoveSweepHorizon(ActionBase, tag="move_sweep_horizon", frozen=True, kw_only=True):
    """Segments that were born before commit `horizon`, and are dead, stay dead."""

    horizon: Int64


def born_of(segment: str) -> int:
    """At which commit a segment was born, by its name."""
    match = _OWN.fullmatch(segment) or _MERGED.fullmatch(segment)
    return int(match[1]) if match else NO_BIRTH


# --- effect ------------------------------------------------------------------------------------------


def move_sweep_horizon(draft: ImageDraft, action: MoveSweepHorizon) -> None:
    """From here on, what was born before is not brought to life."""
    if not draft.sweep_horizon < action.horizon <= draft.commit:
        raise ActionRefusedError(
            f"sweep horizon {action.horizon}, expected above {draft.sweep_horizon} and at most {draft.commit}"
        )
    draft.sweep_horizon = action.horizon


def refuse_expired(draft: ImageDraft, segments: Iterable[str]) -> None:
    """ActionRefusedError if an action that refers to these would bring one to life that is too old."""
    if draft.sweep_horizon == NO_HORIZON:
        return
    for segment in sorted(set(segments)):
        if born_of(segment) < draft.sweep_horizon and not draft.refers_to(segment):
            raise ActionRefusedError(_expired(segment, draft.sweep_horizon))


# --- plans -------------------------------------------------------------------------------------------


def plan_move_sweep_horizon(image: Image, horizon: int) -> MoveSweepHorizon | None:
    """Move the horizon; None when it is there already, or beyond."""
    if not 0 <= horizon <= image.commit + 1:
        raise invalid_plan(f"sweep horizon {horizon}, expected 0 to {image.commit + 1}")
    return MoveSweepHorizon(horizon=horizon) if horizon > image.sweep_horizon else None


def validate_births(image: Image, segments: Iterable[str]) -> None:
    """RetriableError STAGING_EXPIRED if the image's horizon keeps one of these dead."""
    if image.sweep_horizon == NO_HORIZON:
        return
    for segment in sorted(set(segments)):
        if born_of(segment) < image.sweep_horizon and not image.refers_to(segment):
            raise RetriableError(
                "STAGING_EXPIRED",
                _expired(segment, image.sweep_horizon),
                fix="append the rows again, to a new segment; of these nothing is published, nor will be",
            )


def _expired(segment: str, horizon: int) -> str:
    return (
        f"{segment}: found a segment that no extent refers to, born at commit {born_of(segment)}, expected "
        f"one born at {horizon}, the sweep horizon, or later: what is older may have been removed"
    )
