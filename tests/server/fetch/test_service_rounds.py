"""A turn of reading from an object store: what partitions need is asked for once, and in bounded time."""

import itertools
from collections import Counter
from collections.abc import Iterator

import pytest

from sparklog.clock import ManualClock
from sparklog.errors import StorageError
from sparklog.format.record_batch import MAGIC_POSITION
from sparklog.log.config import TopicConfig
from sparklog.metadata import plan_append
from sparklog.storage import MemoryStore
from sparklog.storage.base import StoreTraits
from sparklog_server.cluster.leadership import Leadership
from sparklog_server.fetch import reader as away_module
from sparklog_server.fetch import reader as reader_module
from sparklog_server.fetch import service as rounds_module
from sparklog_server.fetch.cache import FetchedBatches, TailCache
from sparklog_server.fetch.reader import StoredReader
from sparklog_server.fetch.service import Rounds, Wanted
from sparklog_server.fetch.sessions import PartitionAnswer, PartitionFetch
from sparklog_server.metrics import Metrics
from sparklog_server.protocol.apis import ErrorCode
from sparklog_server.root.live_root import LiveRoot
from tests.server.fetch.stored import TOPIC, StoredLog, bytes_of, encoded, offsets_of
from tests.support.removing import merge, remove_dead
from tests.support.roots import opened

PARTITIONS, PUBLISHES = 5, 60


class Remote:
    """A log in an object store, each publish of which is an object with two records of each partition."""

    def __init__(self, store: MemoryStore, stored: StoredLog, rounds: Rounds) -> None:
        self.store = store
        self.stored = stored
        self.log = stored.log
        self.rounds = rounds

    def publish(self) -> None:
        topic = self.log.image.topic(TOPIC)
        drafts = []
        for one in topic.partitions:
            data = encoded(one.log_end_offset, 2)
            draft = self.log.writer.append(topic.topic_id, one.partition, data, TopicConfig())
            assert draft is not None
            drafts.append(draft)
        self.log.writer.sync(drafts)
        self.log.metadata.publish(lambda image: [plan_append(image, drafts)])

    def wanted(self, partition: int, offset: int = 0, max_bytes: int = 1 << 20) -> Wanted:
        fetch = PartitionFetch(topic=TOPIC, partition=partition, offset=offset, max_bytes=max_bytes)
        answer = PartitionAnswer(topic=TOPIC, topic_id="", partition=partition)
        return Wanted(fetch, self.log.image.partition(TOPIC, partition), answer, readable=1)

    def read(
        self, *todo: Wanted, left: int = 1 << 20, at_least_one: bool = True
    ) -> tuple[list[list[int]], Counter[str]]:
        """(offsets of each that was answered, how often each object was asked for)."""
        asked: Counter[str] = Counter()

        def hook(operation: str, name: str) -> None:
            if operation == "open_read" and name.endswith(".log"):
                asked[name] += 1

        self.store.hook = hook
        results = self.rounds.read(todo, left, at_least_one)
        self.store.hook = None
        assert [one for one, _ in results] == list(todo[: len(results)])
        return [_offsets(batches) for _, batches in results], asked


def _offsets(batches: FetchedBatches | None) -> list[int]:
    return [] if batches is None or not batches.size else offsets_of(bytes_of(batches.chunks))


@pytest.fixture
def remote() -> Iterator[Remote]:
    store = MemoryStore("rounds", traits=StoreTraits(is_remote=True, appends_after_sync=False))
    with opened(store, ManualClock()) as log:
        root = LiveRoot(log, defaults={}, metrics=Metrics(), storage_threads=1)
        reader = StoredReader(store, Leadership(1, log))
        made = Remote(store, StoredLog(log, PARTITIONS), Rounds(root, reader, TailCache(0)))
        for _ in range(PUBLISHES):
            made.publish()
        yield made
        reader.close()
        root.close()


EVERYTHING = list(range(2 * PUBLISHES))


def test_an_object_is_asked_for_once_for_all_partitions(remote: Remote) -> None:
    offsets, asked = remote.read(*(remote.wanted(one) for one in range(PARTITIONS)))
    assert offsets == [EVERYTHING] * PARTITIONS
    assert asked.total() == len(asked) == PUBLISHES


