"""Settings of the broker: sources, precedence, refusals, the generated example."""

from pathlib import Path

import pytest

from sparklog.errors import InvalidRequestError
from sparklog_server.settings.config import SETTINGS, ServerConfig, render_server_properties
from sparklog_server.settings.kafka_only import HARMLESS, why_harmless, why_kafka_only
from sparklog_server.settings.sources import load_config
from tests.support.told import Told

PROPERTIES = Path(__file__).parents[3] / "conf" / "server.properties"


def load(
    tmp_path: Path, text: str = "", environment: dict[str, str] | None = None, **flags: str
) -> ServerConfig:
    file = tmp_path / "server.properties"
    file.write_text(text)
    return load_config(
        file=file,
        environment=environment or {},
        flags={key.replace("_", "."): value for key, value in flags.items()},
    )


def test_flags_win_over_the_environment_which_wins_over_the_file(tmp_path: Path) -> None:
    text = "num.partitions = 2\nnode.id=2\nqueued.max.requests: 2\n# no\nlog.dirs=/data\\ with\\u0020space\n"
    environment = {"SPARKLOG_SERVER_NUM_PARTITIONS": "3", "SPARKLOG_SERVER_NODE_ID": "3", "HOME": "/root"}
    config = load(tmp_path, text, environment, num_partitions="4")
    assert (config.topics.num_partitions, config.broker.node_id, config.network.queued_max_requests) == (
        4,
        3,
        2,
    )
    assert config.broker.log_dirs == "/data with space"
    assert config.broker.num_io_threads == ServerConfig.parse({}).broker.num_io_threads


def test_every_key_has_a_name_in_the_environment(tmp_path: Path) -> None:
    for key, (_, one) in SETTINGS.items():
        variable = "SPARKLOG_SERVER_" + key.upper().replace(".", "_")
        text = one.format(one.default)
        assert load(tmp_path, "", {variable: text}).text_of(key) == text


def test_the_variable_that_names_the_file_is_no_setting(tmp_path: Path) -> None:
    load(tmp_path, "", {"SPARKLOG_SERVER_CONFIG": "/etc/server.properties"})


