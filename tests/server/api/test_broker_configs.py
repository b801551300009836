"""Settings of one broker and of all, changed and described over the network, while the broker runs."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.log.config import TRANSACTION_VERSION_KEY, broker_key
from sparklog_server.settings.config import SETTINGS
from sparklog_server.settings.updating import DYNAMIC, TOPIC_DEFAULTS, Update, update_of
from tests.server.api.config_requests import BROKER, DELETE, SET, TOPIC, alter, describe, resource, synonyms
from tests.server.api.controlling import settled
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient

BROKER_SETTINGS = {"max.connections": "500"}


def test_the_brokers_own_wins_over_that_of_all_and_that_over_its_file(asker: WireClient) -> None:
    both = [resource(BROKER, "1", ("max.connections", SET, "70"))]
    both.append(resource(BROKER, "", ("max.connections", SET, "90")))
    assert alter(asker, *both) == [("none", None)] * 2
    entry = describe(asker, BROKER, "1", keys=["max.connections"])[1]["max.connections"]
    assert (entry.value, entry.config_source, entry.read_only, entry.is_sensitive) == ("70", 2, False, False)
    assert [(value, source) for _, value, source in synonyms(entry)] == [
        ("70", 2), ("90", 3), ("500", 4), ("10000", 5)]  # fmt: skip
    of_all = describe(asker, BROKER, "")[1]
    assert {name: (one.value, one.config_source) for name, one in of_all.items()} == {
        "max.connections": ("90", 3)}  # fmt: skip
    for name, left in (("1", "90"), ("", "500")):
        assert alter(asker, resource(BROKER, name, ("max.connections", DELETE, None))) == [("none", None)]
        assert describe(asker, BROKER, "1")[1]["max.connections"].value == left


def test_what_the_newest_settings_are_is_what_the_broker_does(
    asker: WireClient, connect: Callable[..., WireClient], running_broker: RunningBroker
) -> None:
    alter(asker, resource(BROKER, "1", ("max.connections.per.ip", SET, "1")))
    refused = connect(running_broker)
    assert refused.socket.recv(1) == b"", "a second connection, which is closed at once"
    assert describe(asker, BROKER, "1")[1]["max.connections.per.ip"].value == "1", "the first one goes on"
    alter(asker, resource(BROKER, "1", ("max.connections.per.ip", DELETE, None)))
    assert describe(connect(running_broker), BROKER, "1")[0].error_code.name == "none"


def test_every_part_takes_its_settings_up(asker: WireClient, running_broker: RunningBroker) -> None:
    values = {name: str(int(SETTINGS[name][1].default) // 2) for name in sorted(DYNAMIC) if _is_number(name)}
    values |= {"num.io.threads": "3", "max.connections.per.ip.overrides": "10.0.0.7:5"}
    assert set(values) == DYNAMIC
    changes = [(name, SET, value) for name, value in values.items()]
    assert alter(asker, resource(BROKER, "1", *changes)) == [("none", None)]
    assert {name: one.value for name, one in describe(asker, BROKER, "1")[1].items() if name in DYNAMIC} == (
        values
    )
    in_force = running_broker.broker.settings.current
    assert {name: _plain(in_force.text_of(name)) for name in DYNAMIC} == {
        name: _plain(value) for name, value in values.items()
    }
    assert running_broker.broker.root.storage_threads == 3

    def thread_names() -> set[str]:
        return {one.name for one in threading.enumerate() if one.name.startswith("storage_")}

    for _ in range(3):
        running_broker.call(running_broker.broker.root.run(int))
    assert thread_names(), "work is done by the new threads"


def _is_number(name: str) -> bool:
    return SETTINGS[name][1].kind in (int, float)


def _plain(text: str) -> object:
    return float(text) if text.replace(".", "").replace("e+", "").isdecimal() else text


def test_a_broker_that_starts_reads_them(
    start_broker: Callable[..., RunningBroker], connect: Callable[..., WireClient]
) -> None:
    first = start_broker()
    changes = [("num.io.threads", SET, "5"), ("max.connections.per.ip", SET, "1")]
    assert alter(connect(first), resource(BROKER, "1", *changes)) == [("none", None)]
    first.stop()
    again = start_broker()
    assert again.broker.root.storage_threads == 5
    kept = connect(again)
    assert connect(again).socket.recv(1) == b""
    assert synonyms(describe(kept, BROKER, "1")[1]["num.io.threads"])[0] == ("num.io.threads", "5", 2)


def test_another_broker_takes_up_what_is_said_of_all_and_not_what_is_anothers(
    start_broker: Callable[..., RunningBroker], connect: Callable[..., WireClient]
) -> None:
    one, other = start_broker(), start_broker({"node.id": "2"})
    changed = threading.Event()
    other.broker.settings.on_change(lambda _settings: changed.set())
    asker = connect(one)
    assert alter(asker, resource(BROKER, "1", ("max.connections", SET, "70"))) == [("none", None)]
    assert alter(asker, resource(BROKER, "", ("max.connections", SET, "90"))) == [("none", None)]
    assert changed.wait(30)
    assert other.broker.settings.current.network.max_connections == 90
    assert one.broker.settings.current.network.max_connections == 70
    assert describe(connect(other), BROKER, "2")[1]["max.connections"].value == "90"


def test_how_a_broker_writes_can_be_its_own(asker: WireClient, log: sparklog.SparkLog) -> None:
    log.create_topic("t")
    log.alter_root(set={"max.message.bytes": "2000"})
    assert alter(asker, resource(BROKER, "1", ("message.max.bytes", SET, "3000"))) == [("none", None)]
    entry, name = describe(asker, TOPIC, "t")[1]["max.message.bytes"], "message.max.bytes"
    assert synonyms(entry) == [(name, "3000", 2), (name, "2000", 3), (name, "1048588", 5)]
    assert synonyms(describe(asker, BROKER, "1")[1]["message.max.bytes"]) == synonyms(entry)


REFUSED = (
    ("node.id", "7", "invalid_request", "Cannot update these configs dynamically: Set(node.id)"),
    ("listeners", "PLAINTEXT://:1", "invalid_request", "Cannot update these configs dynamically"),
    ("max.connection", "7", "invalid_config", "Write 'max.connections'"),
    ("max.connections", "many", "invalid_config", "expected integer"),
    ("max.connections", "0", "invalid_config", "at least 1"),
    ("max.connections.per.ip.overrides", "a-b", "invalid_config", "expected address:number"),
    ("max.connections.per.ip.overrides", "localhost:5", "invalid_config", "names are not looked up"),
    ("max.connections.per.ip.overrides", "1.1.1.1:" + "9" * 5000, "invalid_config", "address:number"),
    ("max.connections.per.ip.overrides", "1.1.1.1:1," * 4000, "invalid_request", "at most 32767"),
    ("message.max.bytes", "-1", "invalid_config", "at least 0"),
    ("log.cleaner.threads", "2", "invalid_config", "one process of low priority"),
    ("num.io.threads", "9", "invalid_request", "should not be greater than double the current value 4"),
    ("num.io.threads", "1", "invalid_request", "should be at least half the current value 4"),
    (TRANSACTION_VERSION_KEY, "1", "invalid_config", "unknown"),
)


@pytest.mark.parametrize("name", ["1", ""])
def test_nothing_is_stored_of_what_cannot_be(asker: WireClient, log: sparklog.SparkLog, name: str) -> None:
    possible = ("sparklog.vacuum.max.files.per.second", SET, "7")
    for key, value, code, text in REFUSED:
        ((found, message),) = alter(asker, resource(BROKER, name, possible, (key, SET, value)))
        assert (key, found) == (key, code)
        assert text in str(message)
    assert dict(log.refresh().configs) == {}


@pytest.mark.parametrize("name", ["01", "0000000000012", "+1", "-1", "1 ", "\u0661", "2", "x"])
def test_a_broker_has_one_name(asker: WireClient, log: sparklog.SparkLog, name: str) -> None:
    """What means another broker must not change this one, nor one request name this one twice."""
    commit = settled(log).commit
    ((code, _),) = alter(asker, resource(BROKER, name, ("max.connections", SET, "70")))
    assert code == "invalid_request"
    assert describe(asker, BROKER, name)[0].error_code.name == "invalid_request"
    assert log.refresh().commit == commit


def test_going_back_is_always_possible(asker: WireClient, log: sparklog.SparkLog) -> None:
    """Also where another value as far away would be taken for a mistake."""
    for threads in ("8", "16", "32"):
        assert alter(asker, resource(BROKER, "1", ("num.io.threads", SET, threads))) == [("none", None)]
    assert alter(asker, resource(BROKER, "1", ("num.io.threads", SET, "15")))[0][0] == "invalid_request"
    assert alter(asker, resource(BROKER, "1", ("num.io.threads", DELETE, None))) == [("none", None)]
    assert dict(log.refresh().configs) == {}


def test_nobody_locks_everybody_out(asker: WireClient, log: sparklog.SparkLog) -> None:
    """As in Kafka: who may connect at all has to be said first, or with it."""
    limit, overrides = "max.connections.per.ip", "max.connections.per.ip.overrides"
    before = dict(log.refresh().configs)
    for name in ("1", ""):
        ((code, text),) = alter(asker, resource(BROKER, name, (limit, SET, "0")))
        assert (code, dict(log.refresh().configs)) == ("invalid_config", before)
        assert "let no client in" in str(text)
    both = resource(BROKER, "1", (limit, SET, "0"), (overrides, SET, "127.0.0.1:9"))
    assert alter(asker, both) == [("none", None)]
    assert describe(asker, BROKER, "1")[1][limit].value == "0"
    ((code, _),) = alter(asker, resource(BROKER, "1", (overrides, SET, "")))
    assert code == "invalid_config"
    assert alter(asker, resource(BROKER, "1", (overrides, DELETE, None))) == [("none", None)]
    assert describe(asker, BROKER, "1")[1][limit].value == "2000", "a value that lets no client in is skipped"


def test_what_all_share_is_nobodys_own(asker: WireClient, log: sparklog.SparkLog) -> None:
    """Records are no broker's: its retention would remove those of all."""
    keys = ("log.retention.ms", "num.partitions", "producer.id.expiration.ms")
    for key in keys:
        ((code, text),) = alter(asker, resource(BROKER, "1", (key, SET, "5")))
        assert (code, dict(log.refresh().configs)) == ("invalid_request", {})
        assert f"for a single broker: Set({key})" in str(text)
    assert alter(asker, resource(BROKER, "", *((key, SET, "5") for key in keys))) == [("none", None)]
    entries = describe(asker, BROKER, "1")[1]
    for key in keys:
        found = entries[key]
        assert (found.value, found.config_source, found.read_only) == ("5", 3, False)


