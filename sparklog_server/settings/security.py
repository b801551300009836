"""Settings of encryption and authentication: Kafka's names, for all listeners or for one of them.

Any setting of ListenerSecurity may also be given for one listener: listener.name.<name in lower case>.<key>.
Stores of certificates are PEM files, or PEM texts (KIP-651): Python reads no JKS.
Invariants: what Kafka's own settings would silently weaken here is refused: JKS stores, old TLS, passwords
    and tokens on connections that are not encrypted, login modules (class names) in settings.
Not here: the certificates themselves (network/tls.py), the mechanisms (security/).
Sources: Kafka SslConfigs, BrokerSecurityConfigs, SaslConfigs; KIP-103, KIP-368, KIP-651, KIP-768.
"""

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any, Self

from sparklog.errors import InvalidRequestError, SparklogError
from sparklog.log.setting import LONG_MAX, Setting, declared_settings, lookup_setting, setting
from sparklog_server.settings.network import SecurityProtocol
from sparklog_server.settings.updating import INT_MAX

# --- mapping of principals ---------------------------------------------------------------------------
#
# ssl.principal.mapping.rules: from a certificate's distinguished name to a user.
#
#     RULE:^CN=(.*?),OU=Services.*$/$1/L, DEFAULT
#
# Invariants: the first rule that matches the whole name wins; a name that none matches is refused.
#     DEFAULT is the name itself. Patterns are Python's: those of Java but for \p{...} and possessive forms.
# Sources: Kafka SslPrincipalMapper; KIP-371.


_RULE = re.compile(r"DEFAULT|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<text>(?:\\.|[^\\/])*)/(?P<case>[LU]?)")
_SEPARATOR = re.compile(r"\s*(?:,\s*|$)")
_BACK_REFERENCE = re.compile(r"\\(.)|\$([0-9]+)", re.DOTALL)
_RULES_KEY = "ssl.principal.mapping.rules"


class NoMatchingRuleError(Exception):
    """No rule maps the name."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str] | None = None  # None: DEFAULT
    text: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        result = self.pattern.sub(self._expand, name)
        return {"L": result.lower(), "U": result.upper()}.get(self.case, result)

    def _expand(self, match: re.Match[str]) -> str:
        r"""Java's replacement: `$2` is a group, `\` takes the next character as it is."""
        groups = match.re.groups

        def replaced(reference: re.Match[str]) -> str:
            if reference[2] is None:
                return reference[1]
            digits = reference[2]
            while len(digits) > 1 and int(digits) > groups:
                digits = digits[:-1]
            if int(digits) > groups:
                return reference[0]
            return (match[int(digits)] or "") + reference[2][len(digits) :]

        return _BACK_REFERENCE.sub(replaced, self.text)


class PrincipalRules:
    """The parsed rules."""

    def __init__(self, text: str) -> None:
        self._rules = _parse_rules(text)

    def user_of(self, name: str) -> str:
        """Return the user of a distinguished name, or raise NoMatchingRuleError."""
        for rule in self._rules:
            if (user := rule.apply(name)) is not None:
                return user
        raise NoMatchingRuleError(name)


@functools.cache
def _parse_rules(text: str) -> tuple[_Rule, ...]:
    rules = []
    rest = text.strip()
    while rest:
        match = _RULE.match(rest)
        end = None if match is None else _SEPARATOR.match(rest, match.end())
        if match is None or end is None:
            raise InvalidRequestError(
                "INVALID_CONFIG_VALUE",
                f"{_RULES_KEY}: found {rest[:100]!r}, expected RULE:pattern/replacement/[LU], or DEFAULT, "
                "separated by commas",
                fix=r"write RULE:^CN=(.*?),.*$/$1/L, DEFAULT; a slash within a rule is \/",
            )
        if match["pattern"] is None:
            rules.append(_Rule())
        else:
            rules.append(_Rule(_compiled(match["pattern"]), match["text"], match["case"]))
        rest = rest[end.end() :].lstrip(", ")
    return tuple(rules or [_Rule()])


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InvalidRequestError(
            "INVALID_CONFIG_VALUE",
            f"{_RULES_KEY}: found the pattern {pattern[:100]!r}: {error}",
            fix="write a regular expression that Python takes",
        ) from None


# --- listeners ---------------------------------------------------------------------------------------


PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
SCRAM_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = (*SCRAM_MECHANISMS, PLAIN, OAUTHBEARER)
TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")
PREFIX = "listener.name."
_REAUTH_KEY, _OAUTH_PREFIX = "connections.max.reauth.ms", "sasl.oauthbearer."
_CONVERSIONS = {
    "JKS": "keytool -importkeystore -srckeystore STORE.jks -destkeystore STORE.p12 -deststoretype PKCS12, "
    "then openssl pkcs12 -in STORE.p12 -out STORE.pem",
    "PKCS12": "openssl pkcs12 -in STORE.p12 -out STORE.pem",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSecurity:
    """The settings of one listener, or of all that have none of their own."""

    ssl_keystore_type: str = setting(
        "ssl.keystore.type",
        default="PEM",
        doc="""Format of the broker's certificate and key: PEM. JKS and PKCS12 are refused, with the command
        that converts them.""",
    )
    ssl_keystore_location: str = setting(
        "ssl.keystore.location",
        default="",
        doc="""A PEM file with the broker's private key and its certificate chain, its own certificate first.
        The broker reads it again when it changes, for new connections.""",
    )
    ssl_keystore_certificate_chain: str = setting(
        "ssl.keystore.certificate.chain",
        default="",
        doc="""The certificate chain as PEM text, instead of ssl.keystore.location.""",
    )
    ssl_keystore_key: str = setting(
        "ssl.keystore.key",
        default="",
        is_secret=True,
        doc="""The private key as PEM text (PKCS #8), instead of ssl.keystore.location.""",
    )
    ssl_key_password: str = setting(
        "ssl.key.password",
        default="",
        is_secret=True,
        doc="""The password of an encrypted private key.""",
    )
    ssl_truststore_type: str = setting(
        "ssl.truststore.type",
        default="PEM",
        doc="""Format of the certificates of authorities: PEM, as ssl.keystore.type.""",
    )
    ssl_truststore_location: str = setting(
        "ssl.truststore.location",
        default="",
        doc="""A PEM file with the authorities whose client certificates are accepted. Read again when it
        changes.""",
    )
    ssl_truststore_certificates: str = setting(
        "ssl.truststore.certificates",
        default="",
        doc="""The authorities as PEM text, instead of ssl.truststore.location.""",
    )
    ssl_client_auth: str = setting(
        "ssl.client.auth",
        default="none",
        choices=("none", "requested", "required"),
        doc="""Whether clients of an SSL listener need a certificate of an authority in the trust store.
        requested: those without one are User:ANONYMOUS. It holds for SASL_SSL listeners only with the prefix
        listener.name.<name>., as in Kafka.""",
    )
    ssl_principal_mapping_rules: str = setting(
        _RULES_KEY,
        default="DEFAULT",
        doc=r"""From the subject of a client's certificate (RFC 2253) to its user: RULE:pattern/replacement/,
        with L or U at the end for lower or upper case, several separated by commas; the first that matches
        wins. DEFAULT: the whole subject. Example: RULE:^CN=(.*?),.*$/$1/L, DEFAULT.""",
    )
    ssl_enabled_protocols: tuple[str, ...] = setting(
        "ssl.enabled.protocols",
        default=TLS_VERSIONS,
        choices=TLS_VERSIONS,
        doc="""Versions of TLS that clients may use. Older ones are not supported.""",
    )
    sasl_enabled_mechanisms: tuple[str, ...] = setting(
        "sasl.enabled.mechanisms",
        default=SCRAM_MECHANISMS,
        choices=MECHANISMS,
        doc="""How clients of SASL listeners may authenticate. PLAIN (with the users of SCRAM) and OAUTHBEARER
        only on SASL_SSL: elsewhere passwords and tokens could be read on the way.""",
    )
    connections_max_reauth_ms: int = setting(
        _REAUTH_KEY,
        default=0,
        minimum=0,
        maximum=LONG_MAX,
        doc="""A client has to authenticate again within this time (KIP-368), else its connection is closed;
        the removal of a user ends its connections no later. 0: never, but tokens (OAUTHBEARER) expire
        anyway.""",
    )
    sasl_server_max_receive_size: int = setting(
        "sasl.server.max.receive.size",
        default=524_288,
        minimum=1024,
        maximum=INT_MAX,
        unit="bytes",
        doc="""Largest request before a client is authenticated.""",
    )
    oauth_jwks_endpoint_url: str = setting(
        "sasl.oauthbearer.jwks.endpoint.url",
        default="",
        doc="""Where the keys are that sign tokens: an https:// or file:// URL, which
        org.apache.kafka.sasl.oauthbearer.allowed.urls must name.""",
    )
    oauth_expected_audience: str = setting(
        "sasl.oauthbearer.expected.audience",
        default="",
        doc="""The audiences of which a token must name one, separated by commas. Empty: any, as in Kafka:
        then a token that was made for another service is accepted.""",
    )
    oauth_expected_issuer: str = setting(
        "sasl.oauthbearer.expected.issuer",
        default="",
        doc="""The issuer that a token must name. Empty: any whose key is at the JWKS endpoint.""",
    )
    oauth_scope_claim_name: str = setting(
        "sasl.oauthbearer.scope.claim.name",
        default="scope",
        doc="""The claim with a token's scopes.""",
    )
    oauth_sub_claim_name: str = setting(
        "sasl.oauthbearer.sub.claim.name",
        default="sub",
        doc="""The claim with the user's name.""",
    )
    oauth_required_scope: str = setting(
        "sparklog.oauthbearer.required.scope",
        default="",
        doc="""Scopes that a token must have, separated by spaces. Kafka: requiredScope of the login
        module.""",
    )
    oauth_clock_skew_seconds: int = setting(
        "sasl.oauthbearer.clock.skew.seconds",
        default=30,
        minimum=0,
        maximum=INT_MAX,
        unit="seconds",
        doc="""How much the clock of the issuer may differ.""",
    )
    oauth_jwks_refresh_ms: int = setting(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        default=3_600_000,
        minimum=1000,
        maximum=LONG_MAX,
        doc="""How often the keys are read again; also when a token names an unknown key, at most every ten
        seconds.""",
    )

    def __post_init__(self) -> None:
        """Refuse what cannot be read here."""
        for key, text in (
            ("ssl.keystore.type", self.ssl_keystore_type),
            ("ssl.truststore.type", self.ssl_truststore_type),
        ):
            if text.upper() != "PEM":
                command = _CONVERSIONS.get(text.upper(), _CONVERSIONS["JKS"])
                raise InvalidRequestError(
                    "INVALID_CONFIG_VALUE",
                    f"{key}: found {text[:100]!r}, expected PEM",
                    fix=f"convert the store, and set {key}=PEM: {command}",
                )
        PrincipalRules(self.ssl_principal_mapping_rules)


def parse_override(key: str, text: str) -> tuple[str, str, Any]:
    """Return listener, field and value of a key that begins with PREFIX.

    Some may name a mechanism as well, as in Kafka: `listener.name.l.oauthbearer.sasl.oauthbearer...` is the
    listener's own; of `connections.max.reauth.ms` the field is preceded by the mechanism and a dot.

    Raises:
        InvalidRequestError: UNKNOWN_CONFIG, INVALID_CONFIG_VALUE, CONFIG_OUT_OF_BOUNDS.
    """
    name, _, bare = key.removeprefix(PREFIX).partition(".")
    declared = declared_settings(ListenerSecurity)
    mechanism, _, rest = bare.partition(".")
    if mechanism.upper() in MECHANISMS and rest == _REAUTH_KEY:
        field, one = declared[rest]
        return name.upper(), f"{mechanism.upper()}.{field}", dataclasses.replace(one, key=key).parse(text)
    if mechanism.upper() == OAUTHBEARER and rest.startswith(_OAUTH_PREFIX):
        bare = rest
    if bare not in declared and (why := _why_refused(bare)) is not None:
        raise InvalidRequestError("UNKNOWN_CONFIG", f"found {key}: {why}", fix=f"remove {key}")
    field, one = declared[bare] if bare in declared else ("", lookup_setting(bare, declared, "listener"))
    return name.upper(), field, dataclasses.replace(one, key=key).parse(text)


def _why_refused(bare: str) -> str | None:
    if bare.endswith(("sasl.jaas.config", ".callback.handler.class")):
        return (
            "class names are never taken from settings, and users are in the root: "
            "sparklog users create, or kafka-configs --entity-type users"
        )
    if bare in {"ssl.keystore.password", "ssl.truststore.password"}:
        return "a PEM store has no password, only its key: ssl.key.password"
    return None


# --- all listeners -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """What holds for the whole broker."""

    require_authentication: bool = setting(
        "sparklog.require.authentication",
        default=False,
        doc="""Refuse to start with a listener that other machines reach and that lets clients in without
        authentication. Without it such a listener is named in a warning.""",
    )
    authentication_timeout_ms: int = setting(
        "sparklog.authentication.timeout.ms",
        default=30_000,
        minimum=10,
        maximum=INT_MAX,
        doc="""A new connection must have ended its TLS handshake and its authentication within this time.
        Shorter: clients that stall hold connections for less time.""",
    )
    failed_authentication_delay_ms: int = setting(
        "connection.failed.authentication.delay.ms",
        default=100,
        minimum=0,
        maximum=10_000,
        doc="""How long a failed authentication is answered later, so that guessing takes longer.""",
    )
    oauth_allowed_urls: str = setting(
        "org.apache.kafka.sasl.oauthbearer.allowed.urls",
        default="",
        doc="""The URLs that sasl.oauthbearer.jwks.endpoint.url may have, separated by commas. Kafka has it as
        a property of the Java process.""",
    )

    def allowed_urls(self) -> frozenset[str]:
        """Return the URLs from which keys may be read."""
        return frozenset(url.strip() for url in self.oauth_allowed_urls.split(",") if url.strip())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SecuredListener:
    """A listener's protocol, with the settings that are in force on it.

    Fields:
        reauth_ms: connections.max.reauth.ms of mechanisms that have their own.
    """

    protocol: SecurityProtocol
    settings: ListenerSecurity
    reauth_ms: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(
        cls, name: str, protocol: SecurityProtocol, shared: ListenerSecurity, own: Mapping[str, Any]
    ) -> Self:
        """Apply a listener's own settings; `own`: by field."""
        if protocol is SecurityProtocol.SASL_SSL and "ssl_client_auth" not in own:
            own = {**own, "ssl_client_auth": "none"}
        of_mechanisms = {field.partition(".")[0]: value for field, value in own.items() if "." in field}
        own = {field: value for field, value in own.items() if "." not in field}
        found = cls(protocol=protocol, settings=dataclasses.replace(shared, **own), reauth_ms=of_mechanisms)
        found._validate(name)
        return found

    def max_reauth_ms(self, mechanism: str) -> int:
        """Return within how long a client of a mechanism has to authenticate again; 0: never."""
        return self.reauth_ms.get(mechanism, self.settings.connections_max_reauth_ms)

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The SASL mechanisms; none without SASL."""
        return self.settings.sasl_enabled_mechanisms if self.protocol.has_sasl else ()

    @property
    def authenticates(self) -> bool:
        """True if nobody gets in without authentication."""
        return self.protocol.has_sasl or (
            self.protocol.has_tls and self.settings.ssl_client_auth == "required"
        )

    def _validate(self, name: str) -> None:
        settings = self.settings
        if self.protocol.has_tls:
            if not settings.ssl_keystore_location and not (
                settings.ssl_keystore_certificate_chain and settings.ssl_keystore_key
            ):
                raise self._error(
                    name,
                    "ssl.keystore.location is missing",
                    "set it to a PEM file with the broker's key and certificate chain, or give both as text: "
                    "ssl.keystore.key and ssl.keystore.certificate.chain",
                )
            if settings.ssl_client_auth != "none" and not (
                settings.ssl_truststore_location or settings.ssl_truststore_certificates
            ):
                raise self._error(
                    name,
                    f"ssl.client.auth={settings.ssl_client_auth} without a trust store",
                    "set ssl.truststore.location to a PEM file with the authorities of clients",
                )
        self._validate_sasl(name)

    def _validate_sasl(self, name: str) -> None:
        settings = self.settings
        exposed = {PLAIN, OAUTHBEARER} & set(self.mechanisms)
        if exposed and not self.protocol.has_tls:
            raise self._error(
                name,
                f"found {' and '.join(sorted(exposed))}, which would send passwords or tokens unencrypted",
                f"use SASL_SSL, or another mechanism: {PREFIX}{name.lower()}.sasl.enabled.mechanisms",
            )
        if OAUTHBEARER in self.mechanisms and not settings.oauth_jwks_endpoint_url:
            raise self._error(
                name,
                "OAUTHBEARER without keys",
                "set sasl.oauthbearer.jwks.endpoint.url to the issuer's keys",
            )

    def _error(self, name: str, found: str, fix: str) -> SparklogError:
        return InvalidRequestError(
            "INVALID_CONFIG_VALUE", f"listener {name} ({self.protocol.value}): {found}", fix=fix
        )


def is_secret(key: str, declared: Mapping[str, tuple[str, Setting]]) -> bool:
    """True if the value of a setting must not be shown."""
    if key.startswith(PREFIX):
        key = key.removeprefix(PREFIX).partition(".")[2]
    return key in declared and declared[key][1].is_secret