@pytest.mark.parametrize(
    ("text", "environment", "message"),
    [
        (
            "num.partition=3",
            {},
            r"server\.properties: found broker setting 'num\.partition'.*'num\.partitions'",
        ),
        ("", {"SPARKLOG_SERVER_NUM_PARTITION": "3"}, r"the environment: found .*'num\.partition'"),
        ("zookeeper.connect=h:2181", {}, "means nothing here: there is no ZooKeeper"),
        ("log.retention.hours=x", {}, r"server\.properties: log\.retention\.hours: found 'x'"),
        ("log.retention.minutes=153722867280913", {}, r"log\.retention\.minutes: found 15372286728"),
        ("log.segment.bytes=-x", {}, r"set segment\.bytes on the root"),
        ("min.insync.replicas=2", {}, "replicas share one copy"),
        ("process.roles=controller", {}, "elect one of them controller"),
        ("unclean.leader.election.enable=true", {}, "no election is unclean"),
        ("share.coordinator.state.topic.replication.factor=3", {}, "the state of share groups"),
        ("transaction.two.phase.commit.enable=true", {}, "KIP-939"),
        ("ssl.cipher.suites=TLS_X", {}, "PEM files"),
        ("num.partitions=many", {}, "found 'many', expected integer"),
        ("num.partitions=0", {}, "outside the minimum 1"),
        ("broker.id=1\nnode.id=2", {}, "means the same"),
        ("group.min.session.timeout.ms=1800001", {}, "no member could join"),
        ("log.cleaner.io.max.bytes.per.second=1_000", {}, "found '1_000', expected number"),
        ("log.cleaner.io.max.bytes.per.second=\u0661\u0660", {}, "expected number"),
        ("", {"SPARKLOG_SERVER_PORT": "9092"}, "use listeners"),
        ("", {"SPARKLOG_SERVER_ADVERTISED_PORT": "9092"}, "use advertised.listeners"),
        ("a=1\nb=2", {}, "found 2 invalid settings"),
        ("x=\\u12", {}, "readable file"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(
    tmp_path: Path, text: str, environment: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        load(tmp_path, text, environment)


def test_synonyms(tmp_path: Path) -> None:
    config = load(tmp_path, "broker.id=7\nlog.dir=/x")
    assert (config.broker.node_id, config.broker.log_dirs) == (7, "/x")


def test_what_kubernetes_says_of_services_is_no_setting(tmp_path: Path, told: Told) -> None:
    """In every pod beside a service of this name, that of the broker itself first of all."""
    of_services = {
        "SPARKLOG_SERVER_SERVICE_HOST": "10.0.0.11",
        "SPARKLOG_SERVER_SERVICE_PORT": "9092",
        "SPARKLOG_SERVER_SERVICE_PORT_KAFKA": "9092",
        "SPARKLOG_SERVER_PORT": "tcp://10.0.0.11:9092",
        "SPARKLOG_SERVER_PORT_9092_TCP": "tcp://10.0.0.11:9092",
        "SPARKLOG_SERVER_PORT_9092_TCP_PROTO": "tcp",
        "SPARKLOG_SERVER_PORT_9092_TCP_PORT": "9092",
        "SPARKLOG_SERVER_PORT_9092_TCP_ADDR": "10.0.0.11",
        "SPARKLOG_SERVER_0_SERVICE_HOST": "10.0.0.12",
        "SPARKLOG_SERVER_0_PORT": "tcp://10.0.0.12:9092",
    }
    config = load(tmp_path, "", {**of_services, "SPARKLOG_SERVER_NODE_ID": "3"})
    assert config.broker.node_id == 3
    (warning,) = told("sparklog_server")
    assert all(name in warning for name in of_services)


@pytest.mark.parametrize(
    "data", [b"\xef\xbb\xbfbroker.rack=caf\xc3\xa9", b"broker.rack=caf\xc3\xa9", b"broker.rack=caf\xe9"]
)
def test_a_file_is_utf_8_or_as_java_reads_it(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "server.properties"
    file.write_bytes(data)
    assert load_config(file=file, environment={}, flags={}).broker.broker_rack == "caf\xe9"


@pytest.mark.parametrize(
    "line", ["process.roles=controller , broker", "unclean.leader.election.enable=FALSE"]
)
def test_what_asks_for_nothing_is_known_as_kafka_writes_it(tmp_path: Path, line: str) -> None:
    load(tmp_path, line)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="No such file"):
        load_config(file=tmp_path / "none", environment={}, flags={})


@pytest.mark.parametrize("key", (Path(__file__).parent / "kafka_only.txt").read_text().split())
def test_a_setting_of_kafkas_is_not_taken_for_a_misspelt_one(key: str) -> None:
    """Of Kafka 4's brokers, what has no counterpart here."""
    assert why_kafka_only(key) is not None or why_harmless(key, "7") is not None


def test_no_setting_is_declared_and_refused_at_once() -> None:
    assert [key for key in SETTINGS if why_kafka_only(key) is not None] == []


def test_every_default_parses_to_itself_and_is_documented() -> None:
    for key, (_, one) in SETTINGS.items():
        assert one.parse(one.format(one.default)) == one.default, key
        assert len(one.doc) > 15, key


def test_the_example_file_matches_the_declarations(tmp_path: Path) -> None:
    text = render_server_properties()
    assert PROPERTIES.read_text() == text, "run: make docs"
    settings = [line[1:] for line in text.splitlines() if line.startswith("#") and not line.startswith("# ")]
    assert len(settings) == len(SETTINGS)
    assert load(tmp_path, "\n".join(settings)) == ServerConfig.parse({})
    # What it sets is what Kafka's own sets.
    set_there = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert set_there == ["group.initial.rebalance.delay.ms=0"]
    assert load(tmp_path, text).groups.group_initial_rebalance_delay_ms == 0


# The settings of config/server.properties in Kafka 4.3, as it is delivered.
KAFKAS_OWN = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,\\
    SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
group.initial.rebalance.delay.ms=0
"""


def test_kafkas_own_file_is_accepted_with_one_warning(tmp_path: Path, told: Told) -> None:
    config = load(tmp_path, KAFKAS_OWN)
    assert config.broker.log_dirs == "/tmp/kraft-combined-logs"
    assert [str(one) for one in config.network.parsed_listeners()] == ["PLAINTEXT://:9092"]
    assert config.network.advertised(config.network.parsed_listeners()[0]).host == "localhost"
    (warning,) = told("sparklog_server")
    keys = [line.partition("=")[0] for line in KAFKAS_OWN.splitlines() if "=" in line]
    declared = SETTINGS
    for key in keys:
        assert (f"{key} (" in warning) == (key not in declared), key


@pytest.mark.parametrize(
    "key", sorted({key for key in HARMLESS if not key.endswith(".")} - {"log.retention.hours"})
)
def test_what_is_accepted_by_one_value_is_refused_by_another(tmp_path: Path, key: str) -> None:
    """Whatever is passed over is named; what is not may not be passed over."""
    is_harmless, _ = HARMLESS[key]
    for text in ("1", "-1", "3", "true", "false", "delete", "compact", "controller", "broker"):
        if is_harmless(text):
            load(tmp_path, f"{key}={text}")
        else:
            with pytest.raises(InvalidRequestError, match="means nothing here"):
                load(tmp_path, f"{key}={text}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", -1),
        ("log.retention.hours=168", -1),  # Kafka's own file has it, and nobody has asked for it
        ("log.retention.hours=167", 167 * 3_600_000),
        ("log.retention.hours=-1", -1),
        ("log.retention.ms=604800000", 604_800_000),  # a week, asked for
        ("log.retention.minutes=3", 180_000),
        ("log.retention.hours=1\nlog.retention.minutes=3", 180_000),
        ("log.retention.minutes=3\nlog.retention.ms=5", 5),
        ("log.retention.ms=-1\nlog.retention.hours=1", -1),
    ],
)
def test_how_long_records_are_kept_in_kafkas_units(tmp_path: Path, text: str, expected: int) -> None:
    config = load(tmp_path, text)
    assert config.maintenance.log_retention_ms == expected
    assert config.root_defaults()["retention.ms"] == str(expected)


@pytest.mark.parametrize("unit", ["ms", "minutes", "hours"])
def test_no_retention_at_all_is_refused_as_by_kafka(tmp_path: Path, unit: str) -> None:
    """All records of all topics would go at once."""
    with pytest.raises(InvalidRequestError, match=f"log.retention.{unit}: found 0.*at least -1.*but not 0"):
        load(tmp_path, f"log.retention.{unit}=0")


@pytest.mark.parametrize("key", ["log.segment.bytes", "log.retention.hours", "min.insync.replicas"])
def test_a_number_that_is_too_long_is_refused_in_words(tmp_path: Path, key: str) -> None:
    with pytest.raises(InvalidRequestError):
        load(tmp_path, f"{key}={'7' * 5_000}")


def test_the_smallest_unit_wins_wherever_it_is_said(tmp_path: Path) -> None:
    config = load(tmp_path, "log.retention.ms=5", log_retention_hours="1")
    assert config.maintenance.log_retention_ms == 5


def test_a_week_that_was_asked_for_wins_over_the_files_day(tmp_path: Path) -> None:
    """It was passed over as if it were of Kafka's own file, and records went after a day."""
    week = 168 * 3_600_000
    flag = load(tmp_path, "log.retention.hours=24", log_retention_hours="168")
    variable = load(tmp_path, "log.retention.hours=24", {"SPARKLOG_SERVER_LOG_RETENTION_HOURS": "168"})
    assert [one.maintenance.log_retention_ms for one in (flag, variable)] == [week, week]
    assert load(tmp_path, "", log_retention_hours="168").maintenance.log_retention_ms == week


def test_a_topics_setting_is_sent_to_the_root(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidRequestError, match=r"retention.ms, a setting of topics.*sparklog root alter"
    ) as error:
        load(tmp_path, "", retention_ms="3")
    assert "offsets.retention" not in str(error.value)


def test_a_file_may_come_from_windows(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_bytes(b"\xef\xbb\xbfnum.partitions=3\r\nnode.id=2\r\n")
    config = load_config(file=file, environment={}, flags={})
    assert (config.topics.num_partitions, config.broker.node_id) == (3, 2)


def test_references_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_PASSWORD", "from the environment")
    (tmp_path / "key").write_text("PRIVATE\n")
    config = load(
        tmp_path,
        f"ssl.key.password=${{env:KEY_PASSWORD}}\nlistener.name.plaintext.ssl.keystore.key=${{file:{tmp_path}/key}}",
    )
    assert config.listener_security.ssl_key_password == "from the environment"
    own = config.secured_listeners()["PLAINTEXT"].settings
    assert own.ssl_keystore_key == "PRIVATE"
    assert "from the environment" not in repr(config)
    assert "PRIVATE" not in repr(config) + repr(own)


@pytest.mark.parametrize("key", ["ssl.key.password", "listener.name.plaintext.ssl.keystore.key"])
def test_secrets_on_the_command_line_are_refused(key: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"a secret.*\$\{file:") as refused:
        load_config(file=None, environment={}, flags={key: "top-secret"})
    assert "top-secret" not in str(refused.value)
