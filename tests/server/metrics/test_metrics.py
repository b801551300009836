"""Counters: what is counted where, and that nothing grows without bound."""

from sparklog_server.metrics import metrics as module
from sparklog_server.metrics.metrics import WINDOW_MS, Metrics


def test_a_topics_traffic_is_in_the_sum_too() -> None:
    metrics = Metrics()
    metrics.messages_in("t", 3, 100)
    metrics.messages_in("", 1, 10)  # a topic that does not exist
    metrics.bytes_out("t", 7)
    metrics.produce_request("t", failed=True)
    metrics.fetch_request("u")
    metrics.bytes_rejected("t", 9)
    assert (metrics.topics["t"].messages_in, metrics.topics["t"].bytes_in) == (3, 100)
    assert (metrics.all_topics.messages_in, metrics.all_topics.bytes_in) == (4, 110)
    assert (metrics.topics["t"].produce_requests, metrics.topics["t"].failed_produce_requests) == (1, 1)
    assert (metrics.all_topics.fetch_requests, metrics.all_topics.failed_fetch_requests) == (1, 0)
    assert (metrics.all_topics.bytes_out, metrics.topics["t"].bytes_rejected) == (7, 9)
    assert set(metrics.topics) == {"t", "u"}


def test_topics_that_are_gone_are_forgotten_and_the_sum_is_not() -> None:
    metrics = Metrics()
    metrics.messages_in("old", 1, 1)
    metrics.messages_in("new", 1, 1)
    metrics.forget_topics({"new"}.__contains__)
    assert set(metrics.topics) == {"new"}
    assert metrics.all_topics.messages_in == 2


def test_the_number_of_topics_is_bounded() -> None:
    metrics = Metrics()
    for number in range(module.MAX_TOPICS + 5):
        metrics.bytes_out(f"t{number}", 1)
    assert len(metrics.topics) == module.MAX_TOPICS
    assert metrics.all_topics.bytes_out == module.MAX_TOPICS + 5


def test_requests_by_api_version_and_error() -> None:
    metrics = Metrics()
    metrics.request("Produce", 5.0, version=9, queue_ms=1.0, error=0)
    metrics.request("Produce", 7.0, version=9, error=3)
    counters = metrics.requests["Produce"]
    assert counters.by_version == {9: 2}
    assert counters.errors == {0: 1, 3: 1}
    assert (counters.total.count, counters.total.total, counters.queue.total) == (2, 12.0, 1.0)


def test_windows_end_with_the_clock() -> None:
    metrics = Metrics()
    metrics.tick(0)
    metrics.loop_lag.record(50)
    metrics.tick(WINDOW_MS - 1)
    metrics.tick(WINDOW_MS)
    assert metrics.loop_lag.quantiles([0.5]) == [50], "the window that ended still shows"
    metrics.tick(2 * WINDOW_MS)
    assert metrics.loop_lag.quantiles([0.5]) == [0]
    metrics.loop_lag.record(50)
    metrics.tick(9 * WINDOW_MS)
    assert metrics.loop_lag.quantiles([0.5]) == [0], "nobody looked for a long time"
