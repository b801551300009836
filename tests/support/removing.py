"""Segments that are merged, and dead ones that are removed, by hand: what a sweep may do at any time."""

from sparklog.client import SparkLog
from sparklog.log.segment_file import index_name, time_index_name
from sparklog.maintenance import MergeLimits, optimize
from sparklog.metadata import Action, Image, plan_advance_log_start, plan_move_sweep_horizon


def merge(log: SparkLog, *, shared_bytes: int = 4 << 20, target_bytes: int | None = None) -> None:
    """Whatever can be.

    Args:
        shared_bytes: 0: into segments of one partition each.
        target_bytes: of those, at most.
    """
    limits = MergeLimits(fan_in=None, shared_bytes=shared_bytes, target_bytes=target_bytes)
    optimize(log.metadata, log.clock, limits=limits)


def dead_segments(log: SparkLog) -> list[str]:
    """Segments that no extent refers to."""
    image = log.refresh(force=True)
    names = [file.name for file in log.store.list("", recursive=True) if file.name.endswith(".log")]
    return [name for name in names if not image.refers_to(name)]


def remove(log: SparkLog, segments: list[str]) -> None:
    """The files, and the indexes beside them."""
    for name in segments:
        for each in (index_name(name), time_index_name(name), name):
            log.store.delete(each)


def remove_dead(log: SparkLog) -> list[str]:
    """What a sweep would remove, were its horizon the newest commit."""
    found = dead_segments(log)
    remove(log, found)
    return found


def move_horizon(log: SparkLog, horizon: int | None = None) -> None:
    """To a commit; None: to the newest."""

    def plan(image: Image) -> list[Action]:
        action = plan_move_sweep_horizon(image, image.commit + 1 if horizon is None else horizon)
        return [] if action is None else [action]

    log.metadata.publish(plan)


def expire_below(log: SparkLog, offset: int, *, topic: str = "t", partition: int = 0) -> None:
    """Move the log start."""

    def plan(image: Image) -> list[Action]:
        action = plan_advance_log_start(image, image.topic(topic).topic_id, partition, offset)
        return [] if action is None else [action]

    log.metadata.publish(plan)
