"""How this process connects to brokers: TLS and SASL, by the settings of Kafka's clients.

    security.protocol=SASL_SSL
    sasl.mechanism=SCRAM-SHA-256
    sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \
        username="alice" password="secret";
    ssl.truststore.type=PEM
    ssl.truststore.location=/etc/kafka/ca.pem

Invariants: no secret is in a repr or an error. A module of sasl.jaas.config is only recognised by its name,
    nothing is loaded. PLAIN and tokens are never sent without TLS. The broker's certificate and name are
    checked unless ssl.endpoint.identification.algorithm is empty, as in Kafka (then only the certificate).
Not here: connections and requests (brokers.py), the settings' files (client_config.py).
Concurrency: immutable; each connection has its own exchange.
Sources: Kafka SslConfigs, SaslConfigs, JaasConfig; KIP-651, KIP-768.
"""

import dataclasses
import json
import re
import socket
import ssl
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from sparklog.client.scram import Mechanism, ScramClient, ScramError
from sparklog.errors import InvalidRequestError

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER")
# The settings that have an effect; the others of these prefixes are refused.
SETTINGS: Final = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.jaas.config",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.client.credentials.client.id",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.scope",
        "ssl.truststore.type",
        "ssl.truststore.location",
        "ssl.truststore.certificates",
        "ssl.keystore.type",
        "ssl.keystore.location",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
    }
)
PREFIXES: Final = ("security.", "sasl.", "ssl.")
_JAAS = re.compile(r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\s+(.*?)\s*;?\s*", re.DOTALL)
_JAAS_OPTION = re.compile(r"""([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""")
_TOKEN_SECONDS = 10
_CONVERSION = (
    "keytool -importkeystore -destkeystore S.p12 -deststoretype PKCS12, openssl pkcs12 -in S.p12 -out S.pem"
)


def _secret() -> str:
    return dataclasses.field(default="", repr=False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClientSecurity:
    """See the module's docstring; the fields' names are Kafka's keys, shortened."""

    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    user: str = ""
    password: str = _secret()
    truststore_location: str = ""
    truststore_certificates: str = ""
    keystore_location: str = ""
    keystore_chain: str = ""
    keystore_key: str = _secret()
    key_password: str = _secret()
    checks_name: bool = True
    token_url: str = ""
    client_id: str = ""
    client_secret: str = _secret()
    scope: str = ""

    @property
    def has_tls(self) -> bool:
        return self.protocol in {"SSL", "SASL_SSL"}

    @property
    def has_sasl(self) -> bool:
        return self.protocol in {"SASL_PLAINTEXT", "SASL_SSL"}

    def secured(self, sock: socket.socket, host: str) -> socket.socket:
        """Return the socket to use: with TLS, after the handshake.

        Raises:
            OSError: ssl.SSLError where a certificate is not accepted.
        """
        if not self.has_tls:
            return sock
        return self._context().wrap_socket(sock, server_hostname=host)

    def authenticate(self, begin: Callable[[str], None], send: Callable[[bytes], bytes]) -> None:
        """Authenticate a new connection.

        Args:
            begin: SaslHandshake with this mechanism.
            send: SaslAuthenticate; the answer to a message.

        Raises:
            InvalidRequestError: NOT_AUTHENTICATED.
        """
        begin(self.mechanism)
        if self.mechanism == "PLAIN":
            send(f"\0{self.user}\0{self.password}".encode())
        elif self.mechanism == "OAUTHBEARER":
            if send(f"n,,\x01auth=Bearer {self._token()}\x01\x01".encode()):
                send(b"\x01")  # which fails, with the reason
        else:
            exchange = ScramClient(Mechanism(self.mechanism), self.user, self.password)
            try:
                exchange.verify(send(exchange.final(send(exchange.first()))))
            except ScramError as error:
                raise not_authenticated(f"{self.mechanism}: {error}") from None

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(
            cafile=self.truststore_location or None, cadata=self.truststore_certificates or None
        )
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.checks_name
        if self.keystore_location:
            context.load_cert_chain(self.keystore_location, password=self.key_password.encode())
        elif self.keystore_key:
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # mode 0600
                file.write(f"{self.keystore_key}\n{self.keystore_chain}\n")
                file.flush()
                context.load_cert_chain(file.name, password=self.key_password.encode())
        return context

    def _token(self) -> str:
        """Ask the identity provider for a token (client credentials)."""
        words = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        credentials = b64encode(f"{self.client_id}:{self.client_secret}".encode()).decode()
        request = urllib.request.Request(  # noqa: S310 - the scheme is checked when settings are read
            self.token_url,
            urllib.parse.urlencode(words).encode(),
            {"Authorization": f"Basic {credentials}", "Accept": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=_TOKEN_SECONDS) as response:  # noqa: S310 - as above
                return str(json.loads(response.read(1 << 20))["access_token"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = getattr(error, "reason", None) or type(error).__name__
            raise not_authenticated(f"no token from {self.token_url}: {reason}") from None


PLAINTEXT = ClientSecurity()


def not_authenticated(problem: str) -> InvalidRequestError:
    """Return the error of an authentication that failed."""
    return InvalidRequestError(
        "NOT_AUTHENTICATED",
        problem,
        fix="check security.protocol, sasl.mechanism, the user and the password of the client's settings",
    )


def client_security(settings: Mapping[str, str], where: str) -> ClientSecurity:
    """Return how to connect, by the settings of a Kafka client; those of other prefixes are ignored.

    Raises:
        InvalidRequestError: INVALID_CLIENT_CONFIG.
    """
    given = {key: text.strip() for key, text in settings.items() if key.startswith(PREFIXES)}
    for key in given:
        if key not in SETTINGS:
            raise _invalid(where, f"found {key}, which has no effect here", f"remove {key}")
    protocol = given.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise _invalid(where, "security.protocol is none of " + ", ".join(PROTOCOLS), "correct it")
    for key in ("ssl.truststore.type", "ssl.keystore.type"):
        kind = key.split(".")[1]
        if given.get(key, "PEM" if f"ssl.{kind}.location" not in given else "JKS").upper() != "PEM":
            raise _invalid(where, f"{key} is not PEM", f"convert the store, and set {key}=PEM: {_CONVERSION}")
    found = ClientSecurity(
        protocol=protocol,
        truststore_location=given.get("ssl.truststore.location", ""),
        truststore_certificates=given.get("ssl.truststore.certificates", ""),
        keystore_location=given.get("ssl.keystore.location", ""),
        keystore_chain=given.get("ssl.keystore.certificate.chain", ""),
        keystore_key=given.get("ssl.keystore.key", ""),
        key_password=given.get("ssl.key.password", ""),
        checks_name=given.get("ssl.endpoint.identification.algorithm", "https") != "",
    )
    return _with_sasl(found, given, where) if found.has_sasl else found


def _with_sasl(found: ClientSecurity, given: Mapping[str, str], where: str) -> ClientSecurity:
    mechanism = given.get("sasl.mechanism", "GSSAPI")
    if mechanism not in MECHANISMS:
        raise _invalid(
            where, "sasl.mechanism is none of " + ", ".join(MECHANISMS), "set sasl.mechanism=SCRAM-SHA-256"
        )
    if mechanism in {"PLAIN", "OAUTHBEARER"} and not found.has_tls:
        raise _invalid(
            where,
            f"{mechanism} without TLS would send the password or the token unencrypted",
            "set security.protocol=SASL_SSL",
        )
    options = _jaas_options(given.get("sasl.jaas.config", ""), where)
    if mechanism != "OAUTHBEARER":
        if not options.get("username") or not options.get("password"):
            raise _invalid(where, "sasl.jaas.config has no username and password", _JAAS_FIX)
        return dataclasses.replace(
            found, mechanism=mechanism, user=options["username"], password=options["password"]
        )
    url = given.get("sasl.oauthbearer.token.endpoint.url", "")
    if urllib.parse.urlsplit(url).scheme != "https":
        raise _invalid(where, "sasl.oauthbearer.token.endpoint.url is no https:// URL", "name the provider's")
    prefix = "sasl.oauthbearer.client.credentials.client."
    return dataclasses.replace(
        found,
        mechanism=mechanism,
        token_url=url,
        client_id=given.get(f"{prefix}id") or options.get("clientId", ""),
        client_secret=given.get(f"{prefix}secret") or options.get("clientSecret", ""),
        scope=given.get("sasl.oauthbearer.scope") or options.get("scope", ""),
    )


_JAAS_FIX = (
    "write sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
    'username="NAME" password="PASSWORD";'
)


def _jaas_options(text: str, where: str) -> dict[str, str]:
    if not text:
        return {}
    match = _JAAS.fullmatch(text)
    modules = ("PlainLoginModule", "ScramLoginModule", "OAuthBearerLoginModule")
    if match is None or match[1].rpartition(".")[2] not in modules:
        raise _invalid(where, "sasl.jaas.config names no login module of " + ", ".join(modules), _JAAS_FIX)
    options = {}
    for name, double, single, bare in _JAAS_OPTION.findall(match[2]):
        options[name] = re.sub(r"\\(.)", r"\1", double or single) or bare
    return options


def _invalid(where: str, found: str, fix: str) -> InvalidRequestError:
    return InvalidRequestError("INVALID_CLIENT_CONFIG", f"{where}: {found}", fix=fix)


def read_client_security(path: str) -> ClientSecurity:
    """Read the settings of a file, as of --command-config.

    Raises:
        InvalidRequestError: INVALID_CLIENT_CONFIG.
    """
    from sparklog.client.client_config import read_properties  # noqa: PLC0415 - few calls have a file

    return client_security(read_properties(Path(path)), path)
