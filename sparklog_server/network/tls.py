"""TLS on a listener: certificates that are read again when they change, and the socket of a connection.

The socket stays a non-blocking one that the event loop watches, as without TLS. OpenSSL works on memory, and
this module moves the bytes: librdkafka sends records of 4 KB, each of which OpenSSL would read from the
socket in two calls. A handshake takes a private key's time (a millisecond with RSA), so it runs in a thread,
and not on the event loop.

Invariants: TLS 1.2 and 1.3 only; no renegotiation, no resumption, so that each connection shows its
    certificate to the authorities of today. No byte leaves a TlsSocket that is not encrypted. A new
    certificate that cannot be read changes nothing, and is reported.
Memory: an SSL object takes some 50 KB, and up to RAW_BYTES more where much was received. One whose handshake
    is not over is counted, with a share for each address, before it is made (HANDSHAKE_BYTES).
Not here: who a client is with SASL (security/), timeouts (server.py).
Concurrency: event loop; `do_handshake` and loading in a thread, one call at a time for each object.
Sources: Kafka SslTransportLayer, SslFactory, DefaultSslEngineFactory; KIP-651; Python's ssl; RFC 2253.
"""

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, cast

from cryptography import x509

from sparklog.errors import InvalidRequestError
from sparklog_server.protocol.session import ANONYMOUS
from sparklog_server.runtime.budget import Budget, Held
from sparklog_server.settings.security import (
    ListenerSecurity,
    NoMatchingRuleError,
    PrincipalRules,
    SecuredListener,
)

_log = logging.getLogger("sparklog_server.network")

# --- distinguished names -----------------------------------------------------------------------------
#
# The subject of a certificate as Java writes it (X500Principal.getName(), RFC 2253): the most specific name
# first, no spaces, types without a name of their own as numbers with the DER bytes in hexadecimal.


_NAMED_TYPES = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_ESCAPED = frozenset(',=+<>#;"\\')
_NUL = "\0"


def distinguished_name(certificate: bytes) -> str:
    """Return the subject of a certificate (DER) in Java's form of RFC 2253."""
    subject = x509.load_der_x509_certificate(certificate).subject
    return ",".join("+".join(map(_attribute, rdn)) for rdn in reversed(subject.rdns))


def _attribute(attribute: x509.NameAttribute[Any]) -> str:
    oid, value = attribute.oid.dotted_string, attribute.value
    name = _NAMED_TYPES.get(oid)
    if name is None or not isinstance(value, str):
        return f"{name or oid}=#{_der(attribute).hex()}"
    return f"{name}={_escaped(value)}"


def _escaped(value: str) -> str:
    inner = value.strip(" \r")
    begin = value.index(inner) if inner else len(value)
    found = []
    for place, char in enumerate(value):
        if char == _NUL:
            found.append("\\00")
        elif char in _ESCAPED or not begin <= place < begin + len(inner):
            found.append("\\" + char)
        else:
            found.append(char)
    return "".join(found)


def _der(attribute: x509.NameAttribute[Any]) -> bytes:
    """Return the value with its tag, as in the certificate: a name of one attribute ends with it."""
    encoded = x509.Name([attribute]).public_bytes()
    inner = _content(_content(_content(encoded)))
    return inner[2 + inner[1] :]  # after the type: its tag, its length of one byte, its bytes


def _content(element: bytes) -> bytes:
    size = element[1]
    return element[2 + (size & 0x7F if size >= 0x80 else 0) :]


# --- certificates ------------------------------------------------------------------------------------


_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_FileState = tuple[tuple[int, int, int], ...]


class Certificates:
    """The certificates of one listener: its SSLContext, made anew when a file has changed."""

    def __init__(self, listener: str, secured: SecuredListener) -> None:
        """Read the files.

        Raises:
            InvalidRequestError: INVALID_CONFIG_VALUE; a file that cannot be read, or is no PEM file.
        """
        self.listener = listener
        self._settings = secured.settings
        self._state = self._files_state()
        self.context = _load(listener, secured.settings)
        self._failed: _FileState | None = None

    def reload(self) -> None:
        """Read the files again if they have changed; in any thread, one at a time."""
        state = self._files_state()
        if state in (self._state, self._failed):
            return
        try:
            self.context = _load(self.listener, self._settings)
        except InvalidRequestError as error:
            self._failed = state  # reported once, until the files change again
            _log.error("%s: the certificates before stay in use: %s", self.listener, error)
            return
        self._state, self._failed = state, None
        _log.info("listener %s: new certificates are in use", self.listener)

    def _files_state(self) -> _FileState:
        names = (self._settings.ssl_keystore_location, self._settings.ssl_truststore_location)
        found = []
        for name in filter(None, names):
            with contextlib.suppress(OSError):
                stat = Path(name).stat()
                found.append((stat.st_ino, stat.st_mtime_ns, stat.st_size))
        return tuple(found)


