"""Listeners as they are written."""

import socket

import pytest

from sparklog.errors import InvalidRequestError
from sparklog_server.settings.config import ServerConfig
from sparklog_server.settings.network import parse_addresses, plain_host


def test_hosts_ports_and_names() -> None:
    found = parse_addresses("listeners", "PLAINTEXT://:9092, internal://[::1]:0,X://broker-1.example:65535")
    assert [(one.name, one.host, one.port) for one in found] == [
        ("PLAINTEXT", "", 9092),
        ("INTERNAL", "::1", 0),
        ("X", "broker-1.example", 65535),
    ]
    assert str(found[1]) == "INTERNAL://[::1]:0"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost:9092",
        "PLAINTEXT://h",
        "PLAINTEXT://h:65536",
        "PLAINTEXT://h:x",
        "A://h:1,A://h:2",
        "A://h:1,",
        "A://a host:1",
        "A://h\n:1",
        "A://h\u00f6st:1",
        "A://h:\uff11",
        "A://" + "h" * 256 + ":1",
    ],
)
def test_what_is_no_listener_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="INVALID_CONFIG_VALUE") as refused:
        parse_addresses("listeners", text)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"listeners": "INSIDE://:9093"}, "add INSIDE:SASL_SSL, or .*to listener.security.protocol.map"),
        ({"listeners": "A://:1", "listener.security.protocol.map": "A:TLS"}, "of protocol TLS, expected one"),
        ({"listener.security.protocol.map": "PLAINTEXT"}, "expected NAME:PROTOCOL"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"}, "which no client can connect to"),
        ({"advertised.listeners": "OTHER://h:9092"}, "no listener of this name"),
        ({"advertised.listeners": "PLAINTEXT://[0:0::0]:9092"}, "which no client can connect to"),
        ({"max.connections.per.ip.overrides": "10.0.0.1"}, "expected address:number"),
        ({"max.connections.per.ip.overrides": "localhost:5"}, "names are not looked up"),
        ({"max.connections.per.ip.overrides": "10.0.0.999:5"}, "expected address:number"),
        ({"max.connections.per.ip": "0"}, "let no client in"),
        ({"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "::1:0"}, "let no client in"),
        (
            {"sparklog.http.listener": "localhost:9404,X://b:2"},
            "found 'localhost:9404,X.*expected one host:port",
        ),
        (
            {"sparklog.http.listener": "https://localhost:9404"},
            "expected one host:port.*write localhost:9404",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(configs: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        ServerConfig.parse(configs)


def test_what_clients_are_told() -> None:
    config = ServerConfig.parse(
        {
            "listeners": "PLAINTEXT://:0,IN://127.0.0.1:0",
            "advertised.listeners": "PLAINTEXT://kafka.example:19092",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,IN:PLAINTEXT",
            "max.connections.per.ip.overrides": "10.0.0.1:5, [0:0::1]:7, ::ffff:10.0.0.2:9",
        }
    )
    outside, inside = (one.with_port(4711) for one in config.network.parsed_listeners())
    assert (config.network.advertised(outside).host, config.network.advertised(outside).port) == (
        "kafka.example",
        19092,
    )
    assert (config.network.advertised(inside).host, config.network.advertised(inside).port) == (
        "127.0.0.1",
        4711,
    )
    assert config.network.per_ip_overrides() == {"10.0.0.1": 5, "::1": 7, "10.0.0.2": 9}


@pytest.mark.parametrize("host", ["0.0.0.0", "*", "", "[::]", "[0:0::0]"])
def test_everywhere_is_advertised_by_name(host: str) -> None:
    config = ServerConfig.parse({"listeners": f"PLAINTEXT://{host}:9092"})
    assert config.network.advertised(config.network.parsed_listeners()[0]).host == socket.gethostname()


@pytest.mark.parametrize(
    ("host", "plain"),
    [("::ffff:10.0.0.7", "10.0.0.7"), ("0:0::1", "::1"), ("10.0.0.7", "10.0.0.7"), ("broker-1", "broker-1")],
)
def test_an_address_has_one_form(host: str, plain: str) -> None:
    assert plain_host(host) == plain
