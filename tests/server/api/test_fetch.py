"""Fetch: every version, limits, sessions, errors."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparklog.errors import StorageError
from sparklog.metadata import plan_advance_log_start
from sparklog_server.api import fetch as fetch_api
from tests.server.api.fetching import FETCH, asked, fetch, offsets, partitions_of
from tests.server.fetch.stored import TOPIC, StoredLog, encoded
from tests.support.running_broker import RunningBroker
from tests.support.told import Told
from tests.support.wire_client import WireClient, request_types


@pytest.mark.parametrize("version", range(4, 18))
def test_every_version(client: WireClient, stored: StoredLog, version: int) -> None:
    stored.append(30)
    stored.append(20, partition=2)
    topic_id = stored.state.topic_id
    topics = asked((0, 7), (1, 0), (2, 0), version=version, topic_id=topic_id)
    response = fetch(client, topics, version=version)
    found = partitions_of(response)
    assert offsets(found[0])[-1] == 29
    assert not found[1].records
    assert offsets(found[2]) == list(range(20))
    assert [found[n].high_watermark for n in range(3)] == [30, 0, 20]
    assert found[0].last_stable_offset == 30
    assert found[0].aborted_transactions == ()
    if version >= 5:
        assert found[0].log_start_offset == 0


def test_isolation_levels_differ_in_the_list_of_aborted_transactions(
    client: WireClient, stored: StoredLog
) -> None:
    stored.append(3)
    response = fetch(client, asked((0, 0)), isolation_level=0)
    assert partitions_of(response)[0].aborted_transactions is None
    assert offsets(partitions_of(response)[0]) == [0, 1, 2]


def test_bytes_are_limited_per_partition_and_over_all(client: WireClient, stored: StoredLog) -> None:
    for partition in range(3):
        stored.append(200, partition=partition, value_bytes=100)
    found = partitions_of(fetch(client, asked((0, 0, 3000), (1, 0, 3000), (2, 0))))
    assert 2000 < len(found[0].records) <= 3000
    assert 2000 < len(found[1].records) <= 3000
    assert offsets(found[2])[-1] == 199
    found = partitions_of(fetch(client, asked((0, 0), (1, 0), (2, 0)), max_bytes=30_000))
    sizes = [len(found[n].records) for n in range(3)]
    assert sizes[0] > 20_000
    assert sum(sizes) <= 30_000


def test_the_first_batch_comes_even_if_it_is_larger(client: WireClient, stored: StoredLog) -> None:
    stored.append(50, partition=1, value_bytes=500, batch_bytes=100_000)
    stored.append(50, partition=2, value_bytes=500, batch_bytes=100_000)
    found = partitions_of(fetch(client, asked((0, 0, 1), (1, 0, 1), (2, 0, 1)), max_bytes=10))
    assert not found[0].records
    assert offsets(found[1]) == list(range(50))
    assert not found[2].records


def test_the_brokers_own_limit(start_broker: Callable[..., RunningBroker], stored: StoredLog) -> None:
    stored.append(500, value_bytes=100)
    small = start_broker({"fetch.max.bytes": "2000"})
    client = WireClient(small.host, small.port)
    assert len(partitions_of(fetch(client, asked((0, 0))))[0].records) <= 2000
    client.close()


def test_what_is_being_sent_counts(
    client: WireClient, broker: RunningBroker, stored: StoredLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While slow consumers hold much, everybody gets a batch at a time."""
    stored.append(500, value_bytes=100)
    service = broker.broker.fetches
    monkeypatch.setattr(service, "in_flight_bytes", broker.broker.config.fetch.fetch_buffer_bytes)
    found = partitions_of(fetch(client, asked((0, 0))))
    assert 0 < len(found[0].records) < 1000
    fetch(client, asked((0, 500)))  # the answer before is no longer counted by now
    monkeypatch.setattr(service, "in_flight_bytes", 0)
    assert offsets(partitions_of(fetch(client, asked((0, 0))))[0])[-1] == 499
    fetch(client, asked((0, 500)))  # the answers before have been sent by now
    assert service.in_flight_bytes == 0


def test_the_second_consumer_reads_from_memory(
    client: WireClient, broker: RunningBroker, stored: StoredLog
) -> None:
    stored.append(50)
    assert offsets(partitions_of(fetch(client, asked((0, 0))))[0]) == list(range(50))
    stored.log.store.delete(stored.state.extents[0].segment)
    assert offsets(partitions_of(fetch(client, asked((0, 20))))[0])[-1] == 49
    assert broker.broker.metrics.cache_hits == 1


