"""TLS on listeners: who gets in, what is encrypted, stalled handshakes, certificates that change."""

import asyncio
import contextlib
import logging
import os
import re
import shutil
import socket
import ssl
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from cryptography.x509.oid import NameOID, ObjectIdentifier

from sparklog.clock import ManualClock
from sparklog.errors import InvalidRequestError
from sparklog_server.network import tls
from sparklog_server.network.tls import Certificates, distinguished_name
from sparklog_server.protocol.wire import FileRegion, Response
from sparklog_server.settings.config import ServerConfig
from tests.server.network.conftest import request, response, serving, until
from tests.support.certificates import Authority
from tests.support.told import Told

Run = Callable[[Any], Any]
MIB, QUARTER = 1 << 20, 1 << 18


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def configs(authority: Authority) -> dict[str, str]:
    return {
        "listeners": "SSL://127.0.0.1:0",
        "ssl.keystore.location": authority.certificate("server"),
        "ssl.truststore.location": authority.file,
        "connection.failed.authentication.delay.ms": "0",
    }


async def principal(_request: Any, context: Any, _broker: Any) -> Response:
    return Response(chunks=[context.principal.encode()])


async def asked(served: Any, context: ssl.SSLContext) -> str:
    reader, writer = await served.connect(context)
    writer.write(request(1))
    return (await response(reader))[1].decode()


def test_large_requests_and_files_go_through(
    run: Run, authority: Authority, configs: Any, tmp_path: Path
) -> None:
    """The path of sendfile, and many buffers of all sizes."""
    data = os.urandom(3 * MIB)
    file = tmp_path / "file"
    file.write_bytes(data)

    async def main() -> None:
        with file.open("rb") as opened:

            async def handler(_request: Any, _context: Any, _broker: Any) -> Response:
                small = [data[place : place + 700] for place in range(0, 70_000, 700)]
                return Response(chunks=[*small, FileRegion(opened.fileno(), 1, len(data) - 1), data])

            async with serving(handler, configs) as served:
                reader, writer = await served.connect(authority.client_context())
                writer.write(request(1, struct.pack(">i", 0) + bytes(2 * MIB)))
                assert (await response(reader))[1] == data[:70_000] + data[1:] + data

    run(main)


def test_requests_that_share_a_record_are_all_answered(run: Run, authority: Authority, configs: Any) -> None:
    """Bytes that wait in OpenSSL do not make the socket readable."""

    async def main() -> None:
        async with serving(principal, configs) as served:
            reader, writer = await served.connect(authority.client_context())
            writer.write(b"".join(request(number) for number in range(400)))
            assert [(await response(reader))[0] for _ in range(400)] == list(range(400))

    run(main)


@pytest.mark.parametrize(
    ("rules", "user"),
    [("DEFAULT", "User:CN=alice,O=Example"), (r"RULE:^CN=(.*?),.*$/$1/U, DEFAULT", "User:ALICE")],
)
def test_principal_is_mapped_from_the_certificate(
    authority: Authority, configs: Any, tmp_path: Path, rules: str, user: str
) -> None:
    alice = authority.signed("alice", x509.Name([_name("O", "Example"), _name("CN", "alice")]))

    async def main() -> None:
        required = {**configs, "ssl.client.auth": "required", "ssl.principal.mapping.rules": rules}
        async with serving(principal, required) as served:
            assert await asked(served, authority.client_context(alice)) == user

    asyncio.run(main())


def test_certificate_is_optional_where_it_is_requested(authority: Authority, configs: Any) -> None:
    async def main() -> None:
        async with serving(principal, {**configs, "ssl.client.auth": "requested"}) as served:
            assert await asked(served, authority.client_context()) == "User:ANONYMOUS"

    asyncio.run(main())


def _stranger(authority: Authority, folder: Path) -> ssl.SSLContext:
    return authority.client_context(Authority(folder, "other").certificate("stranger"))


def _old(authority: Authority, _: Path) -> ssl.SSLContext:
    return authority.client_context(authority.certificate("old", expired=True))


