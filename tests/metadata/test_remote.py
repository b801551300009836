"""The log on a store where every look is a request: how many there are, and that none is missing."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from sparklog.clock import ManualClock
from sparklog.errors import CorruptLogError, InvalidRequestError, RetriableError, StorageError
from sparklog.metadata import Action, Image, MetadataLog, MetadataSettings, SetConfigs, Topic
from sparklog.metadata.documents.paths import (
    DIRECTORY,
    SNAPSHOT_HINT,
    commit_name,
    manifest_name,
    snapshot_directory,
)
from sparklog.metadata.documents.snapshot_hint import write_hint
from sparklog.storage import IndefinitePutError, MemoryStore
from sparklog.storage.base import StoreTraits

HOUR_MS = 3_600_000
REMOTE = StoreTraits(is_remote=True, appends_after_sync=False)
FREE = {"put_if_absent:done", "take_turn", "sync_directory", "sync_name", "write", "abort_puts"}
Create = Callable[..., Topic]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def remote(clock: ManualClock) -> MemoryStore:
    return MemoryStore("remote", clock=clock, traits=REMOTE)


def opened(store: MemoryStore, clock: ManualClock, *, publish_timeout_ms: int = 60_000) -> MetadataLog:
    settings = MetadataSettings(snapshot_bytes=1 << 40, publish_timeout_ms=publish_timeout_ms)
    return MetadataLog.open(store, clock, create=True, settings=settings)


def set_config(log: MetadataLog, key: str, value: str = "x") -> int:
    return log.publish(lambda image: [SetConfigs(configs={key: value})]).commit


@contextmanager
def counted(store: MemoryStore) -> Iterator[Counter[str]]:
    """The requests made meanwhile."""
    requests: Counter[str] = Counter()

    def hook(operation: str, name: str) -> None:
        if operation not in FREE:
            requests[operation] += 1

    store.hook = hook
    try:
        yield requests
    finally:
        store.hook = None


def test_publishing_alone_is_one_put(remote: MemoryStore, clock: ManualClock) -> None:
    log = opened(remote, clock)
    set_config(log, "first")
    with counted(remote) as requests:
        for number in range(10):
            set_config(log, f"key-{number}")
    assert requests == {"put_if_absent": 10}


def test_refreshing_is_one_get(remote: MemoryStore, clock: ManualClock) -> None:
    log = opened(remote, clock)
    set_config(log, "first")
    with counted(remote) as requests:
        for _ in range(10):
            log.refresh()
    assert requests == {"open_read": 10}


def test_refreshing_keeps_to_the_interval(clock: ManualClock) -> None:
    traits = StoreTraits(is_remote=True, appends_after_sync=False, refresh_interval_ms=200)
    store = MemoryStore(clock=clock, traits=traits)
    log, other = opened(store, clock), opened(store, clock)
    set_config(log, "first")
    log.refresh()
    set_config(other, "second")
    with counted(store) as requests:
        for _ in range(10):
            log.refresh()
            clock.advance_ms(10)
    assert not requests
    assert "second" not in log.image.configs
    assert "second" in log.refresh(force=True).configs
    clock.advance_ms(200)
    with counted(store) as requests:
        log.refresh()
    assert requests == {"open_read": 1}


def test_a_publisher_in_company_looks_first(remote: MemoryStore, clock: ManualClock) -> None:
    """A look is cheaper than a lost race, where others publish too."""
    log, other = opened(remote, clock), opened(remote, clock)
    set_config(log, "first")
    set_config(other, "second")
    log.refresh()
    set_config(other, "third")
    with counted(remote) as requests:
        set_config(log, "fourth")
    assert requests == {"open_read": 2, "put_if_absent": 1}  # the third, the end, and the put
    clock.advance_ms(HOUR_MS / 2)
    with counted(remote) as requests:
        set_config(log, "fifth")
    assert requests == {"put_if_absent": 1}  # alone for long


def test_lost_race_on_the_image_in_hand(remote: MemoryStore, clock: ManualClock) -> None:
    log, other = opened(remote, clock), opened(remote, clock)
    set_config(log, "first")
    set_config(other, "second")
    assert set_config(log, "third") == 2
    assert set(log.image.configs) == {"first", "second", "third"}


@pytest.mark.parametrize("answer", ["nothing to do", "error"])
def test_answers_rest_on_the_newest_commit(remote: MemoryStore, clock: ManualClock, answer: str) -> None:
    """What the image in hand says may be out of date: only a commit proves that it is not."""
    log, other = opened(remote, clock), opened(remote, clock)
    set_config(other, "stop")
    log.refresh()
    other.publish(lambda image: [SetConfigs(configs={"stop": None})])

    def plan(image: Image) -> list[Action]:
        if "stop" not in image.configs:
            return [SetConfigs(configs={"done": "x"})]
        if answer == "error":
            raise InvalidRequestError("TOPIC_EXISTS", "stopped", fix="none")
        return []

    log._company_until_ms = None  # as long ago as can be
    assert log.publish(plan).commit == 2
    set_config(log, "stop")
    before = len(remote.list(DIRECTORY))
    if answer == "error":
        with pytest.raises(InvalidRequestError):
            log.publish(plan)
    else:
        assert log.publish(plan).actions == ()
    assert len(remote.list(DIRECTORY)) == before


# --- the end of the log ------------------------------------------------------------------------------


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


def clean_all(remote: MemoryStore, clock: ManualClock, log: MetadataLog) -> None:
    """Two snapshots, and hours later a cleaner."""
    log.write_snapshot()
    set_config(log, "between")
    log.write_snapshot()
    clock.advance_ms(7 * HOUR_MS)
    set_config(log, "newest")
    log.write_snapshot()
    assert log.clean(grace_ms=0) > 0


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
    clock._now_ms += by_ms


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


# --- opening -----------------------------------------------------------------------------------------


def test_opening_lists_from_the_newest_snapshot_on(remote: MemoryStore, clock: ManualClock) -> None:
    log = opened(remote, clock)
    for number in range(40):
        set_config(log, f"key-{number}")
        if number == 30:
            log.write_snapshot()
    asked: list[str] = []
    remote.hook = lambda operation, name: asked.append(name)
    again = opened(remote, clock)
    remote.hook = None
    assert again.image == log.image
    assert commit_name(30) not in asked
    assert asked.count(DIRECTORY) <= 2  # one LIST, and a sync that costs nothing


@pytest.mark.parametrize("hint", [b"", b"nonsense\n", b"7\n", b"99999999\n", b"9" * 40, None])
def test_wrong_hints_cost_only_time(remote: MemoryStore, clock: ManualClock, hint: bytes | None) -> None:
    log = opened(remote, clock)
    for number in range(10):
        set_config(log, f"key-{number}")
        if number == 5:
            log.write_snapshot()
    remote.delete(SNAPSHOT_HINT)
    if hint is not None:
        remote.put_hint(SNAPSHOT_HINT, hint)
    assert opened(remote, clock).image == log.image


def damage(store: MemoryStore, snapshot: int, what: str) -> None:
    """Of one snapshot: its manifest, or one of its parts; or take a part away."""
    parts = [file.name for file in store.list(snapshot_directory(snapshot))]
    (part,) = [name for name in parts if "/extents-" in name]
    if what == "manifest":
        store.delete(manifest_name(snapshot))
        store.put_if_absent(manifest_name(snapshot), b"nonsense")
    elif what == "part":
        store.delete(part)
        store.put_if_absent(part, b"nonsense")
    elif what == "missing part":
        store.delete(part)


DAMAGES = ["nothing", "manifest", "part", "missing part"]


@pytest.mark.parametrize("hint", ["newest", "older", "nowhere", "none"])
@pytest.mark.parametrize("newest", DAMAGES)
@pytest.mark.parametrize("older", DAMAGES)
def test_a_root_opens_while_one_snapshot_that_was_kept_is_intact(
    remote: MemoryStore,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
    hint: str,
    newest: str,
    older: str,
) -> None:
    log = opened(remote, clock)
    for number in range(9):
        set_config(log, f"key-{number}")
    first = log.write_snapshot()
    clock.advance_ms(7 * HOUR_MS)
    for number in range(3):
        set_config(log, f"more-{number}")
    last = log.write_snapshot()
    set_config(log, "after")
    assert log.clean() == first - 1  # so nobody can start from commit 0
    damage(remote, first, older)
    damage(remote, last, newest)
    hinted = {"newest": last, "older": first, "nowhere": last + 100, "none": None}[hint]
    remote.delete(SNAPSHOT_HINT)
    if hinted is not None:
        write_hint(remote, hinted)

    if "nothing" in {newest, older}:
        assert opened(remote, clock).image == log.image
        assert ("passing over" in caplog.text) == (newest != "nothing")
    else:
        with pytest.raises(CorruptLogError, match="commit 1 is missing"):
            opened(remote, clock)


def test_snapshots_that_are_all_damaged_do_not_matter_while_the_commits_are_there(
    remote: MemoryStore, clock: ManualClock
) -> None:
    log = opened(remote, clock)
    for number in range(9):
        set_config(log, f"key-{number}")
        if number in {3, 6}:
            damage(remote, log.write_snapshot(), "manifest")
    assert opened(remote, clock).image == log.image


def test_an_older_snapshot_is_looked_for_before_all_commits_are_read(
    remote: MemoryStore, clock: ManualClock
) -> None:
    """Where no commit is ever removed there may be millions of them."""
    log = opened(remote, clock)
    for number in range(40):
        set_config(log, f"key-{number}")
        if number in {20, 30}:
            log.write_snapshot()
    damage(remote, 30, "manifest")
    asked: list[str] = []
    remote.hook = lambda operation, name: asked.append(name)
    again = opened(remote, clock)
    remote.hook = None
    assert again.image == log.image
    assert commit_name(20) not in asked
    assert commit_name(21) in asked


# --- a store that fails ------------------------------------------------------------------------------


def test_store_that_fails_for_half_a_minute_is_waited_for(remote: MemoryStore, clock: ManualClock) -> None:
    log = opened(remote, clock)
    set_config(log, "first")
    start_ms, attempts = clock.monotonic_ms(), 0

    def hook(operation: str, name: str) -> None:
        nonlocal attempts
        if operation == "put_if_absent":
            attempts += 1
            if clock.monotonic_ms() - start_ms < 30_000:
                raise IndefinitePutError("PUT_INDEFINITE", "503", fix="repeat")

    remote.hook = hook
    assert set_config(log, "second") == 1
    assert attempts < 60  # exponential: a store that is down is not hammered


def test_store_that_fails_for_longer_gives_an_error_in_time(remote: MemoryStore, clock: ManualClock) -> None:
    log = opened(remote, clock, publish_timeout_ms=20_000)
    set_config(log, "first")
    start_ms = clock.monotonic_ms()

    def hook(operation: str, name: str) -> None:
        if operation == "put_if_absent":
            raise IndefinitePutError("PUT_INDEFINITE", "503", fix="repeat")

    remote.hook = hook
    with pytest.raises(StorageError) as raised:
        set_config(log, "second")
    assert raised.value.code == "PUBLISH_UNRESOLVED"
    assert clock.monotonic_ms() - start_ms < 25_000
    remote.hook = None
    assert set_config(log, "third") == 2
    assert set(log.image.configs) == {"first", "second", "third"}


def test_open_put_hours_later(remote: MemoryStore, clock: ManualClock) -> None:
    """The guard no longer vouches for the number, so the end is looked for before the put is repeated."""
    log = opened(remote, clock, publish_timeout_ms=100)

    def hook(operation: str, name: str) -> None:
        if operation == "put_if_absent":
            raise IndefinitePutError("PUT_INDEFINITE", "no answer", fix="repeat")

    remote.hook = hook
    with pytest.raises(StorageError):
        set_config(log, "first")
    remote.hook = None
    clock.advance_ms(5 * HOUR_MS)
    assert set_config(log, "second") == 1
    assert set(log.image.configs) == {"first", "second"}


def test_open_put_whose_number_was_used_and_cleaned(remote: MemoryStore, clock: ManualClock) -> None:
    log, others = opened(remote, clock, publish_timeout_ms=100), opened(remote, clock)
    set_config(others, "zero")
    log.refresh()

    def hook(operation: str, name: str) -> None:
        if operation == "put_if_absent":
            raise IndefinitePutError("PUT_INDEFINITE", "no answer", fix="repeat")

    remote.hook = hook
    with pytest.raises(StorageError):
        set_config(log, "open")
    remote.hook = None
    for number in range(5):
        set_config(others, f"more-{number}")
    clean_all(remote, clock, others)
    with pytest.raises(StorageError, match="cleaned before we could see"):
        set_config(log, "next")
    set_config(log, "next")
    assert "open" not in others.refresh().configs
    assert "next" in others.image.configs


def test_twice_delivered_put_is_ours(remote: MemoryStore, clock: ManualClock) -> None:
    """The network repeats the request, and only the second answer, 412, arrives."""
    log = opened(remote, clock)
    set_config(log, "first")

    def hook(operation: str, name: str) -> None:
        if operation == "put_if_absent:done":
            remote.hook = None
            remote.put_if_absent(name, b"again")  # raises what the second delivery is answered

    remote.hook = hook
    assert set_config(log, "second") == 1
    assert len(remote.list(DIRECTORY)) == 2


def test_busy_store_is_not_a_lost_race(remote: MemoryStore, clock: ManualClock) -> None:
    log = opened(remote, clock, publish_timeout_ms=1000)

    def hook(operation: str, name: str) -> None:
        if operation == "put_if_absent" and name.endswith(".json"):
            raise RetriableError("PUBLISH_BACKLOG_FULL", "busy", fix="later")

    set_config(log, "first")
    remote.hook = hook
    with pytest.raises(RetriableError, match="busy"):
        set_config(log, "second")
    remote.hook = None
    assert set_config(log, "third") == 1
