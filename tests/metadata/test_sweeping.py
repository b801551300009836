"""What is too old to come to life: births of segments, and the sweep horizon."""

import dataclasses
from collections.abc import Callable
from functools import partial

import msgspec
import pytest

from sparklog.clock import ManualClock
from sparklog.errors import InvalidRequestError, RetriableError
from sparklog.metadata import (
    Action,
    DraftExtent,
    Image,
    MetadataLog,
    MoveSweepHorizon,
    Topic,
    apply_actions,
    born_of,
    plan_advance_log_start,
    plan_append,
    plan_delete_topic,
    plan_move_sweep_horizon,
)
from sparklog.metadata.model.action import ActionRefusedError
from sparklog.metadata.model.image import NO_HORIZON
from sparklog.storage import MemoryStore
from tests.replacing import plan_replacing

Create = Callable[..., Topic]
Draft = Callable[..., DraftExtent]


def segment(number: int, born: int | None = None) -> str:
    return f"segments/{'w' * 32}/{number:08d}{'' if born is None else f'.{born}'}.log"


def merged(born: int) -> str:
    return f"orders-0/{0:020d}.{born}-{'x' * 22}.log"


def applied(image: Image, *actions: Action) -> Image:
    return apply_actions(image, actions, commit=image.commit + 1, commit_uuid="u")


def appending(drafts: list[DraftExtent], image: Image) -> list[Action]:
    return [plan_append(image, drafts)]


def move(log: MetadataLog, horizon: int) -> None:
    def plan(image: Image) -> list[Action]:
        action = plan_move_sweep_horizon(image, horizon)
        return [] if action is None else [action]

    log.publish(plan)


def refused(log: MetadataLog, drafts: list[DraftExtent]) -> None:
    """By the plan, with the answer that tells the writer what to do, and by a replay."""
    with pytest.raises(RetriableError, match="the sweep horizon, or later") as raised:
        log.publish(partial(appending, drafts))
    assert raised.value.code == "STAGING_EXPIRED"
    action = plan_append(without_horizon(log.image), drafts)  # of a planner that knows of none
    with pytest.raises(ActionRefusedError, match="the sweep horizon, or later"):
        applied(log.image, action)


def without_horizon(image: Image) -> Image:
    return dataclasses.replace(image, sweep_horizon=NO_HORIZON)


@pytest.mark.parametrize(
    ("name", "born"),
    [
        (segment(3, 17), 17),
        (segment(3, 0), 0),
        (segment(3), -1),
        (f"orders-2/00000000000000368769.41-{'x' * 22}.log", 41),
        (f"orders-2/00000000000000368769-{'x' * 22}.log", -1),
        (f"orders-2/00000000000000368769-41-{'x' * 19}.log", -1),  # an id that begins with digits
        ("segments/w/0.log", -1),
        (f"segments/w/00000000.{'9' * 18}.log", int("9" * 18)),
        (f"segments/w/00000000.{'9' * 19}.log", -1),
        ("segments/w/00000000.5.log.log", -1),
        ("segments/w/00000000.-5.log", -1),
        ("segments/w/00000000-5.log", 5),
        (f"orders-2/00000000000000368769-41-{'x' * 22}.log", 41),
        ("segments/w/x/00000000.5.log", -1),
    ],
)
def test_a_name_says_when_its_segment_was_born(name: str, born: int) -> None:
    assert born_of(name) == born


def test_without_a_horizon_everything_may_come_to_life(
    log: MetadataLog, create: Create, draft: Draft
) -> None:
    topic = create(log)
    log.publish(partial(appending, [draft(topic, segment=segment(0)), draft(topic, segment="old")]))
    assert len(log.image.topic("orders").partitions[0].extents) == 2


def test_what_was_born_before_the_horizon_and_is_dead_stays_dead(
    log: MetadataLog, create: Create, draft: Draft
) -> None:
    topic = create(log)
    move(log, 1)
    for name in (segment(0), segment(1, 0), merged(0)):
        refused(log, [draft(topic, segment=segment(9, 1)), draft(topic, segment=name)])
    log.publish(partial(appending, [draft(topic, segment=segment(9, 1))]))


