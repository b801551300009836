"""When snapshots are due, and who writes them: the log says it, whatever its commits look like."""

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from sparklog.clock import ManualClock
from sparklog.errors import StorageError
from sparklog.metadata import (
    Action,
    Background,
    DraftExtent,
    Image,
    MetadataLog,
    MetadataSettings,
    SetConfigs,
    Topic,
    plan_append,
)
from sparklog.metadata.cleaning import STEP, clean_in_steps
from sparklog.metadata.documents.properties import DIRECTORY, commit_name, commit_of, manifest_of, snapshot_of
from sparklog.metadata.model.image import weigh
from sparklog.metadata.upkeep import Runner, Work, snapshot_size
from sparklog.storage import MemoryStore
from tests.support.told import Told

BLOCK = 4096
Create = Callable[..., Topic]
Draft = Callable[..., DraftExtent]


class Gate:
    """Holds whoever comes until it is opened."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.reached.set()
        assert self.open.wait(60)


class Dropped:
    """Of a process that is killed before it comes to its upkeep."""

    def __init__(self) -> None:
        self.works = 0

    def run(self, work: Work) -> None:
        self.works += 1

    def finish(self) -> None:
        pass

    def start_anew(self) -> None:
        pass


def opened(
    store: MemoryStore,
    *,
    blocks: int = 10,
    upkeep: Runner | None = None,
    settings: MetadataSettings | None = None,
) -> MetadataLog:
    settings = settings or MetadataSettings(snapshot_bytes=blocks * BLOCK, snapshots_kept=1000)
    return MetadataLog.open(store, ManualClock(), create=True, settings=settings, upkeep=upkeep)


def publish(log: MetadataLog, count: int = 1) -> None:
    for _ in range(count):
        log.publish(lambda image: [SetConfigs(configs={"last": str(image.commit + 1)})])


def snapshots(store: MemoryStore) -> list[int]:
    names = (manifest_of(file.name) for file in store.list(DIRECTORY, recursive=True))
    return [number for number in names if number is not None]


def commit_sizes(store: MemoryStore) -> dict[int, int]:
    files = store.list(DIRECTORY)
    return {number: file.size for file in files if (number := commit_of(file.name)) is not None}


def appending(drafts: list[DraftExtent], image: Image) -> list[Action]:
    return [plan_append(image, drafts)]


# --- when ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extents", [1, 16, 256])
def test_who_opens_replays_in_proportion_to_the_image(
    memory: MemoryStore, create: Create, draft: Draft, extents: int
) -> None:
    """Commits of 256 extents or more once had no snapshot at all."""
    log = opened(memory, blocks=16)
    topic = create(log, partitions=4)
    opens: list[int] = []
    for number in range(400 if extents < 256 else 100):
        drafts = [draft(topic, at % 4, segment=f"segments/w/{number}.log") for at in range(extents)]
        log.publish(partial(appending, drafts))
        last = max(snapshots(memory), default=-1)
        sizes = commit_sizes(memory)
        weights = {commit: weigh(size, extents if commit else 0) for commit, size in sizes.items()}
        replayed = sum(weight for commit, weight in weights.items() if commit > last)
        opens.append(replayed)
        assert replayed <= 5 / 4 * max(16 * BLOCK, snapshot_size(log.image) // 4) + weights[max(weights)]
    assert opened(memory).image.replayed.weight == opens[-1]
    assert log.image.replayed.weight == sum(weights.values())
    assert max(opens) >= 16 * BLOCK - weigh(0)  # and not much more often than asked for


def test_what_snapshots_cost_is_in_proportion_to_the_commits(
    memory: MemoryStore, create: Create, draft: Draft
) -> None:
    log = opened(memory, blocks=4)
    topic = create(log, partitions=4)
    for number in range(600):
        drafts = [draft(topic, at % 4, segment=f"segments/w/{number}.log") for at in range(16)]
        log.publish(partial(appending, drafts))
    written = sum(
        file.size for file in memory.list(DIRECTORY, recursive=True) if snapshot_of(file.name) is not None
    )
    committed = sum(weigh(size, 16) for size in commit_sizes(memory).values())
    assert 0.5 * committed < written < 4.5 * committed


def test_the_size_of_a_snapshot_is_known_before_it_is_written(
    memory: MemoryStore, create: Create, draft: Draft
) -> None:
    log = opened(memory, blocks=1 << 20)
    topic = create(log, partitions=4)
    for number in range(50):
        log.publish(partial(appending, [draft(topic, at % 4, position=number) for at in range(64)]))
    log.write_snapshot()
    files = memory.list(DIRECTORY, recursive=True)
    written = sum(file.size for file in files if snapshot_of(file.name) is not None)
    assert 0.7 < snapshot_size(log.image) / written < 1.4


# --- who -------------------------------------------------------------------------------------------------


def test_the_log_says_when_whoever_publishes(memory: MemoryStore) -> None:
    publish(opened(memory), 45)
    alone = snapshots(memory)
    assert alone == [9, 19, 29, 39]
    for logs in (2, 5):
        store = MemoryStore()
        racing = [opened(store) for _ in range(logs)]
        for number in range(45):
            publish(racing[number % logs])
        assert snapshots(store) == alone


def test_of_several_publishers_one_writes_it(memory: MemoryStore) -> None:
    """Also if the others go on meanwhile."""
    begun: list[str] = []
    memory.hook = lambda operation, name: (
        begun.append(name) if operation == "put_if_absent" and "/state" in name else None
    )
    runners = [Later() for _ in range(3)]
    logs = [opened(memory, upkeep=runner) for runner in runners]
    for number in range(44):
        publish(logs[number % 3])
        if number % 10 == 0:  # the snapshot is not there before the next commit
            for runner in runners:
                runner.catch_up()
    assert [snapshot_of(name) for name in begun] == [9, 19, 29, 39]


class Later:
    """Upkeep that takes its time."""

    def __init__(self) -> None:
        self.waiting: list[Work] = []

    def run(self, work: Work) -> None:
        self.waiting.append(work)

    def catch_up(self) -> None:
        for work in self.waiting:
            for _ in work():
                pass
        self.waiting.clear()

    def finish(self) -> None:
        self.catch_up()

    def start_anew(self) -> None:
        self.waiting.clear()


def test_processes_that_commit_once(memory: MemoryStore) -> None:
    for _ in range(45):
        publish(opened(memory))
    assert snapshots(memory) == [9, 19, 29, 39]


def test_if_its_writer_is_killed_the_next_on_the_scale_writes_it(memory: MemoryStore) -> None:
    killed, living = opened(memory, upkeep=Dropped()), opened(memory)
    publish(killed, 10)  # the tenth is due
    publish(living, 1)
    assert snapshots(memory) == []
    publish(living, 4)  # 12 blocks: a quarter more
    assert snapshots(memory) == [12]


def test_who_opens_a_log_that_is_long_overdue_waits_for_nothing(memory: MemoryStore) -> None:
    publish(opened(memory, upkeep=Dropped()), 21)
    publish(opened(memory))
    assert snapshots(memory) == [21]


def test_a_large_image_is_looked_at_and_not_written(
    memory: MemoryStore, create: Create, draft: Draft
) -> None:
    log = opened(memory, blocks=1 << 20)
    topic = create(log)
    for number in range(10):
        log.publish(partial(appending, [draft(topic, position=number * 1000 + at) for at in range(300)]))
    log.write_snapshot()
    due = snapshot_size(log.image) // 4 // BLOCK
    assert due > 12
    log = opened(memory, blocks=10)
    before = snapshots(memory)
    publish(log, due - 1)
    assert snapshots(memory) == before
    publish(log, due // 4 + 2)
    assert len(snapshots(memory)) == len(before) + 1


def test_a_snapshot_that_others_wrote_is_enough(memory: MemoryStore) -> None:
    log, other = opened(memory), opened(memory)
    publish(other)
    publish(log, 8)
    by_hand = other.write_snapshot()
    assert by_hand == 8
    publish(log, 9)  # reaches 10, 12, 15, 17 blocks of what it knows of
    assert snapshots(memory) == [8]
    publish(log, 1)
    assert snapshots(memory) == [8, 18]


def test_a_failed_snapshot_is_made_up_for(memory: MemoryStore) -> None:
    log = opened(memory)

    def hook(operation: str, name: str) -> None:
        if operation == "put_if_absent" and ".snapshot/" in name:
            raise StorageError("STORAGE_FULL", "no space", fix="free some")

    memory.hook = hook
    publish(log, 12)
    memory.hook = None
    assert snapshots(memory) == []
    publish(log, 1)
    assert snapshots(memory) == [12]


def test_a_failed_cleaning_is_not_a_snapshot_that_is_missing(memory: MemoryStore, told: Told) -> None:
    settings = MetadataSettings(
        snapshot_bytes=10 * BLOCK, snapshots_kept=1, clean_interval_ms=0, clean_grace_ms=0
    )
    log = opened(memory, settings=settings)

    def hook(operation: str, name: str) -> None:
        if operation in {"delete", "delete_many"}:
            raise StorageError("STORAGE_FAILED", f"{name}: MissingContentMD5", fix="use another store")

    memory.hook = hook
    publish(log, 40)
    memory.hook = None
    assert len(snapshots(memory)) > 2, "they are written, and not cleaned"
    messages = told("sparklog.metadata")
    assert any("cleaning the metadata log failed" in one for one in messages)
    assert not any("no snapshot" in one for one in messages)


# --- beside publishing -----------------------------------------------------------------------------------


def test_no_publish_waits_for_a_snapshot_or_a_cleaning(memory: MemoryStore) -> None:
    settings = MetadataSettings(
        snapshot_bytes=10 * BLOCK, snapshots_kept=1, clean_grace_ms=-(1 << 60), clean_interval_ms=0
    )
    log = opened(memory, upkeep=Background("upkeep"), settings=settings)
    gate, removing = Gate(), Gate()

    def hook(operation: str, name: str) -> None:
        if operation == "put_if_absent" and ".snapshot/" in name:
            gate.wait()
        if operation == "delete":
            removing.wait()

    memory.hook = hook
    publish(log, 15)
    assert snapshots(memory) == []
    gate.open.set()
    assert removing.reached.wait(60)
    publish(log, 5)
    assert log.image.commit == 19
    assert commit_name(1) in {file.name for file in memory.list(DIRECTORY)}
    removing.open.set()
    log.finish_upkeep()
    memory.hook = None
    assert MetadataLog.open(memory, ManualClock()).image == log.image


def cleaning(log: MetadataLog, store: MemoryStore) -> Iterator[int]:
    return clean_in_steps(store, log.image, grace_ms=-(1 << 60), snapshots_kept=1, now_ms=0)


def test_cleaning_goes_in_bounded_steps(memory: MemoryStore) -> None:
    log = opened(memory, blocks=1 << 20)
    publish(log, 2 * STEP + 10)
    log.write_snapshot()
    assert list(cleaning(log, memory)) == [0, STEP, STEP, 8]
    assert sorted(commit_sizes(memory)) == [0, log.image.commit]


def test_who_stops_between_two_steps_leaves_the_rest_to_others(memory: MemoryStore) -> None:
    log = opened(memory, blocks=1 << 20)
    publish(log, 2 * STEP)
    log.write_snapshot()
    publish(log, 10)
    log.write_snapshot()
    stopped = cleaning(log, memory)
    assert next(stopped) + next(stopped) == STEP
    assert MetadataLog.open(memory, ManualClock()).image == log.image
    assert sum(cleaning(log, memory)) == STEP + 8 + 1  # and the older snapshot
    assert sum(stopped) == STEP + 8 + 1  # it goes on, and finds nothing
    assert sorted(commit_sizes(memory)) == [0, log.image.commit]
    assert MetadataLog.open(memory, ManualClock()).image == log.image
