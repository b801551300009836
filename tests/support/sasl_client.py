"""Authentication by hand: a client of Kafka's protocol that sends what a test wants."""

from typing import Any

import sparklog
from sparklog.client.scram import Mechanism, ScramClient, new_credential
from sparklog.metadata import plan_scram_feature, plan_set_scram_credential
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient

HANDSHAKE, AUTHENTICATE, API_VERSIONS, METADATA = 17, 36, 18, 3
NONE, ILLEGAL_STATE, UNSUPPORTED_MECHANISM, FAILED = 0, 34, 33, 58

USERS = {"alice": "secret", "bob": "other"}
SASL = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "connection.failed.authentication.delay.ms": "0"}


def add_users(log: sparklog.SparkLog, users: dict[str, str]) -> None:
    """With a credential for each mechanism."""
    for user, password in users.items():
        for mechanism in Mechanism:
            credential = new_credential(mechanism, password)

            def plan(image: Any, user: str = user, name: str = mechanism.value, one: Any = credential) -> Any:
                feature = plan_scram_feature(image)
                return [*([feature] if feature else []), plan_set_scram_credential(image, user, name, one)]

            log.metadata.publish(plan)


def expire(broker: RunningBroker, *, began_ms_ago: int = 5000) -> None:
    """Let the session of the only connection end now."""

    def change() -> None:
        (connection,) = broker.broker.network.connections.values()
        now_ms = broker.broker.clock.monotonic_ms()
        connection.session.expires_ms = now_ms
        connection.session.began_ms = now_ms - began_ms_ago

    broker.call_soon(change)


def handshake(client: WireClient, mechanism: str = "SCRAM-SHA-256") -> Any:
    return client.ask(HANDSHAKE, 1, mechanism=mechanism)


def message(client: WireClient, data: bytes, version: int = 2) -> Any:
    return client.ask(AUTHENTICATE, version, auth_bytes=data)


def log_in(
    client: WireClient, user: str = "alice", password: str = "secret", mechanism: str = "SCRAM-SHA-256"
) -> Any:
    """The last answer to SaslAuthenticate."""
    assert handshake(client, mechanism).error_code == NONE
    if mechanism == "PLAIN":
        return message(client, f"\0{user}\0{password}".encode())
    scram = ScramClient(Mechanism(mechanism), user, password)
    answer = message(client, scram.first())
    if answer.error_code != NONE:
        return answer
    last = message(client, scram.final(answer.auth_bytes))
    if last.error_code == NONE:
        scram.verify(last.auth_bytes)
    return last
