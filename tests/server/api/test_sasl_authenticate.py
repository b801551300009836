"""SaslAuthenticate over real connections: who gets in, failures, and re-authentication."""

import base64
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sparklog
from sparklog.client.scram import Mechanism, ScramClient
from sparklog.metadata import plan_delete_scram_credential
from tests.support.broker_process import until
from tests.support.certificates import Authority
from tests.support.running_broker import RunningBroker
from tests.support.sasl_client import (
    API_VERSIONS,
    FAILED,
    ILLEGAL_STATE,
    METADATA,
    NONE,
    SASL,
    add_users,
    expire,
    handshake,
    log_in,
    message,
)
from tests.support.wire_client import WireClient

Start = Callable[..., RunningBroker]
INVALID = "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM"


@pytest.fixture
def broker(start_broker: Start, root_with_users: str) -> RunningBroker:
    return start_broker(SASL, root=root_with_users)


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[WireClient]:
    with WireClient(broker.host, broker.port) as one:
        yield one


@pytest.fixture
def renewing(start_broker: Start, root_with_users: str) -> RunningBroker:
    return start_broker({**SASL, "connections.max.reauth.ms": "60000"}, root=root_with_users)


def principals(broker: RunningBroker) -> list[str]:
    return [one.session.principal for one in broker.broker.network.connections.values()]


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_user_logs_in(broker: RunningBroker, client: WireClient, mechanism: str) -> None:
    assert (
        client.ask(API_VERSIONS, 3, client_software_name="x", client_software_version="1").error_code == NONE
    )
    assert log_in(client, mechanism=mechanism).error_code == NONE
    assert client.ask(METADATA, 1, topics=None).brokers[0].port == broker.port
    assert principals(broker) == ["User:alice"]


@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("nobody", "secret"), ("bob", "secret")])
def test_failure_says_nothing_of_the_user_and_ends_the_connection(
    client: WireClient, user: str, password: str
) -> None:
    answer = log_in(client, user, password)
    assert (answer.error_code, answer.error_message) == (FAILED, f"{INVALID}-SHA-256")
    assert client.is_closed()


def test_sasl_after_the_authentication(client: WireClient) -> None:
    """Without connections.max.reauth.ms there is no re-authentication."""
    log_in(client)
    assert handshake(client).error_code == ILLEGAL_STATE
    assert message(client, b"x").error_code == ILLEGAL_STATE
    assert client.ask(METADATA, 1, topics=None).brokers


def test_replayed_messages_fail(broker: RunningBroker, client: WireClient) -> None:
    handshake(client)
    first = b"n,,n=alice,r=CLIENT"
    answer = message(client, first)
    nonce = answer.auth_bytes.decode().split(",")[0]
    with WireClient(broker.host, broker.port) as other:
        handshake(other)
        message(other, first)
        final = f"c=biws,{nonce},p={base64.b64encode(bytes(32)).decode()}".encode()
        assert message(other, final).error_code == FAILED


@pytest.mark.parametrize("data", [b"", b"\0", b"n,,n=alice", b"\x80v\xc9\x8bR" * 20, bytes(60_000)])
def test_hostile_messages_end_the_connection(client: WireClient, data: bytes) -> None:
    handshake(client)
    assert message(client, data).error_code == FAILED
    assert client.is_closed()


def test_large_requests_are_refused_before_only(broker: RunningBroker) -> None:
    size = 600_000
    with WireClient(broker.host, broker.port) as stranger:
        stranger.socket.sendall(struct.pack(">i", size))
        assert stranger.is_closed()
    with WireClient(broker.host, broker.port) as client:
        log_in(client)
        client.send_frame(struct.pack(">hhihi", METADATA, 1, 7, -1, 0) + bytes(size))
        assert client.receive(METADATA, 1)[0] == 7


def test_user_that_is_made_elsewhere_may_log_in(broker: RunningBroker, client: WireClient) -> None:
    with sparklog.open(broker.root) as log:
        add_users(log, {"carol": "new"})
    assert log_in(client, "carol", "new").error_code == NONE


