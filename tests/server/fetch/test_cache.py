"""The hot tail: what was appended comes back as consumers need it, and memory is bounded."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.format.decode import scan_batches
from sparklog_server.fetch.cache import BLOCK_BYTES, BatchBlock, FetchedBatches, TailCache
from tests.server.fetch.stored import bytes_of, encoded, offsets_of

MIB = 1 << 20


def append(cache: TailCache, first: int, count: int, *, partition: int = 0, value_bytes: int = 0) -> int:
    """Returns the stored bytes."""
    batches = encoded(first, count, value_bytes=value_bytes)
    cache.append("t", partition, first, batches, leader_epoch=0)
    return batches.size_bytes


def test_appends_carry_their_leaders_epoch() -> None:
    cache = TailCache(MIB)
    cache.append("t", 0, 100, encoded(100, 30), leader_epoch=7)
    found = cache.read("t", 0, 100, end_offset=130, max_bytes=MIB)
    assert found is not None
    assert set(scan_batches(bytes_of(found.chunks), where="cached").partition_leader_epoch.tolist()) == {7}


def block(first: int, count: int) -> BatchBlock:
    data = encoded(first, count, base_offset=first)
    return BatchBlock(
        data=memoryview(bytearray(data.to_bytes())),
        position=data.position,
        base_offset=data.base_offset,
        end_offset=first + count,
    )


def read(
    cache: TailCache,
    offset: int,
    *,
    end_offset: int = 10**9,
    max_bytes: int = MIB,
    partition: int = 0,
    at_least_one: bool = True,
) -> FetchedBatches | None:
    found = cache.read(
        "t", partition, offset, end_offset=end_offset, max_bytes=max_bytes, at_least_one=at_least_one
    )
    if found is not None:
        assert found.size == len(bytes_of(found.chunks))
    return found


def offsets(found: FetchedBatches | None) -> list[int]:
    assert found is not None
    return offsets_of(bytes_of(found.chunks))


def test_appends_come_back_with_their_offsets() -> None:
    cache = TailCache(MIB)
    append(cache, 100, 30)
    append(cache, 130, 1)
    append(cache, 131, 50)
    assert offsets(read(cache, 100)) == list(range(100, 181))
    found = read(cache, 140)
    assert offsets(found)[0] <= 140
    assert found is not None
    assert found.next_offset == 181


def test_what_is_not_here() -> None:
    cache = TailCache(MIB)
    append(cache, 100, 30)
    assert read(cache, 99) is None
    assert read(cache, 130) is None
    assert read(cache, 110, partition=1) is None


def test_a_gap_ends_an_answer() -> None:
    cache = TailCache(MIB)
    append(cache, 0, 10)
    append(cache, 20, 10)
    assert offsets(read(cache, 0)) == list(range(10))
    assert offsets(read(cache, 20)) == list(range(20, 30))
    assert read(cache, 15) is None
    cache.insert("t", 0, block(10, 10))
    assert offsets(read(cache, 0)) == list(range(30))


def test_nothing_from_beyond_the_end_that_the_reader_knows() -> None:
    cache = TailCache(MIB)
    append(cache, 0, 10)
    append(cache, 10, 10)
    assert offsets(read(cache, 0, end_offset=10)) == list(range(10))


def test_limits_are_kept_at_batches() -> None:
    cache = TailCache(MIB)
    for first in range(0, 60, 20):
        append(cache, first, 20)
    whole = bytes_of([] if (found := read(cache, 0)) is None else found.chunks)
    table = scan_batches(whole, where="cached")
    ends = (table.position + table.size).tolist()
    for limit in (0, ends[0] - 1, ends[0], ends[1], ends[1] + 1, ends[-1] - 1, ends[-1]):
        fitting = [end for end in ends if end <= limit]
        found = read(cache, 0, max_bytes=limit)
        assert found is not None
        assert found.size == max([ends[0], *fitting])
        found = read(cache, 0, max_bytes=limit, at_least_one=False)
        assert found is not None
        assert found.size == max([0, *fitting])


@pytest.mark.slow
def test_small_appends_share_blocks() -> None:
    cache = TailCache(8 * MIB)
    total = sum(append(cache, number, 1, value_bytes=100) for number in range(5000))
    found = read(cache, 0, max_bytes=8 * MIB)
    assert offsets(found) == list(range(5000))
    assert found is not None
    assert len(found.chunks) < 12
    assert cache.size_bytes < 3 * total


def test_idle_partitions_cost_little() -> None:
    cache = TailCache(64 * MIB)
    for partition in range(1000):
        append(cache, 0, 1, partition=partition)
    assert cache.size_bytes < 6 * MIB


def test_the_least_recently_used_goes_first() -> None:
    cache = TailCache(MIB)
    append(cache, 0, 20)
    cache = TailCache(4 * cache.size_bytes)
    for partition in range(4):
        append(cache, 0, 20, partition=partition)
    assert read(cache, 0, partition=0) is not None
    append(cache, 0, 20, partition=4)
    assert read(cache, 0, partition=1) is None
    assert [read(cache, 0, partition=n) is not None for n in (0, 2, 3, 4)] == [True] * 4


def test_memory_is_bounded_and_answers_outlive_eviction() -> None:
    cache = TailCache(2 * MIB)
    append(cache, 0, 100, value_bytes=1000)
    found = read(cache, 0)
    first = 100
    for _ in range(60):
        append(cache, first, 100, value_bytes=1000)
        first += 100
        assert cache.size_bytes <= 2 * MIB
    assert read(cache, 0) is None
    assert read(cache, first - 1) is not None
    assert offsets(found)[0] == 0


def test_what_is_too_large_is_left_out() -> None:
    cache = TailCache(2 * BLOCK_BYTES)
    append(cache, 0, 1500, value_bytes=1000)
    assert cache.size_bytes == 0
    TailCache(0).append("t", 0, 0, encoded(0, 5), leader_epoch=0)


def test_what_is_here_already_is_not_taken_twice() -> None:
    cache = TailCache(MIB)
    append(cache, 10, 10)
    size = cache.size_bytes
    for first, count in ((10, 10), (5, 6), (19, 1), (15, 30), (0, 40)):
        cache.insert("t", 0, block(first, count))
        append(cache, first, count)
    cache.insert("t", 0, block(0, 10))
    assert offsets(read(cache, 0)) == list(range(20))
    assert cache.size_bytes > size


def test_a_reader_may_be_faster_than_the_append() -> None:
    cache = TailCache(MIB)
    cache.insert("t", 0, block(0, 20))
    append(cache, 0, 20)
    append(cache, 20, 5)
    assert offsets(read(cache, 0)) == list(range(25))


steps = st.lists(
    st.tuples(
        st.sampled_from(["append", "insert", "skip", "read"]),
        st.integers(1, 40),
        st.integers(0, 300),
        st.integers(1, 3000),
    ),
    max_size=40,
)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(limit=st.sampled_from([9_000, 20_000, 200_000]), steps=steps)
def test_whatever_is_read_was_appended(limit: int, steps: list[tuple[str, int, int, int]]) -> None:
    cache = TailCache(limit)
    end = 0
    for step, count, offset, max_bytes in steps:
        if step == "append":
            append(cache, end, count)
            end += count
        elif step == "insert":
            first = offset % (end + 1)
            cache.insert("t", 0, block(first, count))
            end = max(end, first + count)
        elif step == "skip":
            end += count
        else:
            found = read(cache, offset, max_bytes=max_bytes, end_offset=end)
            if found is not None:
                got = offsets(found)
                assert got == list(range(got[0], found.next_offset))
                assert got[0] <= offset < found.next_offset <= end
        assert cache.size_bytes <= limit


@pytest.mark.slow
def test_threads() -> None:
    """Readers see whole batches while appends and evictions go on."""
    cache = TailCache(MIB)
    end = 0
    failures: list[BaseException] = []
    stop = threading.Event()

    def follow() -> None:
        try:
            while not stop.is_set():
                known = end
                found = read(cache, max(0, known - 50), end_offset=known)
                if found is not None:
                    got = offsets(found)
                    assert got == list(range(got[0], found.next_offset))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=follow) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        append(cache, end, 30, value_bytes=100)
        end += 30
    stop.set()
    for thread in threads:
        thread.join()
    if failures:
        pytest.fail(repr(failures[0]))
