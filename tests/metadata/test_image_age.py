"""How long ago an image is known to have been the newest; brokers stop answering by it."""

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from sparklog.clock import ManualClock
from sparklog.errors import StorageError
from sparklog.metadata import Image, MetadataLog, SetConfigs, SharedPlan
from sparklog.metadata import log as looks
from sparklog.metadata.documents.properties import commit_name
from sparklog.metadata.following import TRUST_MS, Follower, Moment, RemoteFollower
from sparklog.storage import MemoryStore, StoreTraits
from tests.metadata.combining_publishers import interpret, leave_request

SECONDS = 20


class Clocks(ManualClock):
    """The wall clock moves by itself, too: `set_ms` sets it."""

    set_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.set_ms


class Asked(Clocks):
    """Tells that somebody who looks has asked for the time."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Semaphore(0)

    def monotonic_ms(self) -> int:
        if threading.current_thread().name.startswith("look"):
            self.asked.release()
        return super().monotonic_ms()


@pytest.fixture
def clock() -> Clocks:
    return Clocks()


@pytest.fixture
def log(memory: MemoryStore, clock: Clocks) -> Iterator[MetadataLog]:
    log = MetadataLog.open(memory, clock, create=True)
    yield log
    memory.hook = None


def test_a_look_makes_it_new_whether_there_is_news_or_not(log: MetadataLog, clock: Clocks) -> None:
    assert log.image_age_ms == 0
    clock.advance_ms(700)
    assert log.image_age_ms == 700
    log.refresh()
    assert log.image_age_ms == 0


def test_so_does_a_publish(log: MetadataLog, clock: Clocks) -> None:
    clock.advance_ms(700)
    log.publish(lambda _: [])
    assert log.image_age_ms == 0
    clock.advance_ms(700)
    log.publish(lambda _: [SetConfigs(configs={"retention.ms": "1"})])
    assert log.image_age_ms == 0


def test_a_suspend_counts_although_the_monotonic_clock_stands_still(log: MetadataLog, clock: Clocks) -> None:
    clock.set_ms = 3_600_000
    assert log.image_age_ms == 3_600_000
    log.refresh()
    assert log.image_age_ms == 0


def test_a_wall_clock_that_is_set_back_makes_nothing_younger(log: MetadataLog, clock: Clocks) -> None:
    clock.advance_ms(700)
    clock.set_ms = -3_600_000
    assert log.image_age_ms == 700


def test_the_time_that_a_look_takes_counts(log: MetadataLog, memory: MemoryStore, clock: Clocks) -> None:
    def slow(operation: str, _name: str) -> None:
        clock.advance_ms(50)

    memory.hook = slow
    log.refresh()
    memory.hook = None
    assert log.image_age_ms >= 50


def test_looking_in_vain_makes_nothing_younger(log: MetadataLog, memory: MemoryStore, clock: Clocks) -> None:
    def away(operation: str, name: str) -> None:
        raise StorageError("STORE_UNAVAILABLE", f"{name}: found no storage", fix="wait for it")

    clock.advance_ms(700)
    memory.hook = away
    with pytest.raises(StorageError):
        log.refresh()
    with pytest.raises(StorageError):
        log.publish(lambda _: [SetConfigs(configs={"retention.ms": "1"})])
    assert log.image_age_ms == 700


def test_a_refresh_that_does_not_look_makes_nothing_younger(clock: Clocks) -> None:
    store = MemoryStore(traits=StoreTraits(refresh_interval_ms=1_000))
    log = MetadataLog.open(store, clock, create=True)
    log.refresh()
    clock.advance_ms(10)
    clock.set_ms = 3_600_000
    log.refresh()
    assert log.image_age_ms == 3_600_010


class Contended:
    """A log in an object store, in which another process commits whenever a test says so."""

    def __init__(self, clock: Clocks) -> None:
        self.store = MemoryStore(clock=clock, traits=StoreTraits(is_remote=True, appends_after_sync=False))
        self.clock = clock
        self.log = MetadataLog.open(self.store, clock, create=True)
        self._other = MetadataLog.open(self.store, clock)
        self._count = 0

    def others_commit(self) -> None:
        self._count += 1
        wanted = SetConfigs(configs={"retention.ms": str(self._count)})
        self._other.publish(lambda _: [wanted])

    @property
    def newest(self) -> int:
        return self._other.image.commit


def test_each_look_of_a_publish_counts_however_long_it_takes(clock: Clocks) -> None:
    """Who loses one race after the other is in touch with the log all the time: it is not cut off."""
    contended = Contended(clock)
    log, ages = contended.log, list[int]()

    def plan(image: Image) -> list[SetConfigs]:
        if ages or image.commit == contended.newest:
            ages.append(log.image_age_ms)
            assert log.image is image, "what is known is shown"
        clock.advance_ms(3_000)
        if len(ages) < 6:
            contended.others_commit()
        return [SetConfigs(configs={"retention.bytes": "1"})]

    contended.others_commit()
    log.refresh()
    log.publish(plan)
    assert max(ages) <= 3_000, ages
    assert log.image.commit == contended.newest + 1
    assert log.image_age_ms <= 3_000


def test_so_does_each_look_of_who_waits_for_others_to_publish(clock: Clocks) -> None:
    """Also where the log moves between the looks of who waits, so that each finds news, and not the end."""
    contended = Contended(clock)
    log, ages = contended.log, list[int]()
    payload = b'["retention.bytes",null,"never"]'
    shared = SharedPlan(payload=lambda: payload, interpret=interpret)
    contended.others_commit()
    log.refresh()
    for _ in range(8):  # whose owners are before us, and gone
        leave_request(contended.store, log, clock, "retention.ms", None, "never")

    began_ms = due_ms = clock.monotonic_ms()

    def hook(operation: str, _name: str) -> None:
        nonlocal due_ms
        if operation == "open_read":
            ages.append(log.image_age_ms)
            clock.advance_ms(100)
            if clock.monotonic_ms() >= due_ms:
                due_ms = clock.monotonic_ms() + 120
                contended.store.hook = None
                contended.others_commit()
                contended.store.hook = hook

    log.combiner.contention.note()
    contended.store.hook = hook
    log.publish(interpret(payload), shared=shared)
    contended.store.hook = None
    assert clock.monotonic_ms() - began_ms > 4_000
    assert max(ages) <= 3_500, ages


@pytest.mark.parametrize("waits_to_the_end", [False, True])
def test_who_wants_to_look_does_not_wait_for_a_publish_that_looks(
    waits_to_the_end: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may wait for others to publish, for seconds; and ten who wait would look one after the other."""
    if waits_to_the_end:
        monkeypatch.setattr(looks, "LOCK_POLL_SECONDS", SECONDS)
    clock = Asked()
    contended = Contended(clock)
    log = contended.log
    contended.others_commit()
    log.refresh()
    planned, may_go_on = threading.Semaphore(0), threading.Semaphore(0)

    def plan(_image: Image) -> list[SetConfigs]:
        planned.release()
        assert may_go_on.acquire(timeout=SECONDS)
        return [SetConfigs(configs={"retention.bytes": "1"})]

    with ThreadPoolExecutor(1) as publisher, ThreadPoolExecutor(4, "look") as lookers:
        publishing = publisher.submit(log.publish, plan)
        try:
            assert planned.acquire(timeout=SECONDS)
            looking = [lookers.submit(log.refresh) for _ in range(4)]
            for _ in looking:
                assert clock.asked.acquire(timeout=SECONDS)
            contended.others_commit()
            clock.advance_ms(1)
            opened = count_opens(contended.store)
            may_go_on.release()
            assert planned.acquire(timeout=SECONDS), "it has lost a race, and looked"
            if waits_to_the_end:
                may_go_on.release()
            found = [one.result(SECONDS) for one in looking]
            assert {image.commit for image in found} == {contended.newest + waits_to_the_end}
            assert opened.total() <= 3, "of the publish: whose the commit is, the commit, and the end"
            assert waits_to_the_end or not publishing.done()
        finally:
            contended.store.hook = None
            may_go_on.release()
            may_go_on.release()
        publishing.result(SECONDS)


