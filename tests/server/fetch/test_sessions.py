"""Fetch sessions as KIP-227 has them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from sparklog_server.fetch import sessions as sessions_module
from sparklog_server.fetch.sessions import (
    EVICTION_MS,
    FINAL_EPOCH,
    MAX_EPOCH,
    FetchContext,
    FetchSessions,
    PartitionAnswer,
    PartitionFetch,
)


def ids() -> Callable[[], int]:
    numbers: Iterator[int] = iter(range(100, 10_000))
    return lambda: next(numbers)


def make_sessions(slots: int = 10) -> FetchSessions:
    return FetchSessions(slots=slots, new_id=ids())


def wants(*keys: tuple[str, int], offset: int = 0) -> list[PartitionFetch]:
    return [
        PartitionFetch(topic=topic, partition=partition, offset=offset, max_bytes=100)
        for topic, partition in keys
    ]


def answered(context: FetchContext, **fields: int) -> list[PartitionAnswer]:
    values: dict[str, Any] = {"high_watermark": 10, "log_start_offset": 0, **fields}
    return [PartitionAnswer(topic=one.topic, partition=one.partition, **values) for one in context.fetches]


A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)


def open_session(sessions: FetchSessions, *keys: tuple[str, int], now_ms: int = 0) -> int:
    context = sessions.begin(0, 0, wants(*keys), [], now_ms=now_ms)
    session_id, answers = sessions.finish(context, answered(context), now_ms=now_ms)
    assert len(answers) == len(keys)
    return session_id


def keys_of(context: FetchContext) -> list[tuple[str, int]]:
    return [fetch.key for fetch in context.fetches]


def test_an_incremental_fetch_is_answered_with_news_only() -> None:
    sessions = make_sessions()
    session_id = open_session(sessions, A0, A1, B0)
    context = sessions.begin(session_id, 1, [], [], now_ms=1)
    assert keys_of(context) == [A0, A1, B0]
    assert sessions.finish(context, answered(context), now_ms=1) == (session_id, [])
    context = sessions.begin(session_id, 2, wants(A1, offset=5), [], now_ms=2)
    assert [fetch.offset for fetch in context.fetches] == [0, 5, 0]
    answers = answered(context)
    answers[1].size = 7
    answers[2].high_watermark = 11
    assert sessions.finish(context, answers, now_ms=2)[1] == answers[1:]


def test_a_new_log_start_is_news() -> None:
    sessions = make_sessions()
    session_id = open_session(sessions, A0)
    context = sessions.begin(session_id, 1, [], [], now_ms=1)
    assert len(sessions.finish(context, answered(context, log_start_offset=3), now_ms=1)[1]) == 1


def test_after_an_error_the_partition_is_told_again() -> None:
    sessions = make_sessions()
    session_id = open_session(sessions, A0)
    for epoch, error, news in ((1, 3, 1), (2, 3, 1), (3, 0, 1), (4, 0, 0)):
        context = sessions.begin(session_id, epoch, [], [], now_ms=1)
        answers = answered(context, error_code=error)
        assert len(sessions.finish(context, answers, now_ms=1)[1]) == news


def test_partitions_with_records_are_read_last_next_time() -> None:
    sessions = make_sessions()
    session_id = open_session(sessions, A0, A1, B0)
    context = sessions.begin(session_id, 1, [], [], now_ms=1)
    answers = answered(context)
    answers[0].size = 1
    sessions.finish(context, answers, now_ms=1)
    assert keys_of(sessions.begin(session_id, 2, [], [], now_ms=2)) == [A1, B0, A0]


def test_partitions_come_and_go() -> None:
    sessions = make_sessions()
    session_id = open_session(sessions, A0, A1)
    context = sessions.begin(session_id, 1, wants(B0), [A0, ("no", 1)], now_ms=1)
    assert keys_of(context) == [A1, B0]
    assert sessions.partition_count == 2
    _, answers = sessions.finish(context, answered(context), now_ms=1)
    assert [answer.topic for answer in answers] == ["b"]


def test_forgetting_everything_ends_the_session() -> None:
    sessions = make_sessions()
    session_id = open_session(sessions, A0)
    context = sessions.begin(session_id, 1, [], [A0], now_ms=1)
    assert sessions.finish(context, [], now_ms=1) == (0, [])
    assert (len(sessions), sessions.partition_count) == (0, 0)


def test_epochs_and_ids_that_do_not_fit_are_errors() -> None:
    sessions = make_sessions()
    session_id = open_session(sessions, A0)
    assert sessions.begin(session_id, 2, [], [], now_ms=1).error is ErrorCode.invalid_fetch_session_epoch
    assert sessions.begin(9, 1, [], [], now_ms=1).error is ErrorCode.fetch_session_id_not_found
    assert sessions.begin(session_id, 1, [], [], now_ms=1).error is ErrorCode.none
    assert sessions.begin(session_id, 1, [], [], now_ms=1).error is ErrorCode.invalid_fetch_session_epoch


def test_epochs_begin_anew_at_the_end_of_the_integers() -> None:
    sessions = make_sessions()
    session_id = open_session(sessions, A0)
    session = sessions.begin(session_id, 1, [], [], now_ms=1).session
    assert session is not None
    session.epoch = MAX_EPOCH
    assert sessions.begin(session_id, MAX_EPOCH, [], [], now_ms=1).error is ErrorCode.none
    assert sessions.begin(session_id, 1, [], [], now_ms=1).error is ErrorCode.none


def test_a_full_request_ends_the_session_that_it_names() -> None:
    sessions = make_sessions()
    session_id = open_session(sessions, A0)
    context = sessions.begin(session_id, FINAL_EPOCH, wants(A0), [], now_ms=1)
    assert sessions.finish(context, answered(context), now_ms=1)[0] == 0
    assert len(sessions) == 0
    first = open_session(sessions, A0)
    context = sessions.begin(first, 0, wants(A0), [], now_ms=1)
    second, _ = sessions.finish(context, answered(context), now_ms=1)
    assert second not in {0, first}
    assert len(sessions) == 1


def test_an_empty_request_makes_no_session() -> None:
    sessions = make_sessions()
    context = sessions.begin(0, 0, [], [], now_ms=0)
    assert sessions.finish(context, [], now_ms=0) == (0, [])


def test_without_slots_there_are_no_sessions() -> None:
    assert open_session(make_sessions(0), A0) == 0


def test_a_full_cache_gives_way_after_a_while_and_to_larger_ones() -> None:
    sessions = make_sessions(2)
    first = open_session(sessions, A0, now_ms=0)
    second = open_session(sessions, A0, A1, now_ms=1)
    assert open_session(sessions, A0, A1, B0, now_ms=100) == 0  # both are young
    late = EVICTION_MS + 50
    for session_id in (first, second):
        sessions.begin(session_id, 1, [], [], now_ms=late)  # both are in use
    assert open_session(sessions, A0, now_ms=late) == 0  # no larger than the smallest
    larger = open_session(sessions, A0, A1, B0, now_ms=late)
    assert larger != 0
    assert first not in sessions
    idle = open_session(sessions, A0, now_ms=2 * late + EVICTION_MS)
    assert idle != 0
    assert second not in sessions
    assert sessions.evictions == 2
    assert sessions.partition_count == 4


def test_remembered_partitions_are_bounded() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions_module, "MAX_PARTITIONS", 3)
        sessions = make_sessions()
        session_id = open_session(sessions, A0, A1)
        assert open_session(sessions, A0, A1) == 0
        context = sessions.begin(session_id, 1, wants(B0, ("c", 0)), [], now_ms=1)
        assert len(context.fetches) == 4
        assert sessions.finish(context, answered(context), now_ms=1)[0] == 0
        assert sessions.partition_count == 0


def test_ids_are_not_given_twice() -> None:
    numbers = iter([5, 5, 0, 6])
    sessions = FetchSessions(slots=3, new_id=lambda: next(numbers))
    assert open_session(sessions, A0) == 5
    assert open_session(sessions, A0) == 6


def test_a_session_knows_its_topics_by_name_or_by_id_and_never_changes_that() -> None:
    sessions = make_sessions()
    by_name = open_session(sessions, A0)
    context = sessions.begin(by_name, 1, [], [], now_ms=1, uses_topic_ids=True)
    assert context.error is ErrorCode.fetch_session_topic_id_error
    wanted = [PartitionFetch(topic="", topic_id=TOPIC_ID, partition=0, offset=0, max_bytes=100)]
    context = sessions.begin(0, 0, wanted, [], now_ms=1, uses_topic_ids=True)
    by_id, _ = sessions.finish(context, [by_id_answer("a")], now_ms=1)
    assert sessions.begin(by_id, 1, [], [], now_ms=1).error is ErrorCode.fetch_session_topic_id_error
    context = sessions.begin(by_id, 1, [], [], now_ms=1, uses_topic_ids=True)
    assert keys_of(context) == [(TOPIC_ID, 0)]
    # Its name is none of the session's business: it was not known, or the topic is gone.
    assert sessions.finish(context, [by_id_answer("")], now_ms=1)[1] == []
    context = sessions.begin(by_id, 2, [], [(TOPIC_ID, 0)], now_ms=1, uses_topic_ids=True)
    assert context.fetches == []
    assert by_id not in sessions
    assert sessions.size_bytes == 500 + len("a")  # the other's


TOPIC_ID = "T" * 22


def by_id_answer(topic: str) -> PartitionAnswer:
    return PartitionAnswer(topic=topic, topic_id=TOPIC_ID, partition=0, high_watermark=10)