@pytest.mark.parametrize(
    ("client", "reason"),
    [
        (lambda authority, _: authority.client_context(), "PEER_DID_NOT_RETURN_A_CERTIFICATE"),
        (_stranger, "CERTIFICATE_VERIFY_FAILED"),
        (_old, "CERTIFICATE_VERIFY_FAILED"),
    ],
    ids=["no certificate", "another authority", "expired"],
)
def test_clients_that_are_refused(
    authority: Authority, configs: Any, tmp_path: Path, told: Told, client: Any, reason: str
) -> None:
    async def main() -> None:
        async with serving(principal, {**configs, "ssl.client.auth": "required"}) as served:
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await asked(served, client(authority, tmp_path))
            await until(lambda: not served.network.connections)
            assert served.network.shared.metrics.connections_refused == {"authentication": 1}

    asyncio.run(main())
    assert [reason in line for line in told("sparklog_server.network")] == [True]


def test_certificate_that_no_rule_matches_is_refused(authority: Authority, configs: Any, told: Told) -> None:
    bob = authority.certificate("bob", common_name="bob")

    async def main() -> None:
        rules = {"ssl.client.auth": "required", "ssl.principal.mapping.rules": "RULE:^CN=alice$/alice/"}
        async with serving(principal, {**configs, **rules}) as served:
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await asked(served, authority.client_context(bob))

    asyncio.run(main())
    (line,) = told("sparklog_server.network")
    assert "no rule of ssl.principal.mapping.rules matches CN=bob" in line


