"""Settings of clients' security: what is understood, and what is refused."""

import pytest

from sparklog.client.security import PLAINTEXT, client_security
from sparklog.errors import InvalidRequestError

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
TLS = {"security.protocol": "SASL_SSL"}


@pytest.mark.parametrize(
    ("config", "user", "password"),
    [
        (f'{SCRAM} required username="alice" password="secret";', "alice", "secret"),
        (f"{SCRAM} required username='al ice' password='s\"x';", "al ice", 's"x'),
        (f'{SCRAM} required\n  username="a\\"b"\n password=plain;', 'a"b', "plain"),
        ('x.PlainLoginModule required password="a;b=c" username="u" ;', "u", "a;b=c"),
    ],
)
def test_jaas(config: str, user: str, password: str) -> None:
    found = client_security({**TLS, "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": config}, "x")
    assert (found.user, found.password) == (user, password)
    assert password not in repr(found)


def test_nothing_is_plaintext_and_other_settings_do_not_matter() -> None:
    assert client_security({"client.id": "x", "retries": "3"}, "x") == PLAINTEXT


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"security.protocol": "TLS"}, "security.protocol is none of"),
        ({"ssl.cipher.suites": "x"}, "ssl.cipher.suites, which has no effect here"),
        ({"sasl.username": "x"}, "sasl.username, which has no effect"),
        ({"ssl.truststore.location": "x.jks"}, "ssl.truststore.type is not PEM.*keytool"),
        ({"ssl.keystore.type": "PKCS12"}, "ssl.keystore.type is not PEM"),
        (TLS, "sasl.mechanism is none of"),
        ({**TLS, "sasl.mechanism": "GSSAPI"}, "sasl.mechanism is none of"),
        ({**TLS, "sasl.mechanism": "PLAIN"}, "no username and password"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}, "unencrypted"),
        ({**TLS, "sasl.mechanism": "PLAIN", "sasl.jaas.config": "top-secret"}, "names no login module"),
        (
            {
                **TLS,
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": 'x.Krb5LoginModule required a="top-secret";',
            },
            "names no login module",
        ),
        ({**TLS, "sasl.mechanism": "OAUTHBEARER"}, "token.endpoint.url is no https"),
        (
            {
                **TLS,
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": "http://idp/token",
            },
            "is no https",
        ),
    ],
)
def test_what_is_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"INVALID_CLIENT_CONFIG.*{message}") as refused:
        client_security(settings, "file")
    assert "top-secret" not in str(refused.value)