def test_each_partition_from_where_it_is(remote: Remote) -> None:
    offsets, _ = remote.read(remote.wanted(3, 7), remote.wanted(0, 2 * PUBLISHES - 1), remote.wanted(1, 40))
    assert [(one[0], one[-1]) for one in offsets] == [
        (6, EVERYTHING[-1]),
        (2 * PUBLISHES - 2, EVERYTHING[-1]),
        (40, EVERYTHING[-1]),
    ]


def test_no_more_than_is_asked_for(remote: Remote) -> None:
    size = remote.log.image.partition(TOPIC, 0).extents[0].size
    offsets, asked = remote.read(remote.wanted(0, max_bytes=3 * size), remote.wanted(1, max_bytes=5 * size))
    assert offsets == [list(range(6)), list(range(10))]
    assert len(asked) == 5
    offsets, _ = remote.read(remote.wanted(0), remote.wanted(1), left=3 * size)
    assert offsets == [list(range(6))]
    offsets, _ = remote.read(remote.wanted(0, max_bytes=1), remote.wanted(1, max_bytes=1))
    assert offsets == [[0, 1], []], "the first has one batch at least"
    offsets, _ = remote.read(remote.wanted(0, max_bytes=1), at_least_one=False)
    assert offsets == [[]]


def test_when_the_time_is_over_there_is_something_of_each(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a turn could not read in its time is asked for again, and the next turn goes on there."""
    times = itertools.count(step=0.01)
    for module in (reader_module, rounds_module):
        monkeypatch.setattr(module, "monotonic", lambda: next(times))
    monkeypatch.setattr(reader_module, "READ_SECONDS", 0.4)
    monkeypatch.setattr(rounds_module, "READ_SECONDS", 0.4)
    at, turns = [0] * PARTITIONS, 0
    while min(at) < 2 * PUBLISHES:
        offsets, asked = remote.read(*(remote.wanted(number, one) for number, one in enumerate(at)))
        assert max(asked.values()) == 1
        for number, found in enumerate(offsets):
            assert found == list(range(at[number], at[number] + len(found)))
            assert found, "none waits for the others"
            at[number] += len(found)
        turns += 1
    assert turns > 1


def test_no_more_is_planned_than_a_turn_can_read(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of thousands of partitions with thousands of small extents each, planning alone would take the time."""
    monkeypatch.setattr(reader_module, "GATHERED_PIECES", 12)
    offsets, asked = remote.read(*(remote.wanted(one) for one in range(3)))
    assert offsets == [list(range(8))] * 3
    assert asked.total() == 4
    offsets, _ = remote.read(*(remote.wanted(one % PARTITIONS) for one in range(100)))
    assert {tuple(one) for one in offsets} == {(0, 1)}


def test_a_file_that_is_gone_harms_no_other_partition(remote: Remote) -> None:
    remote.stored.append(1, partition=2)
    extents = remote.log.image.partition(TOPIC, 2).extents
    remote.store.delete(extents[len(extents) - 1].segment)
    gone = remote.wanted(2, 2 * PUBLISHES)
    offsets, _ = remote.read(remote.wanted(0), gone, remote.wanted(1))
    assert offsets == [EVERYTHING, [], EVERYTHING]
    assert gone.answer.error_code == ErrorCode.kafka_storage_error.value
    offsets, _ = remote.read(remote.wanted(2))
    assert offsets == [EVERYTHING], "what is before it is there"


def test_a_batch_of_a_newer_version_harms_no_other_partition(remote: Remote) -> None:
    """Found when what all partitions need is planned, where one is read from within an extent."""
    where = remote.log.image.partition(TOPIC, 1).extents[3]
    data = bytearray(remote.store.read(where.segment))
    data[where.position + MAGIC_POSITION] = 3
    remote.store.delete(where.segment)
    remote.store.put_if_absent(where.segment, bytes(data))
    todo = [remote.wanted(0), remote.wanted(1, where.base_offset + 1), remote.wanted(2)]
    offsets, _ = remote.read(*todo)
    assert offsets == [EVERYTHING, [], EVERYTHING]
    assert [one.answer.error_code for one in todo] == [0, ErrorCode.unsupported_for_message_format, 0]


def test_what_was_merged_meanwhile_is_read_where_it_is(remote: Remote) -> None:
    todo = [remote.wanted(one) for one in range(2)]  # as the image was
    before = {name for name in remote.store.list("", recursive=True) if name.name.endswith(".log")}
    merge(remote.log)
    assert len(remove_dead(remote.log)) == len(before)
    offsets, _ = remote.read(*todo)
    assert offsets == [EVERYTHING] * 2


def test_what_is_read_by_a_newer_image_is_told_by_it(remote: Remote) -> None:
    """Nothing is sent from beyond the high watermark that is beside it."""
    one = remote.wanted(0)
    remote.publish()
    merge(remote.log)
    remove_dead(remote.log)
    (found,), _ = remote.read(one)
    assert found == list(range(2 * PUBLISHES + 2))
    assert one.answer.high_watermark == one.answer.last_stable_offset == found[-1] + 1
    assert one.answer.log_start_offset == 0


class Refused:
    """Of one object that holds nothing but the newest records of a partition nothing is given."""

    def __init__(self, remote: Remote, code: str) -> None:
        self.asked = 0
        remote.stored.append(4, partition=2)
        extents = remote.log.image.partition(TOPIC, 2).extents
        self._segment, self._code = extents[len(extents) - 1].segment, code
        remote.store.hook = self._refuse

    def _refuse(self, operation: str, name: str) -> None:
        if operation == "open_read" and name.startswith(self._segment.removesuffix(".log")):
            self.asked += 1
            raise StorageError(self._code, name, fix="look after it")


def read(remote: Remote, *offsets: int) -> tuple[list[list[int]], list[int]]:
    """(offsets, error code) of partitions 0, 1, 2, ... from these offsets on."""
    todo = [remote.wanted(number, offset) for number, offset in enumerate(offsets)]
    results = remote.rounds.read(todo, 1 << 20, at_least_one=True)
    return [_offsets(batches) for _, batches in results], [one.answer.error_code for one in todo]


KAFKA_STORAGE_ERROR = ErrorCode.kafka_storage_error.value


def test_an_object_that_is_refused_harms_no_other_partition(remote: Remote) -> None:
    """Found when what all partitions need is planned, where one is read from within an extent."""
    Refused(remote, "STORAGE_REFUSED")
    found = read(remote, 0, 0, 2 * PUBLISHES + 1)
    assert found == ([EVERYTHING, EVERYTHING, []], [0, 0, KAFKA_STORAGE_ERROR])


@pytest.mark.parametrize("offset", [2 * PUBLISHES, 2 * PUBLISHES + 1])
def test_an_object_that_took_all_patience_keeps_others_waiting_once(
    offset: int, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later fetches would take as long, with all of their partitions. After a while it is tried again."""
    now = 1000.0
    monkeypatch.setattr(away_module, "monotonic", lambda: now)
    refused = Refused(remote, "STORE_UNAVAILABLE")
    assert read(remote, 0, 0, offset)[1] == [KAFKA_STORAGE_ERROR] * 3
    asked = refused.asked
    for _ in range(2):
        assert read(remote, 0, 0, offset) == ([EVERYTHING, EVERYTHING, []], [0, 0, KAFKA_STORAGE_ERROR])
    assert read(remote, 0, 0, 0) == ([EVERYTHING] * 3, [0] * 3)
    assert refused.asked == asked > 0
    remote.store.hook = None
    assert read(remote, 0, 0, offset)[1] == [0, 0, KAFKA_STORAGE_ERROR]
    now += away_module.AWAY_SECONDS
    assert read(remote, 0, 0, offset)[1] == [0] * 3


def test_a_store_that_is_away_is_told_to_each(remote: Remote) -> None:
    def away(operation: str, name: str) -> None:
        raise StorageError("STORAGE_FAILED", f"{operation} {name}", fix="try again")

    todo = [remote.wanted(one) for one in range(2)]
    read = remote.rounds.read
    remote.store.hook = away
    assert [batches for _, batches in read(todo, 1 << 20, at_least_one=True)] == [None, None]
    remote.store.hook = None
    assert [one.answer.error_code for one in todo] == [ErrorCode.kafka_storage_error.value] * 2