def test_validate_only_stores_nothing(asker: WireClient, log: sparklog.SparkLog) -> None:
    for key in (33, 44):
        words = ("max.connections", "7") if key == 33 else ("max.connections", SET, "7")
        for name in ("1", ""):
            assert alter(asker, resource(BROKER, name, words), key=key, validate_only=True) == [
                ("none", None)
            ]
    bad = resource(BROKER, "1", ("max.connections", SET, "0"))
    assert alter(asker, bad, validate_only=True)[0][0] == "invalid_config"
    assert dict(log.refresh().configs) == {}


def test_alter_configs_replaces_those_of_one_resource(asker: WireClient, log: sparklog.SparkLog) -> None:
    own = [("max.connections", "7"), ("message.max.bytes", "8")]
    assert (
        alter(asker, resource(BROKER, "1", *own), resource(BROKER, "", *own), key=33) == [("none", None)] * 2
    )
    assert alter(asker, resource(BROKER, "1", ("max.connections", "9")), key=33) == [("none", None)]
    assert dict(log.refresh().configs) == {
        "brokers/1/max.connections": "9",
        "brokers/default/max.connections": "7",
        "max.message.bytes": "8",
    }
    assert alter(asker, resource(BROKER, ""), key=33) == [("none", None)]
    assert dict(log.refresh().configs) == {"brokers/1/max.connections": "9"}


