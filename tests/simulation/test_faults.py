"""Each thing that goes wrong in the simulation: that it does, and how the code is told of it."""

from collections.abc import Callable
from unittest import mock

import pytest

from sparklog.client import SparkLog
from sparklog.client.topic_plan import OFFSETS_TOPIC
from sparklog.errors import CorruptLogError, StorageError
from sparklog.log.writer import LogWriter
from sparklog.metadata import MetadataLog, MetadataSettings
from sparklog.metadata.documents.properties import REQUESTS
from sparklog.metadata.documents.snapshot import read_snapshot
from sparklog.metadata.model import writers
from sparklog.storage import IndefinitePutError
from tests.history.recorder import History
from tests.simulation.cloning import clone_of
from tests.simulation.coordinators import OFFSETS_PARTITIONS
from tests.simulation.damage import damage_newest_snapshot
from tests.simulation.in_group import GROUP, SOURCE
from tests.simulation.last_looks import look_at_offsets
from tests.simulation.limits import small_limits
from tests.simulation.queries import Query
from tests.simulation.remote_store import RemoteStore
from tests.simulation.setting import Setting, throw
from tests.simulation.world import HOUR_US, START_MS, SimProcess, World

HOUR_MS = HOUR_US // 1000


@pytest.fixture
def world() -> World:
    world = World(1)
    world.calm = True
    return world


@pytest.fixture
def setting(world: World) -> Setting:
    setting = throw(world, "remote", target=1)
    assert setting.server is not None
    setting.server.checks_dates = True
    setting.settings = MetadataSettings(snapshots_kept=2)
    return setting


def run(world: World, *mains: Callable[[SimProcess], None]) -> None:
    processes = [world.spawn(f"p{number}", main) for number, main in enumerate(mains)]
    world.run(lambda: all(process.dead for process in processes), deadline_us=100 * HOUR_US)
    for process in processes:
        if process.failure is not None:
            raise process.failure


def opened(setting: Setting, process: SimProcess) -> SparkLog:
    store = setting.store(process)
    metadata = MetadataLog.open(store, process, create=True, settings=setting.settings)
    return SparkLog(store, metadata, process, writer=LogWriter(store, process))


# --- clocks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("freezes", "wall_ms"), [(False, HOUR_MS + 15), (True, 15)])
def test_clocks_stand_still_while_a_machine_sleeps(world: World, freezes: bool, wall_ms: int) -> None:
    seen: list[tuple[int, int]] = []

    def main(process: SimProcess) -> None:
        for _ in range(2):
            process.sleep_ms(10)
            seen.append((process.monotonic_ms(), process.now_ms() - START_MS))

    process = world.spawn("p", main)
    world.at(15_000, lambda: process.suspend(HOUR_US, freezes=freezes))
    world.run(lambda: process.dead, deadline_us=2 * HOUR_US)
    assert seen == [(10, 10), (15, wall_ms)]


def test_a_clock_is_set_right_once_the_machine_is_awake(world: World) -> None:
    process = world.spawn("p", lambda process: process.sleep_ms(HOUR_MS), clock_ahead_ms=7)
    process.suspend(1_000_000, freezes=True)
    process.set_clock()
    assert process.clock_ahead_ms == 7
    world.drain(2_000_000)
    assert process.now_ms() - START_MS == 1_007
    process.set_clock()
    assert process.now_ms() - START_MS == 2_000
    assert process.monotonic_ms() == 1_000
    world.end()


def test_who_is_woken_early_has_slept_that_long(world: World) -> None:
    process = world.spawn("p", lambda process: process.sleep_ms(1))
    process.suspend(HOUR_US)
    world.now_us += 5_000_000
    process.resume()
    world.run(lambda: process.dead, deadline_us=HOUR_US)
    assert process.monotonic_ms() == 1
    assert process.now_ms() - START_MS == 5_001


def test_a_store_that_looks_at_dates_refuses_a_wrong_clock_everything(world: World, setting: Setting) -> None:
    errors: list[str] = []

    def main(process: SimProcess) -> None:
        store = setting.store(process)
        requests: list[Callable[[], object]] = [
            lambda: store.put_if_absent("m/1", b""),
            lambda: store.put_hint("m/2", b""),
            lambda: store.exists("m/1"),
        ]
        for wrong_ms in (14 * 60_000, 16 * 60_000, -16 * 60_000):
            process.clock_ahead_ms = wrong_ms
            for request in requests:
                try:
                    request()
                except StorageError as error:
                    errors.append(error.code)

    run(world, main)
    assert errors == ["CLOCK_SKEWED"] * 6


# --- the network -------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_proxy", [False, True])
def test_a_broken_connection_leaves_open_what_became_of_the_commit(
    world: World, setting: Setting, has_proxy: bool
) -> None:
    assert setting.server is not None
    network = setting.server.network
    network.has_proxy, network.breaks_for_us = has_proxy, HOUR_US
    name = f"__cluster_metadata/{3:020}.json"

    def main(process: SimProcess) -> None:
        store = setting.store(process)
        store.put_if_absent("segments/x", b"")  # only a commit breaks it
        with pytest.raises(IndefinitePutError):
            store.put_if_absent(name, b"x")
        with pytest.raises(StorageError, match="STORE_UNAVAILABLE"):
            store.put_if_absent("segments/y", b"")

    run(world, main)
    assert set(setting.server.files) == {"segments/x", name}


