"""The identity of a connection's client, and the requests that it may send before it has one.

    no SASL on the listener      authenticated from the start: by certificate, or User:ANONYMOUS
    SASL                         ApiVersions, SaslHandshake; then SaslAuthenticate until it is authenticated
    session expired (KIP-368)    only SaslHandshake, which begins the re-authentication

Invariants: the principal changes only when an exchange of a mechanism has succeeded, and never to another
    one on the same connection. After a failure nothing more is read.
Not here: the mechanisms (security/), the two APIs (api/authentication.py).
Concurrency: event loop only.
Sources: Kafka SaslServerAuthenticator, KafkaChannel; KIP-43, KIP-152, KIP-368.
"""

import enum
from typing import Any

ANONYMOUS = "User:ANONYMOUS"  # Kafka's principal of a connection without authentication
API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 17, 36


class Phase(enum.Enum):
    """How far the authentication is."""

    HANDSHAKE = "before the mechanism is chosen"
    EXCHANGE = "during the exchange of the mechanism"
    AUTHENTICATED = "authenticated"
    FAILED = "failed"


_ALLOWED = {
    Phase.HANDSHAKE: frozenset({API_VERSIONS, SASL_HANDSHAKE}),
    Phase.EXCHANGE: frozenset({SASL_AUTHENTICATE}),
    Phase.FAILED: frozenset[int](),
}


class Session:
    """See the module's docstring.

    Fields:
        listener: the listener's name.
        mechanism: chosen by the client; of a re-authentication, the same as before.
        exchange: the state of the mechanism, for security/; None outside of an exchange.
        expires_ms: by the monotonic clock; None: never.
    """

    __slots__ = (
        "began_ms",
        "exchange",
        "expires_ms",
        "is_again",
        "listener",
        "mechanism",
        "phase",
        "principal",
    )

    def __init__(self, listener: str, *, has_sasl: bool = False) -> None:
        self.listener = listener
        self.principal = ANONYMOUS
        self.phase = Phase.HANDSHAKE if has_sasl else Phase.AUTHENTICATED
        self.mechanism = ""
        self.exchange: Any = None
        self.expires_ms: int | None = None
        self.began_ms = 0  # the last exchange, by the monotonic clock
        self.is_again = False  # this exchange is a re-authentication

    @property
    def is_authenticated(self) -> bool:
        """True if requests other than those of the authentication may be served."""
        return self.phase is Phase.AUTHENTICATED

    def why_refused(self, api_key: int, now_ms: int) -> str | None:
        """Return why a request must not be served now, or None."""
        if self.phase is not Phase.AUTHENTICATED:
            if api_key in _ALLOWED[self.phase]:
                return None
            return f"API key {api_key} {self.phase.value}"
        if self.expires_ms is not None and now_ms >= self.expires_ms and api_key != SASL_HANDSHAKE:
            return f"API key {api_key} after the session of {self.principal} has expired"
        return None