def _load(listener: str, settings: ListenerSecurity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    versions = sorted(_VERSIONS[name] for name in settings.ssl_enabled_protocols)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.num_tickets = 0
    context.verify_mode = _CLIENT_AUTH[settings.ssl_client_auth]
    where = f"listener {listener}: {settings.ssl_keystore_location or 'ssl.keystore.certificate.chain'}"
    try:
        with _keystore_file(settings) as name:
            context.load_cert_chain(name, password=settings.ssl_key_password.encode())
        if settings.ssl_client_auth != "none":
            where = (
                f"listener {listener}: {settings.ssl_truststore_location or 'ssl.truststore.certificates'}"
            )
            context.load_verify_locations(
                cafile=settings.ssl_truststore_location or None,
                cadata=settings.ssl_truststore_certificates or None,
            )
    except (OSError, ValueError) as error:  # SSLError is an OSError
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InvalidRequestError(
            "INVALID_CONFIG_VALUE",
            f"{where}: {reason}",
            fix="give a readable PEM file: the private key (and ssl.key.password, if it is encrypted) and "
            "the certificate chain, the broker's own certificate first; authorities in the trust store",
        ) from None
    return context


@contextlib.contextmanager
def _keystore_file(settings: ListenerSecurity) -> Any:
    """Yield a file with key and certificates: Python takes no texts. The one of texts is only ours."""
    if settings.ssl_keystore_location:
        yield settings.ssl_keystore_location
        return
    descriptor, name = tempfile.mkstemp(prefix="sparklog-", suffix=".pem")  # mode 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{settings.ssl_keystore_key}\n{settings.ssl_keystore_certificate_chain}\n")
        yield name
    finally:
        Path(name).unlink()


# --- sockets -----------------------------------------------------------------------------------------


HANDSHAKE_BYTES: Final = 64 * 1024  # of one connection
HANDSHAKES: Final = 512
RAW_BYTES: Final = 64 * 1024  # received in one call
_IN_A_CALL = 128 * 1024  # decrypted or encrypted without a turn of the loop
_RECORD_BYTES = 16 * 1024
# Received in a row without a decrypted byte. A record needs less. Messages that only change keys take 30 us
# each, and a client can send thousands in 100 KB, before it has said who it is.
_MAX_FRUITLESS_BYTES = 2 * _RECORD_BYTES
RunBlocking = Callable[..., Awaitable[Any]]


class HandshakeError(Exception):
    """The client did not end a TLS handshake that this listener accepts."""


def handshake_budget() -> Budget:
    """Return the memory for handshakes of a broker."""
    return Budget(HANDSHAKES * HANDSHAKE_BYTES)


class TlsSocket:
    """A connection's socket: unused until the handshake, encrypted from then on.

    Its methods are those of a non-blocking socket; BlockingIOError where the other side is waited for.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl: ssl.SSLObject | None = None
        self._unsent = memoryview(b"")  # encrypted
        self._fruitless_bytes = 0  # received since the last decrypted byte

    async def handshake(
        self, certificates: Certificates, rules: PrincipalRules, budget: Budget, owner: str, run: RunBlocking
    ) -> str:
        """Return the principal of the client's certificate; User:ANONYMOUS without one.

        Raises:
            HandshakeError: it failed.
        """
        await _ready(self._socket, is_reader=True)  # one that says nothing keeps no place from others
        held = Held(budget, owner)
        await held.take(HANDSHAKE_BYTES)
        try:
            self._ssl = certificates.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
            await self._shake_hands(self._ssl, run)
            certificate = self._ssl.getpeercert(binary_form=True)
        except OSError as error:
            reason = getattr(error, "reason", None) or error.strerror or "the client left"
            raise HandshakeError(f"TLS handshake failed: {reason}") from None
        finally:
            held.release()
        if certificate is None:
            return ANONYMOUS
        try:
            name = distinguished_name(certificate)
        except ValueError:  # OpenSSL trusts it, and looks at no text in it
            raise HandshakeError("the subject of the client's certificate cannot be read") from None
        try:
            return f"User:{rules.user_of(name)}"
        except NoMatchingRuleError:
            raise HandshakeError(f"no rule of ssl.principal.mapping.rules matches {name[:500]}") from None

    async def _shake_hands(self, ssl_object: ssl.SSLObject, run: RunBlocking) -> None:
        while True:
            try:
                await finished(asyncio.ensure_future(run(ssl_object.do_handshake)))
            except ssl.SSLWantReadError:
                is_done = False
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    self.flush()  # the alert
                raise
            else:
                is_done = True
            while True:
                try:
                    self.flush()
                    break
                except BlockingIOError:
                    await _ready(self._socket, is_reader=False)
            if is_done:
                return
            while not self._receive(_RECORD_BYTES):
                await _ready(self._socket, is_reader=True)

    def _receive(self, size: int) -> int:
        """Take received bytes to decrypt, or the end of the stream; 0 if there is nothing."""
        try:
            data = self._socket.recv(size)
        except (BlockingIOError, InterruptedError):
            return 0
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        return len(data) or 1

    def recv_into(self, buffer: memoryview) -> int:
        """Return the number of bytes; 0: end of stream.

        No more is taken from the socket than fits into the buffer, but for one TLS record.

        Raises:
            ConnectionAbortedError: the client sends much, and no data in it.
        """
        assert self._ssl is not None
        size = min(max(len(buffer), _RECORD_BYTES // 4), RAW_BYTES)
        count = taken = 0
        while count < min(len(buffer), _IN_A_CALL):
            try:
                more: Any = self._ssl.read(len(buffer) - count, cast("Any", buffer[count:]))
            except ssl.SSLWantReadError:
                if self._fruitless_bytes > _MAX_FRUITLESS_BYTES:
                    raise ConnectionAbortedError("TLS messages without data") from None
                received = self._receive(size) if taken < _IN_A_CALL else 0
                if received:
                    taken += received
                    self._fruitless_bytes += received
                    continue
                if count:
                    return count
                raise BlockingIOError from None
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                return count
            if not more:
                return count
            count += more
            self._fruitless_bytes = 0
        return count

    def sendmsg(self, buffers: Sequence[memoryview]) -> int:
        """Return the number of bytes taken, of all buffers; `flush` sends what is left of them.

        Small ones share a TLS record.
        """
        assert self._ssl is not None
        self.flush()
        buffers = list(buffers)
        total = 0
        while buffers and total < _IN_A_CALL:
            count = self._ssl.write(_record(buffers))
            total += count
            while buffers and count >= len(buffers[0]):
                count -= len(buffers.pop(0))
            if count:
                buffers[0] = buffers[0][count:]
        with contextlib.suppress(BlockingIOError):
            self.flush()
        return total

    def flush(self) -> None:
        """Send what is encrypted; BlockingIOError: the client has to read first."""
        while True:
            if not self._unsent:
                if not self._outgoing.pending:
                    return
                self._unsent = memoryview(self._outgoing.read())
            try:
                count = self._socket.send(self._unsent)
            except InterruptedError:
                continue
            self._unsent = self._unsent[count:]

    def recv(self, size: int, flags: int) -> bytes:
        """Receive encrypted bytes; only to look at them (MSG_PEEK)."""
        assert flags & socket.MSG_PEEK
        return self._socket.recv(size, flags)

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        """As of a socket."""
        return self._socket.getsockopt(level, option, size)

    def fileno(self) -> int:
        """As of a socket."""
        return self._socket.fileno()

    def shutdown(self, how: int) -> None:
        """As of a socket."""
        self._socket.shutdown(how)

    def close(self) -> None:
        """Tell the client that this is the end, if it takes it immediately, and close."""
        if self._ssl is not None:
            with contextlib.suppress(OSError, ValueError):
                self._ssl.unwrap()
            with contextlib.suppress(OSError):
                self.flush()
        self._socket.close()


def _record(buffers: Sequence[memoryview]) -> memoryview | bytes:
    """Return the next bytes to encrypt together."""
    if len(buffers[0]) >= _RECORD_BYTES or len(buffers) == 1:
        return buffers[0][:_RECORD_BYTES]
    parts: list[memoryview] = []
    left = _RECORD_BYTES
    for buffer in buffers:
        parts.append(buffer[:left])
        left -= len(parts[-1])
        if not left:
            break
    return b"".join(parts)


async def finished(running: "asyncio.Future[Any]") -> Any:
    """Wait for a call in a thread; when cancelled, too: what it works on must not be closed before."""
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()
        raise
    finally:
        del running  # it may hold the exception that holds this frame


async def _ready(sock: socket.socket, *, is_reader: bool) -> None:
    loop = asyncio.get_running_loop()
    seen = asyncio.Event()
    add, remove = (
        (loop.add_reader, loop.remove_reader) if is_reader else (loop.add_writer, loop.remove_writer)
    )
    descriptor = sock.fileno()
    add(descriptor, seen.set)
    try:
        await seen.wait()
    finally:
        remove(descriptor)