def test_appends_without_a_consumer_are_not_copied(
    client: WireClient, broker: RunningBroker, stored: StoredLog
) -> None:
    fetches, topic_id = broker.broker.fetches, stored.state.topic_id
    fetches.on_appended(topic_id, 1, 0, encoded(0, 5))
    assert fetches.cache.size_bytes == 0
    stored.append(5, partition=1)
    fetch(client, asked((1, 0)))
    held = fetches.cache.size_bytes
    assert held > 0  # what was read
    fetches.on_appended(topic_id, 0, 0, encoded(0, 5))
    assert fetches.cache.size_bytes == held
    fetches.on_appended(topic_id, 1, 5, encoded(0, 5))
    assert fetches.cache.size_bytes > held


def test_errors_are_told_per_partition_and_at_once(client: WireClient, stored: StoredLog) -> None:
    stored.append(10)
    stored.append(10, partition=1)
    topics = [*asked((0, 11), (1, 0), (9, 0), (-1, 0), (2, -5)), *asked((0, 0), topic="none")]
    response = fetch(client, topics, max_wait=30_000, min_bytes=1 << 20)
    events, none = response.responses
    errors = {one.partition_index: int(one.error_code) for one in events.partitions}
    assert errors == {0: 1, 1: 0, 9: 3, -1: 3, 2: 1}
    assert none.partitions[0].error_code == 3
    assert events.partitions[0].log_start_offset == 0
    assert offsets(events.partitions[1]) == list(range(10))


def test_offsets_before_the_log_start(client: WireClient, stored: StoredLog) -> None:
    stored.append(10)
    action = plan_advance_log_start(stored.log.refresh(), stored.state.topic_id, 0, 4)
    assert action is not None
    stored.log.metadata.publish(lambda _: [action])
    stored.after_append()
    found = partitions_of(fetch(client, asked((0, 3))))[0]
    assert (found.error_code, found.log_start_offset, found.high_watermark) == (1, 4, 10)


def test_leader_epochs(client: WireClient, stored: StoredLog) -> None:
    stored.append(3)
    errors = [
        int(partitions_of(fetch(client, asked((0, 0), epoch=epoch)))[0].error_code)
        for epoch in (-1, 0, 1, 2, -2)
    ]
    assert errors == [0, 74, 0, 75, 74]


def test_an_offset_that_only_another_process_knows_is_looked_up(
    start_broker: Callable[..., RunningBroker], stored: StoredLog
) -> None:
    """The broker's image is old: that must not reset the consumer's position."""
    slow = start_broker({"sparklog.metadata.poll.ms": "60000", "broker.session.timeout.ms": "600000"})
    client = WireClient(slow.host, slow.port)
    stored.append(10)
    assert partitions_of(fetch(client, asked((0, 10))))[0].error_code == 0
    assert partitions_of(fetch(client, asked((0, 11))))[0].error_code == 1
    client.close()


