"""/metrics, /health and /ready of a running broker: every name is fed by something that happened."""

import contextlib
import http.client
import json
import re
import shutil
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

import sparklog
from sparklog.client.lag import LagHistory
from sparklog.console import app as console_app
from sparklog.errors import InvalidRequestError
from sparklog_server.http import endpoint
from sparklog_server.http.endpoint import MAX_CONNECTIONS
from sparklog_server.observe.collector import describe_metrics
from sparklog_server.runtime.lifecycle import BrokerState
from sparklog_server.settings.config import ServerConfig
from tests.server.groups.test_coordinator import to_commit
from tests.support.broker_process import BrokerProcess
from tests.support.running_broker import RunningBroker

Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]
ON = {"sparklog.http.listener": "127.0.0.1:0"}


@pytest.fixture
def broker(start_broker: Callable[..., RunningBroker]) -> RunningBroker:
    return start_broker(ON)


def get(broker: RunningBroker, path: str, accept: str = "") -> tuple[int, str]:
    assert broker.broker.http.address is not None
    host, port = broker.broker.http.address
    request = urllib.request.Request(f"http://{host}:{port}{path}", headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def scrape(broker: RunningBroker) -> Samples:
    status, text = get(broker, "/metrics")
    assert status == 200
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            rows = found.setdefault(sample.name, {})
            key = tuple(sorted(sample.labels.items()))
            assert key not in rows, f"{sample.name}{sample.labels} twice"
            rows[key] = sample.value
    return found


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name][tuple(sorted(labels.items()))]


def produce(broker: RunningBroker, topic: str, count: int, **settings: Any) -> list[Any]:
    outcomes: list[Any] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, **settings})
    for number in range(count):
        producer.produce(
            topic, f"value {number}", partition=0, on_delivery=lambda error, _: outcomes.append(error)
        )
    assert producer.flush(30) == 0
    return outcomes


