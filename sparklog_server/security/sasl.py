"""Authentication with SASL: what the two requests do to a connection's session.

A handshake chooses the mechanism and makes its exchange; each SaslAuthenticate is one message of it. Success
gives the session its principal, and the time at which it expires. A failure is answered after a delay, and
ends the connection.

Invariants: what a failed client is told does not depend on whether the user exists. A re-authentication
    changes neither the mechanism nor the principal, and begins at most once a second. Checks that take CPU
    run in threads, a few for each address (CHECKS): guesses from one place do not keep others out.
Not here: Kafka's entities (api/authentication.py), the requests that are allowed (protocol/session.py).
Concurrency: event loop; `Exchange.answer` of those that `is_slow` in a thread.
Sources: Kafka SaslServerAuthenticator, PlainSaslServer, OAuthBearerSaslServer; KIP-152, KIP-368, KIP-936;
    RFC 4616, RFC 7628.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from sparklog.client.scram import (
    Mechanism,
    ScramError,
    ScramServer,
    is_password,
    password_credential,
    password_decoy,
)
from sparklog.clock import Clock
from sparklog.metadata import ScramUsers
from sparklog_server.metrics import Metrics
from sparklog_server.protocol.session import Phase, Session
from sparklog_server.runtime.budget import Budget, Held
from sparklog_server.security.tokens import AuthenticationError, TokenExchange, Tokens, invalid_credentials
from sparklog_server.settings.security import OAUTHBEARER, PLAIN, SecuredListener, SecuritySettings

_log = logging.getLogger("sparklog_server.security")
CHECKS: Final = 12  # waiting for a thread or in one; a third of what is free for one address
MIN_REAUTHENTICATION_MS: Final = 1000
_MAX_PLAIN_BYTES = 4096


class Exchange(Protocol):
    """The server's side of one mechanism.

    Fields:
        user: the authenticated one, once `is_done`.
        expires_at_ms: in Unix time, when the credentials expire; None: never.
        is_slow: `answer` takes CPU, or waits for an identity provider.
    """

    @property
    def user(self) -> str: ...

    @property
    def is_done(self) -> bool: ...

    @property
    def expires_at_ms(self) -> int | None: ...

    @property
    def is_slow(self) -> bool: ...

    def answer(self, message: bytes) -> bytes:
        """Return the next message. Raises AuthenticationError."""


class ScramExchange:
    """SCRAM; see client/scram.py."""

    is_slow = False
    expires_at_ms = None

    def __init__(self, mechanism: str, users: Callable[[], ScramUsers]) -> None:
        self._server = ScramServer(Mechanism(mechanism), users)
        self._mechanism = mechanism

    @property
    def user(self) -> str:
        return self._server.user

    @property
    def is_done(self) -> bool:
        return self._server.is_done

    def answer(self, message: bytes) -> bytes:
        """See Exchange."""
        try:
            return self._server.answer(message)
        except ScramError as error:
            _log.debug("%s of %r failed: %s", self._mechanism, self._server.user, error)
            raise AuthenticationError(invalid_credentials(self._mechanism)) from None


class PlainExchange:
    """PLAIN, with the users of SCRAM: a password can be checked against either of a user's credentials."""

    is_slow = True
    expires_at_ms = None

    def __init__(self, users: Callable[[], ScramUsers]) -> None:
        self._users = users
        self.user = ""
        self.is_done = False

    def answer(self, message: bytes) -> bytes:
        """See Exchange."""
        authorization, user, password = self._parts(message)
        if authorization not in {"", user}:
            raise AuthenticationError(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        users = self._users()
        # An unknown user takes the same time: a check like that of one of the users.
        decoy = password_decoy(users, user) if users.decoy_key else None
        known = password_credential(users.credentials.get(user, {}))
        checked = known or decoy
        if checked is None or not is_password(*checked, password) or known is None:
            raise AuthenticationError("Authentication failed: Invalid username or password")
        self.user, self.is_done = user, True
        return b""

    @staticmethod
    def _parts(message: bytes) -> list[str]:
        try:
            parts = message.decode().split("\0")
        except UnicodeDecodeError:
            parts = []
        if len(parts) != 3 or not parts[1] or not parts[2] or len(message) > _MAX_PLAIN_BYTES:
            raise AuthenticationError(invalid_credentials(PLAIN))
        return parts


# --- sessions ----------------------------------------------------------------------------------------


class Authenticated(NamedTuple):
    """An answer to SaslAuthenticate; `lifetime_ms` 0: the session does not expire."""

    message: bytes
    lifetime_ms: int = 0


class Authenticator:
    """See the module's docstring."""

    def __init__(
        self,
        settings: SecuritySettings,
        listeners: Mapping[str, SecuredListener],
        users: Callable[[], ScramUsers],
        run: Callable[..., Awaitable[Any]],
        run_token: Callable[..., Awaitable[Any]],
        *,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        """`run`, `run_token`: of CryptoThreads."""
        self._settings = settings
        self._listeners = listeners
        self._users = users
        self._run = run
        self._run_token = run_token
        self._clock = clock
        self._metrics = metrics
        self._checks = Budget(CHECKS)
        self._tokens = {
            name: Tokens(one.settings, settings.allowed_urls(), clock)
            for name, one in listeners.items()
            if OAUTHBEARER in one.mechanisms
        }

    def mechanisms(self, session: Session) -> tuple[str, ...]:
        """Return what a listener's clients may use."""
        return self._listeners[session.listener].mechanisms if session.listener in self._listeners else ()

    def may_begin(self, session: Session) -> bool:
        """True if a handshake is in its place: at first, or if the session expires and must be renewed."""
        if session.phase is Phase.HANDSHAKE:
            return True
        now_ms = self._clock.monotonic_ms()
        return session.expires_ms is not None and now_ms - session.began_ms >= MIN_REAUTHENTICATION_MS

    def begin(self, session: Session, mechanism: str) -> None:
        """Begin an exchange.

        Raises:
            AuthenticationError: a mechanism that is not enabled, or another one than before.
        """
        if mechanism not in self.mechanisms(session):
            session.phase = Phase.FAILED
            raise AuthenticationError(f"Unsupported SASL mechanism {mechanism[:100]}")
        session.is_again = session.phase is Phase.AUTHENTICATED
        if session.is_again and mechanism != session.mechanism:
            session.phase = Phase.FAILED
            raise AuthenticationError(
                f"SASL mechanism '{mechanism}' requested by client is not supported for re-authentication of "
                f"mechanism '{session.mechanism}'"
            )
        session.began_ms = self._clock.monotonic_ms()
        session.mechanism, session.phase = mechanism, Phase.EXCHANGE
        session.exchange = self._exchange(session.listener, mechanism)

    def _exchange(self, listener: str, mechanism: str) -> Exchange:
        if mechanism == PLAIN:
            return PlainExchange(self._users)
        if mechanism == OAUTHBEARER:
            return self._tokens[listener].exchange()
        return ScramExchange(mechanism, self._users)

    async def answer(self, session: Session, message: bytes, peer_host: str) -> Authenticated:
        """Take the client's next message.

        Raises:
            AuthenticationError: after the delay; the session has failed.
        """
        exchange: Exchange = session.exchange
        try:
            if exchange.is_slow:
                reply = await self._checked(exchange, message, peer_host)
            else:
                reply = exchange.answer(message)
            if not exchange.is_done:
                return Authenticated(reply)
            lifetime_ms = self._succeed(session, exchange)
        except AuthenticationError as error:
            session.phase, session.exchange = Phase.FAILED, None
            self._metrics.connection_refused("authentication")
            _log.warning(
                "%s: authentication with %s failed on listener %s: %s",
                peer_host,
                session.mechanism,
                session.listener,
                error,
            )
            await asyncio.sleep(self._settings.failed_authentication_delay_ms / 1000)
            raise
        return Authenticated(reply, lifetime_ms)

    async def _checked(self, exchange: Exchange, message: bytes, peer_host: str) -> bytes:
        run = self._run_token if isinstance(exchange, TokenExchange) else self._run
        held = Held(self._checks, peer_host)
        await held.take(1)
        try:
            return bytes(await run(exchange.answer, message))
        finally:
            held.release()

    def _succeed(self, session: Session, exchange: Exchange) -> int:
        """Return the session's lifetime in ms, 0 for no end."""
        principal = f"User:{exchange.user}"
        if session.is_again and principal != session.principal:
            raise AuthenticationError(
                f"Cannot change principals during re-authentication from {session.principal}: {principal}"
            )
        limit_ms = self._listeners[session.listener].max_reauth_ms(session.mechanism)
        limits = [limit_ms] if limit_ms else []
        if exchange.expires_at_ms is not None:
            limits.append(max(exchange.expires_at_ms - self._clock.now_ms(), 0))
        lifetime_ms = min(limits, default=0)
        session.principal, session.phase, session.exchange = principal, Phase.AUTHENTICATED, None
        session.expires_ms = self._clock.monotonic_ms() + lifetime_ms if limits else None
        return lifetime_ms