def count_opens(store: MemoryStore) -> Counter[str]:
    opened: Counter[str] = Counter()

    def hook(operation: str, name: str) -> None:
        if operation == "open_read":
            opened[name] += 1

    store.hook = hook
    return opened


@pytest.mark.parametrize("others", [0, 1, 3])
def test_who_wants_to_look_looks_beside_a_publish_that_waits_for_the_store(others: int) -> None:
    """One PUT may take longer than a session: of a store that is busy, or lets those wait who lose a race."""
    clock = Clocks()
    contended = Contended(clock)
    log, store = contended.log, contended.store
    contended.others_commit()
    log.refresh()
    putting, may_go_on = threading.Event(), threading.Event()

    def hook(operation: str, _name: str) -> None:
        if operation == "put_if_absent" and threading.current_thread().name.startswith("publish"):
            store.hook = None
            putting.set()
            assert may_go_on.wait(SECONDS)

    store.hook = hook
    with ThreadPoolExecutor(1, "publish") as publisher, ThreadPoolExecutor(1) as looker:
        publishing = publisher.submit(log.publish, lambda _: [SetConfigs(configs={"retention.bytes": "1"})])
        try:
            assert putting.wait(SECONDS)
            for _ in range(others):
                contended.others_commit()
            clock.advance_ms(5_000)
            assert log.image_age_ms >= 5_000
            found = looker.submit(log.refresh).result(SECONDS)
            assert log.image_age_ms == 0
            assert found is log.image
            assert found.commit == contended.newest
            assert not publishing.done()
        finally:
            may_go_on.set()
        published = publishing.result(SECONDS)
    assert published.commit == contended.newest + 1 == log.image.commit
    assert log.image.configs == {"retention.ms": str(others + 1), "retention.bytes": "1"}