def test_an_offset_that_cannot_be_looked_up_is_nobodys_to_refuse(
    client: WireClient, stored: StoredLog, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OFFSET_OUT_OF_RANGE would have the consumer do what auto.offset.reset says."""

    def refresh(*, force: bool = False) -> None:
        raise StorageError("STORE_UNAVAILABLE", "found no storage", fix="wait for it")

    stored.append(10)
    monkeypatch.setattr(broker.broker.root.log, "refresh", refresh)
    answers = [partitions_of(fetch(client, asked((0, offset))))[0].error_code for offset in (10, 11)]
    epochs = partitions_of(fetch(client, asked((0, 10), epoch=2)))[0].error_code
    monkeypatch.undo()
    assert (answers, epochs) == ([0, 6], 6)


def test_a_forged_replica_id_is_refused(client: WireClient, stored: StoredLog) -> None:
    """CVE-2018-1288: a client that says it is a broker."""
    stored.append(3)
    for replica_id in (0, 1, -2):
        found = partitions_of(fetch(client, asked((0, 0)), replica_id=replica_id))[0]
        assert found.error_code == 29
        assert not found.records


def test_damaged_and_missing_segments_harm_no_other_partition(
    client: WireClient, stored: StoredLog, told: Told
) -> None:
    for partition in range(3):
        stored.append(10, partition=partition)
        stored.log.close()  # a segment each
    image = stored.log.refresh()
    gone, damaged = (image.topics[TOPIC].partitions[n].extents[0].segment for n in (0, 1))
    store: Any = stored.log.store
    store.delete(gone)
    with open(f"{store.root}/{damaged}", "r+b") as file:
        file.seek(8)
        file.write(b"\x00\x00\x00\x01")
    found = partitions_of(fetch(client, asked((0, 0), (1, 0), (2, 0))))
    assert [int(found[n].error_code) for n in range(3)] == [56, 2, 0]
    assert offsets(found[2]) == list(range(10))
    logged = told("sparklog_server.fetch")
    assert any(f"{gone}@0" in message for message in logged)
    assert any(f"{damaged}@0" in message for message in logged)


def test_a_session(client: WireClient, broker: RunningBroker, stored: StoredLog) -> None:
    stored.append(5)
    response = fetch(client, asked((0, 0), (1, 0)), session_epoch=0)
    session_id = response.session_id
    assert session_id > 0
    assert sorted(partitions_of(response)) == [0, 1]
    response = fetch(client, asked((0, 5)), session_id=session_id, session_epoch=1)
    assert (response.session_id, response.responses) == (session_id, ())
    stored.append(5, partition=1)
    response = fetch(client, [], session_id=session_id, session_epoch=2, max_wait=30_000)
    assert list(partitions_of(response)) == [1]
    assert offsets(partitions_of(response)[1]) == [0, 1, 2, 3, 4]
    forgotten = request_types(FETCH, 12).ForgottenTopic(topic=TOPIC, partitions=(1,))
    response = fetch(client, [], session_id=session_id, session_epoch=3, forgotten_topics_data=[forgotten])
    assert (response.session_id, response.responses) == (session_id, ())
    response = fetch(client, asked((0, 0)), session_id=session_id, session_epoch=-1)
    assert response.session_id == 0
    assert offsets(partitions_of(response)[0]) == [0, 1, 2, 3, 4]
    assert len(broker.broker.fetches.sessions) == 0


def test_sessions_that_are_unknown_or_out_of_step(client: WireClient, stored: StoredLog) -> None:
    stored.append(5)
    response = fetch(client, [], session_id=77, session_epoch=1)
    assert (response.error_code, response.session_id, response.responses) == (70, 0, ())
    session_id = fetch(client, asked((0, 0)), session_epoch=0).session_id
    response = fetch(client, [], session_id=session_id, session_epoch=5)
    assert (response.error_code, response.responses) == (71, ())


def test_partitions_take_turns_in_a_session(client: WireClient, stored: StoredLog) -> None:
    """With room for one partition's batch, each poll serves the next."""
    for partition in range(3):
        stored.append(10, partition=partition)
    session_id = fetch(client, asked((0, 0), (1, 0), (2, 0)), session_epoch=0, max_bytes=1).session_id
    served = []
    for epoch in range(1, 7):
        response = fetch(client, [], session_id=session_id, session_epoch=epoch, max_bytes=1)
        served += [number for number, one in partitions_of(response).items() if one.records]
    assert served == [0, 1, 2, 0, 1, 2]


def test_traffic_is_counted(client: WireClient, broker: RunningBroker, stored: StoredLog) -> None:
    stored.append(10)
    response = fetch(client, [*asked((0, 0), (1, 0)), *asked((0, 0), topic="none")])
    size = len(partitions_of_topic(response, TOPIC)[0].records)
    metrics = broker.broker.metrics
    assert metrics.topics[TOPIC].bytes_out == size
    assert metrics.all_topics.failed_fetch_requests == 1


def partitions_of_topic(response: Any, topic: str) -> list[Any]:
    return [one for entry in response.responses if entry.topic == topic for one in entry.partitions]


def test_the_docstring_names_the_versions() -> None:
    assert "versions 4-17" in (fetch_api.__doc__ or "")


def test_merged_segments_are_sent_from_their_file(client: WireClient, stored: StoredLog) -> None:
    stored.append(2000, value_bytes=200)
    stored.append(2000, value_bytes=200, partition=1)
    stored.merge()
    stored.after_append()
    offset, seen = 0, []
    while offset < 2000:
        found = partitions_of(fetch(client, asked((0, offset, 150_000), (1, 1990))))
        # Sent as they are stored, under the epoch that they were stored with.
        seen += [one for one in offsets(found[0], leader_epoch=0) if one >= offset]
        offset = seen[-1] + 1
        assert offsets(found[1])[-1] == 1999
    assert seen == list(range(2000))


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_no_request_breaks_the_handler(client: WireClient, stored: StoredLog, data: st.DataObject) -> None:
    """Numbers from all over their range, for a topic that exists: there is an answer every time."""
    if stored.state.log_end_offset == 0:
        stored.append(20)
    int32, int64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
    small = st.integers(-2, 30)
    partitions = data.draw(
        st.lists(st.tuples(small | int32, small | int64, small | int32), max_size=5), label="partitions"
    )
    fields = {
        "max_wait": data.draw(st.integers(-(2**31), 1)),
        "min_bytes": data.draw(small | int32),
        "max_bytes": data.draw(small | int32),
        "isolation_level": data.draw(st.integers(-128, 127)),
        "session_id": data.draw(st.sampled_from([0, 1, -1]) | int32),
        "session_epoch": data.draw(st.sampled_from([-1, 0, 1]) | int32),
    }
    response = fetch(client, asked(*partitions, epoch=data.draw(small)), **fields)
    assert response.error_code in {0, 70, 71}
    for one in partitions_of(response).values():
        assert one.error_code in {0, 1, 3, 74, 75}
        if one.records:
            offsets(one)