@pytest.fixture
def consumer(broker: RunningBroker) -> Iterator[Consumer]:
    """A member of the group "readers"."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "readers", "auto.offset.reset": "earliest",
         "enable.auto.commit": False, "fetch.wait.max.ms": 50}
    )  # fmt: skip
    yield consumer
    consumer.close()


def consume(consumer: Consumer, topic: str, count: int) -> None:
    consumer.subscribe([topic])
    read = 0
    while read < count:
        for message in consumer.consume(count - read, timeout=10):
            assert message.error() is None, message.error()
            read += 1
    consumer.commit(asynchronous=False)


@pytest.mark.slow
def test_after_traffic_the_numbers_are_those_of_the_traffic(
    broker: RunningBroker, consumer: Consumer
) -> None:
    log = sparklog.open(broker.root, create=False)
    log.create_topic("events", 2)
    assert produce(broker, "events", 10) == [None] * 10
    consume(consumer, "events", 10)
    produce(broker, "events", 5)
    seen = scrape(broker)

    events = {"topic": "events"}
    assert value(seen, "kafka_server_brokertopicmetrics_messagesin_total", **events) == 15
    assert value(seen, "kafka_server_brokertopicmetrics_messagesin_total") >= 15
    stored = log.describe_topic("events").partitions[0].size_bytes
    assert value(seen, "kafka_server_brokertopicmetrics_bytesin_total", **events) == stored
    assert value(seen, "kafka_server_brokertopicmetrics_bytesout_total", **events) > 0
    assert value(seen, "kafka_server_brokertopicmetrics_totalproducerequests_total", **events) >= 2
    assert value(seen, "kafka_server_brokertopicmetrics_totalfetchrequests_total", **events) >= 1
    assert value(seen, "kafka_server_brokertopicmetrics_failedproducerequests_total", **events) == 0

    where = {"topic": "events", "partition": "0"}
    assert value(seen, "kafka_log_log_size", **where) == stored
    assert value(seen, "kafka_topic_partitions", **events) == 2
    assert value(seen, "kafka_topic_partition_current_offset", **where) == 15
    assert value(seen, "kafka_topic_partition_oldest_offset", **where) == 0
    assert value(seen, "kafka_topic_partition_in_sync_replica", **where) == 1

    readers = {"consumergroup": "readers"}
    assert value(seen, "kafka_consumergroup_current_offset", **readers, **where) == 10
    assert value(seen, "kafka_consumergroup_lag", **readers, **where) == 5
    assert value(seen, "kafka_consumergroup_lag_sum", **readers) == 5
    assert value(seen, "kafka_consumergroup_members", **readers) == 1
    assert 0 <= value(seen, "sparklog_consumergroup_lag_seconds", **readers, **where) < 60
    assert value(seen, "sparklog_groups", state="Stable") == 1

    for api in ("Produce", "Fetch", "Metadata", "JoinGroup", "OffsetCommit"):
        requests = {key: count for key, count in seen["kafka_network_requestmetrics_requests_total"].items()
                    if ("request", api) in key}  # fmt: skip
        assert sum(requests.values()) >= 1, api
        assert value(seen, "kafka_network_requestmetrics_totaltimems_count", request=api) == sum(
            requests.values()
        )
        assert value(seen, "kafka_network_requestmetrics_totaltimems", request=api, quantile="0.99") > 0
    assert value(seen, "sparklog_publish_parts_total") >= 2
    assert value(seen, "kafka_log_logflushstats_logflushrateandtimems_count") >= 2
    assert value(seen, "sparklog_publish_ms", quantile="0.50") > 0
    assert value(seen, "kafka_server_socket_server_metrics_connection_count") >= 1
    assert value(seen, "sparklog_connections_accepted_total") >= 2
    assert value(seen, "sparklog_storage_call_ms_count") >= 1


def test_the_cluster_is_one_broker_that_leads_everything(broker: RunningBroker) -> None:
    broker.beside().create_topic("t", 3)
    seen = scrape(broker)
    ones = "activecontrollercount", "activebrokercount", "globaltopiccount"
    assert [value(seen, f"kafka_controller_kafkacontroller_{name}") for name in ones] == [1, 1, 1]
    nones = "fencedbrokercount", "preferredreplicaimbalancecount"
    assert [value(seen, f"kafka_controller_kafkacontroller_{name}") for name in nones] == [0, 0]
    assert value(seen, "kafka_controller_controllerstats_leaderelectionrateandtimems_count") == 1
    assert value(seen, "kafka_brokers") == 1
    threes = "kafka_server_replicamanager_partitioncount", "kafka_server_replicamanager_leadercount"
    assert [value(seen, name) for name in threes] == [3, 3]
    assert [value(seen, name) for name in FAILURES] == [0] * len(FAILURES)
    assert seen["sparklog_broker_state"] == {(("state", "RUNNING"),): 1}
    for idle in (
        "kafka_network_socketserver_networkprocessoravgidle_percent",
        "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
    ):
        assert 0 <= value(seen, idle) <= 1


FAILURES = (
    "kafka_server_replicamanager_underreplicatedpartitions",
    "kafka_server_replicamanager_underminisrpartitioncount",
    "kafka_controller_kafkacontroller_offlinepartitionscount",
    "kafka_server_replicamanager_offlinereplicacount",
    "kafka_log_logmanager_offlinelogdirectorycount",
)


def test_a_root_that_goes_away_is_seen(broker: RunningBroker) -> None:
    broker.beside().create_topic("t", 3)
    broker.call_soon(broker.broker.follower.stop)  # it would stop the broker once it sees no log any more
    away = shutil.move(broker.root, f"{broker.root}-away")
    try:
        seen = scrape(broker)
        assert [value(seen, name) for name in FAILURES] == [3, 3, 3, 3, 1]
        assert value(seen, "kafka_topic_partition_in_sync_replica", topic="t", partition="0") == 0
        assert value(seen, "kafka_topic_partition_under_replicated_partition", topic="t", partition="0") == 1
        status, text = get(broker, "/ready")
        assert status == 503
        assert "the root is not visible" in json.loads(text)["problems"]
        assert get(broker, "/health")[0] == 200, "a restart would not bring the root back"
    finally:
        shutil.move(away, broker.root)
    assert [value(scrape(broker), name) for name in FAILURES] == [0] * len(FAILURES)


def test_what_is_refused_is_counted(broker: RunningBroker) -> None:
    log = sparklog.open(broker.root, create=False)
    log.create_topic("small", configs={"max.message.bytes": "100"})
    with pytest.raises(KafkaException):
        raise KafkaException(
            produce(broker, "small", 1, **{"message.max.bytes": 1_000_000})[0] or big(broker)
        )
    seen = scrape(broker)
    assert value(seen, "kafka_server_brokertopicmetrics_failedproducerequests_total", topic="small") >= 1
    assert value(seen, "kafka_server_brokertopicmetrics_bytesrejected_total", topic="small") > 1000


def big(broker: RunningBroker) -> Any:
    """What becomes of a record that is too large for the topic."""
    outcomes: list[Any] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("small", b"x" * 2000, on_delivery=lambda error, _: outcomes.append(error))
    producer.flush(30)
    assert outcomes[0] is not None
    return outcomes[0]


def test_alive_and_ready(broker: RunningBroker) -> None:
    assert get(broker, "/health") == (200, '{"status":"ok","state":"RUNNING"}')
    assert get(broker, "/ready") == (200, '{"status":"ready","state":"RUNNING","problems":[]}')
    assert get(broker, "/else")[0] == 404


def test_a_failed_broker_is_not_healthy(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker.broker.lifecycle, "state", BrokerState.FAILED)
    monkeypatch.setattr(broker.broker.lifecycle, "failure", RuntimeError("the disk is gone"))
    status, text = get(broker, "/health")
    assert (status, json.loads(text)["problem"]) == (503, "the disk is gone")
    assert get(broker, "/ready")[0] == 503
    monkeypatch.undo()


def test_a_broker_that_was_overtaken_is_not_ready(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker.broker.membership, "registration", None)
    status, text = get(broker, "/ready")
    assert (status, json.loads(text)["problems"]) == (
        503,
        ["the broker is fenced, or another process has its node id"],
    )
    seen = scrape(broker)
    assert value(seen, "kafka_controller_kafkacontroller_activecontrollercount") == 0
    monkeypatch.undo()


def test_openmetrics_is_understood_as_well(broker: RunningBroker) -> None:
    status, text = get(broker, "/metrics", accept="application/openmetrics-text; version=1.0.0")
    assert status == 200
    assert text.endswith("# EOF\n")


def test_lag_in_seconds_is_the_age_of_what_was_not_read(broker: RunningBroker) -> None:
    log = sparklog.open(broker.root, create=False)
    log.create_topic("t")
    now_ms = broker.broker.clock.now_ms()
    for age_ms in (500_000, 100_000):
        log.append("t", pa.table({"value": ["v"], "timestamp": [now_ms - age_ms]}))
    reset = to_commit(-1, "t"), to_commit(-2, "t", 1)
    for group, offset in (("behind", 0), ("nearly", 1), ("there", 2)):
        log.commit_offsets(group, {("t", 0): offset})
    broker.settle()
    for one in reset:  # an administrator's: no offset, and no lag
        assert broker.call(broker.broker.groups.commit("reset", one)) == 0
    lags: dict[str, float] = {}
    while len(lags) < 3:  # the coordinator follows the log
        seen = scrape(broker).get("sparklog_consumergroup_lag_seconds", {})
        lags = {dict(key)["consumergroup"]: lag for key, lag in seen.items()}
    assert 500 <= lags["behind"] < 560
    assert 100 <= lags["nearly"] < 160
    assert lags["there"] == 0
    assert "reset" not in lags


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
@pytest.mark.parametrize("host", ["", "[::]"])
def test_everywhere_is_every_address_of_both_families(
    start_broker: Callable[..., RunningBroker], host: str
) -> None:
    broker = start_broker({"sparklog.http.listener": f"{host}:0"})
    assert broker.broker.http.address is not None
    port = broker.broker.http.address[1]
    for address in ("127.0.0.1", "[::1]"):
        with urllib.request.urlopen(f"http://{address}:{port}/health", timeout=30) as answer:
            assert answer.status == 200


def test_it_is_off_unless_it_is_set(start_broker: Callable[..., RunningBroker]) -> None:
    assert start_broker().broker.http.address is None


@pytest.mark.parametrize("text", ["9404", "host:", ":x", "a:1,b:2", "127.0.0.1:70000"])
def test_a_listener_that_is_none(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"sparklog\.http\.listener"):
        ServerConfig.parse({"sparklog.http.listener": text})


def test_a_port_that_is_taken_stops_the_start(start_process: Callable[..., BrokerProcess]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(RuntimeError) as caught:
        start_process("--override", f"sparklog.http.listener=127.0.0.1:{taken.getsockname()[1]}")
    assert "already in use" in str(caught.value)


def test_what_is_documented_is_served_and_the_other_way_round(broker: RunningBroker) -> None:
    status, text = get(broker, "/metrics")
    assert status == 200
    served = set(re.findall(r"^# HELP (\S+) ", text, re.MULTILINE))
    served = {name for name in served if not name.endswith("_count") and not name.startswith("process_")}
    gauges_of_counts = {
        "kafka_server_socket_server_metrics_connection_count",
        "kafka_log_logcleanermanager_uncleanable_partitions_count",
    }
    assert all(f"# HELP {name} " in text for name in gauges_of_counts)
    assert set(re.findall(r"^\|`(\w+)`\|", describe_metrics(), re.MULTILINE)) == served | gauges_of_counts


# --- connections that do nothing ------------------------------------------------------------------------


def idle_connections(broker: RunningBroker, count: int, sent: bytes = b"") -> list[socket.socket]:
    assert broker.broker.http.address is not None
    opened = [socket.create_connection(broker.broker.http.address, timeout=30) for _ in range(count)]
    for one in opened:
        one.sendall(sent)
    return opened


@pytest.mark.parametrize("sent", [b"", b"GET /health HT"])
def test_idle_connections_do_not_make_a_broker_ill(broker: RunningBroker, sent: bytes) -> None:
    """Forty of them had /health answer 503, and an orchestrator restart the broker."""
    idle = idle_connections(broker, 2 * MAX_CONNECTIONS, sent)
    try:
        assert get(broker, "/health")[0] == 200
        assert get(broker, "/metrics")[0] == 200
        assert broker.call_soon(lambda: broker.broker.http.connection_count) <= MAX_CONNECTIONS + 1
    finally:
        for one in idle:
            one.close()


def test_a_connection_without_a_request_ends(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "IDLE_SECONDS", 0.01)
    (silent,) = idle_connections(broker, 1)
    try:
        with contextlib.suppress(ConnectionResetError):
            assert silent.recv(1) == b""
    finally:
        silent.close()


def test_the_console_shows_what_the_broker_serves(broker: RunningBroker) -> None:
    assert produce(broker, "shown", 3) == [None] * 3
    for path in ("/", "/console", "/console/"):
        status, text = get(broker, path)
        assert (status, "Overview · sparklog" in text) == (200, True), path
    status, text = get(broker, "/console/topics")
    assert 'href="/console/topics/shown"' in text
    status, text = get(broker, "/console/api/v1/topics/shown")
    assert (status, json.loads(text)["records"]) == (200, 3)
    (row,) = json.loads(get(broker, "/console/api/v1/overview")[1])["brokers"]
    assert (row["state"], row["is_controller"]) == ("running", True)


def test_the_console_answers_only_by_names_of_the_broker(
    start_broker: Callable[..., RunningBroker],
) -> None:
    named = {
        "sparklog.console.hosts": "logs.example, Other.example",
        "advertised.listeners": "PLAINTEXT://kafka.example:9092",
    }
    broker = start_broker(ON | named)

    def status(path: str, host: str) -> tuple[int, str]:
        assert broker.broker.http.address is not None
        connection = http.client.HTTPConnection(*broker.broker.http.address, timeout=30)
        with contextlib.closing(connection):
            connection.request("GET", path, headers={"Host": host})
            answer = connection.getresponse()
            return answer.status, answer.headers.get("location", "") + answer.read().decode()

    overview = "/console/api/v1/overview"
    known = ("127.0.0.1:1", "[::1]", "localhost", socket.gethostname(), "kafka.example:9404", "other.example")
    for host in known:
        assert status(overview, host)[0] == 200, host
    code, text = status(overview, "evil.example")
    assert (code, "sparklog.console.hosts" in text) == (400, True)
    for path in ("/metrics", "/health", "/ready"):
        assert status(path, "a-service.example")[0] == 200, path
    for path in ("/", "/console"):
        assert status(path, "localhost") == (307, "/console/")
    assert status("/console/topics/", "localhost") == (307, "/console/topics")


def test_a_resolver_that_does_not_answer_stops_no_broker(
    start_broker: Callable[..., RunningBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()

    def getfqdn() -> str:
        answers.wait(30)
        raise UnicodeError("label empty or too long")

    monkeypatch.setattr(endpoint, "NAME_SECONDS", 0.01)
    monkeypatch.setattr(socket, "getfqdn", getfqdn)
    try:
        for _ in range(2):  # late, then wrong
            broker = start_broker(ON)
            assert get(broker, "/console/api/v1/overview")[0] == 200
            answers.set()
            broker.stop()
            monkeypatch.setattr(endpoint, "NAME_SECONDS", 30)
    finally:
        answers.set()


def test_names_of_the_console_are_checked() -> None:
    with pytest.raises(InvalidRequestError, match=r"sparklog\.console\.hosts: found 'https://a'"):
        ServerConfig.parse({"sparklog.console.hosts": "b, https://a"})


def test_records_are_shown_only_if_they_are_asked_for(
    start_broker: Callable[..., RunningBroker], tmp_path: Path
) -> None:
    masks = tmp_path / "masks.json"
    masks.write_text('[{"regex": "4[0-9]+"}]')
    shown = {"sparklog.console.messages": "true", "sparklog.console.masks": str(masks)}
    for settings, status in (({}, 404), (shown, 200)):
        broker = start_broker(ON | settings)
        with broker.beside() as log:
            log.append("orders", pa.table({"value": ["card 4111"]}))
        broker.settle()
        found, text = get(broker, "/console/api/v1/topics/orders/messages")
        assert found == status
        if found == 200:
            assert {one["value"]["text"] for one in json.loads(text)["messages"]} == {"card ***"}
            assert get(broker, "/console/topics/orders/messages/0/0")[0] == 200
        broker.stop()


def test_the_console_keeps_the_lag_of_groups_while_the_broker_runs(
    start_broker: Callable[..., RunningBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = threading.Event()

    class Watched(LagHistory):
        def sample(self, log: sparklog.SparkLog, **given: Any) -> bool:
            taken = super().sample(log, **given)
            if self.groups():
                seen.set()
            return taken

    monkeypatch.setattr(console_app, "LagHistory", lambda: Watched(interval_ms=50))
    broker = start_broker(ON)
    assert produce(broker, "kept", 5) == [None] * 5
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "readers"})
    consumer.commit(offsets=[TopicPartition("kept", 0, 2)], asynchronous=False)
    consumer.close()
    assert seen.wait(30)
    points = json.loads(get(broker, "/console/api/v1/groups/readers/history")[1])["points"]
    assert {one["lag"] for one in points} == {3}
    assert "Lag in the last hour: now 3" in get(broker, "/console/groups")[1]


def post(broker: RunningBroker, path: str, document: dict[str, object]) -> tuple[int, Any]:
    assert broker.broker.http.address is not None
    host, port = broker.broker.http.address
    request = urllib.request.Request(
        f"http://{host}:{port}/console/api/v1{path}",
        json.dumps(document).encode(),
        {"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.mark.slow
def test_the_console_changes_the_root_only_if_it_may(start_broker: Callable[..., RunningBroker]) -> None:
    broker = start_broker(ON)
    assert post(broker, "/create-topic", {"name": "made"})[0] in {404, 405}
    broker.stop()
    broker = start_broker(ON | {"sparklog.console.write": "true"})
    status, shown = post(broker, "/create-topic", {"name": "made"})
    assert status == 200
    assert post(broker, "/confirm", {"confirm": shown["confirm"]})[0] == 200
    broker.settle()
    assert produce(broker, "made", 3) == [None] * 3
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "readers"})
    consumer.commit(offsets=[TopicPartition("made", 0, 2)], asynchronous=False)
    consumer.close()
    status, shown = post(broker, "/group/reset?group=readers", {"to": "latest"})
    assert [(one["before"], one["after"]) for one in shown["rows"]] == [("2", "3")]
    assert post(broker, "/confirm", {"confirm": shown["confirm"]})[0] == 200
    with broker.beside() as log:
        assert log.committed_offsets("readers") == {("made", 0): 3}
    assert post(broker, "/topics/made/delete", {"name": "made"})[0] == 200
    broker.stop()
    broker = start_broker(ON | {"sparklog.console.write": "true", "delete.topic.enable": "false"})
    assert post(broker, "/topics/made/delete", {"name": "made"})[0] in {404, 405}


@pytest.mark.parametrize("listener", ["", ":9404", "0.0.0.0:9404", "example.org:9404", "192.168.1.1:9404"])
def test_only_a_loopback_listener_may_change_the_root(listener: str) -> None:
    wanted = {"sparklog.console.write": "true", "sparklog.http.listener": listener}
    with pytest.raises(InvalidRequestError, match=r"sparklog\.console\.write: found true with"):
        ServerConfig.parse(wanted)
    for host in ("localhost", "127.0.0.1", "[::1]"):
        ServerConfig.parse(wanted | {"sparklog.http.listener": f"{host}:9404"})


def test_a_history_file_of_another_root_is_named_at_start(
    start_broker: Callable[..., RunningBroker], tmp_path: Path
) -> None:
    kept = {"sparklog.console.history": str(tmp_path / "lag.sqlite")}
    broker = start_broker(ON | kept)
    assert get(broker, "/console/groups")[0] == 200
    broker.stop()
    start_broker(ON | kept).stop()
    with pytest.raises(InvalidRequestError, match="found a file of another root"):
        start_broker(ON | kept, root=str(tmp_path / "other"))
