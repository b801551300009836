"""The log on a store where every look is a request: how many there are, and that none is missing."""

import pytest

from sparklog.clock import ManualClock
from sparklog.errors import InvalidRequestError, RetriableError, StorageError
from sparklog.metadata import Action, Image, SetConfigs
from sparklog.metadata.documents.properties import (
    DIRECTORY,
)
from sparklog.storage import IndefinitePutError, MemoryStore
from sparklog.storage.base import StoreTraits
from tests.metadata.remote_logs import HOUR_MS, REMOTE, clean_all, counted, opened, set_config


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def remote(clock: ManualClock) -> MemoryStore:
    return MemoryStore("remote", clock=clock, traits=REMOTE)


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
    # Alone for long: only whether the root was restored meanwhile is asked.
    assert requests == {"open_read": 1, "put_if_absent": 1}
    with counted(remote) as requests:
        set_config(log, "sixth")
    assert requests == {"put_if_absent": 1}


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

    clock.advance_ms(HOUR_MS / 2)  # so long ago that it does not look first
    assert log.publish(plan).commit == 2
    set_config(log, "stop")
    before = len(remote.list(DIRECTORY))
    if answer == "error":
        with pytest.raises(InvalidRequestError):
            log.publish(plan)
    else:
        assert log.publish(plan).actions == ()
    assert len(remote.list(DIRECTORY)) == before


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
    with pytest.raises(StorageError, match="cleaned before its UUID could be read"):
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