def test_deleted_user_is_out(broker: RunningBroker, client: WireClient) -> None:
    with sparklog.open(broker.root) as log:
        log.metadata.publish(lambda image: [plan_delete_scram_credential(image, "alice", "SCRAM-SHA-256")])
    assert log_in(client).error_code == FAILED
    with WireClient(broker.host, broker.port) as other:
        assert log_in(other, mechanism="SCRAM-SHA-512").error_code == NONE


def test_failures_are_counted_and_delayed(start_broker: Start, root_with_users: str) -> None:
    broker = start_broker({**SASL, "connection.failed.authentication.delay.ms": "300"}, root=root_with_users)
    with WireClient(broker.host, broker.port) as client:
        began = time.monotonic()
        assert log_in(client, password="wrong").error_code == FAILED
        assert time.monotonic() - began >= 0.3
    assert broker.broker.metrics.connections_refused == {"authentication": 1}


def test_session_has_a_lifetime_and_is_renewed(renewing: RunningBroker) -> None:
    with WireClient(renewing.host, renewing.port) as client:
        assert log_in(client).session_lifetime.total_seconds() == 60
        expire(renewing)
        assert log_in(client).error_code == NONE
        assert client.ask(METADATA, 1, topics=None).brokers


@pytest.mark.slow
def test_renewal_of_an_old_connection_has_time(start_broker: Start, root_with_users: str) -> None:
    """The time of an authentication counts from its own beginning."""
    quick = {"connections.max.reauth.ms": "60000", "sparklog.authentication.timeout.ms": "4000"}
    broker = start_broker({**SASL, **quick}, root=root_with_users)
    with WireClient(broker.host, broker.port) as client:
        log_in(client)
        expire(broker)
        (connection,) = broker.broker.network.connections.values()
        connection.began_ms -= 60_000
        handshake(client)
        looks = broker.broker.network.looks
        until(lambda: broker.broker.network.looks >= looks + 2)
        first = ScramClient(Mechanism.SHA_256, "alice", "secret").first()
        assert message(client, first).error_code == NONE


def test_silent_client_is_disconnected(start_broker: Start, root_with_users: str) -> None:
    broker = start_broker({**SASL, "sparklog.authentication.timeout.ms": "100"}, root=root_with_users)
    with WireClient(broker.host, broker.port) as client:
        handshake(client)
        assert client.is_closed()


def test_expired_session_serves_nothing(renewing: RunningBroker) -> None:
    with WireClient(renewing.host, renewing.port) as client:
        log_in(client)
        expire(renewing)
        client.send(METADATA, 1, topics=None)
        assert client.is_closed()


def test_renewal_may_not_change_the_user(renewing: RunningBroker) -> None:
    with WireClient(renewing.host, renewing.port) as client:
        log_in(client)
        expire(renewing)
        answer = log_in(client, "bob", "other")
        assert answer.error_code == FAILED
        assert (
            "Cannot change principals during re-authentication from User:alice: User:bob"
            in answer.error_message
        )
        assert client.is_closed()


def test_failed_renewal_ends_the_connection(renewing: RunningBroker) -> None:
    with WireClient(renewing.host, renewing.port) as client:
        log_in(client)
        expire(renewing)
        assert log_in(client, password="wrong").error_code == FAILED
        assert client.is_closed()


def test_plain_over_tls(start_broker: Start, root_with_users: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    broker = start_broker(
        {
            "listeners": "SASL_SSL://127.0.0.1:0",
            "ssl.keystore.location": authority.certificate("server"),
            "sasl.enabled.mechanisms": "PLAIN",
            "connection.failed.authentication.delay.ms": "0",
        },
        root=root_with_users,
    )
    for user, password, code in (
        ("alice", "secret", NONE),
        ("alice", "wrong", FAILED),
        ("nobody", "secret", FAILED),
        ("", "secret", FAILED),
    ):
        with WireClient(broker.host, broker.port, tls=authority.client_context()) as client:
            answer = log_in(client, user, password, "PLAIN")
            assert answer.error_code == code
            assert "alice" not in (answer.error_message or "")
    assert broker.broker.metrics.connections_refused == {"authentication": 3}
