"""SaslHandshake: what is served before and after it, mechanisms, when it may come again."""

import os
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.running_broker import RunningBroker
from tests.support.sasl_client import (
    API_VERSIONS,
    AUTHENTICATE,
    HANDSHAKE,
    ILLEGAL_STATE,
    METADATA,
    SASL,
    UNSUPPORTED_MECHANISM,
    expire,
    handshake,
    log_in,
    message,
)
from tests.support.wire_client import WireClient

Start = Callable[..., RunningBroker]


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


@pytest.mark.parametrize("key", [0, 1, 3, 19, 32, AUTHENTICATE, 50, 51])
def test_nothing_else_is_served_before(client: WireClient, key: int) -> None:
    client.send_frame(struct.pack(">hhih", key, 1, 1, -1) + bytes(64))
    assert client.receive_frame() is None


@pytest.mark.parametrize(("count", "is_served"), [(60, True), (100, False)])
def test_tagged_fields_are_few_before(client: WireClient, count: int, is_served: bool) -> None:
    """The event loop takes 2 us for each, from clients that nobody knows yet."""
    tags = bytes([count]) + b"".join(bytes([tag, 0]) for tag in range(count))
    client.send_frame(struct.pack(">hhih", API_VERSIONS, 3, 1, -1) + b"\0\2a\2a" + tags)
    assert (client.receive_frame() is not None) is is_served


@pytest.mark.parametrize("key", [API_VERSIONS, HANDSHAKE, METADATA])
def test_only_messages_of_the_mechanism_follow_the_handshake(client: WireClient, key: int) -> None:
    handshake(client)
    client.send_frame(struct.pack(">hhih", key, 0, 1, -1) + bytes(64))
    assert client.receive_frame() is None


def test_handshake_with_an_unknown_mechanism_lists_those_that_are_enabled(client: WireClient) -> None:
    answer = handshake(client, "GSSAPI")
    assert answer.error_code == UNSUPPORTED_MECHANISM
    assert answer.mechanisms == ("SCRAM-SHA-256", "SCRAM-SHA-512")
    assert client.is_closed()


def test_handshake_of_version_0_is_answered(client: WireClient) -> None:
    answer = client.ask(HANDSHAKE, 0, mechanism="SCRAM-SHA-256")
    assert (answer.error_code, answer.mechanisms) == (35, ("SCRAM-SHA-256", "SCRAM-SHA-512"))
    assert client.is_closed()


def test_sasl_on_a_plain_listener(start_broker: Start) -> None:
    broker = start_broker()
    with WireClient(broker.host, broker.port) as client:
        assert handshake(client).error_code == ILLEGAL_STATE
        assert message(client, b"x").error_code == ILLEGAL_STATE
        assert client.ask(METADATA, 1, topics=None).brokers


def test_renewal_may_not_change_the_mechanism(renewing: RunningBroker) -> None:
    with WireClient(renewing.host, renewing.port) as client:
        log_in(client)
        expire(renewing)
        assert handshake(client, "SCRAM-SHA-512").error_code == UNSUPPORTED_MECHANISM
        assert client.is_closed()


def test_renewals_have_a_least_interval(renewing: RunningBroker) -> None:
    with WireClient(renewing.host, renewing.port) as client:
        log_in(client)
        expire(renewing, began_ms_ago=500)
        assert handshake(client).error_code == ILLEGAL_STATE


def test_fuzzed_frames_before_the_authentication_get_nothing(broker: RunningBroker) -> None:
    """Random keys, versions and bodies: an answer is only about versions, or about SASL."""
    seed = int(os.environ.get("SPARKLOG_SEED") or time.monotonic_ns())
    print(f"SPARKLOG_SEED={seed}")
    dice = random.Random(seed)
    for _ in range(300):
        key = dice.choice(
            [0, 1, 3, HANDSHAKE, API_VERSIONS, 19, 32, AUTHENTICATE, 50, 51, dice.randrange(-5, 99)]
        )
        head = struct.pack(">hhih", key, dice.randrange(-1, 5), 7, dice.choice([-1, 0, 3, 900]))
        with WireClient(broker.host, broker.port) as client:
            client.send_frame(head + dice.randbytes(dice.randrange(60)))
            client.socket.shutdown(socket.SHUT_WR)
            frame = client.receive_frame()
            assert frame is None or key in {HANDSHAKE, API_VERSIONS}, key
    assert broker.broker.metrics.requests.keys() <= {"SaslHandshake", "ApiVersions"}