def test_a_look_beside_a_publish_never_takes_an_image_back() -> None:
    """What it is about to show is older than what the publish has made meanwhile."""
    clock = Clocks()
    contended = Contended(clock)
    log, store = contended.log, contended.store
    contended.others_commit()
    log.refresh()
    putting, about_to_show = threading.Event(), threading.Event()

    def hook(operation: str, _name: str) -> None:
        name = threading.current_thread().name
        if name.startswith("publish") and operation == "put_if_absent" and not putting.is_set():
            putting.set()
            assert about_to_show.wait(SECONDS)
        if name.startswith("look") and operation == "sync_directory":
            about_to_show.set()
            publishing.result(SECONDS)

    store.hook = hook
    with ThreadPoolExecutor(1, "publish") as publisher, ThreadPoolExecutor(1, "look") as looker:
        publishing = publisher.submit(log.publish, lambda _: [SetConfigs(configs={"retention.bytes": "1"})])
        assert putting.wait(SECONDS)
        contended.others_commit()
        clock.advance_ms(5_000)
        refreshing = looker.submit(log.refresh)
        made = publishing.result(SECONDS)
        refreshing.result(SECONDS)
    assert about_to_show.is_set()
    assert log.image.commit == made.commit == contended.newest + 1


def test_a_look_beside_a_publish_says_nothing_of_what_may_have_been_cleaned_or_is_broken(
    clock: Clocks,
) -> None:
    store = MemoryStore(clock=clock, traits=StoreTraits(is_remote=True, appends_after_sync=False))
    log = MetadataLog.open(store, clock, create=True)
    log.publish(lambda _: [SetConfigs(configs={"retention.ms": "1"})])
    image = log.image
    follower = RemoteFollower(store, clock, lambda *_: None)
    assert follower.refresh_concurrently(image) is None, "nothing is known of the end"
    follower.newest(image)
    assert follower.refresh_concurrently(image) == (image, follower.now())
    clock.set_ms = TRUST_MS
    assert follower.refresh_concurrently(image) is None, "it has slept"
    follower.newest(image)
    assert follower.refresh_concurrently(image) is not None
    store.put_if_absent(commit_name(image.commit + 1), b"no commit")
    assert follower.refresh_concurrently(image) is None


class Vain:
    """A follower of a store that fails, or of a log whose end is not known."""

    def __init__(self, clock: Clocks) -> None:
        self._clock = clock
        self.looks = 0

    def now(self) -> Moment:
        return Moment(self._clock.monotonic_ms(), self._clock.now_ms())

    def refresh_concurrently(self, _image: Image) -> None:
        self.looks += 1


class Held:
    """A lock that somebody gives back after it was asked for so often; time passes meanwhile."""

    def __init__(self, clock: Clocks, *, times: int, ms: int) -> None:
        self._clock, self._times, self._ms = clock, times, ms

    def acquire(self, _blocking: bool, _timeout: float) -> bool:
        self._clock.advance_ms(self._ms)
        self._times -= 1
        return self._times < 0


@pytest.mark.parametrize(
    ("ms", "looks_made"), [(10, 1), (looks.CONCURRENT_REFRESH_MS // 2, 10), (looks.CONCURRENT_REFRESH_MS, 20)]
)
def test_who_looks_beside_a_publish_in_vain_does_not_ask_all_the_time(
    clock: Clocks, ms: int, looks_made: int
) -> None:
    follower = Vain(clock)
    looking = looks.Freshness(cast("Follower", follower), lambda *_: None)
    began = follower.now()
    clock.advance_ms(looks.CONCURRENT_REFRESH_MS)
    lock = cast("threading.RLock", Held(clock, times=20, ms=ms))
    assert looking.acquire_unless_refreshed(lock, [], began, lambda: cast("Image", None))
    assert follower.looks == looks_made