def test_clients_touch_nothing_that_only_the_owner_sets(asker: WireClient, log: sparklog.SparkLog) -> None:
    log.alter_root(set={"retention.ms": "5", TRANSACTION_VERSION_KEY: "1"})
    before = dict(log.image.configs)
    keys = (TRANSACTION_VERSION_KEY, "retention.ms", "brokers/2/max.connections")
    for name in ("", "1"):
        deleted = resource(BROKER, name, *((key, DELETE, None) for key in keys))
        assert alter(asker, deleted) == [("none", None)]
    assert log.refresh(force=True).configs == before


def test_a_broker_goes_on_with_settings_that_it_cannot_have(
    start_broker: Callable[..., RunningBroker], connect: Callable[..., WireClient], tmp_path: Path
) -> None:
    """Written by a newer sparklog, or by hand."""
    stored = {
        broker_key(1, "num.io.threads"): "zero", broker_key(None, "num.io.threads"): "6",
        broker_key(1, "node.id"): "9", broker_key(1, "message.max.bytes"): "large", broker_key(1, "new"): "1",
    }  # fmt: skip
    with sparklog.open(str(tmp_path / "log")) as log:
        log.create_topic("t")
        publish_configs(log, stored)
    broker = start_broker()
    assert broker.broker.root.storage_threads == 6
    entries = describe(connect(broker), BROKER, "1")[1]
    assert entries["num.io.threads"].value == "6"
    assert (entries["node.id"].value, entries["message.max.bytes"].value) == ("1", "1048588")
    assert describe(connect(broker), TOPIC, "t")[1]["max.message.bytes"].value == "1048588"


def publish_configs(log: sparklog.SparkLog, configs: dict[str, str]) -> None:
    """As nobody does who asks a broker."""
    log.metadata.publish(lambda _image: [sparklog.metadata.SetConfigs(configs={**configs})])


def test_what_is_described_as_changeable_is(asker: WireClient) -> None:
    entries: dict[str, Any] = describe(asker, BROKER, "1")[1]
    assert {name for name, one in entries.items() if one.read_only} == {
        name for name in SETTINGS if update_of(name) is Update.READ_ONLY
    }
    assert not any(entries[name].read_only for name in (*DYNAMIC, *TOPIC_DEFAULTS))
