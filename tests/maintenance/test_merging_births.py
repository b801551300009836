"""What merging makes is born at the commit that its work was chosen from, and may come too late."""

import pytest

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.maintenance import MergeLimits
from sparklog.maintenance.choose import choose_merges
from sparklog.maintenance.merging import run_merge
from sparklog.maintenance.work_loop import publish_replacements
from sparklog.metadata import Action, Image, born_of, plan_move_sweep_horizon
from tests.maintenance.conftest import Append, extents, records


def moving_horizon(image: Image) -> list[Action]:
    action = plan_move_sweep_horizon(image, image.commit + 1)
    return [] if action is None else [action]


@pytest.mark.parametrize("shared_bytes", [0, 1 << 30], ids=["apart", "shared"])
def test_what_is_merged_is_born_when_its_work_was_chosen(
    log: SparkLog, append: Append, shared_bytes: int
) -> None:
    for number in range(4):
        append([b"%d" % number])
    limits = MergeLimits(fan_in=None, shared_bytes=shared_bytes)
    (work,) = choose_merges(log.refresh(), limits)
    chosen = log.image.commit
    append([b"later"])
    replacements = run_merge(log.store, ManualClock(), work)
    assert {born_of(extent.segment) for one in replacements for extent in one.added} == {chosen}
    assert publish_replacements(log.metadata, replacements).left_out == 0


def test_what_was_merged_before_the_horizon_is_left_out(log: SparkLog, append: Append) -> None:
    """A sweep may have taken its files, since nothing referred to them."""
    for number in range(4):
        append([b"%d" % number])
    before = records(log)
    (work,) = choose_merges(log.refresh(), MergeLimits(fan_in=None))
    replacements = run_merge(log.store, ManualClock(), work)
    log.metadata.publish(moving_horizon)
    assert publish_replacements(log.metadata, replacements).left_out == len(replacements) == 1
    assert records(log) == before
    assert len(extents(log)) == 4