def test_a_request_may_land_long_after_it_was_deleted(world: World, setting: Setting) -> None:
    world.calm = False
    assert setting.server is not None
    server = setting.server
    server.checks_dates = False
    server.network.fault_rate = 0.2
    name = f"{REQUESTS}/x"

    def main(process: SimProcess) -> None:
        store = setting.store(process)
        while not world.faults["late request"]:
            store.put_hint(name, b"x")
        store.delete(name)

    run(world, main)
    world.calm = True
    server.files.pop(name, None)
    world.drain(3 * HOUR_US)
    assert name in server.files


# --- copies and damage -------------------------------------------------------------------------------


def remote_store(setting: Setting, process: SimProcess) -> RemoteStore:
    assert setting.server is not None
    return RemoteStore(setting.server, process, refresh_interval_ms=0)


def wait_after_a_lost_race(setting: Setting, process: SimProcess, loser: SparkLog) -> float:
    """How long a publisher waits at first, which its own dice decide."""
    waits: list[float] = []
    winner = opened(setting, process)
    winner.create_topic(f"won-{winner.image.commit}", 1)
    with mock.patch.object(process, "sleep_ms", waits.append):
        loser.create_topic(f"lost-{winner.image.commit}", 1)
    return waits[0]


def test_a_clone_shares_what_its_memory_held_and_nothing_later(world: World, setting: Setting) -> None:
    def main(process: SimProcess) -> None:
        log = opened(setting, process)
        log.create_topic("a", 1)
        log.metadata.combiner.sequence = 4
        twin = clone_of(log, remote_store(setting, process), process)
        one, other = log.metadata.combiner, twin.metadata.combiner
        assert (one.publisher, one.sequence) == (other.publisher, other.sequence)
        assert twin.image is log.image
        log.create_topic("b", 1)
        other.sequence += 1
        assert one.sequence == 4
        assert "b" not in twin.image.topics
        assert twin.refresh(force=True).commit == log.image.commit
        assert twin.metadata.store is not log.metadata.store

    run(world, main)


def test_a_clone_throws_the_same_dice(world: World, setting: Setting) -> None:
    def main(process: SimProcess) -> None:
        log = opened(setting, process)
        log.create_topic("a", 1)
        twin = clone_of(log, remote_store(setting, process), process)
        waits = [wait_after_a_lost_race(setting, process, one) for one in (log, twin)]
        assert waits[0] == waits[1] > 0

    run(world, main)


def test_a_snapshot_is_damaged_once_and_the_root_still_opens(world: World, setting: Setting) -> None:
    def main(process: SimProcess) -> None:
        log = opened(setting, process)
        assert not damage_newest_snapshot(setting, only_way=False), "there is none"
        log.create_topic("a", 1)
        log.create_topic("b", 1)
        commit = log.metadata.write_snapshot()
        assert not damage_newest_snapshot(setting, only_way=True), "all commits are there"
        assert damage_newest_snapshot(setting, only_way=False)
        with pytest.raises(CorruptLogError):
            read_snapshot(log.store, commit, cluster_id=log.cluster_id)
        assert not damage_newest_snapshot(setting, only_way=False), "once is enough"
        assert opened(setting, process).image.commit == log.image.commit

    run(world, main)


# --- what is looked at in the end ---------------------------------------------------------------------


def test_an_offset_that_fell_is_noticed(world: World, setting: Setting) -> None:
    def main(process: SimProcess) -> None:
        log = opened(setting, process)
        log.create_topic(OFFSETS_TOPIC, OFFSETS_PARTITIONS)
        for offset in (3, 7, 7, 5):
            assert not setting.problems
            log.commit_offsets(GROUP, {(SOURCE, 0): offset})
        look_at_offsets(setting, log, History("last", setting.events.extend))

    run(world, main)
    assert setting.problems == ["a-0 of g fell from 7 to 5"]
    assert [event.offset for event in setting.events if event.final and event.key == "a-0"] == [5]


# --- small things ------------------------------------------------------------------------------------


def test_limits_are_those_of_the_history_and_nobody_elses(setting: Setting) -> None:
    setting.request_window = 2
    before = writers.REQUEST_WINDOW
    with small_limits(setting):
        assert writers.last_commit_for(5) == 7
    assert before == writers.REQUEST_WINDOW


def test_a_restored_checkpoint_plans_from_the_same_places_on(setting: Setting) -> None:
    query = Query(name="q")
    first = [query.next_batch(setting)]
    for _ in range(9):
        query.note_done()
        first.append(query.next_batch(setting))
    assert query.next_batch(setting) is first[-1], "planned once"
    assert not query.restore(10)
    assert query.restore(9)
    again = query.next_batch(setting)
    assert (again.version, again.start) == (first[0].version, first[0].start)
    values = {key: text for batch in first for key, texts in batch.values.items() for text in texts}
    repeated = {key: text for key, texts in again.values.items() for text in texts}
    assert repeated.keys() <= values.keys()
    query.start_anew()
    assert query.next_batch(setting).start == first[-1].end
    assert query.application == "q1"