def test_certificate_whose_subject_is_no_text_is_refused(
    authority: Authority, configs: Any, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenSSL trusts a text with Latin-1 bytes, for example."""
    alice = authority.certificate("alice", common_name="alice")
    read = tls.distinguished_name
    latin = b"\xff" * 5
    monkeypatch.setattr(tls, "distinguished_name", lambda found: read(found.replace(b"alice", latin)))

    async def main() -> None:
        async with serving(principal, {**configs, "ssl.client.auth": "required"}) as served:
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await asked(served, authority.client_context(alice))
            assert served.network.shared.metrics.connections_refused == {"authentication": 1}

    asyncio.run(main())
    (line,) = told("sparklog_server.network")
    assert "the subject of the client's certificate cannot be read" in line


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_old_versions_are_refused(authority: Authority, configs: Any) -> None:
    async def main() -> None:
        context = authority.client_context()
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.set_ciphers("ALL:@SECLEVEL=0")
        async with serving(principal, configs) as served:
            with pytest.raises(ssl.SSLError, match=r"(?i)version"):
                await asked(served, context)

    asyncio.run(main())


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_versions_can_be_restricted(authority: Authority, configs: Any, version: str) -> None:
    async def main() -> None:
        async with serving(principal, {**configs, "ssl.enabled.protocols": version}) as served:
            _, writer = await served.connect(authority.client_context())
            assert writer.get_extra_info("ssl_object").version() == version

    asyncio.run(main())


def test_client_that_checks_names_refuses_another_host(authority: Authority, configs: Any) -> None:
    configs["ssl.keystore.location"] = authority.certificate("elsewhere", "elsewhere.example")

    async def main() -> None:
        async with serving(principal, configs) as served:
            with pytest.raises(ssl.SSLCertVerificationError, match=r"not valid for '127\.0\.0\.1'"):
                await served.connect(authority.client_context())

    asyncio.run(main())


@pytest.mark.parametrize("sent", [request(1), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00", b""])
def test_stranger_bytes_end_the_connection(configs: Any, sent: bytes) -> None:
    async def main() -> None:
        async with serving(principal, configs) as served:
            reader, writer = await served.connect()
            writer.write(sent)
            writer.write_eof()
            answer = await reader.read()
            assert answer[:1] in {b"", b"\x15"}  # nothing, or an alert

    asyncio.run(main())


class _Writing:
    """Encrypts a client's records of TLS 1.3: Python's ssl sends no KeyUpdate (RFC 8446, 4.6.3)."""

    def __init__(self, secret: bytes) -> None:
        self._renew(secret)

    def _renew(self, secret: bytes) -> None:
        self._secret, self._number = secret, 0
        self._key, self._iv = self._expanded(b"key", 32), int.from_bytes(self._expanded(b"iv", 12))

    def _expanded(self, label: bytes, size: int) -> bytes:
        info = struct.pack(">H", size) + bytes([6 + len(label)]) + b"tls13 " + label + b"\0"
        return HKDFExpand(hashes.SHA384(), size, info).derive(self._secret)

    def record(self, content: bytes, kind: int = 23) -> bytes:
        head = b"\x17\3\3" + struct.pack(">H", len(content) + 17)
        nonce = (self._iv ^ self._number).to_bytes(12)
        self._number += 1
        return head + AESGCM(self._key).encrypt(nonce, content + bytes([kind]), head)

    def key_update(self) -> bytes:
        sent = self.record(b"\x18\0\0\1\0", 22)
        self._renew(self._expanded(b"traffic upd", 48))
        return sent


def test_messages_without_data_are_bounded(authority: Authority, configs: Any, tmp_path: Path) -> None:
    """5 MB of them, before authentication, kept the event loop from all others for six seconds."""
    context, keys = authority.client_context(), tmp_path / "keys"
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.keylog_filename = str(keys)

    async def main() -> None:
        async with serving(principal, configs) as served, asyncio.timeout(30):
            reader, writer = await served.connect()
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
            while True:
                with contextlib.suppress(ssl.SSLWantReadError):
                    client.do_handshake()
                    break
                writer.write(outgoing.read())
                incoming.write(await reader.read(65536))
            writer.write(outgoing.read())
            suite = client.cipher()
            assert suite is not None
            assert suite[0] == "TLS_AES_256_GCM_SHA384"
            (secret,) = re.findall(r"CLIENT_TRAFFIC_SECRET_0 \w+ (\w+)", keys.read_text())
            writing = _Writing(bytes.fromhex(secret))
            writer.write(b"".join(writing.key_update() for _ in range(10)) + writing.record(request(1)))
            incoming.write(await reader.read(65536))
            assert b"User:ANONYMOUS" in client.read(4096)
            writer.write(b"".join(writing.key_update() for _ in range(4000)))
            await until(lambda: not served.network.connections)

    asyncio.run(main())


@pytest.mark.slow
def test_stalled_handshake_is_ended(
    run: Run, configs: Any, told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock(0)

    async def main() -> None:
        timeout = {"sparklog.authentication.timeout.ms": "1000"}
        async with serving(principal, {**configs, **timeout}, clock=clock) as served:
            reader, writer = await served.connect()
            writer.write(b"\x16\x03")
            await until(lambda: served.network.looks > 0 and bool(served.network.connections))
            clock.advance_ms(1001)
            assert await reader.read() == b""

    caplog.set_level(logging.INFO, "sparklog_server.network")
    run(main)
    assert any("not authenticated after 1000 ms" in line for line in told("sparklog_server.network"))


def test_handshakes_of_one_address_are_bounded(
    authority: Authority, configs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits has no SSL object, and gets its turn."""
    monkeypatch.setattr(tls, "HANDSHAKES", 9)
    made = []
    wrap = ssl.SSLContext.wrap_bio

    def counted(context: ssl.SSLContext, *args: Any, **words: Any) -> Any:
        if words.get("server_side"):
            made.append(context)
        return wrap(context, *args, **words)

    monkeypatch.setattr(ssl.SSLContext, "wrap_bio", counted)

    async def main() -> None:
        async with serving(principal, configs) as served:
            stalled = [await served.connect() for _ in range(12)]
            for _, writer in stalled:
                writer.write(b"\x16")
            budget = served.network.shared.handshakes
            await until(lambda: len(served.network.connections) == 12 and budget.waiting > 0)
            assert len(made) <= 4  # a third of what is free, and one overdraft
            late = asyncio.create_task(asked(served, authority.client_context()))
            for _, writer in stalled:
                writer.close()
            assert await late == "User:ANONYMOUS"

    asyncio.run(main())


def test_silent_connections_keep_no_places(
    authority: Authority, configs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """150 of them kept all other clients of their address out for half a minute, without a byte."""
    monkeypatch.setattr(tls, "HANDSHAKES", 9)

    async def main() -> None:
        async with serving(principal, configs) as served:
            for _ in range(12):
                await served.connect()
            await until(lambda: len(served.network.connections) == 12)
            assert await asked(served, authority.client_context()) == "User:ANONYMOUS"
            assert len(served.network.connections) >= 12

    asyncio.run(main())


def test_client_that_vanishes_during_the_handshake(configs: Any) -> None:
    async def main() -> None:
        async with serving(principal, configs) as served:
            _, writer = await served.connect()
            writer.write(b"\x16\x03\x01")
            await until(lambda: bool(served.network.connections))
            writer.transport.abort()
            await until(lambda: not served.network.connections)

    asyncio.run(main())


def test_slow_reader_of_a_file_gets_all_of_it(authority: Authority, configs: Any, tmp_path: Path) -> None:
    data = os.urandom(QUARTER)
    file = tmp_path / "file"
    file.write_bytes(data)
    configs["socket.send.buffer.bytes"] = "8192"

    async def main() -> None:
        with file.open("rb") as opened:

            async def handler(_request: Any, _context: Any, _broker: Any) -> Response:
                return Response(chunks=[FileRegion(opened.fileno(), 0, len(data))])

            async with serving(handler, configs) as served:
                received = await asyncio.to_thread(_read_slowly, served.port, authority.client_context())
                assert received[8:] == data

    asyncio.run(main())


def _read_slowly(port: int, context: ssl.SSLContext) -> bytes:
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        with context.wrap_socket(raw, server_hostname="127.0.0.1") as sock:
            sock.sendall(request(1))
            received = bytearray()
            while len(received) < QUARTER + 8:
                received += sock.recv(5000)
            return bytes(received)


# --- certificates that change ------------------------------------------------------------------------


def _serial(context: ssl.SSLContext, port: int) -> Any:
    with (
        contextlib.closing(socket.create_connection(("127.0.0.1", port))) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as sock,
    ):
        found = sock.getpeercert()
        assert found is not None
        return found["serialNumber"]


def test_new_certificate_is_used_by_new_connections(
    authority: Authority, configs: Any, told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sparklog_server.network")
    keystore = Path(configs["ssl.keystore.location"])

    async def main() -> None:
        async with serving(principal, configs) as served:
            context, network = authority.client_context(), served.network
            first = await asyncio.to_thread(_serial, context, served.port)
            await network.reload_certificates()
            assert await asyncio.to_thread(_serial, context, served.port) == first
            await asyncio.to_thread(keystore.write_text, "broken")
            await network.reload_certificates()
            await network.reload_certificates()
            assert await asyncio.to_thread(_serial, context, served.port) == first
            shutil.copy(authority.certificate("next"), configs["ssl.keystore.location"])
            await network.reload_certificates()
            assert await asyncio.to_thread(_serial, context, served.port) != first

    asyncio.run(main())
    told_of = [line for line in told("sparklog_server.network") if "certificates" in line]
    assert ["stay in use" in line for line in told_of] == [True, False]  # once, however often it is read
    assert "new certificates are in use" in told_of[1]


def test_removed_authority_keeps_its_clients_out(authority: Authority, configs: Any, tmp_path: Path) -> None:
    alice = authority.client_context(authority.certificate("alice"))
    configs["ssl.truststore.location"] = str(tmp_path / "trusted.pem")
    shutil.copy(authority.file, configs["ssl.truststore.location"])

    async def main() -> None:
        async with serving(principal, {**configs, "ssl.client.auth": "required"}) as served:
            assert (await asked(served, alice)).startswith("User:")
            shutil.copy(Authority(tmp_path, "other").file, configs["ssl.truststore.location"])
            await served.network.reload_certificates()
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await asked(served, alice)

    asyncio.run(main())


def test_stores_as_texts(authority: Authority, configs: Any) -> None:
    """As Kafka's ssl.keystore.key and ssl.keystore.certificate.chain, with an encrypted key."""
    pem = Path(configs.pop("ssl.keystore.location")).read_bytes()
    key = serialization.load_pem_private_key(pem, None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    begin = pem.index(b"-----BEGIN CERTIFICATE")
    configs |= {
        "ssl.keystore.key": encrypted.decode(),
        "ssl.key.password": "secret",
        "ssl.keystore.certificate.chain": pem[begin:].decode(),
        "ssl.truststore.certificates": Path(configs.pop("ssl.truststore.location")).read_text(),
        "ssl.client.auth": "required",
    }

    async def main() -> None:
        async with serving(principal, configs) as served:
            alice = authority.client_context(authority.certificate("alice"))
            assert (await asked(served, alice)).startswith("User:")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("setting", "content", "message"),
    [
        ("ssl.keystore.location", None, "No such file"),
        ("ssl.keystore.location", "no PEM", "keystore.pem: .*Fix: give a readable PEM file"),
        ("ssl.truststore.location", "no PEM", "listener SSL: .*truststore.pem"),
    ],
)
def test_stores_that_cannot_be_read(
    configs: Any, tmp_path: Path, setting: str, content: str | None, message: str
) -> None:
    path = tmp_path / f"{setting.split('.')[1]}.pem"
    if content is not None:
        path.write_text(content)
    config = ServerConfig.parse({**configs, setting: str(path), "ssl.client.auth": "required"})
    with pytest.raises(InvalidRequestError, match=message):
        Certificates("SSL", config.secured_listeners()["SSL"])


def test_password_of_a_key_is_in_no_error(authority: Authority, configs: Any) -> None:
    key = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"right"),
    )
    configs.pop("ssl.keystore.location")
    config = ServerConfig.parse(
        {
            **configs,
            "ssl.keystore.key": key.decode(),
            "ssl.key.password": "wrong-one",
            "ssl.keystore.certificate.chain": Path(authority.file).read_text(),
        }
    )
    with pytest.raises(InvalidRequestError) as failed:
        Certificates("SSL", config.secured_listeners()["SSL"])
    assert "wrong-one" not in str(failed.value) + repr(config)
    assert "PRIVATE KEY" not in str(failed.value) + repr(config)


# --- names -------------------------------------------------------------------------------------------


def _name(kind: str, value: str) -> x509.NameAttribute[Any]:
    oids = {
        "CN": NameOID.COMMON_NAME,
        "O": NameOID.ORGANIZATION_NAME,
        "OU": NameOID.ORGANIZATIONAL_UNIT_NAME,
        "C": NameOID.COUNTRY_NAME,
        "L": NameOID.LOCALITY_NAME,
        "ST": NameOID.STATE_OR_PROVINCE_NAME,
        "STREET": NameOID.STREET_ADDRESS,
        "DC": NameOID.DOMAIN_COMPONENT,
        "UID": NameOID.USER_ID,
        "E": NameOID.EMAIL_ADDRESS,
        "SN": NameOID.SERIAL_NUMBER,
    }
    return x509.NameAttribute(oids.get(kind) or ObjectIdentifier(kind), value)


# What Java 21 writes: X500Principal.getName().
NAMES: list[tuple[list[list[tuple[str, str]]], str]] = [
    ([[("C", "DE")], [("O", "A, B + C")], [("CN", "alice")]], r"CN=alice,O=A\, B \+ C,C=DE"),
    ([[("CN", " lead and trail ")]], r"CN=\ lead and trail\ "),
    (
        [[("CN", '#x"y;z<w>=\\')], [("E", "ab")]],
        r"1.2.840.113549.1.9.1=#16026162,CN=\#x\"y\;z\<w\>\=\\",
    ),
    ([[("CN", "Jürgen Ä")], [("DC", "example")], [("DC", "com")]], "DC=com,DC=example,CN=Jürgen Ä"),
    (
        [[("CN", "multi"), ("OU", "ou")], [("SN", "123")], [("UID", "uid1")]],
        "UID=uid1,2.5.4.5=#1303313233,OU=ou+CN=multi",
    ),
    (
        [[("STREET", "s 1")], [("ST", "st")], [("L", "l")], [("1.2.3.4", "x y")]],
        "1.2.3.4=#0c03782079,L=l,ST=st,STREET=s 1",
    ),
    ([[("CN", "nul\0x")]], r"CN=nul\00x"),
]


@pytest.mark.parametrize(("parts", "expected"), NAMES, ids=[expected for _, expected in NAMES])
def test_distinguished_names_are_those_of_java(
    authority: Authority, parts: list[list[tuple[str, str]]], expected: str
) -> None:
    name = x509.Name([x509.RelativeDistinguishedName([_name(*one) for one in rdn]) for rdn in parts])
    pem = Path(authority.signed("named", name)).read_bytes()
    assert (
        distinguished_name(x509.load_pem_x509_certificate(pem).public_bytes(serialization.Encoding.DER))
        == expected
    )
