"""Only what has consumers is kept in memory."""

from sparklog_server.fetch.cache import FOLLOWED_MS, FollowedPartitions


def test_followed_for_a_while_after_each_read() -> None:
    now = [1_000]
    followed = FollowedPartitions(lambda: now[0])
    assert not followed.is_followed("t", 0)
    followed.note("t", 0)
    assert followed.is_followed("t", 0)
    assert not followed.is_followed("t", 1)
    now[0] += FOLLOWED_MS
    assert followed.is_followed("t", 0)
    now[0] += 1
    assert not followed.is_followed("t", 0)
    followed.note("t", 0)
    assert followed.is_followed("t", 0)


def test_partitions_that_nobody_reads_any_more_are_forgotten() -> None:
    now = [0]
    followed = FollowedPartitions(lambda: now[0])
    for minute in range(60):
        now[0] = minute * 60_000
        for partition in range(100):
            followed.note("t", 100 * minute + partition)
    assert len(followed) <= 2 * 100 * (FOLLOWED_MS // 60_000 + 1)
    assert followed.is_followed("t", 100 * 59)