def test_what_is_live_goes_on(log: MetadataLog, create: Create, draft: Draft) -> None:
    """Until its last extent is gone; whichever way that was."""
    topic = create(log)
    open_file = segment(0, 0)
    log.publish(partial(appending, [draft(topic, 1, segment=open_file), draft(topic, segment=open_file)]))
    move(log, 2)
    log.publish(partial(appending, [draft(topic, segment=open_file, position=100)]))
    advance = plan_advance_log_start(log.image, topic.topic_id, 0, 20)
    assert advance is not None
    log.publish(lambda image: [advance])
    log.publish(partial(appending, [draft(topic, segment=open_file, position=200)]))  # in partition 1 still
    for number in range(2):
        extents = list(log.image.topic("orders").partitions[number].extents)
        added = [msgspec.structs.replace(extents[0], segment=segment(number, 5))]
        log.publish(lambda image, e=extents, a=added: [plan_replacing(image, e, a)])  # type: ignore[misc]
    refused(log, [draft(topic, segment=open_file, position=300)])


def test_a_deleted_topic_keeps_nothing_alive(log: MetadataLog, create: Create, draft: Draft) -> None:
    gone, topic = create(log), create(log, "kept", topic_id="B" * 22)
    log.publish(partial(appending, [draft(gone, segment=segment(0, 0))]))
    move(log, 1)
    log.publish(lambda image: [plan_delete_topic(image, "orders")])
    refused(log, [draft(topic, segment=segment(0, 0))])


def test_what_the_same_commit_brings_to_life_is_live(log: MetadataLog, create: Create, draft: Draft) -> None:
    """Actions apply in order: a horizon binds what comes after it in its commit, not what comes before."""
    topic = create(log)
    append = plan_append(log.image, [draft(topic, segment=segment(0, 0))])
    horizon = MoveSweepHorizon(horizon=1)
    with pytest.raises(ActionRefusedError, match="sweep horizon"):
        applied(log.image, horizon, append)
    image = applied(log.image, append, horizon)
    more = plan_append(image, [draft(topic, 1, segment=segment(0, 0))])
    assert applied(image, more).refers_to(segment(0, 0))


def test_a_replacement_is_asked_as_well(log: MetadataLog, create: Create, draft: Draft) -> None:
    topic = create(log)
    log.publish(partial(appending, [draft(topic, segment=segment(0, 0))]))
    move(log, 2)
    (extent,) = log.image.topic("orders").partitions[0].extents
    too_old = msgspec.structs.replace(extent, segment=merged(1))
    with pytest.raises(RetriableError, match="sweep horizon"):
        log.publish(lambda image: [plan_replacing(image, [extent], [too_old])])
    action = plan_replacing(without_horizon(log.image), [extent], [too_old])
    with pytest.raises(ActionRefusedError, match="sweep horizon"):
        applied(log.image, action)
    young = msgspec.structs.replace(extent, segment=merged(2))
    log.publish(lambda image: [plan_replacing(image, [extent], [young])])
    same = msgspec.structs.replace(extent, segment=segment(0, 0))
    assert not log.image.refers_to(same.segment)


def test_the_horizon_only_grows_and_not_beyond_its_commit(log: MetadataLog, create: Create) -> None:
    create(log)
    move(log, 1)
    commit = log.image.commit
    move(log, 1)
    move(log, 0)
    assert log.image.commit == commit
    for horizon in (1, 0, -1, commit + 2):
        with pytest.raises(ActionRefusedError, match="sweep horizon"):
            applied(log.image, MoveSweepHorizon(horizon=horizon))
    for horizon in (-1, commit + 2):
        with pytest.raises(InvalidRequestError, match="sweep horizon"):
            plan_move_sweep_horizon(log.image, horizon)
    assert applied(log.image, MoveSweepHorizon(horizon=commit + 1)).sweep_horizon == commit + 1


def test_a_snapshot_has_the_horizon(log: MetadataLog, memory: MemoryStore, create: Create) -> None:
    create(log)
    move(log, 1)
    log.write_snapshot()
    for name in [file.name for file in memory.list("__cluster_metadata") if file.name.endswith("1.json")]:
        memory.delete(name)
    again = MetadataLog.open(memory, ManualClock()).image
    assert again == log.image
    assert again.sweep_horizon == 1
