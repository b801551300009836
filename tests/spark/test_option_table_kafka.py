"""Options that a Kafka client would get: served, satisfied, without effect or refused, and none forgotten."""

import shutil
import subprocess
from pathlib import Path

import pyspark
import pytest

from benchmarks.peers.fetching import cache
from sparklog.errors import InvalidRequestError, may_hold_secret
from sparklog.spark import options
from sparklog.spark.options import check_kafka_option

LISTER = Path(__file__).with_name("ListClientSettings.java")
# Nothing but what a client library before Kafka 4 had.
FORMER = {"auto.include.jmx.reporter"}


def outcome(name: str, value: str, side: str) -> str:
    """What becomes of an option: accepted, the warning, or the code of the error."""
    warnings: list[str] = []
    try:
        check_kafka_option(name, value, side, warnings.append)
    except InvalidRequestError as error:
        return error.code
    return warnings[0] if warnings else "accepted"


@pytest.mark.parametrize(
    ("name", "value"),
    [("acks", "all"), ("acks", "-1"), ("acks", "1"), ("enable.idempotence", "true"),
     ("enable.idempotence", "FALSE"), ("isolation.level", "read_committed"),
     ("isolation.level", "read_uncommitted"), ("security.protocol", "PLAINTEXT"),
     ("enable.auto.commit", "false"), ("partitioner.ignore.keys", "false"),
     ("transaction.two.phase.commit.enable", "false")],
)  # fmt: skip
def test_what_is_done_anyway_may_be_asked_for(name: str, value: str) -> None:
    for side in ("source", "sink"):
        assert outcome(f"kafka.{name}", value, side) == "accepted"


@pytest.mark.parametrize(
    ("name", "value"),
    [("acks", "2"), ("enable.auto.commit", "true"),
     ("isolation.level", "serializable"), ("partitioner.ignore.keys", "true"),
     ("transaction.two.phase.commit.enable", "true"), ("transactional.id", "t"),
     ("auto.offset.reset", "earliest"), ("key.deserializer", "x"), ("interceptor.classes", "x"),
     ("sasl.login.class", "x"), ("ssl.cipher.suites", "x"), ("security.providers", "x"),
     ("config.providers", "vault"), ("bootstrap.controllers", "b:9093"), ("partitioner.class", "x")],
)  # fmt: skip
def test_what_would_break_a_promise_is_refused(name: str, value: str) -> None:
    for side in ("source", "sink"):
        assert outcome(f"kafka.{name}", value, side) == "UNSUPPORTED_KAFKA_OPTION"


@pytest.mark.parametrize(
    ("name", "value"),
    [("security.protocol", "SASL_SSL"), ("sasl.jaas.config", "x"), ("ssl.truststore.location", "x")],
)
def test_security_is_for_connections_to_brokers(name: str, value: str) -> None:
    for side in ("source", "sink"):
        assert outcome(f"kafka.{name}", value, side) == "accepted"


@pytest.mark.parametrize("name", ["group.protocol", "compression.zstd.level", "enable.metrics.push"])
def test_tuning_of_a_client_has_no_effect_and_says_so(name: str) -> None:
    assert "has no effect" in outcome(f"kafka.{name}", "1", "sink")


def test_an_unknown_one_names_the_nearest() -> None:
    with pytest.raises(InvalidRequestError, match=r"did you mean kafka\.fetch\.max\.bytes") as caught:
        check_kafka_option("kafka.fetch.max.byte", "1", "source", print)
    assert caught.value.code == "UNKNOWN_OPTION"


def client_settings() -> list[list[str]]:
    """[client, name, type] of each setting of Kafka's clients; skips where their jar is not at hand."""
    jars = sorted(cache().glob("kafka-4.3*/kafka-clients-4.3*.jar"))
    if not jars or shutil.which("java") is None:
        pytest.skip("no kafka-clients jar of Kafka 4.3 (make compat-peers fetches it)")
    classes = f"{jars[-1]}:{Path(pyspark.__file__).parent / 'jars'}/*"
    done = subprocess.run(
        ["java", "-cp", classes, str(LISTER)], capture_output=True, text=True, timeout=120, check=True
    )
    return [line.split("\t") for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_every_setting_of_kafkas_clients_is_known() -> None:
    settings = client_settings()
    sides = {"consumer": ("source",), "producer": ("sink",), "admin": ("source", "sink")}
    assert len(settings) > 250
    for client, name, kind in settings:
        if name != "bootstrap.servers":  # declared
            for side in sides[client]:
                assert outcome(f"kafka.{name}", "?", side) != "UNKNOWN_OPTION", (side, name)
        if kind == "PASSWORD":
            assert may_hold_secret(f"kafka.{name}"), name
    names = {name for _, name, _ in settings}
    ours = options.KAFKA_WITHOUT_EFFECT | set(options.SATISFIED) | set(options.REFUSED)
    assert ours - FORMER <= names, "a setting that no client has"
