"""The machinery of the simulation: virtual time, killing, pausing, and the two stores' worst sides."""

from collections.abc import Callable

import pytest

from sparklog.errors import AlreadyExistsError, NotFoundError, RetriableError
from sparklog.storage import IndefinitePutError
from tests.simulation.directory_store import DirectoryStore, Disk
from tests.simulation.remote_store import MAX_SKEW_US, PUT_LIFETIME_MS, RemoteStore, Server
from tests.simulation.world import HOUR_US, SimProcess, StuckError, World


@pytest.fixture
def world() -> World:
    world = World(1)
    world.calm = True
    return world


def run(world: World, *mains: Callable[[SimProcess], None]) -> list[SimProcess]:
    processes = [world.spawn(f"p{number}", main) for number, main in enumerate(mains)]
    world.run(lambda: all(process.dead for process in processes), deadline_us=100 * HOUR_US)
    for process in processes:
        if process.failure is not None:
            raise process.failure
    return processes


def test_who_sleeps_less_goes_first_and_time_is_virtual(world: World) -> None:
    order: list[tuple[str, int]] = []

    def sleeper(name: str, ms: int) -> Callable[[SimProcess], None]:
        def main(process: SimProcess) -> None:
            process.sleep_ms(ms)
            order.append((name, process.monotonic_ms()))

        return main

    run(world, sleeper("late", 3_600_000), sleeper("early", 5))
    assert order == [("early", 5), ("late", 3_600_000)]


def test_a_killed_process_changes_nothing_any_more(world: World) -> None:
    disk = Disk(world)

    def main(process: SimProcess) -> None:
        store = DirectoryStore(disk, process)
        try:
            process.sleep_ms(100)
        finally:
            store.put_if_absent("a/cleanup", b"")

    process = world.spawn("p", main)
    world.at(1_000, process.kill)
    with pytest.raises(StuckError):
        world.run(lambda: False, deadline_us=HOUR_US)
    assert process.dead
    assert not disk.files


def test_a_paused_process_finds_its_clock_moved_on(world: World) -> None:
    seen: list[int] = []

    def main(process: SimProcess) -> None:
        for _ in range(2):
            process.sleep_ms(10)
            seen.append(process.monotonic_ms())

    process = world.spawn("p", main)
    world.at(15_000, lambda: process.pause(HOUR_US))
    world.run(lambda: process.dead, deadline_us=2 * HOUR_US)
    assert seen == [10, 3_600_015]


def test_a_power_cut_takes_what_was_not_synced(world: World) -> None:
    survived: set[tuple[bool, bytes | None]] = set()
    for seed in range(60):
        world = World(seed)
        world.calm = True
        disk = Disk(world)

        def main(process: SimProcess, disk: Disk = disk) -> None:
            store = DirectoryStore(disk, process)
            store.put_if_absent("m/durable", b"kept")
            file = store.append_file("s/log")
            file.write(b"12345678")
            file.sync()
            file.write(b"abcd")
            store.append_file("n/unsynced").write(b"xx")

        run(world, main)
        disk.cut_power()
        assert disk.files["m/durable"].content == b"kept"
        assert disk.files["s/log"].content.startswith(b"12345678")
        unsynced = disk.files.get("n/unsynced")
        survived.add((unsynced is not None, bytes(disk.files["s/log"].content[8:])))
    assert {there for there, _ in survived} == {True, False}
    assert {tail for _, tail in survived} > {b"", b"abcd", bytes(4)}


def test_one_racer_wins_in_a_directory_and_an_aborted_put_fails(world: World) -> None:
    disk, results = Disk(world), list[str]()

    def racer(process: SimProcess) -> None:
        try:
            DirectoryStore(disk, process).put_if_absent("m/1", process.name.encode())
            results.append("won")
        except AlreadyExistsError:
            results.append("lost")

    run(world, racer, racer, racer, racer)
    assert sorted(results) == ["lost", "lost", "lost", "won"]

    def aborted(process: SimProcess) -> None:
        store = DirectoryStore(disk, process)

        def guard() -> bool:
            disk.temporary["m/2"][0].exists = False  # as abort_puts does
            return True

        with pytest.raises(RetriableError, match="PUT_ABORTED"):
            store.put_if_absent("m/2", b"", guard=guard)

    run(world, aborted)
    assert set(disk.files) == {"m/1"}


def remote(world: World, process: SimProcess, server: Server) -> RemoteStore:
    return RemoteStore(server, process, refresh_interval_ms=0)


def test_puts_without_an_answer_may_have_happened_or_may_still(world: World) -> None:
    world.calm = False
    server = Server(world, checks_dates=True)
    server.network.fault_rate = 0.3
    outcomes: set[tuple[str, bool]] = set()

    def main(process: SimProcess) -> None:
        store = remote(world, process, server)
        for number in range(200):
            name = f"m/{number}"
            try:
                store.put_if_absent(name, b"x")
                outcomes.add(("answered", name in server.files))
            except IndefinitePutError:
                outcomes.add(("unanswered", name in server.files))
            except AlreadyExistsError:  # its own, delivered twice
                outcomes.add(("taken", name in server.files))

    run(world, main)
    assert {("answered", True), ("unanswered", True), ("unanswered", False)} <= outcomes
    assert ("answered", False) not in outcomes
    before = len(server.files)
    world.drain(3 * HOUR_US)
    assert len(server.files) > before, "no put was late"
    assert {"busy", "request lost", "answer lost", "late put", "doubled put"} <= set(world.faults)


def test_a_store_that_checks_dates_refuses_old_puts(world: World) -> None:
    for checks_dates in (True, False):
        server = Server(world, checks_dates=checks_dates)
        world.now_us += 2 * PUT_LIFETIME_MS * 1000
        answer = server.put("m/1", b"", world.now_us - MAX_SKEW_US - 1, conditional=True)
        assert answer == ("refused" if checks_dates else "done")


def test_a_commit_number_that_is_used_twice_is_noticed(world: World) -> None:
    server = Server(world, checks_dates=False)
    name = f"__cluster_metadata/{7:020}.json"
    assert server.put(name, b"a", 0, conditional=True) == "done"
    del server.files[name]
    assert server.put(name, b"a", 0, conditional=True) == "done"  # the same again is harmless
    assert not server.violations
    del server.files[name]
    assert server.put(name, b"b", 0, conditional=True) == "done"
    assert len(server.violations) == 1


def test_reads_are_repeated_until_the_store_answers(world: World) -> None:
    server = Server(world, checks_dates=False)
    server.put("m/1", b"x", 0, conditional=True)
    server.network.fails_until_us = 2_000_000

    def main(process: SimProcess) -> None:
        store = remote(world, process, server)
        assert store.read("m/1") == b"x"
        assert store.read_many(["m/1", "m/2"], max_bytes=9) == [b"x", None]
        with pytest.raises(NotFoundError):
            store.read("m/2")

    run(world, main)
    assert world.now_us > 2_000_000
