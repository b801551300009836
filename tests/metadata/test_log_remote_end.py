"""Where the end of a log on a remote store is, after hours, suspends and wrong clocks."""

import pytest

from sparklog.clock import ManualClock
from sparklog.errors import RetriableError
from sparklog.metadata import Action, Image, SetConfigs
from sparklog.metadata.documents.properties import (
    DIRECTORY,
    commit_name,
    manifest_name,
)
from sparklog.storage import MemoryStore
from tests.metadata.remote_logs import HOUR_MS, REMOTE, clean_all, counted, opened, set_config


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def remote(clock: ManualClock) -> MemoryStore:
    return MemoryStore("remote", clock=clock, traits=REMOTE)


def test_after_an_hour_the_end_is_asked_for_exactly(remote: MemoryStore, clock: ManualClock) -> None:
    log = opened(remote, clock)
    set_config(log, "first")
    clock.advance_ms(HOUR_MS)
    with counted(remote) as requests:
        log.refresh()
    assert requests == {"open_read": 1, "exists": 1}
    with counted(remote) as requests:
        log.refresh()
    assert requests == {"open_read": 1}


def test_follower_that_slept_for_hours_finds_the_new_end(remote: MemoryStore, clock: ManualClock) -> None:
    sleeper, other = opened(remote, clock), opened(remote, clock)
    for number in range(5):
        set_config(other, f"key-{number}")
    sleeper.refresh()
    for number in range(5):
        set_config(other, f"more-{number}")
    clean_all(remote, clock, other)
    assert not remote.exists(commit_name(sleeper.image.commit + 1))
    assert sleeper.refresh() == other.image


def test_publisher_that_slept_for_hours_does_not_take_a_freed_number(
    remote: MemoryStore, clock: ManualClock
) -> None:
    """It is stopped between its plan and its put; the number is used, and cleaned, meanwhile."""
    stalled, others = opened(remote, clock), opened(remote, clock)
    for number in range(5):
        set_config(others, f"key-{number}")
    stalled.refresh()
    seen: list[int] = []

    def plan(image: Image) -> list[Action]:
        seen.append(image.commit)
        if len(seen) == 1:
            for number in range(5):
                set_config(others, f"more-{number}")
            clean_all(remote, clock, others)
        return [SetConfigs(configs={"stalled": "x"})]

    with pytest.raises(RetriableError) as raised:  # seven hours are more than its time
        stalled.publish(plan)
    assert raised.value.code == "PUBLISH_CONTENDED"
    assert seen == [4]
    assert stalled.publish(plan).commit == others.image.commit + 1
    assert "stalled" in others.refresh().configs


def set_clock(clock: ManualClock, by_ms: int) -> None:
    """Set the wall clock; a suspended machine's looks the same, since its monotonic clock stands still."""
    clock.set_by_ms(by_ms)


def test_a_suspended_machine_trusts_nothing(remote: MemoryStore, clock: ManualClock) -> None:
    log = opened(remote, clock)
    set_config(log, "first")
    set_clock(clock, HOUR_MS)
    with counted(remote) as requests:
        log.refresh()
    assert requests == {"open_read": 1, "exists": 1}


@pytest.mark.parametrize("step", ["follow", "publish"])
def test_a_clock_that_was_ahead_when_the_end_was_asked_for_vouches_for_no_longer(
    remote: MemoryStore, clock: ManualClock, step: str
) -> None:
    """
    1. The clock is ten hours ahead when the end is asked for;
    2. it is set right before the request is signed, or the store would refuse it;
    3. the machine is suspended, and meanwhile the next number is used, and cleaned;
    4. seen from the wrong time no hour has passed, and the number is free: who takes it publishes in vain.
    """
    own = ManualClock(clock.now_ms())
    sleeper, others = opened(remote, own), opened(remote, clock)
    set_config(sleeper, "first")
    set_clock(own, 10 * HOUR_MS)

    def set_right(operation: str, name: str) -> None:
        remote.hook = None
        set_clock(own, -10 * HOUR_MS)

    remote.hook = set_right
    if step == "follow":
        sleeper.refresh()
    else:
        set_config(sleeper, "second")
    assert own.now_ms() == clock.now_ms()  # it was set right
    end = sleeper.image.commit
    for number in range(5):
        set_config(others, f"key-{number}")
    clean_all(remote, clock, others)
    set_clock(own, clock.now_ms() - own.now_ms())
    assert not remote.exists(commit_name(end + 1))

    assert set_config(sleeper, "slept") == others.image.commit + 1
    assert "slept" in others.refresh().configs


def test_a_clock_that_was_ahead_and_a_suspend_between_two_questions(
    remote: MemoryStore, clock: ManualClock
) -> None:
    """As above, but the machine is suspended before the look is over, so that at its end the clock has got to
    where it was wrongly at its begin, nearly.
    """
    own = ManualClock(clock.now_ms())
    others = opened(remote, clock)
    for number in range(3):
        set_config(others, f"key-{number}")
    sleeper = opened(remote, own)
    end = sleeper.image.commit
    set_clock(own, HOUR_MS)  # else one question would do
    clock.advance_ms(HOUR_MS)
    set_clock(own, 10 * HOUR_MS)

    done: list[str] = []

    def set_right(operation: str, name: str) -> None:
        remote.hook = suspend
        done.append("set right")
        set_clock(own, -10 * HOUR_MS)

    def suspend(operation: str, name: str) -> None:
        if operation == "exists":
            assert name == commit_name(end)
            remote.hook = None
            done.append("suspended")
            for number in range(5):
                set_config(others, f"more-{number}")
            clock.advance_ms(7 * HOUR_MS)
            set_clock(own, 7 * HOUR_MS)

    remote.hook = set_right
    sleeper.refresh()
    assert done == ["set right", "suspended"]
    assert sleeper.image.commit == end
    assert own.now_ms() == clock.now_ms()
    for _ in range(2):
        others.write_snapshot()
        set_config(others, "last")
    assert others.clean() > 0
    assert not remote.exists(commit_name(end + 1))

    assert set_config(sleeper, "slept") == others.image.commit + 1
    assert "slept" in others.refresh().configs


def test_young_commits_stay(remote: MemoryStore, clock: ManualClock) -> None:
    log = opened(remote, clock)
    for number in range(5):
        set_config(log, f"key-{number}")
        log.write_snapshot()
    clock.advance_ms(6 * HOUR_MS - 1)
    assert log.clean(grace_ms=0) == 3  # snapshots
    assert remote.exists(commit_name(1))
    clock.advance_ms(1)
    log.clean(grace_ms=0)
    assert not remote.exists(commit_name(1))


def test_where_puts_live_for_ever_no_commit_is_removed(clock: ManualClock) -> None:
    store = MemoryStore(clock=clock, traits=REMOTE, put_lifetime_ms=None)
    log = opened(store, clock)
    for number in range(5):
        set_config(log, f"key-{number}")
        log.write_snapshot()
    clock.advance_ms(1000 * HOUR_MS)
    log.clean(grace_ms=0)
    assert [file.name for file in store.list(DIRECTORY) if file.name.endswith(".json")] == [
        commit_name(number) for number in range(5)
    ]
    assert not store.exists(manifest_name(1))
    assert opened(store, clock).image == log.image
