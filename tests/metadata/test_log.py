"""Following and publishing: races, forks, and what the package offers."""

import os
import signal
import threading
from collections.abc import Callable

import pytest

from sparklog.clock import ManualClock, SystemClock
from sparklog.errors import (
    AlreadyExistsError,
    RetriableError,
)
from sparklog.metadata import (
    Action,
    AppendExtents,
    DraftExtent,
    Image,
    MetadataLog,
    MetadataSettings,
    SetConfigs,
    plan_append,
    plan_create_topic,
)
from sparklog.metadata.documents.properties import DIRECTORY
from sparklog.storage import LocalStore, MemoryStore
from tests.metadata.opened_logs import Append, Create, opened, set_config

Draft = Callable[..., DraftExtent]


def test_empty_log(log: MetadataLog) -> None:
    assert log.image.commit == -1
    assert log.refresh() is log.image


def test_followers_see_what_is_published(memory: MemoryStore, create: Create, append: Append) -> None:
    writer, follower = opened(memory), opened(memory)
    topic = create(writer)
    append(writer, topic, 3)
    assert follower.image.commit == -1
    assert follower.refresh() == writer.image
    held = follower.image
    append(writer, topic)
    assert follower.refresh().partition("orders", 0).log_end_offset == 40
    assert held.partition("orders", 0).log_end_offset == 30  # an image stays as it is


def test_result_says_what_was_assigned(log: MetadataLog, create: Create, draft: Draft) -> None:
    topic = create(log)
    for expected in (0, 10):
        result = log.publish(lambda image: [plan_append(image, [draft(topic)])])
        action = result.actions[0]
        assert isinstance(action, AppendExtents)
        assert [extent.base_offset for extent in action.extents] == [expected]
    assert result.commit == log.image.commit == 2


def test_nothing_to_do_publishes_nothing(log: MetadataLog, memory: MemoryStore) -> None:
    set_config(log, "a")
    result = log.publish(lambda image: [])
    assert (result.commit, result.actions) == (0, ())
    assert len(memory.list(DIRECTORY)) == 1


def test_plan_is_run_again_after_a_lost_race(memory: MemoryStore, create: Create, draft: Draft) -> None:
    loser, winner = opened(memory), opened(memory)
    topic = create(loser)
    seen: list[int] = []

    def plan(image: Image) -> list[Action]:
        seen.append(image.commit)
        if len(seen) <= 3:
            winner.publish(lambda image: [plan_append(image, [draft(topic)])])
        return [plan_append(image, [draft(topic)])]

    result = loser.publish(plan)
    assert seen == [0, 1, 2, 3]
    assert result.commit == 4
    assert loser.image.partition("orders", 0).log_end_offset == 40
    assert winner.refresh() == loser.image


def test_plan_may_find_its_work_done_by_the_winner(memory: MemoryStore, topic_id: str) -> None:
    loser, winner = opened(memory), opened(memory)

    def plan(image: Image) -> list[Action]:
        if "a" in image.configs:
            return []
        set_config(winner, "a")
        return [SetConfigs(configs={"a": "y"})]

    result = loser.publish(plan)
    assert (result.actions, result.commit) == ((), 0)
    assert loser.image.configs == {"a": "x"}


def test_errors_of_the_plan_go_to_the_caller(log: MetadataLog, memory: MemoryStore) -> None:
    def plan(image: Image) -> list[Action]:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        log.publish(plan)
    assert memory.list(DIRECTORY) == []
    set_config(log, "a")


def test_losing_for_too_long_gives_up(memory: MemoryStore) -> None:
    clock = ManualClock()
    loser = MetadataLog.open(memory, clock, create=True, settings=MetadataSettings(publish_timeout_ms=100))
    winner = opened(memory)

    def plan(image: Image) -> list[Action]:
        clock.advance_ms(10)
        set_config(winner, "a")
        return [SetConfigs(configs={"b": "x"})]

    with pytest.raises(RetriableError, match="lost 10 races") as raised:
        loser.publish(plan)
    assert raised.value.code == "PUBLISH_CONTENDED"
    assert "b" not in winner.refresh().configs
    assert set_config(loser, "b") == winner.image.commit + 1


def test_threads_share_a_log(local: LocalStore, create: Create, append: Append) -> None:
    log = MetadataLog.open(local, SystemClock(), create=True)
    topic = create(log)
    threads = [threading.Thread(target=append, args=(log, topic, 20)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        image = log.refresh()
        assert image.partition("orders", 0).log_end_offset == 10 * len(image.partition("orders", 0).extents)
    for thread in threads:
        thread.join()
    assert log.image.partition("orders", 0).log_end_offset == 800


def in_child(work: Callable[[], bool]) -> bool:
    child = os.fork()
    if child == 0:
        status = 1
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)  # a child that waits forever fails, and is gone
        try:
            status = 0 if work() else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 0


@pytest.mark.slow
def test_child_publishes_and_parent_follows(local: LocalStore) -> None:
    log = MetadataLog.open(local, SystemClock(), create=True)
    set_config(log, "a")
    assert in_child(lambda: set_config(log, "child") == 1)
    assert log.refresh().configs == {"a": "x", "child": "x"}


@pytest.mark.slow
def test_fork_while_another_thread_holds_the_lock(local: LocalStore) -> None:
    log = MetadataLog.open(local, SystemClock(), create=True)
    inside, leave = threading.Event(), threading.Event()

    def plan(image: Image) -> list[Action]:
        inside.set()
        leave.wait()
        return [SetConfigs(configs={"parent": "x"})]

    thread = threading.Thread(target=log.publish, args=(plan,))
    thread.start()
    inside.wait()
    # The child cannot acquire the lock, which the parent holds; it goes ahead without.
    try:
        assert in_child(lambda: set_config(log, "child") == 0)
    finally:
        leave.set()
        thread.join()
    assert log.refresh().configs == {"child": "x", "parent": "x"}


def test_exports() -> None:
    import sparklog.metadata

    assert len(set(sparklog.metadata.__all__)) == len(sparklog.metadata.__all__)
    for name in sparklog.metadata.__all__:
        assert hasattr(sparklog.metadata, name)


def test_put_if_absent_conflicts_are_no_errors_of_publish(memory: MemoryStore, topic_id: str) -> None:
    """A store that says "exists" although it was read as missing a moment ago."""
    log = opened(memory)
    calls: list[str] = []

    def hook(operation: str, name: str) -> None:
        if operation == "put_if_absent" and not calls:
            calls.append(name)
            raise AlreadyExistsError("FILE_EXISTS", "exists", fix="none")

    memory.hook = hook
    log.publish(lambda image: [plan_create_topic(image, "a", 1, topic_id=topic_id)])
    assert log.image.commit == 0
