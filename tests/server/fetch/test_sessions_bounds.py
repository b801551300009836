"""What consumers can have the broker remember, and for how long."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparklog_server.cluster.leadership import Leadership
from sparklog_server.fetch.reader import StoredReader
from sparklog_server.fetch.service import WAITING_BYTES
from sparklog_server.fetch.sessions import PARTITION_BYTES, FetchSessions, PartitionAnswer
from sparklog_server.protocol.wire import SMALL_BYTES, HeldAnswer
from tests.server.api.fetching import FETCH, asked, fetch, partitions_of, request_fields, waiting
from tests.server.fetch.stored import TOPIC, StoredLog, stored_log
from tests.server.fetch.test_sessions import A0, A1, B0, ids, keys_of, make_sessions, open_session, wants
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient


def test_sessions_end_with_their_connection() -> None:
    sessions = make_sessions()
    first = sessions.begin(0, 0, wants(A0, A1), [], now_ms=0, owner=1)
    session_id, _ = sessions.finish(first, [], now_ms=0)
    other = open_session(sessions, B0)
    sessions.end_of(2)
    sessions.end_of(1)
    sessions.end_of(1)
    assert (len(sessions), sessions.partition_count) == (1, 1)
    assert sessions.begin(session_id, 1, [], [], now_ms=1).error.name == "fetch_session_id_not_found"
    assert keys_of(sessions.begin(other, 1, [], [], now_ms=1)) == [B0]


def test_a_session_belongs_to_the_connection_that_used_it_last() -> None:
    sessions = make_sessions()
    first = sessions.begin(0, 0, wants(A0), [], now_ms=0, owner=1)
    session_id, _ = sessions.finish(first, [], now_ms=0)
    sessions.begin(session_id, 1, [], [], now_ms=0, owner=2)
    sessions.end_of(1)
    assert len(sessions) == 1
    sessions.end_of(2)
    assert (len(sessions), sessions.partition_count, sessions.size_bytes) == (0, 0, 0)
    assert sessions.owner_count == 0


def test_sessions_have_a_bound_on_bytes() -> None:
    each = PARTITION_BYTES + 1
    sessions = FetchSessions(slots=10, new_id=ids(), max_bytes=3 * each)
    session_id = open_session(sessions, A0, A1)
    assert sessions.size_bytes == 2 * each
    too_much = sessions.begin(0, 0, wants(("c", 0), ("c", 1)), [], now_ms=0)
    assert sessions.finish(too_much, [], now_ms=0)[0] == 0  # no session: full requests
    assert sessions.begin(session_id, 1, wants(B0), [A1], now_ms=0).session is not None
    assert sessions.size_bytes == 2 * each
    grown = sessions.begin(session_id, 2, wants(("c", 0), ("c", 1)), [], now_ms=0)
    assert grown.session is None
    assert len(grown.fetches) == 4
    assert sessions.size_bytes == 0


def test_illegal_names_are_answered_and_not_remembered(
    client: WireClient, broker: RunningBroker, stored: StoredLog
) -> None:
    """Up to 32 KB each: a session kept them forever."""
    stored.append(1)
    bad = "!" * 30_000
    response = fetch(client, [*asked((0, 0)), *asked((7, 0), topic=bad)], session_epoch=0, max_wait=30_000)
    answers = {topic.topic: topic.partitions[0] for topic in response.responses}
    assert answers[bad].error_code == 3
    assert answers[TOPIC].error_code == 0
    assert response.session_id != 0
    assert broker.call_soon(lambda: broker.broker.fetches.sessions.partition_count) == 1
    again = fetch(client, asked((0, 0), topic=bad), session_id=response.session_id, session_epoch=1)
    assert bad in {topic.topic for topic in again.responses}


def test_a_client_that_leaves_takes_its_session_along(
    talk: Callable[[], WireClient], broker: RunningBroker, stored: StoredLog
) -> None:
    client = talk()
    assert fetch(client, asked((0, 0)), session_epoch=0).session_id != 0
    client.close()
    sessions = broker.broker.fetches.sessions
    while broker.call_soon(lambda: len(sessions)):  # the test's time-out is the limit
        pass
    assert sessions.size_bytes == 0


@pytest.mark.slow
def test_waiting_is_bounded(
    start_broker: Callable[..., RunningBroker], stored: StoredLog, tmp_path: Path
) -> None:
    """Beyond it, a fetch is answered soon instead of when there is something."""
    assert stored.state.log_end_offset == 0
    broker = start_broker({"sparklog.fetch.waiting.bytes": str(WAITING_BYTES)}, root=str(tmp_path / "log"))
    first, second = (WireClient(broker.host, broker.port) for _ in range(2))
    first.send(FETCH, 12, **request_fields(asked((0, 0)), max_wait=2**31 - 1))
    waiting(broker)
    assert broker.broker.fetches.waiting_bytes == WAITING_BYTES
    second.socket.settimeout(20)
    crowded = fetch(second, asked((0, 0)), max_wait=2**31 - 1)
    assert partitions_of(crowded)[0].error_code == 0
    for client in (first, second):
        client.socket.close()
    waiting(broker, 0)
    assert broker.broker.fetches.waiting_bytes == 0


def test_a_request_that_waits_keeps_no_more_than_it_needs(client: WireClient, broker: RunningBroker) -> None:
    """kio's entities take ten times as much as the bytes of the request."""

    def left() -> int:
        gc.collect()
        return sum(type(one).__name__ in {"FetchRequest", "FetchPartition"} for one in gc.get_objects())

    topics: list[Any] = asked(*((0, 0) for _ in range(50)), version=7)
    client.send(FETCH, 7, **request_fields(topics, max_wait=2**31 - 1))
    waiting(broker)
    del topics
    assert left() == 0


@pytest.mark.parametrize("size", [1, 100])
def test_what_was_parked_is_given_back(size: int, client: WireClient, broker: RunningBroker) -> None:
    fetch(client, asked(*((0, 0) for _ in range(size))), max_wait=1)
    assert broker.broker.fetches.waiting_bytes == 0


def test_what_is_kept_of_a_buffer_keeps_no_more(tmp_path: Path) -> None:
    """Of a small batch before one that does not fit only the small one: the cache counts what it is given."""
    with stored_log(tmp_path / "log") as stored:
        stored.append(1)
        stored.append(1, value_bytes=300_000)
        reader = StoredReader(stored.log.store, Leadership(1, stored.log))
        try:
            _, block = reader.read(TOPIC, stored.state, 0, max_bytes=200_000)
        finally:
            reader.close()
    assert block is not None
    assert block.end_offset == 1
    assert memoryview(block.data.obj).nbytes < 2 * len(block.data)


def test_what_is_said_of_thousands_counts_until_it_is_sent(
    client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what it was made of is gone by then: who reads slowly kept 300 bytes for each partition."""
    taken: list[tuple[int, int]] = []
    take = HeldAnswer.take

    async def noted(answer: HeldAnswer, size: int) -> None:
        taken.append((size, sum(type(one) is PartitionAnswer for one in gc.get_objects())))
        await take(answer, size)

    monkeypatch.setattr(HeldAnswer, "take", noted)
    fetch(client, asked((0, 0)), version=7)
    assert taken == []
    count = SMALL_BYTES // 30
    fetch(client, asked(*((1000 + one, 0) for one in range(count)), version=7), version=7)
    ((size, left),) = taken
    assert size >= 30 * count
    assert left < count  # of those before, and of other tests
