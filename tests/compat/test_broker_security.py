"""Real clients over TLS and SASL: librdkafka, kafka-python, aiokafka."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import admin as librdkafka_admin
from cryptography import x509
from cryptography.x509.oid import NameOID
from kafka import KafkaProducer

import sparklog
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Authority
from tests.support.ports import lasting_port
from tests.support.sasl_client import USERS, add_users

librdkafka: Any = librdkafka_admin  # it exports nothing by name
MECHANISMS = ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"]


class Secured:
    """A broker with a SASL_SSL listener, and one for certificates."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "alice")])
        self.certificate = self.authority.signed("alice", name)
        with sparklog.open(str(folder / "log")) as log:
            log.create_topic("t")
            add_users(log, USERS)
        self.sasl, self.mtls = (f"127.0.0.1:{lasting_port()}" for _ in range(2))
        settings = {
            "listener.security.protocol.map": "SASL_SSL:SASL_SSL,MTLS:SSL",
            "ssl.keystore.location": self.authority.certificate("server"),
            "ssl.truststore.location": self.authority.file,
            "listener.name.mtls.ssl.client.auth": "required",
            "listener.name.sasl_ssl.sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "listener.name.sasl_ssl.connections.max.reauth.ms": "2500",
        }
        self.process = BrokerProcess(
            folder / "log", settings, "--listeners", f"SASL_SSL://{self.sasl},MTLS://{self.mtls}"
        )

    def librdkafka(self, mechanism: str, **changes: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.sasl,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": self.authority.file,
            "sasl.mechanism": mechanism,
            "sasl.username": "alice",
            "sasl.password": "secret",
            **{key.replace("_", "."): value for key, value in changes.items()},
        }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    one = Secured(tmp_path_factory.mktemp("secured"))
    yield one
    try:
        assert one.process.stop() == 0, one.process.errors()
    finally:
        one.process.close()


def produce(config: dict[str, Any], value: bytes) -> None:
    producer = Producer(config)
    outcomes: list[Any] = []
    producer.produce("t", value, on_delivery=lambda error, _: outcomes.append(error))
    assert producer.flush(60) == 0
    assert outcomes == [None]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka(secured: Secured, mechanism: str) -> None:
    produce(secured.librdkafka(mechanism), f"librdkafka {mechanism}".encode())
    reader = Consumer(
        {**secured.librdkafka(mechanism), "group.id": mechanism, "auto.offset.reset": "earliest"}
    )
    reader.subscribe(["t"])
    try:
        while True:
            (message,) = reader.consume(1, 60)
            if message.value() == f"librdkafka {mechanism}".encode():
                return
    finally:
        reader.close()


def test_librdkafka_with_a_certificate(secured: Secured) -> None:
    mtls = {
        "bootstrap.servers": secured.mtls,
        "security.protocol": "SSL",
        "ssl.ca.location": secured.authority.file,
        "ssl.certificate.location": secured.certificate,
        "ssl.key.location": secured.certificate,
    }
    produce(mtls, b"certificate")


def test_librdkafka_authenticates_again(secured: Secured) -> None:
    """Over more than two lifetimes of a session, without an error."""
    errors: list[Any] = []
    outcomes: list[Any] = []
    producer = Producer({**secured.librdkafka("SCRAM-SHA-512"), "error_cb": errors.append})
    pause = threading.Event()
    for _ in range(30):
        producer.produce("t", b"again", on_delivery=lambda error, _: outcomes.append(error))
        producer.poll(0)
        pause.wait(0.2)
    assert producer.flush(60) == 0
    assert (outcomes, errors) == ([None] * 30, [])


def test_librdkafka_is_told_that_the_password_is_wrong(secured: Secured) -> None:
    told: list[str] = []
    wrong = secured.librdkafka("SCRAM-SHA-256", sasl_password="wrong")
    words: dict[str, Any] = {**wrong, "error_cb": lambda error: told.append(str(error)), "log_level": 0}
    admin = librdkafka.AdminClient(words)
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=2)
    admin.poll(0)
    assert any("invalid credentials with SASL mechanism SCRAM-SHA-256" in one for one in told)


def test_librdkafka_manages_users(secured: Secured) -> None:
    admin = librdkafka.AdminClient(secured.librdkafka("PLAIN"))
    info = librdkafka.ScramCredentialInfo(librdkafka.ScramMechanism.SCRAM_SHA_512, 8192)
    (made,) = admin.alter_user_scram_credentials(
        [librdkafka.UserScramCredentialUpsertion("carol", info, b"new")]
    ).values()
    made.result(60)
    described = admin.describe_user_scram_credentials(["carol"])["carol"].result(60)
    assert [one.iterations for one in described.scram_credential_infos] == [8192]
    carol = secured.librdkafka("SCRAM-SHA-512", sasl_username="carol", sasl_password="new")
    produce(carol, b"carol")
    (gone,) = admin.alter_user_scram_credentials(
        [librdkafka.UserScramCredentialDeletion("carol", librdkafka.ScramMechanism.SCRAM_SHA_512)]
    ).values()
    gone.result(60)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python(secured: Secured, mechanism: str) -> None:
    producer = KafkaProducer(
        bootstrap_servers=secured.sasl,
        security_protocol="SASL_SSL",
        ssl_cafile=secured.authority.file,
        sasl_mechanism=mechanism,
        sasl_plain_username="alice",
        sasl_plain_password="secret",
    )
    try:
        assert producer.send("t", b"kafka-python").get(60).offset >= 0
    finally:
        producer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka(secured: Secured, mechanism: str) -> None:
    async def main() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=secured.sasl,
            security_protocol="SASL_SSL",
            ssl_context=secured.authority.client_context(),
            sasl_mechanism=mechanism,
            sasl_plain_username="alice",
            sasl_plain_password="secret",
        )
        await producer.start()
        try:
            assert (await producer.send_and_wait("t", b"aiokafka")).offset >= 0
        finally:
            await producer.stop()

    asyncio.run(main())
